"""Intervals of the time from a left row to a right row.

    window=("10 min", "0 s")           0 s    <=  right - left  <=  10 min      each input has a window
    between("5 min", "10 min")         5 min  <=  right - left  <=  10 min      need not contain zero
    between("0 s", None)               0 s    <=  right - left                  open: left rows wait for ever

A pair of windows is the interval from -window_right to window_left. So an interval is kept as such a pair, in which one
length may be negative (a row for which all partners have come before it) or None (open).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from watersmeet.errors import OptionError
from watersmeet.plan.options import MAX_DURATION, known_names, parse_duration

UNBOUNDED = 2**64
"""Longer than the time between any two rows: times have 64 bits."""

Waits = tuple[int | None, int | None]  # how long left and right rows wait, in microseconds; None: for ever


@dataclass(frozen=True)
class Between:
    """From `low` to `high` microseconds, both included; None is open. Made by `between`."""

    low: int | None
    high: int | None

    @property
    def waits(self) -> Waits:
        """How long left and right rows wait for rows that come after them."""
        return self.high, None if self.low is None else -self.low


@known_names
def between(low: str | timedelta | None, high: str | timedelta | None) -> Between:
    """The interval in which the time of a right row less that of a left row must lie, for `window_join(window=...)`.

    Args:
        low: The least difference, such as `"5 min"`, `"-30 s"` or a `datetime.timedelta`; None: any.
        high: The greatest difference; None: any. Nothing bounds the state of the side that waits for an open end.

    >>> between("5 min", "10 min")
    Between(low=300000000, high=600000000)
    >>> between("-30 s", "1 min").waits
    (60000000, 30000000)
    """
    try:
        return interval([low, high])
    except ValueError as error:
        raise OptionError(
            "between",
            expected="between(low, high) with two durations, low <= high, one of which may be None",
            found=f"between({low!r}, {high!r}): {error}",
            hint="Write for example between('5 min', '10 min') or between('0 s', None).",
            option="window",
        ) from None


def pair_within(who: str, ends: Sequence[Any]) -> Between:
    """The interval that a pair of durations says to `wm.join`. Two equal ones are refused: whoever writes them means a
    window for each input.

    >>> pair_within("join", ("0 s", "30 min")).waits
    (1800000000, 0)
    """
    try:
        found = interval(ends)
        if found.low == found.high != 0:
            raise ValueError("an interval of one moment")
    except ValueError as error:
        raise OptionError(
            who,
            expected="within = (low, high), the least and the greatest right time less left time",
            found=f"{tuple(ends)!r}: {error}",
            hint="Write ('0 s', '30 min') for right rows up to 30 minutes after their left rows, '30 min' for either "
            "way, or wm.between(...) for any interval.",
            option="within",
        ) from None
    return found


def interval(ends: Any) -> Between:
    """An interval of two ends as a user writes them; a `ValueError` says what is wrong."""
    if not isinstance(ends, Sequence) or isinstance(ends, str) or len(ends) != 2:
        raise ValueError("an interval has two ends, such as ['5 min', '10 min']")
    low, high = (_end(one) for one in ends)
    if low is None and high is None:
        raise ValueError("an interval that is open at both ends is none; use progressive_join or punctuated_join")
    if low is not None and high is not None and low > high:
        raise ValueError("the interval ends before it begins")
    return Between(low, high)


def _end(value: Any) -> int | None:
    """A duration with a sign."""
    if value is None:
        return None
    negative = isinstance(value, str) and value.lstrip().startswith("-")
    parsed = parse_duration(value.lstrip()[1:] if negative else value)
    if not isinstance(value, str | timedelta) or not isinstance(parsed, int):
        raise ValueError(f"{value!r} is not a duration such as '60 s'")
    if parsed > MAX_DURATION or parsed < -MAX_DURATION:
        raise ValueError(f"{value!r} is longer than 10,000 years")
    return -parsed if negative else parsed


def reach_of(waits: Waits) -> tuple[int, int]:
    """How long left and right rows wait, as numbers."""
    left, right = (UNBOUNDED if wait is None else wait for wait in waits)
    return left, right
