"""The cache of master rows: hot keys whole, or not at all.

The unit is the key hash. A hash is cached together with *all* master rows that carry it (also those of another key, if
two keys should collide), so a stream row whose hash is cached is answered completely, and "no row here" is an answer
too: an absence costs an entry and no rows.

    keys   _hash | _since (batch of admission) | _rows (m) | _bytes (of the rows)
    rows   the master rows of the cached hashes, in a store
    hits   _hash | _bytes of the stream rows that it answered                           sums

The cache inequality (Theorem 2) compares what a key costs here, `_bytes` and the entry, with the bytes of stream rows
that would wait for it otherwise. Hits are kept as bytes, so the comparison is in the real sizes of both sides.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, numpy_of
from watersmeet.estimate.frequency import Amounts, amounts_of, per_batch, tally
from watersmeet.state.marks import Mask
from watersmeet.state.parts import All, Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.side_table import SideTable
from watersmeet.state.sorted_tables import SortedTables, contains

KEYS_SCHEMA = pa.schema([("_hash", pa.uint64()), ("_since", pa.int32()), ("_rows", pa.int32()), ("_bytes", pa.int64())])
HITS_SCHEMA = pa.schema([("_hash", pa.uint64()), ("_bytes", pa.float64())])

# What a cached key costs besides its rows: its line in `keys` (24 bytes) and in `hits` (16).
ENTRY_BYTES = 40.0


class Cache:
    """The cached keys of one version of the master table, with their rows in a store."""

    def __init__(self, rows: RowStore, window: int = 0) -> None:
        self.keys = SortedTables(KEYS_SCHEMA)
        self.rows = rows
        self.hits = SortedTables(HITS_SCHEMA, _summed)
        self.window = window  # the batch since which hits are counted
        self.entry_bytes = ENTRY_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of keys, rows and hit counts."""
        return self.keys.nbytes + self.rows.nbytes + self.hits.nbytes

    def holds(self, hashes: Hashes) -> Mask:
        """Which hashes are cached."""
        return self.keys.holds(hashes)

    def note_hits(self, ordered: Hashes, sizes: Amounts) -> None:
        """Count stream rows (hash-sorted) that the cache answered."""
        self.hits.add(_hits(*tally(ordered, sizes)))

    def admit(self, hashes: Hashes, counts: Indices, sizes: Amounts, rows: pa.Table, batch: int) -> None:
        """Take in keys (hash-sorted, none of them cached) with all their master rows (hash-sorted)."""
        if len(hashes):
            self.enter(hashes, counts, sizes, batch)
            self.collect(rows, batch)

    def enter(self, hashes: Hashes, counts: Indices, sizes: Amounts, batch: int) -> None:
        """Take in keys whose rows are there already."""
        columns = [
            pa.array(hashes),
            pa.array(np.full(len(hashes), batch, np.int32)),
            pa.array(counts.astype(np.int32)),
            pa.array(sizes.astype(np.int64)),
        ]
        self.keys.add(pa.Table.from_arrays(columns, schema=KEYS_SCHEMA))

    def collect(self, rows: pa.Table, batch: int) -> None:
        """Store master rows whose keys are admitted, now or later."""
        self.rows.accounts.arrive(self.rows.input, rows.num_rows)
        self.rows.add(rows, batch)
        self.rows.settle()

    def entries(self) -> pa.Table:
        """All cached keys, sorted by hash."""
        return self.keys.table()

    def judge(self, entries: pa.Table, batch: int) -> tuple[Amounts, Amounts, Indices]:
        """For each entry: bytes of stream rows it answers per batch, what it costs, and for how long it was watched."""
        hits = self.hits.table()
        since = np.maximum(numpy_of(entries.column("_since")), self.window).astype(np.int64)
        sums = amounts_of(hashes_of(entries), hashes_of(hits), numpy_of(hits.column("_bytes")))
        return per_batch(sums, since, batch), numpy_of(entries.column("_bytes")) + self.entry_bytes, batch - since + 1

    def evict(self, batch: int, *, stay: float, residence: float, factor: float) -> int:
        """Evict keys whose stream rows would take less room waiting; returns how many.

        `stay` is how many batches a row would wait, so bytes per batch times `stay` is what would wait at any time.
        Keys watched for less than `residence` batches are left alone. Afterwards the counting begins anew.
        """
        entries = self.entries()
        answered, cost, watched = self.judge(entries, batch)
        gone = (watched >= residence) & (cost >= factor * answered * stay)
        self.drop(hashes_of(entries)[gone])
        self.hits.clear()
        self.window = batch + 1
        return int(gone.sum())

    def shrink(self, excess: int, batch: int) -> int:
        """Free at least `excess` bytes (or everything), the keys that answer least per byte first."""
        entries = self.entries()
        order, cost = self._by_worth(entries, batch)
        count = int(np.searchsorted(np.cumsum(cost[order][::-1]), excess)) + 1
        gone = np.sort(hashes_of(entries)[order[::-1][:count]])
        self.drop(gone)
        self.hits.drop(gone)
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
        """Remove keys (sorted) with all their rows."""
        if len(gone):
            self.keys.drop(gone)
            for part in list(self.rows.parts()):
                self.rows.remove(Rows(part, np.flatnonzero(contains(gone, part.hashes))), "evicted")
            self.rows.settle(tight=True)

    def clear(self) -> None:
        """Forget everything."""
        self.keys.clear()
        self.hits.clear()
        self.rows.remove(All(), "evicted")

    def save(self) -> dict[str, SideTable]:
        """The tables; the rows are saved with their store."""
        return {**self.keys.save("cache.keys"), **self.hits.save("cache.hits")}

    def restore(self, tables: Mapping[str, SideTable], window: int) -> None:
        """Take up what `save` returned."""
        self.keys.restore("cache.keys", tables)
        self.hits.restore("cache.hits", tables)
        self.window = window


def _summed(table: pa.Table) -> pa.Table:
    return _hits(*tally(hashes_of(table), numpy_of(table.column("_bytes"))))


def _hits(hashes: Hashes, sums: Amounts) -> pa.Table:
    return pa.Table.from_arrays([pa.array(hashes), pa.array(sums)], schema=HITS_SCHEMA)
