"""Rules: rows that die by what has happened since, so that nothing has to be written for each of them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, times_of
from watersmeet.state.run import Run

Mask = npt.NDArray[np.bool_]


class Rule(Protocol):
    """Says which rows of a run are alive."""

    reason: str

    def spares(self, run: Run) -> bool:
        """Whether all rows of a run are surely alive; nothing is read."""

    def alive(self, run: Run, table: pa.Table) -> Mask:
        """Which rows of a part of a run are alive."""

    def dead(self, run: Run, table: pa.Table) -> int:
        """How many rows of a part of a run are not."""


class Horizon:
    """Rows before a time are dead."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.time: int | None = None
        self.reason = "expired"  # why it last moved

    def spares(self, run: Run) -> bool:
        """Whether the earliest row is not before the horizon."""
        return self.time is None or (run.time_from is not None and run.time_from >= self.time)

    def alive(self, run: Run, table: pa.Table) -> Mask:
        """Rows at or after the horizon."""
        times = times_of(table, self.column)
        return np.ones(len(times), np.bool_) if self.time is None else np.asarray(times >= self.time)

    def dead(self, run: Run, table: pa.Table) -> int:
        """Rows before the horizon."""
        return 0 if self.time is None else int(np.count_nonzero(times_of(table, self.column) < self.time))


class ChunksRead:
    """Rows whose chunk of the master table has been read since they were stored are dead.

    Reads are numbered. A run remembers the number of the next read when it was made (its `slot`), a chunk the last read
    that it was part of, and a chunk is a range of the hash:

        chunk             0        1        2          last read:   4   7   2
        run made before 3 aabb     cc       dddd       alive:       -   -   dddd
        run made before 5 ab       c        d          alive:       ab  -   d
    """

    reason = "answered"

    def __init__(self, lows: Hashes) -> None:
        self.lows = lows
        self.last_read: npt.NDArray[np.int64] = np.full(len(lows), -1, np.int64)

    def spares(self, run: Run) -> bool:
        """Whether no chunk has been read since the run was made."""
        return bool(np.all(self.last_read < run.slot))

    def alive(self, run: Run, table: pa.Table) -> Mask:
        """Rows whose chunk has not been read since."""
        return np.repeat(self.unread(run), np.diff(self.offsets(table)))

    def dead(self, run: Run, table: pa.Table) -> int:
        """Rows whose chunk has been read since."""
        return int(np.diff(self.offsets(table))[~self.unread(run)].sum())

    def unread(self, run: Run) -> Mask:
        """The chunks that have not been read since a run was made."""
        return np.asarray(self.last_read < run.slot)

    def offsets(self, table: pa.Table) -> Indices:
        """Where the rows of each chunk begin; one more entry than chunks."""
        starts = np.searchsorted(hashes_of(table), self.lows[1:], side="left")
        return np.concatenate(([0], starts, [table.num_rows])).astype(np.int64)
