"""What a multi-way join keeps under a window, how many runs it keeps, and when it merges: counted from plain rows."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.engine.registry import build
from watersmeet.join.operator import Operator, advance
from watersmeet.multiway.mjoin import MJoin
from watersmeet.state.run import Run
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of, make_plan

ABC = ("a", "b", "c")
WINDOW, LATENESS = 40, 5


def windowed(**tuning: Any) -> Operator:
    options = {"window": WINDOW, "lateness": LATENESS, "time": dict.fromkeys(ABC, "_p0")}
    return build(make_plan("mjoin", ABC, options, payload=(pa.int64(),), tuning=tuning), MemorySpace())


def times(run: Run) -> list[int]:
    return sorted(run.table.column("_p0").to_pylist())


def advanced(operator: Operator, number: int, arrival: Arrival) -> dict[str, float]:
    list(advance(operator, batch_of(operator.plan, number, arrival)))
    return operator.metrics.counters


@pytest.mark.parametrize("seed", range(4))
def test_every_row_is_held_or_counted_as_expired(seed: int) -> None:
    rng = np.random.default_rng(seed)
    operator = windowed()
    came: dict[str, list[int]] = {name: [] for name in ABC}
    newest: dict[str, int] = {}
    gone = 0
    for number in range(60):
        rows, late = {}, Counter[str]()
        open_ = [name for name in ABC if name not in operator.ended]
        for name in open_:
            count = int(rng.choice([0, 1, 3, 8]))
            at = np.floor(4 * number + rng.uniform(-12, 4, count)).astype(int).clip(0).tolist()
            rows[name] = [(int(rng.integers(0, 5)), time) for time in at]
            late[name] = sum(time < newest[name] - LATENESS for time in at) if name in newest else 0
            came[name] += at
        newest |= {name: max(at) for name, at in came.items() if at}
        ended = frozenset(["c"]) if number == 45 else frozenset()
        counters = advanced(operator, number, Arrival(rows, ended=ended))
        if not any(rows.values()):
            continue
        gone += int(sum(count for what, count in counters.items() if what.startswith("left.")))
        state = operator.save()
        saved = state.runs
        for name in ABC:
            assert counters.get(f"late.{name}", 0) == late[name]
            others = [other for other in open_ if other != name and other not in operator.ended]
            known = all(other in newest for other in others)
            needed = min(newest[other] for other in others) - LATENESS - WINDOW if known else -inf
            runs = [run for run in saved if run.label == name]
            held = sorted(time for run in runs for time in times(run) if time >= needed)
            assert held == sorted(time for time in came[name] if time >= needed)
            assert all(times(run)[-1] >= needed for run in runs)
        assert sum(store.rows for store in state.stores) == sum(len(at) for at in came.values()) - gone


def test_runs_are_merged_within_quarters_of_the_window() -> None:
    operator, merged = windowed(), 0.0
    for number in range(60):
        rows = {name: [(key, 2 * number) for key in range(3)] for name in ABC}
        counters = advanced(operator, number, Arrival(rows))
        merged += counters.get("rows_rewritten", 0)
        for name in ABC:
            runs = [run for run in operator.save().runs if run.label == name]
            quarters = Counter(times(run)[-1] // (WINDOW // 4) for run in runs)
            assert all(times(run)[0] // (WINDOW // 4) == times(run)[-1] // (WINDOW // 4) for run in runs)
            # Five batches make a quarter: four of them become one run, and all five when no more of them are expected.
            in_progress = 2 * number // (WINDOW // 4)
            assert quarters[in_progress] == [1, 2, 3, 1, 2][number % 5]
            closed = (2 * number - LATENESS) // (WINDOW // 4)
            assert all(count == 1 for quarter, count in quarters.items() if quarter < closed)
    assert 0 < merged <= 2 * 60 * 9


def test_within_a_quarter_runs_are_merged_by_fours() -> None:
    options = {"window": 400, "lateness": 0, "time": dict.fromkeys(ABC, "_p0")}
    operator, merged = build(make_plan("mjoin", ABC, options, payload=(pa.int64(),)), MemorySpace()), 0.0
    for number in range(99):
        merged += advanced(operator, number, Arrival({"a": [(number, number)]})).get("rows_rewritten", 0)
        runs = sorted((run.rows for run in operator.save().runs), reverse=True)
        count, expected = number + 1, []
        for size in (64, 16, 4, 1):
            expected += [size] * (count // size)
            count %= size
        assert runs == expected
    assert merged == 18 * 4 + 5 * 16 + 64  # levels that become full together are merged once


@pytest.mark.parametrize(("name", "inputs"), [("symmetric", ("left", "right")), ("mjoin", ABC)])
def test_inputs_merge_in_batches_of_their_own(name: str, inputs: tuple[str, ...]) -> None:
    operator = build(make_plan(name, inputs, payload=(pa.int64(),)), MemorySpace())
    merged = {}
    for number in range(15):
        counters = advanced(operator, number, Arrival({each: [(number, number)] for each in inputs}))
        if counters.get("rows_rewritten", 0):
            merged[number] = counters["rows_rewritten"]
    # Four runs of a row become one, in batch 3 and every fourth one after it; each input a batch later than the last.
    assert merged == {3 + 4 * turn + lag: 4 for turn in range(3) for lag in range(len(inputs))}


def test_what_a_sample_of_keys_finds_decides_the_order() -> None:
    """An input that is probed second is estimated by a few keys, whatever they matched in the first."""
    operator = build(make_plan("mjoin", ABC, payload=(pa.int64(),)), MemorySpace())
    for number in range(12):
        keys = range(400 * number, 400 * number + 400)
        sparse = [(key, 0) for key in keys if key % 50 == 0]
        advanced(operator, 2 * number, Arrival({"b": sparse, "c": [(key, 0) for key in keys]}))
        advanced(operator, 2 * number + 1, Arrival({"a": [(key, 0) for key in keys]}))
    (event,) = [event for event in operator.metrics.events if event["kind"] == "driver"]
    assert (event["input"], event["probe_order"]) == ("a", ["b", "c"])
    assert event["results"] == 8
    assert event["intermediate"] == [8.0]
    assert operator.metrics.counters["lookups"] == 400 + 8
    assert operator.metrics.counters["driver_results.a"] == 8


@pytest.mark.parametrize(("keys", "sampled"), [(160, 10), (8720, 485)])
def test_one_key_in_sixteen_is_sampled_and_512_at_most(keys: int, sampled: int) -> None:
    operator = build(make_plan("mjoin", ABC, payload=(pa.int64(),)), MemorySpace())
    assert isinstance(operator, MJoin)
    advanced(operator, 0, Arrival({"b": [(0, 0)], "c": [(0, 0)]}))
    advanced(operator, 1, Arrival({"a": [(key, 0) for key in range(keys)]}))
    assert sorted(operator.estimates.probing[0].tolist()) == [0, sampled, keys]
