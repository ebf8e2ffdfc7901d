"""CPU time that can be compared on a machine with other things to do.

The works take turns, each on the same data every time, in one order and then in the other. A work's batches have the
same rows in every turn, so of each batch the least time counts: whatever else the machine did can only add to it.
Python's collector of cycles stays out of it; what it would cost depends on all that was run before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from watersmeet.lab.workloads import Floats

# A work gives the CPU seconds of each of its batches.
Work = Callable[[], Sequence[float]]


def least_in_turns(works: Mapping[str, Work], turns: int) -> dict[str, Floats]:
    """The least CPU seconds of every batch of every work, over so many turns."""
    least: dict[str, Floats] = {}
    for name in order_of_turns(list(works), turns):
        with uncollected():
            spent = np.asarray(works[name](), np.float64)
        least[name] = np.minimum(least[name], spent) if name in least else spent
    return least


def order_of_turns(names: Sequence[str], turns: int) -> list[str]:
    """All names, so many times, forwards and backwards by turns.

    >>> order_of_turns("ab", 3)
    ['a', 'b', 'b', 'a', 'a', 'b']
    """
    return [name for turn in range(turns) for name in (names if turn % 2 == 0 else reversed(names))]


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection of cycles within."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
