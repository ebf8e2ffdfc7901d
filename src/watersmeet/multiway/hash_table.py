"""ht_j: what a driver's rows probe of another input.

    stored rows      all rows of earlier batches, in a few hash-sorted runs
    pages            with a window, runs that memory had no room for: those pages that the probes may match
    buffer           the rows of this batch, hash-sorted; only those already drained count

A slice that has driven is marked as drained and not moved, so interleaving drivers leave one buffer to probe and not
one piece per slice. At the end of the batch the buffer is stored. A page is read for each probe and not kept: memory
holds those of its rows that match. Without a window, rows on disk are joined later (see `origins`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of
from watersmeet.columns.matching import equal_ranges, ranges
from watersmeet.state.pages import together
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run

Mask = npt.NDArray[np.bool_]
Span = tuple[int, int]  # the earliest and the latest time that a match can have


class Piece(NamedTuple):
    """A table to probe, and the rows of it that count (none: all of them).

    A page is not to be kept. Fresh rows are those of the batch.
    """

    table: pa.Table
    mask: Mask | None = None
    is_page: bool = False
    is_fresh: bool = False


class Probed(Protocol):
    """What a probe visits."""

    def parts(self, needles: Hashes) -> Iterator[Piece]:
        """The tables in which sorted hashes may be found."""


class Together:
    """A few tables that are visited as one."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self.tables = tables

    def parts(self, needles: Hashes) -> Iterator[Piece]:
        """All of them."""
        return map(Piece, self.tables)


class HashTable:
    """The rows of one input, as the other inputs' rows may probe them."""

    def __init__(self, store: RowStore, *, probes_disk: bool) -> None:
        self.store = store
        self._probes_disk = probes_disk
        self._stored: list[Piece] | None = []  # what was in memory when the batch began, once it is probed
        self._spilled: list[Run] = []  # what is probed on disk
        self._stored_rows = self._spilled_rows = 0
        self.span: Span | None = None  # of the slice that drives
        self.buffer: pa.Table | None = None
        self._drained: Mask = np.zeros(0, np.bool_)
        self._drained_rows = 0

    @property
    def rows(self) -> int:
        """|ht_j|."""
        return self.resident_rows + self._spilled_rows

    @property
    def resident_rows(self) -> int:
        """The rows of it that are in memory."""
        return self._stored_rows + self._drained_rows

    @property
    def waiting(self) -> int:
        """|buffer_j|: rows of the batch that have not driven yet."""
        return len(self._drained) - self._drained_rows

    def open(self, buffer: pa.Table) -> None:
        """A batch begins: its rows wait in the buffer."""
        self.buffer = buffer
        self._stored = None
        spilled = self.store.spilled
        on_disk = self.store.spilled_rows if spilled else 0
        self._stored_rows = self.store.rows - on_disk
        self._spilled, self._spilled_rows = (spilled, on_disk) if self._probes_disk else ([], 0)
        self._drained = np.zeros(buffer.num_rows, np.bool_)
        self._drained_rows = 0

    def drain(self, rows: Indices) -> None:
        """These rows of the buffer have driven."""
        self._drained[rows] = True
        self._drained_rows += len(rows)

    def close(self) -> None:
        """The batch ends: what is to be kept of the buffer is stored by whoever opened it."""
        self.buffer, self._stored, self._spilled = None, [], []  # nothing is probed before the next batch
        self._stored_rows = self._spilled_rows = 0
        self._drained, self._drained_rows = np.zeros(0, np.bool_), 0

    def parts(self, needles: Hashes) -> Iterator[Piece]:
        """What is in memory, and the pages on disk that the needles may match."""
        yield from self.resident()
        for run in self._spilled:
            if self._is_near(run):
                yield from self._pages(run, needles)

    def resident(self) -> Iterator[Piece]:
        """What is in memory: stored rows, and those of the batch that have driven."""
        if self._stored is None:  # a batch without rows opens no file
            self._stored = [Piece(part.table, part.mask) for part in self.store.parts()]
        yield from self._stored
        if self.buffer is not None and self._drained_rows:
            drained = None if self._drained_rows == len(self._drained) else self._drained
            yield Piece(self.buffer, drained, is_fresh=True)

    def _is_near(self, run: Run) -> bool:
        """Whether a run has rows in the span of time in which matches can be."""
        if self.span is None or run.time_from is None or run.time_to is None:
            return True
        return run.time_to >= self.span[0] and run.time_from <= self.span[1]

    def _pages(self, run: Run, needles: Hashes) -> Iterator[Piece]:
        assert self.store.buckets is not None
        wanted = np.flatnonzero(self.store.buckets.counts(needles))
        for part in together(self.store.pages(run, wanted.tolist()), self.store.page_rows):
            yield Piece(part.table, part.mask, is_page=True)

    def count(self, needles: Hashes) -> Indices:
        """For sorted hashes, how many rows in memory have each of them."""
        counts = np.zeros(len(needles), np.int64)
        for table, mask, *_ in self.resident():
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
