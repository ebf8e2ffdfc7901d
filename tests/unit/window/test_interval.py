"""Intervals of time between two rows: how they are written, kept and reached."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from watersmeet.columns.saturating import EARLIEST, LATEST
from watersmeet.errors import OptionError
from watersmeet.join.clock import Clock
from watersmeet.window.interval import UNBOUNDED, Between, between, pair_within
from watersmeet.window.kernels import Ordered, Reach, pairs
from watersmeet.window.options import WindowOptions

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("window", "waits"),
    [
        (between("5 min", "10 min"), (600 * SECOND, -300 * SECOND)),
        (between("-10 s", timedelta(seconds=-1)), (-SECOND, 10 * SECOND)),
        (between("0 s", None), (None, 0)),
        (between(None, "- 2 s"), (-2 * SECOND, None)),
        ({"between": ["1 s", None]}, (None, -SECOND)),
        (("1 s", "2 s"), (SECOND, 2 * SECOND)),
        ("3 s", (3 * SECOND, 3 * SECOND)),
    ],
    ids=str,
)
def test_an_interval_is_kept_as_two_waits(window: Any, waits: tuple[int | None, int | None]) -> None:
    options = WindowOptions.checked("test", window=window)
    assert options.window == waits
    # Out of a plan the same comes back: numbers are microseconds there.
    assert WindowOptions(**options.identity(), **options.tuning()).window == waits


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        (("2 s", "1 s"), "ends before it begins"),
        ((None, None), "open at both ends"),
        (("soon", None), "is not a duration"),
        ((5, None), "is not a duration"),
        (("0 s", "9999999 days"), "longer than 10,000 years"),
    ],
    ids=str,
)
def test_wrong_intervals(ends: tuple[Any, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why) as caught:
        between(*ends)
    assert caught.value.option == "window"
    with pytest.raises(OptionError, match=why):
        WindowOptions.checked("test", window={"between": list(ends)})


def test_windows_have_no_sign_and_an_end() -> None:
    for window in ((None, "1 s"), (timedelta(seconds=-1), "1 s")):
        with pytest.raises(OptionError, match=r"the left window must be between 0.*wm.between takes any"):
            WindowOptions.checked("test", window=window)
    with pytest.raises(OptionError, match="need an interval with two ends"):
        WindowOptions.checked("test", window=Between(0, None), on_overload="shed")


def found(left: list[int], right: list[int], reach: Reach) -> set[tuple[int, int]]:
    sides = [Ordered(np.zeros(len(times), np.uint64), np.array(times, np.int64)) for times in (left, right)]
    return {(left[i], right[j]) for a, b in pairs(*sides, reach) for i, j in zip(a.tolist(), b.tolist(), strict=True)}


@pytest.mark.parametrize(
    "reach",
    [Reach(2, 5), Reach(-5, -2), Reach(3, 3), Reach(2, UNBOUNDED), Reach(-UNBOUNDED, -2), Reach(0, UNBOUNDED)],
    ids=str,
)
def test_pairs_at_the_ends_of_time(reach: Reach) -> None:
    """Where a bound lies beyond what 64 bits hold, and whichever side is longer."""
    times = sorted({EARLIEST + n for n in range(8)} | {LATEST - n for n in range(8)} | {-3, 0, 2, 5})
    for left, right in ((times, times), (times[::3], times), (times, times[::2])):
        wanted = {(a, b) for a in left for b in right if reach.low <= b - a <= reach.high}
        assert found(left, right, reach) == wanted
        assert wanted


def test_horizons_of_negative_and_endless_waits() -> None:
    clock = Clock({"left": UNBOUNDED, "right": -5}, lateness=2)
    assert clock.horizon("right", ["left"]) is None
    clock.see("left", 100)
    clock.see("right", 100)
    assert clock.horizon("right", ["left"]) == 103  # a left row at 98 may come, and finds what is at 103
    assert clock.horizon("left", ["right"]) == EARLIEST  # all of it is needed
    clock.see("left", LATEST)
    assert clock.horizon("right", ["left"]) == LATEST + 1  # no row is late enough


def test_a_pair_may_say_equal_times_but_not_another_moment() -> None:
    assert pair_within("join", ("0 s", "0 s")).waits == (0, 0)
    for moment in ("5 min", "-1 s", "1 us"):
        with pytest.raises(OptionError, match="an interval of one moment"):
            pair_within("join", (moment, moment))
