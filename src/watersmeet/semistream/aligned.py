"""The aligned policy: chunks are ranges of the key hash, so a waiting row needs one chunk and gets it when it pays.

Semantics     every row finds all master rows of its key: in the cache at once, or when its chunk is read, within
              `max_delay` batches. All master rows of a key are in one chunk, so nothing is ever half joined.
Protocol      1 a row whose hash is cached is answered completely, also with "no partner";
              2 any other waits for its chunk;
              3 reading a chunk joins and finishes all that wait for it;
              4 in the same step each key that waited is judged: admitted if the bytes it keeps waiting cost more
                than its master rows would. A key is never cached and waiting at once. With `max_delay=1` only keys
                of chunks that few rows ask for are judged: the cache can save nothing but the reading of a chunk.
Which chunks  those whose oldest row must be finished now, then those with most waiting rows, as many as it takes to get
              round in `max_delay` batches; none that nobody waits for.
Cost          per batch: the batch is written once and taken up once; per chunk read, a binary search per waiting row.

Beyond the paper (which reads the table in a fixed order, every row waiting a whole cycle): a row stays (T + 1) / 2
batches on average where its chunk is read every T batches, both ends counted, so n rows waiting at the read of a chunk
stand for n (T + 1) / 2T rows at any time. With T = 1 that is the batch itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, concat, hashes_of, merge_by_hash, numpy_of, take
from watersmeet.columns.matching import ranges
from watersmeet.columns.partitions import Partition
from watersmeet.estimate.frequency import Amounts, group_starts, surely
from watersmeet.semistream.cache import ENTRY_BYTES
from watersmeet.semistream.generation import ARRIVED, STREAM, Generation, Setting, group_sums, rows_with
from watersmeet.semistream.master_table import MasterPartition
from watersmeet.semistream.row_sizes import fixed_bytes, row_bytes
from watersmeet.state.layouts import FewRuns
from watersmeet.state.marks import Mask
from watersmeet.state.parts import ByRule
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import ChunksRead
from watersmeet.state.shelf import StoreState
from watersmeet.state.side_table import SideTable

# Keys are judged for eviction after this many rounds of their chunk, every `EVICT_EVERY` rounds.
RESIDENCE, EVICT_EVERY = 3, 4
# Of a chunk that more rows ask for in a batch some are never cached.
FEW_ROWS = 32
# Weight of the newest observation in the mean interval between two reads of a chunk.
SMOOTHING = 0.25


class AlignedGeneration(Generation):
    """Rows wait for the one chunk that can hold their partners."""

    policy = "aligned"

    def __init__(self, table: MasterPartition, setting: Setting, of: Partition, serial: int = 0) -> None:
        super().__init__(table, setting, of, serial)
        self.schema = setting.stream_schema.append(pa.field(ARRIVED, pa.int32()))
        self.rule, self.layout = ChunksRead(table.lows), FewRuns()
        name = f"{STREAM}.{self.label}"
        self.waiting = self.store(name, STREAM, self.schema, self.layout, rule=self.rule)
        self.counts: Indices = np.zeros(table.count, np.int64)  # rows that wait for each chunk
        self.first: npt.NDArray[np.int32] = np.full(table.count, -1, np.int32)  # the batch of the oldest of them
        self.next_read = 0  # reads are numbered, see `ChunksRead`
        self.interval = float(setting.options.max_delay)  # T
        self.reads = 0
        self.candidates: list[tuple[pa.Table, pa.Table]] = []  # keys worth caching, and their rows

    def wait(self, rows: pa.Table, batch: int) -> None:
        """File the rows under their chunks."""
        self.layout.slot = self.next_read
        self.waiting.add(rows, batch)
        arrived = np.diff(self.rule.offsets(rows))
        self.first[(self.counts == 0) & (arrived > 0)] = batch
        self.counts += arrived

    def again(self, rows: pa.Table, batch: int, former: Generation) -> None:
        """A row waits for one chunk, which has not been read since it came."""
        self.wait(rows, batch)

    def work(self, batch: int) -> Iterator[pa.Table]:
        """The chunks that are due, and as many in all as get round within `max_delay` batches."""
        wanted = np.flatnonzero(self.counts)
        late = wanted[self.first[wanted] + self.setting.options.max_delay - 1 <= batch]
        number = max(len(late), -(-len(wanted) // self.setting.options.max_delay))
        due = np.zeros(self.table.count, np.bool_)
        due[late] = True
        rest = self._most_wanted(~due)[: number - len(late)]
        due[rest] = True
        yield from self._read(due, batch)

    def read_more(self, chunks: int, batch: int) -> Iterator[pa.Table]:
        """The chunks that most rows wait for."""
        due = np.zeros(self.table.count, np.bool_)
        due[self._most_wanted()[:chunks]] = True
        yield from self._read(due, batch)

    def relieve(self, excess: int, batch: int) -> Iterator[pa.Table]:
        """Read on, most wanted first, until enough rows are finished; then give their room back."""
        row = self.waiting.nbytes / self.waiting_rows
        enough = int(np.searchsorted(np.cumsum(self.counts[self._most_wanted()]) * row, excess)) + 1
        yield from self.read_more(enough, batch)
        self.compact(batch)

    def compact(self, batch: int) -> None:
        """Rewrite every run that has rows whose chunk has been read."""
        self.layout.slot = self.next_read
        self.waiting.settle(tight=True)

    def _most_wanted(self, among: Mask | None = None) -> Indices:
        wanted = np.flatnonzero(self.counts if among is None else self.counts * among)
        return wanted[np.lexsort((wanted, self.first[wanted], -self.counts[wanted]))]

    def _read(self, due: Mask, batch: int) -> Iterator[pa.Table]:
        """Join and finish everything that waits for the chunks that are due."""
        if not due.any():
            return
        rows = self._waiting_for(due)
        hashes = hashes_of(rows)
        chunks = np.flatnonzero(due)
        intervals = batch - self.first[chunks] + 1
        lows = np.searchsorted(hashes, self.table.lows[chunks])
        highs = np.append(lows[1:], len(hashes))
        may_pay = self._may_pay(highs - lows)
        hot, waited = self._hot(rows, np.repeat(intervals, highs - lows), judged=bool(may_pay.any()))
        firsts = np.append(np.searchsorted(hot, self.table.lows[chunks]), len(hot))
        for number, chunk in enumerate(chunks):
            master = self.read(int(chunk))
            yield from self.answer(rows.slice(lows[number], highs[number] - lows[number]), [master])
            mine = slice(int(firsts[number]), int(firsts[number + 1]))
            if may_pay[number]:
                self._judge(hot[mine], waited[mine], master)
        self.note_delays(numpy_of(rows.column(ARRIVED)), batch)
        self.waiting.remove(ByRule(int(self.counts[due].sum())), "answered")
        self.rule.last_read[due], self.first[due], self.counts[due] = self.next_read, -1, 0
        self.next_read += 1
        self.reads += len(chunks)
        self.interval += SMOOTHING * (float(intervals.mean()) - self.interval)

    def _may_pay(self, rows: Indices) -> Mask:
        """Whether the cache can save anything for chunks for which so many rows waited. Where no row waits longer than
        its batch that is the chunk itself, which goes unread if all that ask for it are cached: so few must ask."""
        return np.asarray((rows <= FEW_ROWS) | (self.setting.options.max_delay > 1))

    def _waiting_for(self, due: Mask) -> pa.Table:
        """The rows that wait for the chunks that are due, sorted by hash."""
        found = []
        for part in self.waiting.parts():
            wanted = np.flatnonzero(due & self.rule.unread(part.run))
            offsets = self.rule.offsets(part.table)
            rows = ranges(offsets[wanted], offsets[wanted + 1])
            if len(rows):
                found.append(part.table if len(rows) == part.table.num_rows else take(part.table, rows))
        return merge_by_hash(found) if found else self.schema.empty_table()

    def _hot(self, rows: pa.Table, intervals: Indices, *, judged: bool) -> tuple[Hashes, Amounts]:
        """The keys among rows whose chunk is read that keep more bytes waiting than an entry takes, and those bytes."""
        if self.retired or not judged:
            return np.empty(0, np.uint64), np.empty(0)
        starts = group_starts(hashes_of(rows))
        waited = surely(np.add.reduceat(row_bytes(rows), starts), np.diff(np.append(starts, rows.num_rows)))
        waited *= (intervals[starts] + 1) / (2 * intervals[starts])
        hot = waited > self.setting.options.switching_factor * ENTRY_BYTES
        return hashes_of(rows)[starts[hot]], waited[hot]

    def _judge(self, hashes: Hashes, waited: Amounts, master: pa.Table) -> None:
        """Step 4: the cache inequality for the hot keys of a chunk."""
        if not len(hashes):
            return
        factor = self.setting.options.switching_factor
        have = hashes_of(master)
        low, high = (np.searchsorted(have, hashes, side=side) for side in ("left", "right"))
        cheap = waited > factor * (ENTRY_BYTES + (high - low) * fixed_bytes(master.schema))
        hashes, waited, low, high = hashes[cheap], waited[cheap], low[cheap], high[cheap]
        found = take(master, ranges(low, high))
        counts = high - low
        cost = group_sums(row_bytes(found), counts)
        admitted = waited > factor * (ENTRY_BYTES + cost)
        keys = pa.table(
            {
                "_hash": pa.array(hashes[admitted]),
                "_rows": pa.array(counts[admitted], pa.int64()),
                "_bytes": pa.array(cost[admitted]),
                "_saved": pa.array(waited[admitted] - cost[admitted]),
            }
        )
        if keys.num_rows:
            self.candidates.append((keys, found.filter(pa.array(np.repeat(admitted, counts)))))

    def settle(self, batch: int, room: int) -> Iterator[pa.Table]:
        """Admit the best of the batch's candidates that fit, and now and then judge what is cached."""
        if self.candidates:
            keys = merge_by_hash([keys for keys, _ in self.candidates])
            rows = merge_by_hash([rows for _, rows in self.candidates])
            self.candidates = []
            self._admit(keys, rows, batch, room)
        if batch >= self.cache.window + EVICT_EVERY * self.interval:
            stay = (self.interval + 1) / 2
            factor = self.setting.options.switching_factor
            gone = self.cache.evict(batch, stay=stay, residence=RESIDENCE * self.interval, factor=factor)
            if gone:
                self.setting.metrics.count("keys_evicted", gone)
                self.setting.metrics.event("evict", version=self.table.version, keys=gone, stay=round(stay, 3))
        self.layout.slot = self.next_read
        self.setting.metrics.count("rows_rewritten", self.waiting.settle())
        return iter(())

    def _admit(self, keys: pa.Table, rows: pa.Table, batch: int, room: int) -> None:
        hashes, counts = hashes_of(keys), numpy_of(keys.column("_rows"))
        sizes, saved = numpy_of(keys.column("_bytes")), numpy_of(keys.column("_saved"))
        cost = sizes + ENTRY_BYTES
        if cost.sum() > room:
            order = np.lexsort((hashes, -saved / cost))
            fits = np.zeros(len(order), np.bool_)
            fits[order[np.cumsum(cost[order]) <= room]] = True
            rows = rows.filter(pa.array(np.repeat(fits, counts)))
            hashes, counts, sizes = hashes[fits], counts[fits], sizes[fits]
        self.cache.admit(hashes, counts, sizes, rows.combine_chunks(), batch)
        self.setting.metrics.count("keys_admitted", len(hashes))
        self.setting.metrics.event(
            "admit", version=self.table.version, keys=len(hashes), rows=int(counts.sum()), bytes=int(sizes.sum())
        )

    def warm(self, batch: int) -> bool:
        """Look the keys up in their chunks, as many chunks per batch as the rows' own reading would take."""
        assert self.warm_keys is not None
        left = self.warm_keys[np.searchsorted(self.warm_keys, self.table.lows[self.warm_next]) :]
        chunks = np.unique(self.table.chunk_of(left))[: -(-self.table.count // self.setting.options.max_delay)]
        found: list[pa.Table] = []
        counts: list[Indices] = []
        wanted: list[Hashes] = []
        for chunk in chunks:
            mine = left[self.table.chunk_of(left) == chunk]
            rows, number = rows_with(self.read(int(chunk)), mine)
            found, counts, wanted = [*found, rows], [*counts, number], [*wanted, mine]
        if len(chunks):
            rows, number, mine = concat(found, self.master_schema), np.concatenate(counts), np.concatenate(wanted)
            self.cache.admit(mine, number, group_sums(row_bytes(rows), number), rows.combine_chunks(), batch)
            self.warm_next = int(chunks[-1]) + 1
        if len(chunks) and self.warm_next < self.table.count:
            return False
        self.warm_keys = None
        return True

    @property
    def waiting_rows(self) -> int:
        """Rows that wait for any chunk."""
        return int(self.counts.sum())

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the runs that hold them."""
        return self.waiting.nbytes

    @property
    def cycles(self) -> float:
        """Chunks read, in units of the table."""
        return self.reads / self.table.count

    def stores(self) -> list[RowStore]:
        """Cached and waiting rows."""
        return [*super().stores(), self.waiting]

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """What is known about the chunks, too."""
        tables, values = super().save()
        return tables, {**values, "interval": self.interval, "reads": self.reads, "next_read": self.next_read}

    def restore(
        self, stores: Mapping[str, StoreState], tables: Mapping[str, SideTable], values: Mapping[str, Any]
    ) -> None:
        """Take up what `stores` and `save` returned."""
        super().restore(stores, tables, values)
        self.interval, self.reads, self.next_read = values["interval"], values["reads"], values["next_read"]

    def chunk_columns(self) -> dict[str, npt.NDArray[Any]]:
        """Waiting rows, the oldest of them, and the last read of each chunk."""
        return {"counts": self.counts, "first": self.first, "last_read": self.rule.last_read}

    def restore_chunks(self, table: pa.Table) -> None:
        """Take up what `chunk_columns` returned."""
        self.counts = np.array(numpy_of(table.column("counts")))
        self.first = np.array(numpy_of(table.column("first")))
        self.rule.last_read = np.array(numpy_of(table.column("last_read")))
