"""Keeping within the memory budget: flush the largest buckets, merge them when there is time."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import data_bytes, empty, hashes_of, merge_by_hash
from watersmeet.errors import BrokenPromiseError
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.join.generations import came_of
from watersmeet.join.hand import Hand
from watersmeet.join.victims import Victims
from watersmeet.punctuated.generations import Stretch
from watersmeet.punctuated.join_state import JoinState
from watersmeet.punctuated.lookup import has_keys
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.punctuated.pairing import Tables, join_generations
from watersmeet.punctuated.promises.constraints import duplicate_keys
from watersmeet.punctuated.promises.punctuation import by_reason
from watersmeet.state.space import PAGE_ROWS, SpillWriter


class Spilling:
    """Moves rows of a `JoinState` to disk and back."""

    def __init__(
        self, state: JoinState, emitter: BinaryEmitter, options: PunctuatedOptions, memory: int | None
    ) -> None:
        self.state = state
        self.emitter = emitter
        self.one_sides = options.one_sides
        self.on_violation = options.on_violation
        self.memory = memory
        buckets = state.generations.buckets
        self.victims: Victims | None = None
        if options.policy != "largest":  # what is in a bucket of both inputs is flushed together, see `generations`
            self.victims = Victims(options.policy, buckets, flush=options.flush, together=True)

    @property
    def over_budget(self) -> bool:
        """Whether more is held in memory than allowed."""
        return self.memory is not None and self.state.resident_bytes > self.memory

    def arrived(self, rows: Tables, time: int) -> None:
        """Rows have come: a policy may want to know where."""
        if self.victims is not None:
            self.victims.observe([hashes_of(rows[name]) for name in self.state.names], time)

    def flush(self, batch: int) -> None:
        """If memory is over budget, spill the largest buckets, or those that a policy names, both inputs together,
        until half of it is free."""
        state = self.state
        if self.memory is None or not self.over_budget:
            return
        state.settle(tight=True)
        excess = state.resident_bytes - self.memory
        if excess <= 0:
            return
        chosen = self._chosen(excess + self.memory // 2)
        runs = {name: store.resident for name, store in state.stored.items()}
        came = {name: came_of(mine) for name, mine in runs.items()}
        tables = self._take(chosen)
        rows = state.generations.write(tables, came)
        if rows:
            state.metrics.count("runs_flushed", sum(table.num_rows > 0 for table in tables.values()))
            state.metrics.count("rows_flushed", rows)
            state.metrics.event("flush", rows=rows, buckets=len(chosen))
        state.settle(tight=True)

    def _chosen(self, wanted: int) -> list[int]:
        """The buckets to flush, which together hold at least `wanted` bytes (all, if they hold less)."""
        each = [
            store.bucket_rows * (store.nbytes / max(store.resident_rows, 1)) for store in self.state.stored.values()
        ]
        if self.victims is not None:
            left, right = self.victims.choose(np.stack(each).astype(np.int64), wanted)
            return sorted({*left, *right})
        sizes = np.sum(each, axis=0)
        order = np.argsort(-sizes, kind="stable")
        enough = int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1
        return sorted(order[:enough].tolist())

    def _take(self, buckets: list[int]) -> Tables:
        """Move the rows of some buckets out of memory, sorted by hash."""
        taken = {}
        for name, store in self.state.stored.items():
            parts = [table for tables in store.take(buckets).values() for table in tables]
            store.compact()
            taken[name] = merge_by_hash(parts) if parts else store.schema.empty_table()
        return taken

    def to_merge(self) -> list[int]:
        """Buckets on disk that owe results, those with most rows to join first, then those with rows to purge."""
        state, generations = self.state, self.state.generations
        if generations.is_empty:
            return []
        resident = generations.resident
        disk = np.sum([store.disk_rows() for store in state.stored.values()], axis=0)
        wanted = []
        for bucket in np.flatnonzero(disk).tolist():
            owed = int(resident[bucket]) + (int(disk[bucket]) if len(generations.numbers(bucket)) > 1 else 0)
            if owed or generations.merged_at.get(bucket, 0) < state.promised:
                wanted.append((-owed, bucket))
        return [bucket for _, bucket in sorted(wanted)]

    def merge(self, bucket: int, batch: int, *, final: bool = False) -> Iterator[pa.Table]:
        """Join what a bucket's generations owe each other, purge, and keep the rest in one generation."""
        state, generations = self.state, self.state.generations
        came = {name: generations.came(name, bucket) for name in state.names}
        resident = self._take([bucket])
        room = 0 if self.memory is None else self.memory // 2 - state.resident_bytes
        kept: list[Tables] = []
        for tables in generations.read(bucket, resident):
            rows = yield from self._joined(tables, batch)
            if final:
                for name in state.names:
                    yield from Hand(self.emitter, rows).leave_all(name, "ended")
                    self._left(name, rows[name])
            else:
                for name in state.names:
                    rows[name] = yield from self._survivors(name, rows[name])
                kept.append(rows)
        generations.release(bucket)
        generations.merged_at[bucket] = state.promised
        written = 0
        for part in kept:
            size = sum(data_bytes(table) for table in part.values())
            if size <= room:
                room -= size
                for name in state.names:
                    state.stored[name].add(part[name], came[name][1], oldest=came[name][0])
            elif size:
                written += generations.write(part, came, new=not written)
        state.metrics.count("rows_rewritten", written)
        state.metrics.count("buckets_merged")
        state.metrics.event("merge", bucket=bucket, rows_spilled_again=written)
        if state.propagation:
            state.propagation.changed_everything()

    def merge_generations(self, batch: int) -> Generator[pa.Table, None, bool]:
        """Join and merge generations of similar size until there are few of each size; memory is left as it is. Returns
        whether promises that disk held up are due for rows in memory."""
        state, due = self.state, False
        while chosen := state.generations.due():
            before = state.on_disk()
            yield from self._merge_generations(chosen, batch)
            due |= state.freed(before)
        return due

    def _merge_generations(self, chosen: list[int], batch: int) -> Iterator[pa.Table]:
        state, generations = self.state, self.state.generations
        nothing = {name: empty(store.schema) for name, store in state.stored.items()}
        old = {name: generations.runs_of(name, chosen) for name in state.names}
        writers: dict[str, SpillWriter] = {}
        for bucket in generations.buckets_of(chosen):
            complete = generations.is_complete(bucket, chosen)
            for tables in generations.read(bucket, nothing, chosen):
                rows = yield from self._joined(tables, batch)
                for name in state.names:
                    table = (yield from self._survivors(name, rows[name])) if complete else rows[name]
                    for start in range(0, table.num_rows, PAGE_ROWS):
                        if name not in writers:
                            writers[name] = state.stored[name].writer()
                        writers[name].add(bucket, table.slice(start, PAGE_ROWS))
        for name in state.names:
            oldest, newest = came_of(old[name])
            state.stored[name].retire(old[name])
            if name in writers:
                # The number of the oldest: of two rows with a key that should be unique, the later one is wrong.
                state.stored[name].adopt(writers[name], oldest=oldest, newest=newest, slot=min(chosen))
        if state.propagation:
            state.propagation.changed_everything()

    def _joined(self, tables: Stretch, batch: int) -> Generator[pa.Table, None, Tables]:
        """Join what generations owe each other; returns the rows that are left, merged."""
        names = self.state.names
        rows = {name: tables[name][0] for name in names}
        for at in range(1, len(tables[self.state.left])):
            after = {name: self._without_copies(name, rows[name], tables[name][at], batch) for name in names}
            rows, done = yield from join_generations(self.emitter, self.one_sides, rows, after)
            for name in names:
                self._left(name, done[name])
        return rows

    def _survivors(self, name: str, table: pa.Table) -> Generator[pa.Table, None, pa.Table]:
        """The rows that may still find a partner, now that all of their bucket on disk is joined: none that is promised
        away on the other input, but for those that owe results to rows in memory."""
        sources = self.state.without_future(name, table, mind_disk=False)
        if sources.any():
            sources[has_keys(self.state.stored[self.state.other[name]], table)] = 0
        if not sources.any():
            return table
        hand = Hand(self.emitter, {name: table})
        yield from hand.leave_by(name, by_reason(sources))
        self._left(name, table.filter(pa.array(sources > 0)))
        return hand.tables[name]

    def _left(self, name: str, table: pa.Table) -> None:
        """Rows in hand are not stored again."""
        if table.num_rows and self.state.propagation:
            self.state.propagation.left_state(name, table.select(self.state.keys))

    def _without_copies(self, name: str, before: pa.Table, after: pa.Table, batch: int) -> pa.Table:
        """A key that must be unique may come a second time while its first row is on disk: found here."""
        if name not in self.one_sides or self.on_violation == "keep" or not (before.num_rows and after.num_rows):
            return after
        both = pa.concat_tables([before.select(self.state.keys), after.select(self.state.keys)])
        order = np.argsort(both.column("_hash").to_numpy(), kind="stable")
        wrong = np.zeros(both.num_rows, np.bool_)
        wrong[order] = duplicate_keys(both.take(pa.array(order)))
        wrong = wrong[before.num_rows :]
        count = int(np.count_nonzero(wrong))
        if not count:
            return after
        if self.on_violation == "raise":
            raise BrokenPromiseError(
                "punctuated_join",
                expected=f"every key at most once on input {name!r}",
                found=f"{count} key(s) a second time, noticed in batch {batch} when spilled rows were merged",
                hint="Correct the source, or set on_violation to 'drop' or 'keep'; this batch is not committed.",
                input=name,
            )
        self.state.metrics.count(f"violations.{name}.one_to_many", count)
        self.state.accounts.leave(name, "violation", count)
        self._left(name, after.filter(pa.array(wrong)))
        return after.filter(pa.array(~wrong))
