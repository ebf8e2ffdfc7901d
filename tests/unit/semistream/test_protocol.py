"""What the semi-stream joins promise beyond the laws: delays, memory, versions, no reads when all is cached."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from watersmeet.engine.registry import build
from watersmeet.errors import OptionError, OverloadError, StateMismatchError
from watersmeet.join.operator import advance
from watersmeet.semistream.options import SemiStreamOptions
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, Script, batch_of
from watersmeet.testing.harness import rows_of
from watersmeet.testing.masters import semi_stream_join, semi_stream_plan, write_master

POLICIES = ("aligned", "ssbj", "mesh")


def master_rows(keys: int, tag: str = "") -> list[tuple[int, int, str]]:
    return [(key, 10 * key + i, tag) for key in range(keys) if key % 5 for i in range(1 + key % 3)]


def run(plan: Any, script: Script) -> tuple[list[Counter[Any]], list[dict[str, float]], list[dict[str, Any]]]:
    """Rows, counters and events of every batch; after each batch a new operator takes up the state."""
    space = MemorySpace()
    operator = build(plan, space)
    rows, counters, events = [], [], []
    for number, arrival in enumerate(script):
        rows.append(rows_of(advance(operator, batch_of(plan, number, arrival))))
        counters.append(dict(operator.metrics.counters))
        events += operator.metrics.events
        fresh = build(plan, space)
        fresh.ended, fresh.finished = dict(operator.ended), operator.finished
        fresh.restore(operator.save())
        operator = fresh
    return rows, counters, events


def steady(batches: int, keys: int, copies: int = 3) -> list[Arrival]:
    return [
        Arrival({"stream": [(key, 1000 * number + i, "s") for key in range(keys) for i in range(copies)]})
        for number in range(batches)
    ]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("max_delay", [1, 2, 5])
def test_no_row_waits_longer_than_max_delay(tmp_path: Path, policy: str, max_delay: int) -> None:
    path, layout = str(tmp_path), "hash" if policy == "aligned" else "arrival"
    write_master(path, master_rows(40), chunk_rows=2, layout=layout)
    rng = random.Random(1)
    script = [
        Arrival({"stream": [(rng.randrange(60), 100 * n + i, "") for i in range(rng.randrange(30))]}) for n in range(20)
    ]
    tuning = {"max_delay": max_delay, "idle_chunks": 0}
    rows, counters, _ = run(semi_stream_plan(path, {"policy": policy}, tuning, how="left"), script)
    assert max(counter.get("delay_max", 0) for counter in counters) == max_delay - 1
    for number in range(len(script)):
        owed = semi_stream_join(script[: max(number - max_delay + 2, 0)], master_rows(40), "left")
        assert owed <= sum(rows[: number + 1], Counter())


@pytest.mark.parametrize("policy", ["aligned", "ssbj"])
def test_with_all_of_the_table_cached_nothing_is_read(tmp_path: Path, policy: str) -> None:
    """Theorem 3: a fast stream over all keys makes a main-memory join of it."""
    path, layout = str(tmp_path), "hash" if policy == "aligned" else "arrival"
    write_master(path, master_rows(12), chunk_rows=3, layout=layout)
    script = steady(16, keys=12, copies=30)
    rows, counters, _ = run(semi_stream_plan(path, {"policy": policy}, {"max_delay": 3}), script)
    last = counters[-6:]
    assert [counter.get("chunks_read", 0) for counter in last] == [0] * 6
    assert [counter["hit_share"] for counter in last] == [1.0] * 6
    assert last[-1]["cached_keys"] == 12  # the keys without master rows are cached as absences
    assert last[-1]["held_rows.master"] == len(master_rows(12))
    assert last[-1]["waiting_rows.stream"] == 0
    assert sum(rows, Counter()) == semi_stream_join(script, master_rows(12))


def test_a_collector_whose_rows_outweigh_what_waits_is_given_up(tmp_path: Path) -> None:
    """A hot key with very many master rows: caching it would cost more than to let its rows wait."""
    master = [(1, i, "m" * 50) for i in range(400)] + [(2, 0, "m")]
    write_master(str(tmp_path), master, chunk_rows=20, layout="arrival")
    script = [Arrival({"stream": [(key, 100 * n + i, "") for key in (1, 2) for i in range(20)]}) for n in range(30)]
    held = {}
    for policy in ("mesh", "ssbj"):
        plan = semi_stream_plan(str(tmp_path), {"policy": policy}, {"max_delay": 10})
        rows, counters, _ = run(plan, [*script, *(Arrival() for _ in range(12))])
        assert sum(rows, Counter()) == semi_stream_join(script, master)
        held[policy] = max(counter["memory_bytes"] for counter in counters)
    assert sum(counter.get("keys_given_up", 0) for counter in counters) > 0
    assert max(counter["cached_keys"] for counter in counters) == 1  # the other one
    assert held["ssbj"] < 2 * held["mesh"]


def test_a_chunk_that_nobody_waits_for_is_not_read(tmp_path: Path) -> None:
    write_master(str(tmp_path), master_rows(100), chunk_rows=1)
    script = [Arrival({"stream": [(1, 1, "")]}), *(Arrival() for _ in range(9))]
    _, counters, _ = run(semi_stream_plan(str(tmp_path)), script)
    assert sum(counter.get("chunks_read", 0) for counter in counters) == 1


def test_the_chunk_most_waited_for_is_read_first(tmp_path: Path) -> None:
    write_master(str(tmp_path), master_rows(100), chunk_rows=1)
    rows = [(7, i, "") for i in range(9)] + [(key, key, "") for key in (11, 12, 13)]
    tuning = {"max_delay": 4, "switching_factor": 1e9, "idle_chunks": 0}
    found, _, _ = run(semi_stream_plan(str(tmp_path), {}, tuning), [Arrival({"stream": rows})])
    assert {row[0] for row in found[0]} == {7}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_row_is_joined_with_one_version(tmp_path: Path, policy: str) -> None:
    """Versions differ in their rows; the metrics say which one a batch's rows belong to."""
    path, layout = str(tmp_path), "hash" if policy == "aligned" else "arrival"
    tables = {version: master_rows(30 + version, tag=f"v{version}") for version in (1, 2, 3)}
    for version, table in tables.items():
        write_master(path, table, chunk_rows=1 + version, layout=layout)
    script = steady(30, keys=12, copies=8)
    rng = random.Random(2)
    for number, arrival in enumerate(script):
        arrival.rows["stream"].extend((rng.randrange(40), 10**6 + 100 * number + i, "") for i in range(10))  # type: ignore[attr-defined]
    script[7] = Arrival(script[7].rows, signals=(2,))
    script[9] = Arrival(script[9].rows, signals=(3,))  # before the second has taken over
    script[-1] = Arrival(script[-1].rows, ended=frozenset({"stream"}))
    plan = semi_stream_plan(path, {"policy": policy}, {"max_delay": 6, "idle_chunks": 0}, how="left")
    rows, counters, events = run(plan, script)
    belongs = [int(counter.get("version", 3)) for counter in counters]
    assert belongs == sorted(belongs)
    assert {belongs[6], belongs[-2]} == {1, 3}
    expected: Counter[Any] = Counter()
    for arrival, version in zip(script, belongs, strict=True):
        expected += semi_stream_join([arrival], tables[version], "left")
    assert sum(rows, Counter()) == expected
    swaps = [event for event in events if event["kind"] == "swap"]
    assert [event["version"] for event in swaps] == [2, 3]
    if policy != "mesh":  # a warmed cache answers from the first batch on
        first = belongs.index(belongs[-2])
        assert counters[first]["hit_share"] > 0.5 * counters[first - 1]["hit_share"] > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_stays_within_the_budget_under_overload(tmp_path: Path, policy: str) -> None:
    path, layout = str(tmp_path), "hash" if policy == "aligned" else "arrival"
    write_master(path, master_rows(200), chunk_rows=10, layout=layout)
    script = steady(12, keys=200, copies=2)
    plan = semi_stream_plan(path, {"policy": policy}, {"memory": 6000, "max_delay": 8})
    rows, counters, events = run(plan, script)
    for counter in counters:
        assert counter["memory_bytes"] <= 6000
    overloads = [event for event in events if event["kind"] == "overload"]
    assert overloads
    assert all(0 < event["rows_that_fit"] < event["rows"] for event in overloads)
    assert sum(counter.get("overloads", 0) for counter in counters) == len(overloads)
    assert sum(rows, Counter()) <= semi_stream_join(script, master_rows(200))

    strict = semi_stream_plan(path, {"policy": policy}, {"memory": 6000, "max_delay": 8, "on_overload": "raise"})
    with pytest.raises(OverloadError, match="rows per batch and partition would fit"):
        run(strict, script)


