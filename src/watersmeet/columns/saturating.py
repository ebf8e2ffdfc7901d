"""Arithmetic with times that stops at the ends of 64 bits, where NumPy's would go on at the other end.

Times are microseconds in int64, and any value may come. A bound beyond the last value is as good at that value: nothing
is later. So compare with `<=` and `>=`, which stay exact; there is no value after the last one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

EARLIEST, LATEST = -(2**63), 2**63 - 1


def shifted(times: Times, by: int) -> Times:
    """Times moved by so many microseconds, however many.

    >>> shifted(np.array([0, LATEST - 3]), 5).tolist() == [5, LATEST]
    True
    >>> shifted(np.array([0, EARLIEST + 3]), -5).tolist() == [-5, EARLIEST]
    True
    >>> shifted(np.array([EARLIEST]), 2**64 - 2).tolist() == [LATEST - 1]
    True
    """
    if not EARLIEST <= by <= LATEST:  # in steps that 64 bits can hold
        step = saturated(by)
        return shifted(shifted(times, step), by - step)
    return np.minimum(times, LATEST - by) + by if by >= 0 else np.maximum(times, EARLIEST - by) + by


def saturated(time: int) -> int:
    """The nearest time that 64 bits can hold.

    >>> saturated(2**70) == LATEST, saturated(5), saturated(EARLIEST - 1) == EARLIEST
    (True, 5, True)
    """
    return min(max(time, EARLIEST), LATEST)


def scaled(counts: Times, unit: int) -> Times:
    """Counts of a unit in microseconds.

    >>> scaled(np.array([2, 2**40]), 86_400_000_000).tolist() == [172_800_000_000, LATEST]
    True
    """
    most = LATEST // unit
    return np.where(counts > most, LATEST, np.where(counts < -most, EARLIEST, np.clip(counts, -most, most) * unit))
