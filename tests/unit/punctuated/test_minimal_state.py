"""What is held: after an immediate purge, nothing that the promises heard so far make useless."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from watersmeet.engine.registry import build
from watersmeet.join.operator import advance
from watersmeet.plan import JoinPlan
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.punctuated.punctuated_join import PunctuatedJoin
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, Script, batch_of, make_plan
from watersmeet.testing.arrivals import KEYS
from watersmeet.testing.punctuations import truthful_script

OTHER = {"left": "right", "right": "left"}
ONE_LEFT = {"kind": "one_to_many", "one": "left"}


def operator(plan: JoinPlan) -> PunctuatedJoin:
    made = build(plan, MemorySpace())
    assert isinstance(made, PunctuatedJoin)
    return made


def stored(join: PunctuatedJoin, name: str) -> Counter[tuple[Any, ...]]:
    """The living rows of an input, wherever they are."""
    rows: Counter[tuple[Any, ...]] = Counter()
    store = join.state.stored[name]
    parts = [*store.parts(), *(page for run in store.spilled for page in store.pages(run))]
    tables = [part.take(part.living).select(join.plan.input(name).schema.names) for part in parts]
    for table in tables:
        rows.update(zip(*(table.column(column).to_pylist() for column in table.column_names[1:]), strict=True))
    return rows


def covers(pattern: Pattern, key: Any) -> bool:
    above = pattern.low is None or key > pattern.low or (pattern.low_closed and key == pattern.low)
    below = pattern.high is None or key < pattern.high or (pattern.high_closed and key == pattern.high)
    return above and below


def patterns_of(arrival: Arrival, name: str) -> list[Pattern]:
    if name not in arrival.punctuations:
        return []
    made = []
    for row in arrival.punctuations[name].to_pylist():
        if row["_k0"] is not None:
            made.append(Pattern.value(row["_k0"]))
        else:
            closed = (row["_low_closed0"] is not False, row["_high_closed0"] is not False)
            made.append(Pattern(row["_low0"], row["_high0"], *closed))
    return made


def useful(script: Script, until: int, name: str, *, one_to_many: bool) -> Counter[tuple[Any, ...]]:
    """By brute force: the rows that the promises heard up to a batch leave a future."""
    heard = script[: until + 1]
    other = OTHER[name]
    promised = [pattern for arrival in heard for pattern in patterns_of(arrival, other)]
    ended = any(other in arrival.ended for arrival in heard)
    ones = {row[0] for arrival in heard for row in arrival.rows.get("left", ())}
    kept: Counter[tuple[Any, ...]] = Counter()
    for arrival in heard:
        for row in arrival.rows.get(name, ()):
            done = one_to_many and name == "right" and row[0] in ones
            if row[0] is not None and not done and not ended and not any(covers(p, row[0]) for p in promised):
                kept[row] += 1
    return kept


@pytest.mark.parametrize("one_to_many", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_nothing_useless_is_held_and_nothing_useful_is_gone(seed: int, one_to_many: bool) -> None:
    script_of = partial(truthful_script, unique=["left"] if one_to_many else [])
    script = script_of(seed, batches=12, batch_rows=9, keys=12, end=False)
    join = operator(make_plan("punctuated", options={"constraints": [ONE_LEFT] if one_to_many else []}))
    for number, arrival in enumerate(script):
        list(advance(join, batch_of(join.plan, number, arrival)))
        for name in ("left", "right"):
            assert stored(join, name) == useful(script, number, name, one_to_many=one_to_many)


@pytest.mark.parametrize("seed", range(6))
def test_batch_purging_reaches_the_same_state_in_an_idle_batch(seed: int) -> None:
    script = [*truthful_script(seed, batches=10, batch_rows=9, end=False), Arrival()]
    join = operator(make_plan("punctuated", tuning={"purge": "batch", "purge_after": 1000}))
    for number, arrival in enumerate(script):
        list(advance(join, batch_of(join.plan, number, arrival)))
    for name in ("left", "right"):
        assert stored(join, name) == useful(script, len(script) - 1, name, one_to_many=False)


@pytest.mark.parametrize("seed", range(6))
def test_spilled_rows_are_purged_when_their_buckets_are_merged(seed: int) -> None:
    script = [*truthful_script(seed, batches=10, batch_rows=9, end=False), *[Arrival()] * 3]
    plan = make_plan("punctuated", options={"buckets": 4}, tuning={"memory": 800, "idle_pages": 1000})
    join = operator(plan)
    spilled = 0.0
    for number, arrival in enumerate(script):
        list(advance(join, batch_of(join.plan, number, arrival)))
        spilled += join.metrics.counters.get("rows_flushed", 0)
        assert join.state.resident_bytes <= 800
    assert spilled
    for name in ("left", "right"):
        assert stored(join, name) == useful(script, len(script) - 1, name, one_to_many=False)


def test_a_purge_costs_what_it_purges() -> None:
    """Orders are built once per run, and a run with few dead rows is not rewritten."""
    join = operator(make_plan("punctuated"))
    rows = [(key, key, "x") for key in range(20_000)]
    list(advance(join, batch_of(join.plan, 0, Arrival({"left": rows}))))
    (run,) = join.state.stored["left"].runs
    for number in range(1, 6):
        patterns = [[Pattern.between(number * 10, number * 10 + 3)]]
        arrival = Arrival(punctuations={"right": punctuation_table(KEYS, patterns)})
        list(advance(join, batch_of(join.plan, number, arrival)))
        assert join.metrics.counters["left.left.punctuation"] == 4
        assert not join.metrics.counters.get("rows_rewritten")
        assert join.state.stored["left"].runs == [run]
    assert join.state.stored["left"].rows == 20_000 - 20


def test_a_row_whose_partner_never_comes_stays_until_the_other_input_is_punctuated() -> None:
    """1-NP punctuates the many side alone: a promise about its own input frees none of its rows."""
    join = operator(make_plan("punctuated", options={"constraints": [ONE_LEFT]}))
    promise = punctuation_table(KEYS, [[Pattern.value(5)]])
    held = []
    for number, arrival in enumerate(
        (Arrival({"right": [(5, 1, "x")]}), Arrival(punctuations={"right": promise}), Arrival(), Arrival())
    ):
        list(advance(join, batch_of(join.plan, number, arrival)))
        held.append(join.state.stored["right"].rows)
    assert held == [1, 1, 1, 1]
    list(advance(join, batch_of(join.plan, 4, Arrival(punctuations={"left": promise}))))
    assert join.state.stored["right"].rows == 0


def test_neighbouring_promises_are_one_interval() -> None:
    join = operator(make_plan("punctuated"))
    for number in range(30):
        keys = list(range(number * 100, number * 100 + 100))
        arrival = Arrival(punctuations={"right": punctuation_table(KEYS, [[Pattern.value(key)] for key in keys[::-1]])})
        list(advance(join, batch_of(join.plan, number, arrival)))
    assert len(join.state.promises["right"]) == 1
    assert join.metrics.counters["punctuations_held.right"] == 1
