"""Rows that wait for their chunk, when each needs one chunk only.

Rows come in runs, one per batch, sorted by hash; chunks are ranges of the hash, so the rows that wait for a chunk are
one slice of every run. Reading a chunk finishes all of them at once, and nothing has to be deleted: reads are numbered,
a run remembers the number of the next read when it was made, a chunk the last read that it was part of, and a row is
alive while its chunk has not been read since.

    chunk             0        1        2          last read:   4   7   2
    run made before 3 aabb     cc       dddd       alive:       -   -   dddd
    run made before 5 ab       c        d          alive:       ab  -   d

A run that is more than half dead is rewritten, so memory holds at most twice what is alive.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.arrow import Hashes, Indices, merge_by_hash, take
from watersmeet.matching import ranges
from watersmeet.semistream.generation import WAITING, Mask
from watersmeet.state.run import Run, resident_run

# More runs than this are never probed: the smallest half of them become one.
MAX_RUNS = 16

Reads = npt.NDArray[np.int64]


class WaitingRows:
    """The waiting rows of an aligned generation."""

    def __init__(self, lows: Hashes, schema: pa.Schema, runs: Iterable[Run] = ()) -> None:
        self.lows = lows
        self.schema = schema
        self.runs = list(runs)

    @property
    def nbytes(self) -> int:
        """Bytes held, dead rows included."""
        return sum(run.nbytes for run in self.runs)

    @property
    def held(self) -> int:
        """Rows held, dead ones included."""
        return sum(run.rows for run in self.runs)

    def add(self, rows: pa.Table, batch: int, read: int) -> Indices:
        """Keep rows, sorted by hash; returns how many wait for each chunk."""
        run = resident_run(WAITING, rows, oldest=batch, newest=batch, made=read)
        self.runs.append(run)
        return np.diff(self._offsets(run))

    def take(self, chosen: Mask, last_read: Reads) -> pa.Table:
        """The rows alive that wait for the chosen chunks, sorted by hash."""
        parts = []
        for run in self.runs:
            wanted = np.flatnonzero(chosen & self._alive(run, last_read))
            offsets = self._offsets(run)
            rows = ranges(offsets[wanted], offsets[wanted + 1])
            if len(rows):
                parts.append(run.table if len(rows) == run.rows else take(run.table, rows))
        return merge_by_hash(parts) if parts else self.schema.empty_table()

    def tidy(self, last_read: Reads, read: int, *, tight: bool = False) -> int:
        """Drop dead runs and rewrite those mostly dead (with `tight`, all that have a dead row); rows rewritten."""
        kept: list[Run] = []
        rewritten = 0
        for run in self.runs:
            alive = self._alive(run, last_read)
            count = int(np.diff(self._offsets(run))[alive].sum())
            if count == run.rows:
                kept.append(run)
            elif count:
                sparse = tight or 2 * count < run.rows
                kept.append(self._rewrite([run], last_read, read) if sparse else run)
                rewritten += count if sparse else 0
        if len(kept) > MAX_RUNS:
            order = sorted(range(len(kept)), key=lambda i: (kept[i].rows, i))
            small = sorted(order[: MAX_RUNS // 2])
            merged = self._rewrite([kept[i] for i in small], last_read, read)
            kept = [run for i, run in enumerate(kept) if i not in small] + [merged]
            rewritten += merged.rows
        self.runs = kept
        return rewritten

    def _rewrite(self, runs: list[Run], last_read: Reads, read: int) -> Run:
        """One run with the rows alive, made anew: all reads so far are behind it."""
        everything = np.ones(len(self.lows), np.bool_)
        rows = WaitingRows(self.lows, self.schema, runs).take(everything, last_read)
        oldest, newest = min(run.oldest for run in runs), max(run.newest for run in runs)
        return resident_run(WAITING, rows, oldest=oldest, newest=newest, made=read)

    def _alive(self, run: Run, last_read: Reads) -> Mask:
        return np.asarray(last_read < run.attributes["made"])

    def _offsets(self, run: Run) -> Indices:
        inner = np.searchsorted(run.hashes, self.lows[1:], side="left")
        return np.concatenate(([0], inner, [run.rows])).astype(np.int64)
