"""What becomes of arriving rows before any join sees them."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.engine.registry import build
from watersmeet.join.clock import Clock
from watersmeet.join.operator import Batch, advance
from watersmeet.join.prologue import Prologue
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.space import MemorySpace
from watersmeet.testing import make_plan

PLAN = make_plan("window", options={"window": [10, 10], "time_columns": ["_p0", "_p0"]}, payload=(pa.int64(),))
CLOCK = Clock({"left": 10, "right": 10}, lateness=5, newest={"left": 100})


def batch(*rows: tuple[int, int | None, int | None]) -> Batch:
    hashes, keys, times = zip(*rows, strict=True)
    return Batch(0, rows={"left": pa.table([hashes, keys, times], schema=PLAN.input("left").schema)})


def prologue(*, times: bool) -> Prologue:
    metrics = Metrics()
    return Prologue(PLAN, Accounts(metrics), metrics, times={"left": "_p0"} if times else None, clock=CLOCK)


def test_rows_that_can_match_come_through_sorted_by_hash() -> None:
    first = prologue(times=False)
    admitted = first.admit(batch((9, 1, 1), (2, None, 2), (5, 3, None)), "left")
    assert admitted["_hash"].to_pylist() == [5, 9]
    assert first.accounts.left == {"left": {"null_key": 1}}
    assert first.metrics.counters == {"left.left.null_key": 1}


def test_a_row_leaves_for_one_reason() -> None:
    first = prologue(times=True)
    admitted = first.admit(batch((9, 1, 100), (2, None, None), (5, 3, None)), "left")
    assert admitted["_hash"].to_pylist() == [9]
    assert first.accounts.left == {"left": {"null_key": 1, "null_time": 1}}


def test_late_rows_are_counted_and_admitted() -> None:
    first = prologue(times=True)
    admitted = first.admit(batch((1, 1, 94), (2, 2, 95), (3, 3, 10)), "left")
    assert admitted.num_rows == 3
    assert first.metrics.counters["late.left"] == 2
    assert first.accounts.left == {}
    prologue(times=False).admit(batch((1, 1, 0)), "left")  # without a window no row is late


def test_rows_may_be_wanted_as_they_came() -> None:
    admitted = prologue(times=True).admit(batch((9, 1, 1), (5, 3, 1)), "left", in_order=False)
    assert admitted["_hash"].to_pylist() == [9, 5]
    assert all(column.num_chunks == 1 for column in admitted.columns)


def test_an_input_without_rows_is_an_empty_table_of_its_schema() -> None:
    for one in (Batch(0), Batch(0, rows={"left": PLAN.input("left").schema.empty_table()})):
        assert prologue(times=True).admit(one, "left").schema == PLAN.input("left").schema


def test_rows_without_a_key_are_handed_out_whether_they_came_apart_or_not() -> None:
    plan = make_plan("symmetric", payload=(pa.int64(),))
    kept = pa.table({"_hash": [7], "_k0": [None], "_p0": [1]}, schema=plan.input("left").schema)
    mixed = pa.table({"_hash": [5, 6], "_k0": [3, None], "_p0": [2, 3]}, schema=plan.input("left").schema)
    operator, other = build(plan, MemorySpace()), build(plan, MemorySpace())
    first = Prologue(plan, other.accounts, other.metrics, preserved=("left",))
    for given, expected in (
        (Batch(0, null_rows={"left": kept}), [1]),
        (Batch(1, rows={"left": mixed}), [3]),
        (Batch(2, rows={"left": mixed}, null_rows={"left": kept}), [1, 3]),
        (Batch(3), []),
    ):
        first.admit(given, "left")
        aside = first.take_aside()
        assert {(name, reason) for name, reason, _ in aside} <= {("left", "null_key")}
        assert [value for *_, table in aside for value in table.column("_p0").to_pylist()] == expected
        assert first.take_aside() == []
    assert list(advance(operator, Batch(0, null_rows={"left": kept}, null_keys={"right": 2}))) == []
    assert operator.metrics.rows_in == {"left": 1, "right": 2}
    assert operator.accounts.held("left") == operator.accounts.held("right") == 0
