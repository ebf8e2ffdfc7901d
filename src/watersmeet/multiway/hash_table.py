"""ht_j: what a driver's rows probe of another input.

    stored rows      all rows of earlier batches, in a few hash-sorted runs
    buffer           the rows of this batch, hash-sorted; only those already drained count

A slice that has driven is marked as drained and not moved, so interleaving drivers leave one buffer to probe and not
one piece per slice. At the end of the batch the buffer is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of
from watersmeet.columns.matching import equal_ranges, ranges
from watersmeet.state.rows import RowStore

Mask = npt.NDArray[np.bool_]


class HashTable:
    """The rows of one input, as the other inputs' rows may probe them."""

    def __init__(self, store: RowStore) -> None:
        self.store = store
        self._stored: list[tuple[pa.Table, Mask | None]] = []  # what was stored when the batch began
        self.buffer: pa.Table | None = None
        self._drained: Mask = np.zeros(0, np.bool_)
        self._drained_rows = 0

    @property
    def rows(self) -> int:
        """|ht_j|."""
        return self.store.rows + self._drained_rows

    @property
    def waiting(self) -> int:
        """|buffer_j|: rows of the batch that have not driven yet."""
        return len(self._drained) - self._drained_rows

    def open(self, buffer: pa.Table) -> None:
        """A batch begins: its rows wait in the buffer."""
        self.buffer = buffer
        for part in self.store.parts():
            mask = None
            if part.living is not None:
                mask = np.zeros(part.table.num_rows, np.bool_)
                mask[part.living] = True
            self._stored.append((part.table, mask))
        self._drained = np.zeros(buffer.num_rows, np.bool_)
        self._drained_rows = 0

    def drain(self, rows: Indices) -> None:
        """These rows of the buffer have driven."""
        self._drained[rows] = True
        self._drained_rows += len(rows)

    def close(self) -> None:
        """The batch ends: what is to be kept of the buffer is stored by whoever opened it."""
        self.buffer, self._stored, self._drained, self._drained_rows = None, [], np.zeros(0, np.bool_), 0

    def parts(self) -> Iterator[tuple[pa.Table, Mask | None]]:
        """The tables to probe, each with the rows that count (none: all of them)."""
        yield from self._stored
        if self.buffer is not None and self._drained_rows:
            yield self.buffer, None if self._drained_rows == len(self._drained) else self._drained

    def count(self, needles: Hashes) -> Indices:
        """For sorted hashes, how many rows have each of them."""
        counts = np.zeros(len(needles), np.int64)
        for table, mask in self.parts():
            hashes = hashes_of(table)
            low, high = (np.searchsorted(hashes, needles, side=side) for side in ("left", "right"))
            if mask is not None:
                before = np.concatenate(([0], np.cumsum(mask)))
                low, high = before[low], before[high]
            counts += high - low
        return counts


def find(needles: Hashes, table: pa.Table, mask: Mask | None) -> tuple[Indices, Indices]:
    """All pairs (i, row) with needles[i] equal to the row's hash; needles ascend and differ, pairs ascend by i.

    The shorter side is looked up in the longer one.
    """
    hashes = hashes_of(table)
    i, rows = _look_up(needles, hashes) if len(needles) < len(hashes) else _look_back(needles, hashes)
    if mask is not None:
        counted = mask[rows]
        i, rows = i[counted], rows[counted]
    return i, rows


def _look_back(needles: Hashes, hashes: Hashes) -> tuple[Indices, Indices]:
    """Every row looks for its needle."""
    at = np.searchsorted(needles, hashes)
    np.minimum(at, len(needles) - 1, out=at)
    rows = np.flatnonzero(needles[at] == hashes)
    return at[rows], rows


def _look_up(needles: Hashes, hashes: Hashes) -> tuple[Indices, Indices]:
    """Every needle looks for its rows."""
    i, start, counts = equal_ranges(needles, hashes)
    return np.repeat(i, counts), ranges(start, start + counts)
