"""Durations as people read them; `plan.options` parses them."""

from __future__ import annotations


def format_duration(microseconds: int) -> str:
    """A duration for people, in the largest unit that needs no fraction.

    >>> format_duration(1_000_000), format_duration(600_000_000), format_duration(1_500), format_duration(0)
    ('1 s', '10 min', '1500 us', '0 s')
    """
    units = {"d": 86_400_000_000, "h": 3_600_000_000, "min": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
    unit = next(name for name, length in units.items() if microseconds % length == 0) if microseconds else "s"
    return f"{microseconds // units[unit]} {unit}"
