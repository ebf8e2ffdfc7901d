"""The cache of master rows: hot keys whole, or not at all.

The unit is the key hash. A hash is cached together with *all* master rows that carry it (also those of another key, if
two keys should collide), so a stream row whose hash is cached is answered completely, and "no row here" is an answer
too: an absence costs an entry and no rows.

    cache.keys   _hash | _since (batch of admission) | _rows (m) | _bytes (of the rows)      sorted runs, in tiers
    cache.rows   the master rows of the cached hashes                                         sorted runs, in tiers
    cache.hits   _hash | _bytes of the stream rows that it answered                           sums, in tiers

The cache inequality (Theorem 2) compares what a key costs here, `_bytes` and the entry, with the bytes of stream rows
that would wait for it otherwise. Hits are kept as bytes, so the comparison is in the real sizes of both sides.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from watersmeet.arrow import Hashes, Indices, hashes_of, merge_by_hash, numpy_of, take
from watersmeet.estimate.frequency import Amounts, amounts_of, per_batch, tally
from watersmeet.state.run import Run, resident_run
from watersmeet.state.tiers import TieredRuns

KEYS, ROWS, HITS = "cache.keys", "cache.rows", "cache.hits"
LABELS = (KEYS, ROWS, HITS)

KEYS_SCHEMA = pa.schema([("_hash", pa.uint64()), ("_since", pa.int32()), ("_rows", pa.int32()), ("_bytes", pa.int64())])
HITS_SCHEMA = pa.schema([("_hash", pa.uint64()), ("_bytes", pa.float64())])

# What a cached key costs besides its rows: its line in `cache.keys` (24 bytes) and in `cache.hits` (16).
ENTRY_BYTES = 40.0


class Cache:
    """The cached keys of one version of the master table."""

    def __init__(self, runs: Iterable[Run] = (), window: int = 0) -> None:
        stored = list(runs)
        self.keys = TieredRuns(run for run in stored if run.label == KEYS)
        self.rows = TieredRuns(run for run in stored if run.label == ROWS)
        self.hits = [run for run in stored if run.label == HITS]
        self.window = window  # the batch since which hits are counted

    @property
    def runs(self) -> list[Run]:
        """Everything there is to keep."""
        return [*self.keys.runs, *self.rows.runs, *self.hits]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, rows and hit counts."""
        return self.keys.nbytes + self.rows.nbytes + sum(run.nbytes for run in self.hits)

    def holds(self, hashes: Hashes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which hashes are cached."""
        found = np.zeros(len(hashes), np.bool_)
        for run in self.keys.runs:
            found |= contains(run.hashes, hashes)
        return found

    def note_hits(self, ordered: Hashes, sizes: Amounts, batch: int) -> None:
        """Count stream rows (hash-sorted) that the cache answered."""
        hashes, sums = tally(ordered, sizes)
        self.hits.append(_hits_run(hashes, sums, batch))
        # A younger run at least half as long as the older one is added to it: few runs, each sum moved O(log) times.
        while len(self.hits) > 1 and 2 * self.hits[-1].rows >= self.hits[-2].rows:
            pair = merge_by_hash([run.table for run in self.hits[-2:]])
            self.hits[-2:] = [_hits_run(*tally(hashes_of(pair), numpy_of(pair.column("_bytes"))), batch)]

    def admit(self, hashes: Hashes, counts: Indices, sizes: Amounts, rows: pa.Table, batch: int) -> None:
        """Take in keys (hash-sorted, none of them cached) with all their master rows (hash-sorted)."""
        if not len(hashes):
            return
        columns = [
            pa.array(hashes),
            pa.array(np.full(len(hashes), batch, np.int32)),
            pa.array(counts.astype(np.int32)),
            pa.array(sizes.astype(np.int64)),
        ]
        keys = pa.Table.from_arrays(columns, schema=KEYS_SCHEMA)
        self.keys.add(resident_run(KEYS, keys, oldest=batch, newest=batch))
        self.rows.add(resident_run(ROWS, rows, oldest=batch, newest=batch))

    def entries(self) -> pa.Table:
        """All cached keys, sorted by hash."""
        runs = [run.table for run in self.keys.runs]
        return merge_by_hash(runs) if runs else KEYS_SCHEMA.empty_table()

    def judge(self, entries: pa.Table, batch: int) -> tuple[Amounts, Amounts, Indices]:
        """For each entry: bytes of stream rows it answers per batch, what it costs, and for how long it was watched."""
        hits = merge_by_hash([run.table for run in self.hits]) if self.hits else HITS_SCHEMA.empty_table()
        hashes, sums = tally(hashes_of(hits), numpy_of(hits.column("_bytes")))
        since = np.maximum(numpy_of(entries.column("_since")), self.window).astype(np.int64)
        answered = per_batch(amounts_of(hashes_of(entries), hashes, sums), since, batch)
        return answered, numpy_of(entries.column("_bytes")) + ENTRY_BYTES, batch - since + 1

    def evict(self, batch: int, *, stay: float, residence: float, factor: float) -> int:
        """Let go of keys whose rows would take less room waiting; returns how many.

        `stay` is how many batches a row would wait, so bytes per batch times `stay` is what would wait at any time.
        Keys watched for less than `residence` batches are left alone. Afterwards the counting begins anew.
        """
        entries = self.entries()
        answered, cost, watched = self.judge(entries, batch)
        gone = (watched >= residence) & (cost >= factor * answered * stay)
        self.drop(hashes_of(entries)[gone])
        self.hits, self.window = [], batch + 1
        return int(gone.sum())

    def shrink(self, excess: int, batch: int) -> int:
        """Free at least `excess` bytes (or everything), the keys that answer least per byte first."""
        entries = self.entries()
        order, cost = self._by_worth(entries, batch)
        count = int(np.searchsorted(np.cumsum(cost[order][::-1]), excess)) + 1
        gone = np.sort(hashes_of(entries)[order[::-1][:count]])
        self.drop(gone)
        if self.hits:
            whole = merge_by_hash([run.table for run in self.hits])
            kept = whole.filter(pa.array(~contains(gone, hashes_of(whole))))
            self.hits = [_hits_run(*tally(hashes_of(kept), numpy_of(kept.column("_bytes"))), batch)]
        return len(gone)

    def best(self, room: float, batch: int) -> Hashes:
        """The keys that answer most per byte and fit into `room` bytes, sorted by hash."""
        entries = self.entries()
        order, cost = self._by_worth(entries, batch)
        count = int(np.searchsorted(np.cumsum(cost[order]), room, side="right"))
        return np.sort(hashes_of(entries)[order[:count]])

    def _by_worth(self, entries: pa.Table, batch: int) -> tuple[Indices, Amounts]:
        answered, cost, _ = self.judge(entries, batch)
        return np.lexsort((hashes_of(entries), -answered / cost)), cost

    def drop(self, gone: Hashes) -> None:
        """Remove keys (sorted) with all their rows; runs that have none of them stay as they are."""
        if len(gone):
            self.keys.runs = [kept for run in self.keys.runs for kept in _without(run, gone)]
            self.rows.runs = [kept for run in self.rows.runs for kept in _without(run, gone)]


def contains(ordered: Hashes, wanted: Hashes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the wanted values are in a sorted array."""
    if not len(ordered):
        return np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.asarray(ordered[at] == wanted)


def _without(run: Run, gone: Hashes) -> list[Run]:
    stay = np.flatnonzero(~contains(gone, run.hashes))
    if len(stay) == run.rows:
        return [run]
    if not len(stay):
        return []
    kept = take(run.table, stay)
    return [resident_run(run.label, kept, oldest=run.oldest, newest=run.newest, **run.attributes)]


def _hits_run(hashes: Hashes, sums: Amounts, batch: int) -> Run:
    table = pa.Table.from_arrays([pa.array(hashes), pa.array(sums)], schema=HITS_SCHEMA)
    return resident_run(HITS, table, oldest=batch, newest=batch)
