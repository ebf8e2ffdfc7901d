"""Independent runs on a virtual clock, on all cores: what else the machine does cannot change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from watersmeet.lab.experiment import Scale

K = TypeVar("K")
V = TypeVar("V")


def in_parallel(work: Callable[[K], V], keys: Sequence[K], scale: Scale) -> Iterator[V]:
    """What `work` makes of every key, in their order; tiny runs are not worth a process."""
    if scale == "tiny" or len(keys) < 2:
        yield from map(work, keys)
        return
    # Not forked: Arrow has threads of its own.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, keys)
