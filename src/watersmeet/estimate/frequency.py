"""How often keys occur: sums per key, and rates over the time a key was watched.

Everything is an array over hashes; two keys of one hash are counted as one, which only a statistic may do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Amounts = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def group_starts(ordered: Hashes) -> Indices:
    """Where each group of equal values begins in a sorted array.

    >>> group_starts(np.array([3, 3, 8], dtype=np.uint64)).tolist()
    [0, 2]
    """
    if not len(ordered):
        return np.empty(0, np.int64)
    return np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)).astype(np.int64)


def tally(ordered: Hashes, amounts: Amounts) -> tuple[Hashes, Amounts]:
    """The distinct values of a sorted array and the sum of the amounts of each.

    >>> hashes, sums = tally(np.array([3, 3, 8], dtype=np.uint64), np.array([1.0, 2.0, 4.0]))
    >>> hashes.tolist(), sums.tolist()
    ([3, 8], [3.0, 4.0])
    """
    starts = group_starts(ordered)
    return ordered[starts], np.add.reduceat(amounts, starts) if len(starts) else np.empty(0)


def amounts_of(wanted: Hashes, hashes: Hashes, amounts: Amounts) -> Amounts:
    """The amount of each wanted value in a tally; 0 for those that are not in it."""
    if not len(hashes):
        return np.zeros(len(wanted))
    at = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
    return np.where(hashes[at] == wanted, amounts[at], 0.0)


def surely(amounts: Amounts, counts: Indices | Amounts) -> Amounts:
    """What a key will go on needing, given that `counts` rows with these amounts were seen once.

    Rows arrive independently, so n of them seen stand for n, give or take sqrt(n). Whoever picks the keys for which
    most rows happen to wait picks the lucky ones too; taking one deviation off leaves the hot and drops the lucky.

    >>> surely(np.array([100.0, 1000.0]), np.array([1, 100])).tolist()
    [0.0, 900.0]
    """
    return amounts * (1 - 1 / np.sqrt(np.maximum(counts, 1)))


def per_batch(amounts: Amounts, since: Indices, now: int) -> Amounts:
    """Amounts per batch over the time each key was watched, both ends included."""
    return amounts / np.maximum(now - since + 1, 1)
