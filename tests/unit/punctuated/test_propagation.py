"""Punctuations of the output: never before the last result, once, and as early as the rule allows."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.punctuated.test_minimal_state import OTHER, covers, patterns_of, useful

from watersmeet.columns.partitions import Partition
from watersmeet.engine.registry import build
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch, Operator, Origin, advance, resume, saved, take_over
from watersmeet.plan import JoinPlan, OutputColumn
from watersmeet.punctuated.promises.partial import PartialPromises
from watersmeet.punctuated.promises.patterns import ENDS, Pattern, punctuation_table
from watersmeet.punctuated.propagation import COLUMN, punctuation_type
from watersmeet.state.directory import StateDir
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, Script, batch_of, make_plan
from watersmeet.testing.arrivals import KEYS, Row
from watersmeet.testing.divisions import plans_of, shares
from watersmeet.testing.oracle import inner_join
from watersmeet.testing.punctuations import truthful_script

KIND = punctuation_type(["k0"], KEYS)


def plan(options: dict[str, Any] | None = None, **tuning: Any) -> JoinPlan:
    made = make_plan("punctuated", options={"propagate": "said", "buckets": 4, **(options or {})}, tuning=tuning)
    return replace(made, output=(*made.output, OutputColumn(pa.field("said", KIND), "left", COLUMN)))


def run(made: JoinPlan, script: Script, *, reload: bool = False) -> list[tuple[list[dict[str, Any]], list[Pattern]]]:
    """Per batch the results and the punctuations."""
    space = MemorySpace()
    join = build(made, space)
    outcome = []
    for number, arrival in enumerate(script):
        if reload and number:
            fresh = build(made, space)
            resume(fresh, saved(join))
            join = fresh
        rows = [row for table in advance(join, batch_of(made, number, arrival)) for row in table.to_pylist()]
        said = [row["said"]["k0"] for row in rows if row["said"] is not None]
        assert all(row["k0"] == row["said"]["k0"]["low"] for row in rows if row["said"] and row["k0"] is not None)
        assert all(row["left_0"] is None and row["right_0"] is None for row in rows if row["said"])
        outcome.append(([row for row in rows if row["said"] is None], [Pattern(**pattern) for pattern in said]))
    return outcome


VARIANTS: list[dict[str, Any]] = [
    {},
    {"purge": "batch", "purge_after": 4},
    {"memory": 700, "idle_pages": 2},
    {"quota": 4, "scheduling": "value"},
    {"quota": 3, "scheduling": "value", "memory": 900},
]


@pytest.mark.parametrize("tuning", VARIANTS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_no_result_comes_after_its_punctuation(seed: int, tuning: dict[str, Any]) -> None:
    script = truthful_script(seed, batches=14, batch_rows=8, keys=8)
    said: list[Pattern] = []
    outcome = run(plan(**tuning), script)
    for results, patterns in outcome:
        assert not [row for row in results if any(covers(pattern, row["k0"]) for pattern in said)]
        values = [pattern.low for pattern in said + patterns if pattern.is_value]
        assert len(values) == len(set(values)), "a key is propagated once"
        said += patterns
    assert said
    assert outcome == run(plan(**tuning), script, reload=True)


@pytest.mark.parametrize("seed", range(8))
def test_single_keys_are_propagated_as_soon_as_they_hold(seed: int) -> None:
    made = truthful_script(seed, batches=12, batch_rows=8, keys=8, end=False)
    script = [
        replace(arrival, punctuations={name: _values(arrival, name) for name in OTHER if _values(arrival, name)})
        for arrival in made
    ]
    propagated: set[Any] = set()
    for number, (_, patterns) in enumerate(run(plan(), script)):
        propagated |= {pattern.low for pattern in patterns}
        promised = {
            name: {p.low for arrival in script[: number + 1] for p in patterns_of(arrival, name)} for name in OTHER
        }
        stored = {name: {row[0] for row in useful(script, number, name, one_to_many=False)} for name in OTHER}
        holds = promised["left"] & promised["right"]
        holds |= {key for name in OTHER for key in promised[name] - stored[name]}
        assert propagated == holds


def _values(arrival: Arrival, name: str) -> pa.Table | None:
    values = [pattern for pattern in patterns_of(arrival, name) if pattern.is_value]
    return punctuation_table(KEYS, [[value] for value in values]) if values else None


def test_a_range_is_propagated_when_its_last_row_leaves() -> None:
    def batch(rows: dict[str, list[int]], **said: list[Pattern]) -> Arrival:
        tables = {name: punctuation_table(KEYS, [[p] for p in patterns]) for name, patterns in said.items()}
        return Arrival({name: [(key, key, "x") for key in keys] for name, keys in rows.items()}, punctuations=tables)

    low = Pattern.between(None, 10, closed="neither")
    outcome = run(
        plan(),
        [
            batch({"left": [5, 50]}, left=[low]),  # a stored left row of the range may still match
            batch({"right": [5]}),
            batch({"right": [60]}, right=[Pattern.value(5)]),  # the other input is done with that key
            batch({"right": [61]}, right=[low]),  # said before: nothing new
        ],
    )
    said = [sorted((pattern.low is not None, pattern.high) for pattern in patterns) for _, patterns in outcome]
    assert said == [[], [], [(False, 10)], []]


def part(number: int, pattern: Pattern, parts: int = 2) -> pa.Table:
    """A pattern as one part says it."""
    table = punctuation_table(KEYS, [[pattern]])
    for name, value in (("_part", number), ("_parts", parts)):
        table = table.set_column(table.column_names.index(name), name, pa.array([value], pa.int32()))
    return table


def test_parts_of_several_numbers_hold_when_they_leave_no_key_out() -> None:
    low = Pattern.between(None, 10)

    def complete(*said: tuple[int, int]) -> list[int]:
        partial = PartialPromises("left", KEYS)
        return [partial.complete(part(number, low, parts)).num_rows for number, parts in said]

    assert complete((0, 2), (1, 4), (1, 4), (3, 4)) == [0, 0, 0, 1]
    assert complete((0, 2), (0, 4), (2, 4), (1, 4), (3, 4)) == [0, 0, 0, 0, 1]  # three of four would be too few
    assert complete((1, 2), (0, 3), (2, 3), (1, 3)) == [0, 0, 0, 1]
    assert complete((1, 4), (0, 1)) == [0, 1]


@pytest.mark.parametrize("tuning", VARIANTS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_number_of_partitions_changes(seed: int, tuning: dict[str, Any], tmp_path: Path) -> None:
    """Whoever hears all parts learns the same in the end, and never of a key whose results are not all out."""
    script = truthful_script(seed, batches=14, batch_rows=8, keys=8)
    made, rng, partial = plan(**tuning), random.Random(seed), PartialPromises("left", KEYS)
    numbers = [rng.choice([1, 2, 3, 4]) for _ in script]
    held: list[Pattern] = []
    emitted: Counter[Row] = Counter()
    for number, (arrival, now) in enumerate(zip(script, plans_of(made, numbers), strict=True)):
        results: list[dict[str, Any]] = []
        said: list[pa.Table] = []
        for partition, batch in shares(now, number, arrival):
            for table in run_batch(now, StateDir(tmp_path), partition, batch, run_id=f"{number}"):
                for row in table.to_pylist():
                    if row["said"] is None:
                        results.append(row)
                    else:
                        said.append(part(partition, Pattern(**row["said"]["k0"]), row["said"]["parts"]))
        assert not [row for row in results if any(covers(pattern, row["k0"]) for pattern in held)]
        emitted.update(tuple(row.values())[:-1] for row in results)
        complete = partial.complete(pa.concat_tables(said)).to_pylist() if said else []
        for row in complete:
            value = row["_k0"]
            ends = [row[f"{end}0"] for end in ENDS]
            held.append(Pattern(*ends) if value is None else Pattern.value(value))
    assert emitted == inner_join(script, ("left", "right"))
    whole = [pattern for _, patterns in run(made, script) for pattern in patterns]
    for key in range(-2, 12):
        assert any(covers(one, key) for one in held) == any(covers(one, key) for one in whole), key


def test_a_pattern_of_many_keys_holds_when_every_part_has_said_it() -> None:
    partial = PartialPromises("left", KEYS)

    low, high = Pattern.between(None, 10), Pattern.between(20, None)
    assert partial.complete(pa.concat_tables([part(0, low), part(1, high)])).num_rows == 0
    assert partial.complete(part(0, low)).num_rows == 0  # the same part again
    restored = PartialPromises("left", KEYS)
    restored.restore(partial.save())
    assert restored.complete(part(1, low)).column("_high0").to_pylist() == [10]
    assert restored.complete(part(0, high)).column("_low0").to_pylist() == [20]
    assert not restored.save()
    assert restored.complete(punctuation_table(KEYS, [[low]])).num_rows == 1  # without parts it holds at once


def test_the_end_says_everything() -> None:
    made = plan()
    join = build(made, MemorySpace())
    tables = list(advance(join, Batch(0, ended=frozenset({"left", "right"}))))
    said = [row["said"] for table in tables for row in table.to_pylist()]
    assert [(one["k0"]["low"], one["k0"]["high"]) for one in said] == [(None, None)]


def keyed(rows: dict[str, list[int]], **said: list[Pattern]) -> Arrival:
    """Rows of some keys, and punctuations."""
    tables = {name: punctuation_table(KEYS, [[p] for p in patterns]) for name, patterns in said.items()}
    return Arrival({name: [(key, key, "x") for key in keys] for name, keys in rows.items()}, punctuations=tables)


def test_a_row_kept_against_a_promise_counts_in_its_range_until_it_leaves() -> None:
    script = [
        keyed({"left": [3]}, left=[Pattern.between(1, 10)]),
        keyed({"left": [4]}),  # breaks the promise
        keyed({"left": [100]}, right=[Pattern.value(4)]),  # so that it leaves; 3 is still there
        keyed({"right": [3]}),
        keyed({}, right=[Pattern.value(3)]),
    ]
    said = [patterns for _, patterns in run(plan(on_violation="keep"), script, reload=True)]
    assert said == [[], [], [Pattern.value(4)], [], [Pattern.between(1, 10)]]


def test_a_promise_of_everything_does_not_cover_keys_that_were_taken_back() -> None:
    script = [
        keyed({"right": [70]}, right=[Pattern.anything()]),
        keyed({"right": [5]}),  # breaks the promise
        keyed({"left": [5]}),
        keyed({}, left=[Pattern.between(1, 10)]),  # a stored row of the range may still match
        keyed({"right": [5]}),
        Arrival(ended=frozenset(["right"])),
    ]
    outcome = run(plan(on_violation="keep"), script, reload=True)
    assert [len(results) for results, _ in outcome] == [0, 0, 1, 0, 1, 0]
    assert [patterns for _, patterns in outcome] == [[], [], [], [], [], [Pattern.between(1, 10)]]


def test_a_copy_that_is_dropped_at_a_merge_counts_in_its_range_no_more() -> None:
    """A copy was kept against a promise; then the join is restarted and drops what breaks one."""
    one = {"constraints": [{"kind": "one_to_many", "one": "left"}], "buckets": 1}
    low = Pattern.between(1, 10)
    keeps, drops = plan(one, memory=1000, on_violation="keep"), plan(one, memory=1000, on_violation="drop")
    script = [
        keyed({"left": [3]}, left=[low]),
        keyed({"left": list(range(100, 160))}),  # all of it is flushed
        keyed({"left": [3]}),  # the first row of the key is on disk: this one is not known to be a copy
        Arrival(),
        keyed({}, right=[Pattern.value(3)]),
    ]
    space, said = MemorySpace(), []
    join = build(keeps, space)
    for number, arrival in enumerate(script):
        if number == 3:
            before, join = join, build(drops, space)
            resume(join, saved(before))
        rows = [row for table in advance(join, batch_of(drops, number, arrival)) for row in table.to_pylist()]
        said.append([Pattern(**row["said"]["k0"]) for row in rows if row["said"]])
    assert said == [[], [], [], [], [Pattern.value(3), low]]


PAIRS = (pa.int64(), pa.int64())


def pairs_plan(partitions: int = 1) -> JoinPlan:
    """A join on two columns that propagates."""
    made = make_plan("punctuated", options={"propagate": "said"}, keys=PAIRS)
    kind = punctuation_type(["k0", "k1"], PAIRS)
    output = (*made.output, OutputColumn(pa.field("said", kind), "left", COLUMN))
    return replace(made, output=output, partitions=partitions)


def ends_of(join: Operator, number: int, **said: list[list[Pattern]]) -> list[int]:
    """The ends of the second column's ranges that are propagated when punctuations are received."""
    arrival = Arrival(punctuations={name: punctuation_table(PAIRS, rows) for name, rows in said.items()})
    tables = list(advance(join, batch_of(join.plan, number, arrival)))
    return [row["said"]["k1"]["high"] for table in tables for row in table.to_pylist()]


