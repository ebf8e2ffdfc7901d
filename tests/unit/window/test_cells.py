"""What a windowed semi or anti join keeps of its right input: enough for every left row, late ones included."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.window.test_window_join import SECOND, Driver

from watersmeet.plan import JoinPlan
from watersmeet.testing.arrivals import make_plan
from watersmeet.window.cells import cell_length, cell_start

TIMES = range(9)
SETS = [set(times) for times in chain.from_iterable(combinations(TIMES, size) for size in range(len(TIMES) + 1))]


def thinned(times: set[int], cell: int) -> set[int]:
    cells: dict[int, list[int]] = {}
    for time in sorted(times):
        cells.setdefault(time // cell, []).append(time)
    return {end for inside in cells.values() for end in (inside[0], inside[-1])}


def answers(times: set[int], length: int, horizon: int) -> list[bool]:
    """Whether each stretch of a length finds a time that is not before the horizon."""
    stretches = (range(max(start, horizon), start + length + 1) for start in range(-length, len(TIMES)))
    return [any(time in times for time in stretch) for stretch in stretches]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5])
def test_first_and_last_times_answer_as_all_times_do(length: int) -> None:
    """All sets of times, all stretches, all horizons at the start of a cell: also where it cuts a stretch off."""
    for cell in range(1, max(length, 1) + 1):
        for times in SETS:
            some = thinned(times, cell)
            for horizon in range(0, len(TIMES), cell):
                assert answers(some, length, horizon) == answers(times, length, horizon)


def test_a_horizon_within_a_cell_would_make_late_rows_miss_matches() -> None:
    times, cell = {0, 1, 2}, 3
    assert answers(thinned(times, cell), 3, 1) != answers(times, 3, 1)
    assert cell_start(1, cell) == 0


def test_longer_cells_than_the_windows_would_make_rows_miss_matches() -> None:
    assert answers(thinned({0, 2, 4}, 5), 2, 0) != answers({0, 2, 4}, 2, 0)
    assert cell_length(2, 1000) == 2
    assert cell_length(1000, 10) == 2
    assert cell_length(0, 10) == cell_length(10, 1) == 1


def plan(how: str, window: tuple[float, float] = (20, 20), lateness: float = 4, **tuning: Any) -> JoinPlan:
    options = {
        "window": [round(length * SECOND) for length in window],
        "lateness": round(lateness * SECOND),
        "time_columns": ["_p0", "_p0"],
    }
    return make_plan("window", options=options, payload=(pa.int64(),), tuning=tuning, how=how)


@pytest.mark.parametrize("how", ["left_semi", "left_anti"])
def test_a_key_that_comes_often_is_kept_a_few_times(how: str) -> None:
    """100 rows a second of one key, for two minutes: 2,400 are within the window."""
    driver, inner, most = Driver(plan(how)), Driver(plan("inner")), 0
    for second in range(120):
        rows = [(1, second + i / 100) for i in range(100)]
        driver.send(left=[(2, second)], right=rows)
        inner.send(left=[(2, second)], right=rows)
        store = driver.operator.stores["right"]
        most = max(most, store.held)
        assert store.held <= 2 * (len(store.runs) + 6)  # no more than two of a cell and run
        assert driver.operator.accounts.held("right") == store.held
    assert most < 40
    assert inner.operator.stores["right"].held > 2400
    left = driver.operator.accounts.left["right"]
    assert left["redundant"] > 11_500
    assert sum(left.values()) + store.held == 12_000


def test_rows_are_kept_until_their_cell_is_behind_the_horizon() -> None:
    """Cells of 6 seconds: a quarter of the window of 20 and the lateness of 4."""
    driver = Driver(plan("left_semi"))
    driver.send(right=[(1, 6.5), (1, 11.5)])
    driver.send(left=[(9, 32)])  # the horizon is at 8, in the middle of the cell
    assert driver.operator.stores["right"].held == 2
    assert driver.send(left=[(1, 0)]) == 1  # late, and yet it finds a right row of the cell
    driver.send(left=[(9, 36)])
    assert driver.operator.stores["right"].held == 0


def test_no_cell_is_longer_than_both_windows() -> None:
    """However long right rows are kept: one between two others may be the only one that a left row reaches."""
    driver = Driver(plan("left_semi", (1, 1), lateness=100))
    driver.send(right=[(1, 0), (1, 1.5), (1, 3.5)])
    assert driver.send(left=[(1, 2)]) == 1


def test_rows_that_are_scanned_are_not_thinned() -> None:
    driver = Driver(plan("left_semi", algorithm="HN"))
    for second in range(10):
        driver.send(right=[(1, second + i / 10) for i in range(10)])
    assert driver.operator.stores["right"].held == 100
