"""The combinations of many inputs' matches, enumerated in blocks of bounded size.

A unit (a key, or one driver row under a window) has counts[l] rows of each input l and so prod counts[l] combinations.
They are numbered through over all units; a block is a stretch of these numbers, and a number says by itself which rows
it stands for (its digits to the bases counts[l]). Nothing is built that is larger than a block, however many
combinations there are.

    unit 0: counts 2 x 1 x 3     numbers 0..5       number 4 = digits (1, 0, 1)
    unit 1: counts 1 x 2 x 1     numbers 6..7
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from watersmeet.columns.arrow import Indices
from watersmeet.columns.matching import BLOCK_ROWS
from watersmeet.multiway.probe import Matches


def sizes_of(matches: Sequence[Matches]) -> npt.NDArray[np.float64]:
    """How many combinations each unit has; not integers, which could overflow."""
    return np.asarray(np.prod([match.counts for match in matches], axis=0, dtype=np.float64))


def combinations(matches: Sequence[Matches], block_rows: int = BLOCK_ROWS) -> Iterator[list[Indices]]:
    """Row numbers of every combination, one array per input, in blocks.

    >>> import pyarrow as pa
    >>> table = pa.table({})
    >>> left = Matches(table, np.array([0, 1]), np.array([0]), np.array([2]))
    >>> right = Matches(table, np.array([5, 6]), np.array([0]), np.array([2]))
    >>> [[rows.tolist() for rows in block] for block in combinations([left, right], block_rows=3)]
    [[[0, 0, 1], [5, 6, 5]], [[1], [6]]]
    """
    sizes = sizes_of(matches).astype(np.int64)  # exact: limited to 2**53 in all before anything is enumerated
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    for low in range(0, total, block_rows):
        high = min(low + block_rows, total)
        first, last = (int(at) for at in np.searchsorted(ends, (low, high - 1), side="right"))
        units = slice(first, last + 1)
        begins = ends[units] - sizes[units]
        taken = np.minimum(ends[units], high) - np.maximum(begins, low)
        yield _rows(matches, units, taken, np.arange(low, high) - np.repeat(begins, taken))


def _rows(matches: Sequence[Matches], units: slice, taken: Indices, number: Indices) -> list[Indices]:
    """The rows behind the numbers (counted within their unit); `taken` is how many numbers each unit has."""
    chosen: list[Indices] = []
    for match in reversed(matches):
        place = np.repeat(match.begins[units], taken)
        counts = match.counts[units]
        if counts.max() > 1:
            number, digit = np.divmod(number, np.repeat(counts, taken))
            place += digit
        chosen.append(match.rows[place])
    return chosen[::-1]
