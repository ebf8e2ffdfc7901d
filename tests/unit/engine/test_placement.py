"""The shape of a hot key's grid: how many lines and columns, which partitions, which shares."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.unit.engine.test_spreading import BOTH

from watersmeet.engine.heat import Heat, KeyHeat
from watersmeet.engine.placement import Place
from watersmeet.engine.spreading import decide
from watersmeet.plan.hot_table import HotKey, HotTable, home_of, routes

KEY = 19


def heats(partitions: int, left: float, right: float, results: float, base: float = 1000.0) -> list[Heat]:
    """One key, all at home, beside other keys: half of its results is found by rows of either input."""
    found = [Heat(base) for _ in range(partitions)]
    home = found[home_of(KEY, partitions)]
    rows, held = {"left": left, "right": right}, {"left": 5 * int(left), "right": 5 * int(right)}
    made = dict.fromkeys(BOTH, results / 2)
    home.keys[KEY] = KeyHeat(left + right + results, rows, str(KEY), {}, made, held)
    home.load += home.keys[KEY].work
    return found


def placed(partitions: int, left: float, right: float, results: float, *, both: bool = True) -> HotKey:
    return decide(HotTable(), heats(partitions, left, right, results), BOTH, both=both).keys[KEY]


def whole(key: HotKey) -> tuple[int, int]:
    """All lines and columns, whether rows go to them now or not."""
    return len(key.grid), len(key.grid[0])


@pytest.mark.parametrize(
    ("partitions", "left", "right", "shape"),
    [
        (4, 3000.0, 3000.0, (2, 2)),
        (8, 3000.0, 3000.0, (4, 2)),
        (8, 9000.0, 3000.0, (4, 2)),
        (16, 9000.0, 9000.0, (4, 4)),
        (64, 30_000.0, 30_000.0, (8, 8)),
        (64, 30_000.0, 300.0, (64, 1)),
        (5, 3000.0, 3000.0, (5, 1)),  # 2 x 2 would leave a fifth of the work to the others
        (7, 3000.0, 3000.0, (7, 1)),
        (2, 3000.0, 3000.0, (2, 1)),
    ],
)
def test_the_shape_has_the_fewest_copies_for_all_partitions(
    partitions: int, left: float, right: float, shape: tuple[int, int]
) -> None:
    key = placed(partitions, left, right, results=1e6 * partitions)
    lines, columns = whole(key)
    assert (lines, columns) == shape
    assert len(set(key.holders)) == lines * columns
    assert key.grid[0][0] == home_of(KEY, partitions)


def test_of_equal_inputs_the_first_is_split_and_of_others_the_larger() -> None:
    assert placed(16, 9000.0, 9000.0, 1e7).split == "left"
    key = placed(16, 3000.0, 30_000.0, 1e7)
    assert (key.split, whole(key)[0] > whole(key)[1]) == ("right", True)


@pytest.mark.parametrize(("left", "right"), [(9000.0, 50.0), (20.0, 8000.0), (9000.0, 0.0)])
def test_where_one_input_is_much_larger_nothing_changes(left: float, right: float) -> None:
    assert placed(8, left, right, 40_000.0) == placed(8, left, right, 40_000.0, both=False)


def test_joins_that_cannot_divide_both_have_one_column() -> None:
    assert whole(placed(16, 9000.0, 9000.0, 1e7, both=False)) == (16, 1)


def test_new_rows_of_both_inputs_find_old_ones_in_many_partitions() -> None:
    """Right after a key became hot all its rows are at home. With one input copied rows of it find the others there."""
    key = placed(16, 9000.0, 9000.0, 1e7)
    work = np.zeros(16)
    for side, amount in (("left", key.lines), ("right", key.columns)):
        shares = Counter(amount)
        for at, pieces in shares.items():
            one = key.grid[at][0] if side == "left" else key.grid[0][at]
            work[one] += 5e6 * pieces / len(amount)
    assert work.max() < 2e6


def test_stale_partitions_do_not_come_in() -> None:
    home = home_of(KEY, 8)
    stale = tuple(one for one in range(8) if one != home)[:4]
    told = heats(8, 3000.0, 3000.0, 8e6)
    for one in stale:
        told[one].guests = frozenset({KEY})
    before = HotTable.of([HotKey(KEY, "left", ((home,),), ((0,), (0,)), (0,), stale=stale)])
    key = decide(before, told, BOTH, both=True).keys[KEY]
    assert whole(key) == (2, 2)
    assert not set(key.holders) & set(stale)
    assert key.stale == stale


def test_a_grid_grows_by_lines_and_columns_and_what_is_there_stays() -> None:
    home = home_of(KEY, 64)
    others = [one for one in range(64) if one != home]
    before = HotKey(KEY, "left", ((home, others[0]), (others[1], others[2])), ((0, 2), (0, 1)), (0, 1), (0, 1))
    key = decide(HotTable.of([before]), heats(64, 30_000.0, 30_000.0, 1e8), BOTH, both=True).keys[KEY]
    assert whole(key) == (8, 8)
    assert [line[:2] for line in key.grid[:2]] == [(home, others[0]), (others[1], others[2])]
    lines, columns = key.ages
    assert (lines[:2], columns[:2]) == ((0, 2), (0, 1))
    later = [*lines[2:], *columns[2:]]
    assert len(set(later)) == len(later)
    assert min(later) > 2
    again = decide(HotTable.of([key]), heats(64, 30_000.0, 30_000.0, 1e8), BOTH, both=True).keys[KEY]
    assert (again.grid, again.ages) == (key.grid, key.ages)


def test_lines_and_columns_without_rows_leave_when_the_key_is_cold() -> None:
    home = home_of(KEY, 8)
    a, b, c, d, e = [one for one in range(8) if one != home][:5]
    grid = ((home, a, b), (c, d, e))
    before = HotTable.of([HotKey(KEY, "left", grid, ((0, 3), (0, 1, 2)), (0,), (0,))])
    told = [Heat(1000.0) for _ in range(8)]
    for one in (a, b, c, d, e):
        told[one].guests = frozenset({KEY})
    assert decide(before, told, BOTH, both=True).keys[KEY].grid == grid
    told[c].idle = told[d].idle = {"left": frozenset({KEY})}
    told[b].idle = told[e].idle = {"right": frozenset({KEY})}
    third = decide(before, told, BOTH, both=True).keys[KEY]  # the second line has a left row in its last column
    assert (third.grid, third.ages, third.stale) == (((home, a), (c, d)), ((0, 3), (0, 1)), tuple(sorted((b, e))))
    told[e].idle["left"] = frozenset({KEY})
    first = decide(before, told, BOTH, both=True).keys[KEY]
    assert (first.grid, first.stale) == (((home, a),), tuple(sorted((b, c, d, e))))
    busy = HotTable.of([HotKey(KEY, "left", grid, ((0, 3), (0, 1, 2)), (1,), (2,))])
    kept = decide(busy, told, BOTH, both=True).keys[KEY]
    assert (kept.grid, kept.lines, kept.columns) == (grid, (0,), (0,))


def test_the_first_of_a_line_has_its_rows_and_the_first_of_a_column_has_its() -> None:
    key = HotKey(KEY, "right", ((3, 1), (0, 2)), ((0, 2), (0, 1)), (0, 1, 1), (1,))
    assert [key.cell(one) for one in (3, 1, 0, 2, 7)] == [(0, 0), (0, 1), (1, 0), (1, 1), None]
    owned = [key.owned(*cell, BOTH) for cell in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert owned == [["left", "right"], ["left"], ["right"], []]
    sent = [(one.input, one.targets, one.is_copy) for one in routes(HotTable.of([key]), BOTH)]
    assert sent == [
        ("left", (1,), False),
        ("left", (2,), True),
        ("right", (3, 0, 0), False),
        ("right", (1, 2, 2), True),
    ]
    assert HotTable.from_json(HotTable.of([key]).to_json()).keys[KEY] == key


def test_a_place_without_lines_and_columns_keeps_the_others_as_they_were() -> None:
    place = Place(((0, 1, 2), (3, 4, 5), (6, 7, 8)), ((0, 1, 2), (0, 3, 4)), (2, 0), (2,))
    less = place.without([1], [1])
    assert less == Place(((0, 2), (6, 8)), ((0, 2), (0, 4)), (1, 0), (1,))
    assert less.with_line([9, 10]).ages == ((0, 2, 5), (0, 4))
    assert less.with_column([9, 10]).grid == ((0, 2, 9), (6, 8, 10))
