"""The rows of one input that are in memory (R_mem), bucket by bucket.

Rows lie in the runs of a `TieredRuns`; a bucket is one slice of each. Flushing a bucket drops its slices from the runs
without rewriting what stays. When part of a bucket goes, the rest of it becomes a small run of its own. A run of which
more than half is gone, or which has no file yet, is rewritten, so dead rows never weigh more than live ones.

    run 41   [ bucket 0 | bucket 1 | bucket 2 | bucket 3 ]
    run 44   [ bucket 0 |  flushed | bucket 2 | bucket 3 ]        parts: bucket 0, and buckets 2 and 3
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.arrow import concat, data_bytes, hashes_of, merge_by_hash
from watersmeet.progressive.duplicates import ATS, times
from watersmeet.state.buckets import Buckets
from watersmeet.state.run import InMemory, Run, RunData, resident_run
from watersmeet.state.tiers import TieredRuns

Counts = npt.NDArray[np.int64]


class ResidentRows:
    """R_mem of one input. `in_rows` says in which unit sizes are measured: rows or bytes."""

    def __init__(self, label: str, schema: pa.Schema, buckets: Buckets, *, in_rows: bool) -> None:
        self.label, self.schema, self.buckets, self.in_rows = label, schema, buckets, in_rows
        self.tiers = TieredRuns()
        self.counts: Counts = np.zeros(buckets.count, np.int64)
        self._offsets: dict[int, tuple[RunData, Counts]] = {}

    @property
    def size(self) -> int:
        """What is held, in the unit of the budget."""
        return self.tiers.rows if self.in_rows else self.tiers.nbytes

    def restore(self, runs: Iterable[Run], counts: Sequence[int]) -> None:
        """Take up the runs of the batch before, and how many rows each bucket has; nothing is read."""
        self.tiers = TieredRuns(runs)
        self.counts = np.array(counts, np.int64)

    def add(self, table: pa.Table, batch: int) -> int:
        """Store the rows of a batch, sorted by hash; returns how many rows merging rewrote."""
        if not table.num_rows:
            return 0
        self.counts = self.counts + self.buckets.counts(hashes_of(table))
        return self.tiers.add(resident_run(self.label, table, oldest=batch, newest=batch))

    def parts(self) -> list[pa.Table]:
        """All rows, as hash-sorted slices."""
        return [part for run in self.tiers.runs for part in run.parts]

    def bucket(self, bucket: int) -> list[pa.Table]:
        """The rows of a bucket, as hash-sorted slices, the oldest run first."""
        if not self.counts[bucket]:
            return []
        return [run.table.slice(start, stop - start) for run, start, stop in self._slices(bucket)]

    def sizes(self) -> Counts:
        """What each bucket holds, in the unit of the budget."""
        if self.in_rows:
            return self.counts
        filled = range(self.buckets.count)
        return np.array([sum(data_bytes(part) for part in self.bucket(bucket)) for bucket in filled], np.int64)

    def remove(self, buckets: Sequence[int]) -> None:
        """Let go of whole buckets; `compact` rewrites what that leaves too thin."""
        gone = [bucket for bucket in buckets if self.counts[bucket]]
        if not gone:
            return
        runs = []
        for run in self.tiers.runs:
            ranges = [(start, stop) for bucket in gone for start, stop in self._range(run, bucket)]
            runs.append(run.without(ranges) if ranges else run)
        self.tiers.runs = [run for run in runs if run.rows]
        self.counts = self.counts.copy()
        self.counts[gone] = 0

    def compact(self) -> None:
        """Rewrite runs of which more than half is gone, and those that are still to be written anyway."""
        self.tiers.runs = [self._compacted(run) for run in self.tiers.runs]

    def remove_oldest(self, bucket: int, rows: int) -> pa.Table:
        """Take about `rows` of a bucket's rows, the oldest batches first; returns them, sorted by hash.

        Within a batch rows go by hash, and rows of one batch with one hash go together: which of them came first in the
        batch must not matter.
        """
        slices = self._slices(bucket)
        merged = merge_by_hash([run.table.slice(start, stop - start) for run, start, stop in slices])
        ats, hashes = times(merged, ATS), hashes_of(merged)
        batches, counts = np.unique(ats, return_counts=True)
        reached = np.cumsum(counts)
        last = min(int(np.searchsorted(reached, rows)), len(batches) - 1)
        of_last = hashes[ats == batches[last]]  # already sorted
        wanted = min(rows - int(reached[last] - counts[last]), len(of_last))
        leaving = (ats < batches[last]) | ((ats == batches[last]) & (hashes <= of_last[max(wanted, 1) - 1]))
        staying = merged.filter(pa.array(~leaving)).combine_chunks()
        level = max(run.attributes.get("level", 0) for run, _, _ in slices)
        oldest, newest = min(run.oldest for run, _, _ in slices), max(run.newest for run, _, _ in slices)
        self.remove([bucket])
        if staying.num_rows:
            rest = resident_run(self.label, staying, oldest=oldest, newest=newest, level=level)
            self.tiers.runs.append(rest)
            self.counts[bucket] = staying.num_rows
        return merged.filter(pa.array(leaving)).combine_chunks()

    def clear(self) -> None:
        """Forget everything."""
        self.tiers = TieredRuns()
        self.counts = np.zeros_like(self.counts)

    def _slices(self, bucket: int) -> list[tuple[Run, int, int]]:
        return [(run, start, stop) for run in self.tiers.runs for start, stop in self._range(run, bucket)]

    def _range(self, run: Run, bucket: int) -> list[tuple[int, int]]:
        """Where a bucket lies in a run; nothing if it is empty or has left."""
        offsets = self._directory(run)
        start, stop = int(offsets[bucket]), int(offsets[bucket + 1])
        if start == stop or not (run.live is None or any(low <= start < high for low, high in run.live)):
            return []
        return [(start, stop)]

    def _directory(self, run: Run) -> Counts:
        known = self._offsets.get(id(run.data))
        if known is None:
            known = self._offsets[id(run.data)] = (run.data, self.buckets.offsets(run.hashes))
        return known[1]

    def _compacted(self, run: Run) -> Run:
        if run.live is None or (not isinstance(run.data, InMemory) and 2 * run.rows >= run.stored_rows):
            return run
        table = concat(run.parts, self.schema).combine_chunks()
        rewritten = resident_run(self.label, table, oldest=run.oldest, newest=run.newest)
        return rewritten.with_attributes(**run.attributes)
