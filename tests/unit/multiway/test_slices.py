"""Slices cover a buffer once, keep equal values together and do not depend on the order of rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.multiway.slices import Slicing, cut

SLICINGS: tuple[Slicing, ...] = ("whole", "clock", "share")
orders = st.lists(st.lists(st.integers(0, 20), max_size=30), min_size=2, max_size=4)


@pytest.mark.parametrize("slicing", SLICINGS)
@given(values=orders, slices=st.integers(1, 9))
def test_every_row_is_in_one_slice_with_its_equals(slicing: Slicing, values: list[list[int]], slices: int) -> None:
    arrays = [np.array(v, np.int64) for v in values]
    for order, queue in zip(arrays, cut(arrays, slicing, slices), strict=True):
        assert sorted(np.concatenate([s.rows for s in queue]).tolist() if queue else []) == list(range(len(order)))
        assert len(queue) <= slices
        ranges = [(order[s.rows].min(), order[s.rows].max()) for s in queue]
        assert all(earlier[1] < later[0] for earlier, later in pairwise(ranges))
        assert all((np.diff(s.rows) > 0).all() for s in queue)  # still in hash order


def test_clock_slices_are_the_same_stretches_of_time_for_all() -> None:
    fast, slow = np.arange(0, 100), np.arange(0, 100, 10)
    first, second = cut([fast, slow], "clock", 5)
    assert [s.number for s in first] == [s.number for s in second] == [0, 1, 2, 3, 4]
    for a, b in zip(first, second, strict=True):
        assert fast[a.rows].min() <= slow[b.rows].min() <= slow[b.rows].max() <= fast[a.rows].max()


def test_share_slices_have_equally_many_rows_of_each_input() -> None:
    fast, slow = np.arange(0, 100), np.arange(0, 100, 10)
    assert [[len(s.rows) for s in queue] for queue in cut([fast, slow], "share", 5)] == [[20] * 5, [2] * 5]
