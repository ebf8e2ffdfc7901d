"""Clocks, and what they make expire."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.join.clock import Clock
from watersmeet.join.expiry import expire
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import TimeSlices
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace

SCHEMA = pa.schema([("_hash", pa.uint64()), ("_k0", pa.int64()), ("_p0", pa.int64())])


def test_a_bound_follows_the_newest_time_and_never_goes_back() -> None:
    clock = Clock({"left": 10, "right": 20}, lateness=5)
    assert clock.bound("left") is None
    clock.see_all("left", np.array([], np.int64))
    assert clock.bound("left") is None
    clock.see_all("left", np.array([3, 100, 7]))
    clock.see("left", 50)
    assert clock.newest == {"left": 100}
    assert clock.bound("left") == 95


def test_a_row_waits_for_the_other_input_alone() -> None:
    clock = Clock({"left": 10, "right": 20}, lateness=5)
    clock.see("right", 100)
    assert clock.horizon("left", ["right"]) == 100 - 5 - 10
    assert clock.horizon("right", ["left"]) is None  # nothing has come on the left: any row may


def test_with_many_inputs_a_row_waits_for_the_slowest_of_the_others() -> None:
    clock = Clock({"a": 10, "b": 10, "c": 10}, lateness=0)
    clock.see("b", 100)
    assert clock.horizon("a", ["b", "c"]) is None
    clock.see("c", 40)
    assert clock.horizon("a", ["b", "c"]) == 30
    assert clock.horizon("a", ["b"]) == 90  # c has ended
    assert clock.horizon("a", []) is None


def test_times_at_the_edge_of_the_range_do_not_wrap() -> None:
    clock = Clock({"left": 1 << 62, "right": 0}, lateness=1 << 62)
    clock.see("right", -(1 << 63))
    assert clock.bound("right") == -(1 << 63)
    assert clock.horizon("left", ["right"]) == -(1 << 63)


def filled(times: list[int]) -> RowStore:
    layout = TimeSlices(span=10, share=1)
    store = RowStore("left", SCHEMA, layout, MemorySpace(), Accounts(Metrics()), time="_p0", rule=Horizon("_p0"))
    store.accounts.arrive("left", len(times))
    numbers = list(range(len(times)))
    store.add(pa.table([numbers, numbers, times], schema=SCHEMA), 0)
    return store


def test_without_a_horizon_nothing_expires() -> None:
    store = filled([1, 2])
    useful, gone = expire(store, None, np.array([-5, 5]), bound=0)
    assert (useful.tolist(), gone, store.accounts.left) == ([True, True], [], {})


def test_new_rows_behind_the_horizon_leave_as_late_or_as_expired() -> None:
    store = filled([1, 2, 15])
    store.accounts.arrive("left", 4)
    useful, gone = expire(store, 12, np.array([3, 5, 11, 12]), bound=5)
    assert useful.tolist() == [False, False, False, True]
    assert len(gone) == 1  # the slice that holds 1 and 2
    # 3 was late when it came; 5 and 11 were in time, but the other input is ahead of them.
    assert store.accounts.left == {"left": {"late": 1, "expired": 2 + 2}}
    assert store.rows == 1
    assert store.accounts.held("left") == 2  # 15, and 12, which is about to be stored


@pytest.mark.parametrize("bound", [None, 5])
def test_a_horizon_never_goes_back(bound: int | None) -> None:
    store = filled([15])
    expire(store, 12, np.array([], np.int64), bound)
    useful, gone = expire(store, 10, np.array([11, 12]), bound)
    assert (useful.tolist(), gone) == ([False, True], [])
    useful, _ = expire(store, None, np.array([11]), bound)
    assert useful.tolist() == [False]