def test_a_smaller_memory_after_a_restart_evicts(tmp_path: Path) -> None:
    write_master(str(tmp_path), master_rows(12), chunk_rows=3)
    space, script = MemorySpace(), steady(8, keys=12, copies=30)
    plan = semi_stream_plan(str(tmp_path), {}, {"max_delay": 2})
    operator = build(plan, space)
    for number, arrival in enumerate(script):
        list(advance(operator, batch_of(plan, number, arrival)))
    assert operator.metrics.counters["cache_bytes"] > 600
    small = semi_stream_plan(str(tmp_path), {}, {"max_delay": 2, "memory": 600})
    again = build(small, space)
    again.restore(operator.save())
    list(advance(again, batch_of(small, len(script), Arrival())))
    assert again.metrics.counters["cache_bytes"] <= 600
    assert again.metrics.counters["keys_evicted"] > 0


def test_keys_that_go_cold_leave_the_cache(tmp_path: Path) -> None:
    write_master(str(tmp_path), master_rows(12), chunk_rows=3)
    script = steady(6, keys=12, copies=30) + steady(30, keys=2, copies=30)
    _, counters, events = run(semi_stream_plan(str(tmp_path), {}, {"max_delay": 2}), script)
    assert counters[5]["cached_keys"] == 12
    assert counters[-1]["cached_keys"] == 2
    assert any(event["kind"] == "evict" for event in events)


