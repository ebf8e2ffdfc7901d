"""SSBJ, the semi-stream balanced join, made exact: MESHJOIN behind a cache whose content the cache inequality decides.

Semantics     as MESHJOIN, but a row whose hash is cached is answered at once and does not wait.
Protocol      a hash for which many bytes wait gets a *collector* at the start of a batch. For k steps the collector
              gathers every master row of the hash with its chunk, whether or not rows wait for it. Then m is exact,
              the inequality is decided once more with it, and the hash is admitted whole. Its waiting rows are given
              just the collected rows of chunks they have not seen, (chunk - e) mod k >= s - e, and leave.
              A collector whose rows outweigh the waiting ones before that is given up: m can only grow.
              A row that leaves after k steps without having found its hash proves that there are no such master rows:
              the absence is cached if it pays.
              A semi or anti join caches a key in place of m rows, and its rows leave as soon as they match: what waits
              later says nothing of a key, so the inequality is decided at the start alone.
Cost          as MESHJOIN for the rows that wait; per step one more probe for the collectors, and the rows that wait for
              the keys in question: those that are new, leave unmatched, or are collected.

The published algorithm decides per master row while a cycle is under way, so it can cache part of a key's rows; here a
key is cached with all its rows or not at all. All of it happens between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, merge_by_hash, numpy_of, take
from watersmeet.columns.matching import matches, ranges
from watersmeet.columns.partitions import Partition
from watersmeet.estimate.frequency import Amounts, group_starts, surely
from watersmeet.join.join_type import MATCHED
from watersmeet.semistream.cache import ENTRY_BYTES
from watersmeet.semistream.generation import MASTER, STREAM, Setting, group_sums, rows_with
from watersmeet.semistream.master_table import MasterPartition
from watersmeet.semistream.meshjoin import SEEN, MeshGeneration
from watersmeet.semistream.row_sizes import Sizes, row_bytes
from watersmeet.state.layouts import HashTiers
from watersmeet.state.marks import Mask
from watersmeet.state.parts import All, Part, Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.shelf import StoreState
from watersmeet.state.side_table import SideTable
from watersmeet.state.sorted_tables import contains

COLLECTOR = "collector"  # side tables
CHUNK, COLLECTED = "_chunk", "_collected"
# Keys are judged for eviction after this many cycles, every `EVICT_EVERY` cycles.
RESIDENCE, EVICT_EVERY = 3, 4
# Collectors start at most this often in a cycle, so that few groups of them are under way at a time.
STARTS_PER_CYCLE = 2
# After these shares of its cycle a collector is judged by what it has found so far, and at its end.
JUDGED = (0.25, 0.5, 0.75)


class Collectors:
    """Collectors that were started at the same step, with the rows they have collected in a store."""

    def __init__(self, start: int, hashes: Hashes, sizes: npt.NDArray[np.int64], rows: RowStore) -> None:
        self.start = start
        self.hashes = hashes
        self.sizes = sizes  # bytes collected so far for each hash
        self.rows = rows

    def collect(self, rows: pa.Table, sizes: Amounts, chunk: int) -> None:
        """Take the rows of a chunk."""
        self.rows.accounts.arrive(MASTER, rows.num_rows)
        self.rows.add(rows, chunk)
        self.rows.settle()
        self.sizes = self.sizes + sizes.astype(np.int64)

    def give_up(self, hopeless: Mask) -> None:
        """Forget some of the hashes and their rows."""
        gone = self.hashes[hopeless]
        self.hashes, self.sizes = self.hashes[~hopeless], self.sizes[~hopeless]
        for part in list(self.rows.parts()):
            self.rows.remove(Rows(part, np.flatnonzero(contains(gone, part.hashes))), "evicted")
        self.rows.settle(tight=True)

    def finish(self) -> pa.Table:
        """All rows collected, sorted by hash; the store is empty afterwards."""
        rows = merge_by_hash([self.rows.schema.empty_table(), *(part.table for part in self.rows.parts())])
        self.rows.remove(All(), "evicted")
        return rows

    def table(self) -> SideTable:
        """The hashes and sizes."""
        return SideTable.of(pa.table({"_hash": pa.array(self.hashes), COLLECTED: pa.array(self.sizes)}))

    @property
    def nbytes(self) -> int:
        """Bytes of keys and rows."""
        return self.hashes.nbytes + self.sizes.nbytes + self.rows.nbytes


class SsbjGeneration(MeshGeneration):
    """Rows wait for one cycle of the table, unless their key is cached."""

    policy = "ssbj"
    flags = (SEEN,)

    def __init__(self, table: MasterPartition, setting: Setting, of: Partition, serial: int = 0) -> None:
        super().__init__(table, setting, of, serial)
        self.cache.entry_bytes = self.entry_bytes
        self.collectors: list[Collectors] = []
        self.fresh: list[Hashes] = []  # hashes that came to wait in this batch
        self.absent: list[Hashes] = []  # hashes proved in this batch to have no master rows
        self._groups: dict[int, tuple[Hashes, Indices, Sizes]] = {}  # what `_keys_of` has found
        self._stepping = False  # whether the batch's steps are under way, and rows of a whole cycle wait

    def wait(self, rows: pa.Table, batch: int) -> None:
        """Keep rows for the next k steps, and remember their keys for `_start_collectors`."""
        super().wait(rows, batch)
        hashes = hashes_of(rows)
        self.fresh.append(hashes[group_starts(hashes)])

    def work(self, batch: int) -> Iterator[pa.Table]:
        """This batch's steps, with collectors for the keys that have become hot."""
        self._stepping = True
        self._start_collectors()
        yield from super().work(batch)
        self._stepping = False

    def _is_wanted(self) -> bool:
        return super()._is_wanted() or any(self.step - each.start < self.table.count for each in self.collectors)

    # -- into the cache -------------------------------------------------------------------------------------------

    def _start_collectors(self) -> None:
        """Hashes for which more bytes wait than one master row and an entry would take."""
        fresh, self.fresh = self.fresh, []
        recent = any(self.step - each.start < self.table.count / STARTS_PER_CYCLE for each in self.collectors)
        if self.retired or recent or not fresh:
            return
        hashes = np.unique(np.concatenate(fresh))
        for each in self.collectors:
            hashes = hashes[~contains(each.hashes, hashes)]
        price = self.setting.options.switching_factor * (self.entry_bytes + self.master_row_bytes)
        hashes = hashes[self._waiting_bytes_of(hashes) > price]
        if len(hashes):
            self.collectors.append(self._collectors(self.step, hashes, np.zeros(len(hashes), np.int64)))

    def _collectors(self, start: int, hashes: Hashes, sizes: npt.NDArray[np.int64]) -> Collectors:
        schema = self.master_schema.append(pa.field(CHUNK, pa.int32()))
        name = f"{MASTER}.{self.label}.{start}"
        return Collectors(start, hashes, sizes, self.store(name, MASTER, schema, HashTiers()))

    def passes(self, chunk: pa.Table, number: int) -> None:
        """Collectors under way take their rows from the chunk."""
        for each in self.collectors:
            if self.step - each.start < self.table.count:
                rows, counts = rows_with(chunk, each.hashes)
                if rows.num_rows:
                    sizes = group_sums(row_bytes(rows), counts)
                    place = pa.array(np.full(rows.num_rows, number, np.int32))
                    each.collect(rows.append_column(CHUNK, place), sizes, number)

    def _give_up_collectors(self) -> None:
        """The inequality can only get worse for a key as its rows are found: stop once it fails."""
        due = {max(1, round(share * self.table.count)) for share in JUDGED}
        steps = range(self.pace)  # a batch's steps are judged together
        for each in [each for each in self.collectors if any(self.step - each.start - s in due for s in steps)]:
            hopeless = ~self._pays(each.hashes, each.sizes)
            if hopeless.any():
                self.setting.metrics.count("keys_given_up", int(hopeless.sum()))
                each.give_up(hopeless)
        self.collectors = [each for each in self.collectors if len(each.hashes)]  # the others have no rows left

    def _pays(self, hashes: Hashes, sizes: npt.NDArray[Any]) -> Mask:
        """The cache inequality for keys whose rows take so many bytes; it was decided before if only keys are kept."""
        if self.emitter.keys_only:
            return ~self.cache.holds(hashes)  # their absence may have been cached since
        return self._waiting_bytes_of(hashes) > self.setting.options.switching_factor * (sizes + self.entry_bytes)

    def _complete_collectors(self, batch: int) -> Iterator[pa.Table]:
        """Collectors that have seen every chunk know m exactly: admit the keys for which the inequality holds."""
        for each in [each for each in self.collectors if self.step - each.start >= self.table.count]:
            self.collectors.remove(each)
            hashes = each.hashes
            rows = self.wanted(each.finish())
            counts = np.diff(np.append(np.searchsorted(hashes_of(rows), hashes), rows.num_rows)).astype(np.int64)
            sizes = group_sums(row_bytes(rows.drop_columns([CHUNK])), counts)
            admitted = self._pays(hashes, sizes)
            chosen = rows.filter(pa.array(np.repeat(admitted, counts))).combine_chunks()
            yield from self._move(hashes[admitted], chosen, batch)
            plain = chosen.drop_columns([CHUNK])
            self._admit(hashes[admitted], counts[admitted], sizes[admitted], plain, batch)

    def _move(self, hashes: Hashes, rows: pa.Table, batch: int) -> Iterator[pa.Table]:
        """Waiting rows of keys that go into the cache get what they have not seen, and leave."""
        if not len(hashes):
            return
        chunk = numpy_of(rows.column(CHUNK)).astype(np.int64)
        for part in list(self.waiting.parts()):
            for i, j in matches(part.table, rows) if rows.num_rows else ():
                unseen = (chunk[j] - part.times[i]) % self.table.count >= self.step - part.times[i]
                alive = part.alive(i)
                unseen = unseen if alive is None else unseen & alive
                i, j = self.emitter.matching(STREAM, (part.table, i[unseen]), (rows, j[unseen]))
                if len(i):
                    if MATCHED in self.waiting.flags:
                        self.waiting.mark(part, MATCHED, i)
                    yield from self.match(part, i, rows, j, batch)
            _, low, high = self._places(part, hashes)
            leaving = ranges(low, high)
            alive = part.alive(leaving)
            yield from super().leave(part, leaving if alive is None else leaving[alive], batch)

    def leave(self, part: Part, rows: Indices, batch: int) -> Iterator[pa.Table]:
        """Complete rows leave; those that never found their hash prove an absence."""
        if not self.retired and len(rows):
            unseen = part.hashes[rows[~part.flag(SEEN, rows)]]
            # Priced before the rows leave: they are among those that would have gone on waiting.
            unseen = unseen[group_starts(unseen)]
            worth = self._waiting_bytes_of(unseen) > self.setting.options.switching_factor * self.entry_bytes
            self.absent.append(unseen[worth])
        yield from super().leave(part, rows, batch)

    def _admit_absences(self, batch: int) -> Iterator[pa.Table]:
        """Hashes without master rows go into the cache; whoever still waits for them leaves."""
        hashes = np.unique(np.concatenate(self.absent)) if self.absent else np.empty(0, np.uint64)
        self.absent = []
        hashes = hashes[~self.cache.holds(hashes)]
        schema = self.master_schema.append(pa.field(CHUNK, pa.int32()))
        yield from self._move(hashes, schema.empty_table(), batch)
        nothing = np.zeros(len(hashes))
        self._admit(hashes, nothing.astype(np.int64), nothing, self.master_schema.empty_table(), batch)

    def _admit(self, hashes: Hashes, counts: Any, sizes: Amounts, rows: pa.Table, batch: int) -> None:
        if len(hashes):
            self.cache.admit(hashes, counts, sizes, rows, batch)
            self.setting.metrics.count("keys_admitted", len(hashes))
            self.setting.metrics.event(
                "admit", version=self.table.version, keys=len(hashes), rows=int(counts.sum()), bytes=int(sizes.sum())
            )

    @property
    def entry_bytes(self) -> float:
        """What a key costs beside its rows; Theorem 2 as printed knows no such price."""
        return 0.0 if self.setting.options.bare_inequality else ENTRY_BYTES

    def _waiting_bytes_of(self, hashes: Hashes) -> Amounts:
        """The bytes of rows that surely wait for each of the hashes (sorted, distinct) at any time.

        The bare inequality takes n as it is, of a whole cycle: after a batch the rows of its steps have left already.
        """
        total, number = np.zeros(len(hashes)), np.zeros(len(hashes))
        for part in self.waiting.parts() if len(hashes) else ():
            mine, low, high = self._places(part, hashes)
            if len(mine):
                rows = ranges(low, high)
                alive, sizes = part.alive(rows), self._keys_of(part)[2][rows]
                waits = np.ones(len(rows)) if alive is None else alive.astype(np.float64)
                total[mine] += group_sums(sizes * waits, high - low)
                number[mine] += group_sums(waits, high - low)
        if self.setting.options.bare_inequality:
            steps = self.table.count
            return total * (steps / max(steps - self.pace, 1)) if not self._stepping else total
        return surely(total, number)

    def _keys_of(self, part: Part) -> tuple[Hashes, Indices, Sizes]:
        """The distinct hashes of a part, where their rows begin, and the bytes of each row; a run never changes, so
        this is found once."""
        if part.run.id not in self._groups:
            if len(self._groups) > 2 * len(self.waiting.runs) + 8:  # of runs that are gone
                self._groups.clear()
            starts = group_starts(part.hashes)
            self._groups[part.run.id] = part.hashes[starts], np.append(starts, len(part.hashes)), row_bytes(part.table)
        return self._groups[part.run.id]

    def _places(self, part: Part, hashes: Hashes) -> tuple[Indices, Indices, Indices]:
        """Which of some hashes (sorted, distinct) a part has, and from which of its rows to which."""
        keys, starts, _ = self._keys_of(part)
        at = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
        mine = np.flatnonzero(keys[at] == hashes)
        return mine, starts[at[mine]], starts[at[mine] + 1]

    # -- out of the cache, and the rest ---------------------------------------------------------------------------

    def settle(self, batch: int, room: int) -> Iterator[pa.Table]:
        """Move keys into the cache, and every few cycles out."""
        yield from self._complete_collectors(batch)
        self._give_up_collectors()
        yield from self._admit_absences(batch)
        cycle = max(self.table.count / self.pace, 1.0)
        if batch >= self.cache.window + EVICT_EVERY * cycle:
            factor = self.setting.options.switching_factor
            gone = self.cache.evict(batch, stay=cycle, residence=RESIDENCE * cycle, factor=factor)
            if gone:
                self.setting.metrics.count("keys_evicted", gone)
                self.setting.metrics.event("evict", version=self.table.version, keys=gone, stay=round(cycle, 3))
        yield from super().settle(batch, room)

    def knows(self, keys: Hashes) -> Mask:
        """Those too that are collected."""
        known = super().knows(keys)
        for each in self.collectors:
            known |= contains(each.hashes, keys)
        return known

    def retire(self) -> None:
        """Nothing more will arrive: no cache, no collectors."""
        super().retire()
        self.forgo()

    def forgo(self) -> None:
        """Collectors can start again when there is room."""
        for each in self.collectors:
            each.rows.remove(All(), "evicted")
        self.collectors = []

    def warm(self, batch: int) -> bool:
        """Collect the rows of the keys to be cached, chunk by chunk; they are admitted when all chunks have gone by."""
        assert self.warm_keys is not None
        end = min(self.warm_next + self.pace, self.table.count)
        found = [rows_with(self.read(number), self.warm_keys)[0] for number in range(self.warm_next, end)]
        rows = pa.concat_tables(found)
        self.cache.collect(take(rows, np.argsort(hashes_of(rows), kind="stable")), batch)
        self.warm_next = end
        if end < self.table.count:
            return False
        everything = merge_by_hash([rows.slice(0, 0), *(part.table for part in self.cache.rows.parts())])
        counts = np.diff(np.append(np.searchsorted(hashes_of(everything), self.warm_keys), everything.num_rows))
        sizes = group_sums(row_bytes(everything), counts.astype(np.int64))
        self.cache.enter(self.warm_keys, counts.astype(np.int64), sizes, batch)
        self.warm_keys = None
        return True

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the waiting rows and of what collectors hold."""
        return super().waiting_bytes + sum(each.nbytes for each in self.collectors)

    def stores(self) -> list[RowStore]:
        """Cached, waiting and collected rows."""
        return [*super().stores(), *(each.rows for each in self.collectors)]

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """With the collectors under way."""
        tables, values = super().save()
        return {**tables, **{f"{COLLECTOR}.{each.start}": each.table() for each in self.collectors}}, values

    def restore(
        self, stores: Mapping[str, StoreState], tables: Mapping[str, SideTable], values: Mapping[str, Any]
    ) -> None:
        """Take up what `stores` and `save` returned."""
        starts = sorted(int(name.rpartition(".")[2]) for name in tables if name.startswith(f"{COLLECTOR}."))
        for start in starts:
            found = tables[f"{COLLECTOR}.{start}"].table
            self.collectors.append(self._collectors(start, hashes_of(found), numpy_of(found.column(COLLECTED))))
        super().restore(stores, tables, values)
