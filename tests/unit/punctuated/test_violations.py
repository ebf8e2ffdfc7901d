"""Rows that a source had promised not to send."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from watersmeet.engine.registry import build
from watersmeet.errors import BrokenPromiseError
from watersmeet.join.operator import advance
from watersmeet.punctuated.promises.constraints import Clustered, ClusterTracker
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of, make_plan, run_in_memory
from watersmeet.testing.arrivals import KEYS, PAYLOAD, table_of

ONE_LEFT = {"kind": "one_to_many", "one": "left"}


def arrival(left: list[int], right: list[int], **said: list[Pattern]) -> Arrival:
    """Keys that arrive, in this order, and punctuations."""
    rows = {"left": left, "right": right}
    tables = {
        name.removesuffix("_ends"): punctuation_table(KEYS, [[pattern] for pattern in patterns])
        for name, patterns in said.items()
    }
    return Arrival(
        {name: [(key, i, f"{name} {i}") for i, key in enumerate(keys)] for name, keys in rows.items()},
        punctuations=tables,
    )


def go(
    script: list[Arrival], *constraints: dict[str, Any], payload: tuple[pa.DataType, ...] = PAYLOAD, **tuning: Any
) -> tuple[int, dict[str, float]]:
    """Run; how many results, and all violations counted."""
    plan = make_plan("punctuated", options={"constraints": list(constraints)}, payload=payload, tuning=tuning)
    join = build(plan, MemorySpace())
    results, counted = 0, {}
    for number, one in enumerate(script):
        results += sum(table.num_rows for table in advance(join, batch_of(plan, number, one)))
        for name, count in join.metrics.counters.items():
            if name.startswith("violations"):
                counted[name] = counted.get(name, 0) + count
    return results, counted


BROKEN = [arrival([1, 2], [1], right_ends=[Pattern.value(1)]), arrival([], [1, 2])]


def test_the_error_names_input_key_punctuation_and_batch() -> None:
    with pytest.raises(BrokenPromiseError) as raised:
        go(BROKEN)
    message = str(raised.value)
    assert "no row of input 'right' with a key in punctuation 1 (batch 0)" in message
    assert "1 row(s) that break this in batch 1, among them key 1" in message
    assert raised.value.input == "right"


def test_a_merged_range_names_its_batches() -> None:
    script = [arrival([], [], right_ends=[Pattern.value(i)]) for i in range(4)]
    with pytest.raises(BrokenPromiseError, match=r"punctuation from 0 to 3 \(batches 0 to 3\)"):
        go([*script, arrival([], [2])])


def test_a_row_in_the_batch_of_its_punctuation_is_no_violation() -> None:
    assert go([arrival([1], [1, 1], right_ends=[Pattern.value(1)])]) == (2, {})


def test_dropped_rows_are_counted_and_not_joined() -> None:
    assert go(BROKEN, on_violation="drop") == (2, {"violations.right.punctuation": 1})


def test_a_kept_row_makes_the_promise_void_for_its_key() -> None:
    # The left row 1 was purged by the promise; one that comes later meets both right rows, and is stored, because the
    # promise is void.
    script = [*BROKEN, arrival([1], []), arrival([], [1])]
    assert go(script, on_violation="keep") == (1 + 1 + 2 + 1, {"violations.right.punctuation": 1})


@pytest.mark.parametrize("purge", ["immediate", "batch"])
def test_dropping_does_not_depend_on_the_purge_schedule(purge: str) -> None:
    assert go(BROKEN, on_violation="drop", purge=purge, purge_after=1000)[0] == 2


def test_copies_of_a_unique_key() -> None:
    both = [arrival([7, 7], [7])]
    later = [arrival([7], [7]), arrival([7], [7])]
    for script in (both, later):
        with pytest.raises(BrokenPromiseError, match="every key at most once on input 'left'"):
            go(script, ONE_LEFT)
    assert go(both, ONE_LEFT, on_violation="drop") == (0, {"violations.left.one_to_many": 2})
    assert go(later, ONE_LEFT, on_violation="drop") == (2, {"violations.left.one_to_many": 1})


def test_a_copy_whose_first_row_is_on_disk_is_found_at_the_merge() -> None:
    plan = make_plan(
        "punctuated", options={"constraints": [ONE_LEFT], "buckets": 2}, tuning={"memory": 1, "on_violation": "raise"}
    )
    with pytest.raises(BrokenPromiseError, match="when spilled rows were merged") as raised:
        run_in_memory(plan, [arrival([7], []), arrival([7], []), Arrival()])
    assert raised.value.input == "left"


@pytest.mark.parametrize(
    ("batches", "sequence", "fine"),
    [
        ([[1, 1, 2], [2, 3]], False, True),
        ([[1, 2], [1]], False, True),  # 2 may have come before 1
        ([[1, 2], [1], [2]], False, False),
        ([[1, 2], [1, 2]], False, False),  # two keys go on
        ([[1], [1], [1, 2], [1]], False, False),  # 1 ended when its later batch held another key
        ([[1, 2], [1]], True, False),
        ([[1, 2, 1]], True, False),
        ([[1, 1, 2], [2, 2, 3]], True, True),
        ([[1], [2, 1]], True, False),
    ],
)
def test_clusters(batches: list[list[int]], sequence: bool, fine: bool) -> None:
    constraint = {"kind": "clustered", "input": "right", "sequence": "_p0" if sequence else None}
    script = [arrival([], keys) for keys in batches]
    if fine:
        assert go(script, constraint) == (0, {})
    else:
        with pytest.raises(BrokenPromiseError, match="clustered"):
            go(script, constraint)


@pytest.mark.parametrize(
    ("batches", "sequence", "direction", "fine"),
    [
        ([[3, 1, 2], [3, 5, 4]], False, "ascending", True),
        ([[3, 1], [2]], False, "ascending", False),
        ([[1, 3, 2]], True, "ascending", False),
        ([[5, 5, 4], [4, 1]], True, "descending", True),
        ([[5, 4], [5]], True, "descending", False),
    ],
)
def test_orders(batches: list[list[int]], sequence: bool, direction: str, fine: bool) -> None:
    constraint = {"kind": "ordered", "input": "right", "direction": direction, "sequence": "_p0" if sequence else None}
    script = [arrival([], keys) for keys in batches]
    if fine:
        assert go(script, constraint) == (0, {})
    else:
        with pytest.raises(BrokenPromiseError, match=r"ordered|ascending|descending"):
            go(script, constraint)


def placed(*rows: tuple[int, float | None]) -> Arrival:
    """Right rows of a key and a place in a sequence, beside left rows of the keys 1 to 3."""
    left = [(key, 0.0, f"left {key}") for key in (1, 2, 3)]
    return Arrival({"left": left, "right": [(key, place, f"right {i}") for i, (key, place) in enumerate(rows)]})


SEQUENCES = [
    {"kind": "clustered", "input": "right", "sequence": "_p0"},
    {"kind": "ordered", "input": "right", "sequence": "_p0"},
]
FLOATS = (pa.float64(), pa.string())


@pytest.mark.parametrize("constraint", SEQUENCES, ids=lambda one: str(one["kind"]))
@pytest.mark.parametrize("place", [None, math.nan])
def test_a_row_without_a_place_in_the_sequence_is_a_violation(constraint: dict[str, Any], place: float | None) -> None:
    script = [placed((1, 1), (2, 5), (2, place))]
    with pytest.raises(BrokenPromiseError) as raised:
        go(script, constraint, payload=FLOATS)
    message = str(raised.value)
    assert "expected a value in the sequence column of every row of input 'right'" in message
    assert "1 row(s) that break this in batch 0, among them key 2" in message
    counted = {f"violations.right.{constraint['kind']}": 1}
    assert go(script, constraint, payload=FLOATS, on_violation="drop") == (2, counted)
    assert go(script, constraint, payload=FLOATS, on_violation="keep") == (3, counted)


@pytest.mark.parametrize("mode", ["drop", "keep"])
@pytest.mark.parametrize("place", [None, math.nan])
def test_a_row_without_a_place_closes_no_cluster(mode: str, place: float | None) -> None:
    script = [placed((1, 1), (2, 5), (3, place)), Arrival({"right": [(2, 6.0, "right again")]})]
    results, counted = go(script, SEQUENCES[0], payload=FLOATS, on_violation=mode)
    assert counted == {"violations.right.clustered": 1}  # of its second batch the cluster of 2 has none
    assert results == (2 if mode == "drop" else 3) + 1


def test_places_beyond_two_to_the_53rd_are_told_apart_beside_a_null() -> None:
    tracker = ClusterTracker(Clustered("right", sequence="_p0"), KEYS)

    def closed(*rows: tuple[int, int | None]) -> set[int]:
        made = table_of(make_plan("punctuated").input("right"), [(key, place, "") for key, place in rows])
        ended: list[int] = tracker.close(made).column("_k0").to_pylist()
        return set(ended)

    assert closed((1, 2**53), (2, 2**53 + 1), (3, None)) == {1}
    assert set(tracker.open.column("_k0").to_pylist()) == {2, 3}
    assert closed((4, None)) == set()  # it says nothing of the others
    assert set(tracker.open.column("_k0").to_pylist()) == {2, 3, 4}
    assert closed((3, 2**53 + 2)) == {2, 4}