def test_the_stream_goes_silent_and_what_waits_is_finished(tmp_path: Path) -> None:
    for policy in POLICIES:
        path, layout = f"{tmp_path}/{policy}", "hash" if policy == "aligned" else "arrival"
        write_master(path, master_rows(40), chunk_rows=2, layout=layout)
        script = [*steady(1, keys=40, copies=1), *(Arrival() for _ in range(4))]
        plan = semi_stream_plan(path, {"policy": policy}, {"max_delay": 100, "idle_chunks": 20})
        rows, counters, _ = run(plan, script)
        assert sum(rows, Counter()) == semi_stream_join(script, master_rows(40))
        assert counters[-1]["waiting_rows.stream"] == 0


def test_another_table_at_the_path_is_refused(tmp_path: Path) -> None:
    write_master(str(tmp_path), master_rows(4))
    plan = semi_stream_plan(str(tmp_path), {"master": "another"})
    with pytest.raises(StateMismatchError, match="the master table another"):
        list(advance(build(plan, MemorySpace()), batch_of(plan, 0, steady(1, 2)[0])))


@pytest.mark.parametrize(
    ("name", "value"),
    [("policy", "lru"), ("max_delay", 0), ("memory", "much"), ("switching_factor", 0), ("rate", 1)],
)
def test_options_are_checked(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=name):
        SemiStreamOptions.checked("semi_stream_join", {"master": "m", "path": "p"}, **{name: value})
