"""Arithmetic at the ends of 64 bits, beside Python's integers, which have none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.columns.arrow import times_of
from watersmeet.columns.saturating import EARLIEST, LATEST, saturated, scaled, shifted
from watersmeet.errors import OptionError
from watersmeet.multiway.options import MultiwayOptions
from watersmeet.plan.options import MAX_DURATION
from watersmeet.window.kernels import Reach, order, pairs

ENDS = st.one_of(
    st.integers(EARLIEST, EARLIEST + 20),
    st.integers(LATEST - 20, LATEST),
    st.integers(-10, 10),
    st.integers(EARLIEST, LATEST),
)
DAY = 86_400_000_000


def clipped(value: int) -> int:
    return EARLIEST if value < EARLIEST else LATEST if value > LATEST else value


@given(times=st.lists(ENDS, max_size=20), by=st.one_of(st.integers(-30, 30), st.integers(-LATEST, LATEST)))
def test_shifted_and_saturated(times: list[int], by: int) -> None:
    expected = [clipped(time + by) for time in times]
    assert shifted(np.array(times, np.int64), by).tolist() == expected
    assert [saturated(time + by) for time in times] == expected


@given(counts=st.lists(ENDS, max_size=20), unit=st.sampled_from([1, 7, 1000, DAY]))
def test_scaled(counts: list[int], unit: int) -> None:
    assert scaled(np.array(counts, np.int64), unit).tolist() == [clipped(count * unit) for count in counts]


@given(
    left=st.lists(ENDS, max_size=12),
    right=st.lists(ENDS, max_size=12),
    before=st.sampled_from([0, 3, 15, MAX_DURATION]),
    after=st.sampled_from([0, 3, 15, MAX_DURATION]),
)
def test_pairs_of_a_window(left: list[int], right: list[int], before: int, after: int) -> None:
    sides = [order(np.full(len(times), 5, np.uint64), np.array(times, np.int64)) for times in (left, right)]
    blocks = pairs(sides[0], sides[1], Reach(-before, after))
    found = sorted((i, j) for block in blocks for i, j in zip(*(side.tolist() for side in block), strict=True))
    assert found == [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if -before <= b - a <= after]


def test_dates_beyond_the_last_microsecond_count_as_the_last() -> None:
    days = pa.table({"_p0": pa.array([0, 1, 2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32())})
    assert times_of(days, "_p0").tolist() == [0, DAY, LATEST, EARLIEST]


@pytest.mark.parametrize("option", ["window", "lateness"])
def test_a_multiway_window_has_a_longest_length(option: str) -> None:
    lengths: dict[str, Any] = {"window": "1 s", option: timedelta(microseconds=MAX_DURATION)}
    options = MultiwayOptions.checked("multiway_join", {"time": {"a": "_p0"}}, **lengths)
    assert getattr(options, option) == MAX_DURATION
    lengths[option] = timedelta(microseconds=MAX_DURATION + 1)
    with pytest.raises(OptionError, match=f"less than or equal to {MAX_DURATION}") as caught:
        MultiwayOptions.checked("multiway_join", {"time": {"a": "_p0"}}, **lengths)
    assert str(caught.value).startswith(f"multiway_join: expected a valid value for {option}, found ")