SEVEN, UP_TO_FIVE = Pattern.value(7), Pattern.between(None, 5)


def test_a_pattern_on_two_columns_is_propagated_once() -> None:
    space = MemorySpace()
    join = build(pairs_plan(), space)
    script: list[tuple[str, list[Pattern], list[int]]] = [
        ("left", [UP_TO_FIVE, UP_TO_FIVE], [5]),
        ("left", [UP_TO_FIVE], []),
        ("right", [UP_TO_FIVE], []),
        ("left", [Pattern.between(1, 4)], []),
        ("left", [Pattern.between(None, 6)], [6]),
    ]
    for number, (name, ranges, propagated) in enumerate(script):
        assert ends_of(join, number, **{name: [[SEVEN, one] for one in ranges]}) == propagated
        before, join = join, build(pairs_plan(), space)
        resume(join, saved(before))


def test_a_pattern_that_former_partitions_propagated_is_not_propagated_again() -> None:
    origins = []
    for number in range(2):
        join = build(pairs_plan(2), MemorySpace())
        assert ends_of(join, 0, left=[[SEVEN, UP_TO_FIVE]]) == [5]
        origins.append(Origin(Partition(number, 2, 0), join))
    heir = build(replace(pairs_plan(1), former=(2,)), MemorySpace())
    take_over(heir, Partition(0, 1, 1), origins, 0)
    assert ends_of(heir, 1, right=[[SEVEN, UP_TO_FIVE]]) == []
    assert ends_of(heir, 2, left=[[SEVEN, Pattern.between(None, 6)]]) == [6]
