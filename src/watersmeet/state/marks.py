"""Marks: which rows of a store's runs carry a flag (dead, matched), beside the runs, which never change.

    log       sorted numbers (run << 32 | row) in a few pieces, each batch's marks one piece; a piece at least half as
              long as the one before it is merged with it, so there are O(log marks) pieces
    bitmap    a bit per row, for a run of which more than one row in 32 is marked: from there on the log would be longer

A batch that asks for many rows of a run unfolds its marks into a byte per row, for as long as the batch lasts.

A batch writes what it marked and little more, however many rows are stored: bitmaps alone would be rewritten for one
mark (1.25 MB a batch for ten million rows), a log alone would grow without end. Row numbers of one attempt mean nothing
to another, because rows with equal hashes may stand in another order. So digests see only how many rows of a run are
marked and the sum of their hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, numpy_of
from watersmeet.state.run import Run
from watersmeet.state.side_table import SideTable

Mask = npt.NDArray[np.bool_]

# With more marks than one in FOLD rows a bitmap is smaller than the log.
FOLD = 32
# To unfold the marks of so many rows costs about as much as to look one row up in the log.
UNFOLD = 64
_COLUMN, _BITS = "_marked", "_bits"


class Marks:
    """The rows of a store that carry one flag.

    >>> import pyarrow as pa
    >>> from watersmeet.state.run import resident_run
    >>> run = resident_run("left", pa.table({"_hash": pa.array([3, 5, 5, 9], pa.uint64())}), oldest=0, newest=0, id=7)
    >>> marks = Marks()
    >>> marks.add(run, np.array([1, 3]), run.hashes).tolist(), marks.add(run, np.array([2, 3]), run.hashes).tolist()
    ([1, 3], [2])
    >>> marks.test(run, np.array([0, 1, 2, 3])).tolist(), marks.count(run)
    ([False, True, True, True], 3)
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._sums: dict[int, int] = {}
        self._bitmaps: dict[int, SideTable] = {}
        self._pieces: list[SideTable] = []
        self._fresh: dict[int, list[Indices]] = {}  # marks of this batch, each piece ascending
        self._unfolded: dict[int, Mask] = {}
        self._asked: dict[int, int] = {}  # rows looked up in this batch

    def count(self, run: Run) -> int:
        """How many rows of a run are marked."""
        return self._counts.get(run.id, 0)

    @property
    def is_empty(self) -> bool:
        """Whether no row is marked."""
        return not self._counts

    @property
    def total(self) -> int:
        """How many rows of all runs are marked."""
        return sum(self._counts.values())

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        fresh = sum(rows.nbytes for pieces in self._fresh.values() for rows in pieces)
        return fresh + sum(table.nbytes for table in [*self._bitmaps.values(), *self._pieces])

    def add(self, run: Run, rows: Indices, hashes: Hashes, base: int = 0) -> Indices:
        """Mark rows of a part of a run, in any order and repeatedly; returns those that were not marked, ascending.

        `hashes` are those of the part, `base` is the number of its first row in the run.
        """
        # Rows that are marked go first: matches of one batch name the same rows again and again.
        if run.id in self._counts:
            rows = rows[~self.test(run, rows + base)]
        if len(rows) > 1 and not np.all(rows[1:] > rows[:-1]):
            rows = np.sort(rows)
            rows = rows[np.concatenate(([True], rows[1:] > rows[:-1]))]
        if not len(rows):
            return rows
        pieces = self._fresh.setdefault(run.id, [])
        pieces.append(rows + base)
        if run.id in self._unfolded:
            self._unfolded[run.id][pieces[-1]] = True
        else:
            while len(pieces) > 1 and 2 * len(pieces[-1]) >= len(pieces[-2]):
                pieces[-2:] = [np.sort(np.concatenate(pieces[-2:]), kind="stable")]
        self._counts[run.id] = self._counts.get(run.id, 0) + len(rows)
        marked = int(hashes[rows].sum(dtype=np.uint64))
        self._sums[run.id] = (self._sums.get(run.id, 0) + marked) % (1 << 64)
        return rows

    def test(self, run: Run, rows: Indices) -> Mask:
        """Which of some rows of a run are marked."""
        found: Mask = np.zeros(len(rows), np.bool_)
        if run.id not in self._counts or not len(rows):
            return found
        self._asked[run.id] = self._asked.get(run.id, 0) + len(rows)
        if run.id in self._unfolded or UNFOLD * self._asked[run.id] > run.stored_rows:
            return self._all(run)[rows]
        bits = self._bits(run.id)
        if bits is not None:
            found |= (bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & np.uint8(1) > 0
        for log in self._logs(run.id):
            at = np.minimum(np.searchsorted(log, rows), len(log) - 1)
            found |= log[at] == rows
        return found

    def rows(self, run: Run) -> Indices:
        """All marked rows of a run, ascending."""
        return np.flatnonzero(self._all(run))

    def _all(self, run: Run) -> Mask:
        """A byte for each row of a run."""
        if run.id not in self._unfolded:
            bits, rows = self._bits(run.id), run.stored_rows
            mask = np.zeros(rows, np.uint8) if bits is None else np.unpackbits(bits, count=rows, bitorder="little")
            for log in self._logs(run.id):
                mask[log] = 1
            self._unfolded[run.id] = mask.view(np.bool_)
        return self._unfolded[run.id]

    def forget(self, runs: Iterable[Run]) -> None:
        """The runs are gone, and their marks with them."""
        for run in runs:
            self._counts.pop(run.id, None)
            self._sums.pop(run.id, None)
            self._bitmaps.pop(run.id, None)
            self._fresh.pop(run.id, None)
            self._unfolded.pop(run.id, None)
        if not self._counts:
            self._pieces = []

    def settle(self, runs: Mapping[int, Run]) -> None:
        """The end of a batch: its marks become a piece of the log, long logs become bitmaps."""
        if self._fresh:
            self._pieces.append(self._fresh_piece())
            self._fresh = {}
        while len(self._pieces) > 1 and 2 * self._pieces[-1].rows >= self._pieces[-2].rows:
            self._merge(2)
        for number in self._counts.keys() & runs.keys():
            if FOLD * self._logged(number) > runs[number].stored_rows:
                self._fold(runs[number])
        logged = sum(self._logged(number) for number in self._counts)
        if sum(piece.rows for piece in self._pieces) > 2 * logged:  # mostly of runs that are gone or have a bitmap
            self._merge(len(self._pieces))
        self._unfolded, self._asked = {}, {}

    def _fresh_piece(self) -> SideTable:
        parts = [
            (np.uint64(number) << np.uint64(32)) | np.sort(np.concatenate(pieces), kind="stable").astype(np.uint64)
            for number, pieces in sorted(self._fresh.items())
        ]
        return _piece(np.concatenate(parts))

    def _logged(self, number: int) -> int:
        """Marks of a run that only the log has."""
        bitmap = self._bitmaps.get(number)
        return self._counts.get(number, 0) - (0 if bitmap is None else bitmap.content)

    def _merge(self, pieces: int) -> None:
        """One piece of the last ones, less what a bitmap has and what belongs to runs that are gone."""
        entries = np.sort(np.concatenate([_entries(piece) for piece in self._pieces[-pieces:]]), kind="stable")
        numbers = entries >> np.uint64(32)
        wanted = [number for number in np.unique(numbers).tolist() if self._logged(number)]
        keep = np.isin(numbers, np.array(wanted, np.uint64))
        for number in wanted:
            bits = self._bits(number)
            if bits is not None:
                at = np.flatnonzero(numbers == number)
                rows = (entries[at] & np.uint64(0xFFFFFFFF)).astype(np.int64)
                keep[at] = (bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & np.uint8(1) == 0
        self._pieces[-pieces:] = [_piece(entries[keep])] if keep.any() else []

    def _fold(self, run: Run) -> None:
        bits = np.packbits(self._all(run), bitorder="little")
        # The number of marked rows stands for the content: which they are may differ between attempts.
        self._bitmaps[run.id] = SideTable.of(pa.table({_BITS: pa.array(bits)}), content=self._counts[run.id])

    def _bits(self, number: int) -> npt.NDArray[np.uint8] | None:
        bitmap = self._bitmaps.get(number)
        return None if bitmap is None else numpy_of(bitmap.table.column(_BITS)).view(np.uint8)

    def _logs(self, number: int) -> Iterable[Indices]:
        """The pieces' rows of a run, each ascending; none empty."""
        yield from self._fresh.get(number, ())
        for piece in self._pieces:
            entries = _entries(piece)
            bounds = np.array([number << 32, (number + 1) << 32], np.uint64)
            low, high = np.searchsorted(entries, bounds)
            if low < high:
                yield (entries[low:high] & np.uint64(0xFFFFFFFF)).astype(np.int64)

    # -- state

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """Tables and values."""
        fresh = [] if not self._fresh else [self._fresh_piece()]
        tables = {f"log{i}": piece for i, piece in enumerate([*self._pieces, *fresh])}
        tables |= {f"bits{number}": bitmap for number, bitmap in sorted(self._bitmaps.items())}
        return tables, {str(number): [count, self._sums[number]] for number, count in sorted(self._counts.items())}

    def restore(self, tables: Mapping[str, SideTable], values: Mapping[str, Any]) -> None:
        """Take up what `save` returned; nothing is read."""
        self._counts = {int(number): count for number, (count, _) in values.items()}
        self._sums = {int(number): total for number, (_, total) in values.items()}
        numbered = sorted((int(name[3:]), name) for name in tables if name.startswith("log"))
        self._pieces = [tables[name] for _, name in numbered]
        self._bitmaps = {int(name[4:]): table for name, table in tables.items() if name.startswith("bits")}


def _piece(entries: Hashes) -> SideTable:
    return SideTable.of(pa.table({_COLUMN: pa.array(entries)}), content=len(entries))


def _entries(piece: SideTable) -> Hashes:
    return numpy_of(piece.table.column(_COLUMN))
