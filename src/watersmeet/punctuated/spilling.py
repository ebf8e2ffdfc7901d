"""Keeping within the memory budget: flush the largest buckets, merge them when there is time."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa

from watersmeet.arrow import data_bytes
from watersmeet.errors import BrokenPromiseError
from watersmeet.punctuated.constraints import duplicate_keys
from watersmeet.punctuated.join_state import JoinState
from watersmeet.punctuated.meeting import Meeting, Rows
from watersmeet.punctuated.overflow import Generations
from watersmeet.state.space import PAGE_ROWS, SpillWriter


class Spilling:
    """Moves rows of a `JoinState` to disk and back."""

    def __init__(self, state: JoinState, meeting: Meeting, memory: int | None, on_violation: str) -> None:
        self.state = state
        self.meeting = meeting
        self.memory = memory
        self.on_violation = on_violation

    @property
    def over_budget(self) -> bool:
        """Whether more is held in memory than allowed."""
        return self.memory is not None and self.state.resident_bytes > self.memory

    def flush(self, batch: int) -> None:
        """If memory is over budget, spill the largest buckets, both inputs together, until half of it is free."""
        state = self.state
        if self.memory is None or not self.over_budget:
            return
        state.settle(all_dead=True)
        excess = state.resident_bytes - self.memory
        if excess <= 0:
            return
        chosen = self._largest(excess + self.memory // 2)
        tables = self._take(chosen)
        if any(table.num_rows for table in tables.values()):
            rows = state.overflow.write(tables, batch)
            state.metrics.count("rows_spilled", rows)
            state.metrics.event("flush", rows=rows, buckets=int(np.count_nonzero(chosen)))
        state.settle(all_dead=True)

    def _largest(self, wanted: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """The largest buckets that together hold at least `wanted` bytes (all, if they hold less)."""
        buckets = self.state.overflow.buckets
        sizes = np.zeros(buckets.count)
        for stored in self.state.stored.values():
            if stored.rows:
                sizes += stored.bucket_rows(buckets) * (stored.nbytes / stored.rows)
        order = np.argsort(-sizes, kind="stable")
        enough = int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1
        chosen = np.zeros(buckets.count, np.bool_)
        chosen[order[:enough]] = True
        return chosen

    def _take(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Rows:
        state = self.state
        return {
            name: state.stored[name].take_buckets(chosen, state.overflow.buckets, state.schemas[name])
            for name in state.names
        }

    def to_merge(self) -> list[int]:
        """Buckets on disk that owe results, those with most rows to meet first, then those with rows to purge."""
        state, overflow = self.state, self.state.overflow
        if overflow.is_empty:
            return []
        left, right = state.names
        resident = state.stored[left].bucket_rows(overflow.buckets) + state.stored[right].bucket_rows(overflow.buckets)
        disk = overflow.rows_on_disk(left) + overflow.rows_on_disk(right)
        wanted = []
        for bucket in np.flatnonzero(disk).tolist():
            owed = int(resident[bucket]) + (int(disk[bucket]) if overflow.generations(bucket) > 1 else 0)
            if owed or overflow.merged_at.get(bucket, 0) < state.promised:
                wanted.append((-owed, bucket))
        return [bucket for _, bucket in sorted(wanted)]

    def merge(self, bucket: int, batch: int, *, final: bool = False) -> Iterator[pa.Table]:
        """Join what a bucket's generations owe each other, purge, and keep the rest in one generation."""
        state, overflow = self.state, self.state.overflow
        resident = self._take(np.arange(overflow.buckets.count) == bucket)
        room = 0 if self.memory is None else self.memory // 2 - state.resident_bytes
        kept: list[Rows] = []
        for tables in overflow.slices(bucket, resident):
            rows = yield from self._joined(tables, batch)
            if not final:
                kept.append({name: self._survivors(name, rows[name]) for name in state.names})
        overflow.retire(bucket)
        overflow.merged_at[bucket] = state.promised
        written = 0
        for part in kept:
            size = sum(data_bytes(table) for table in part.values())
            if size <= room:
                room -= size
                for name in state.names:
                    state.stored[name].add(part[name], batch)
            elif size:
                written += overflow.write(part, batch, new_generation=not written)
        state.metrics.count("buckets_merged")
        state.metrics.event("merge", bucket=bucket, rows_spilled_again=written)
        if state.propagation:
            state.propagation.changed_everything()

    def merge_generations(self, batch: int) -> Iterator[pa.Table]:
        """Join and merge generations of similar size until there are few of each size; memory is left as it is."""
        state, overflow = self.state, self.state.overflow
        nothing = {name: state.schemas[name].empty_table() for name in state.names}
        while chosen := overflow.due():
            writers: dict[str, SpillWriter] = {}
            pages = sum(len(place.pages) for run in overflow.of(chosen) for place in run.places.values())
            for bucket, complete in overflow.buckets_of(chosen).items():
                for tables in overflow.slices(bucket, nothing, chosen):
                    rows = yield from self._joined(tables, batch)
                    for name in state.names:
                        table = self._survivors(name, rows[name]) if complete else rows[name]
                        for start in range(0, table.num_rows, PAGE_ROWS):
                            if name not in writers:
                                writers[name] = overflow.writer(name)
                            writers[name].add(bucket, table.slice(start, PAGE_ROWS))
                            pages += 1
            oldest = min(run.oldest for run in overflow.of(chosen))
            # The number of the oldest: of two rows with a key that should be unique, the later one is the wrong one.
            span = {"oldest": oldest, "newest": batch, "generation": min(chosen)}
            overflow.replace(chosen, [writer.finish(**span) for writer in writers.values()])
            state.metrics.count("pages_merged", pages)
            if state.propagation:
                state.propagation.changed_everything()

    def _joined(self, tables: Generations, batch: int) -> Generator[pa.Table, None, Rows]:
        """Join what generations owe each other; returns the rows that are left, merged."""
        names = self.state.names
        rows = {name: tables[name][0] for name in names}
        for at in range(1, len(tables[self.state.left])):
            after = {name: self._without_copies(name, rows[name], tables[name][at], batch) for name in names}
            rows, done = yield from self.meeting.generations(rows, after)
            for name in names:
                self._gone(name, done[name], f"purged.{name}.one_to_many")
        return rows

    def _survivors(self, name: str, table: pa.Table) -> pa.Table:
        """The rows that may still find a partner, now that all of their bucket on disk has met: none that is promised
        away on the other input, but for those that owe results to rows in memory."""
        sources = self.state.without_future(name, table, mind_disk=False)
        if sources.any():
            sources[self.state.stored[self.state.other[name]].has(table)] = 0
        if not sources.any():
            return table
        self.state.count_reasons("purged_from_disk", name, sources)
        self._gone(name, table.filter(pa.array(sources > 0)), None)
        return table.filter(pa.array(sources == 0)).combine_chunks()

    def _gone(self, name: str, table: pa.Table, counter: str | None) -> None:
        if table.num_rows and counter:
            self.state.metrics.count(counter, table.num_rows)
        if table.num_rows and self.state.propagation:
            self.state.propagation.left_state(name, table.select(self.state.keys))

    def _without_copies(self, name: str, before: pa.Table, after: pa.Table, batch: int) -> pa.Table:
        """A key that must be unique may come a second time while its first row is on disk: found here."""
        if (
            name not in self.meeting.one_sides
            or self.on_violation == "keep"
            or not (before.num_rows and after.num_rows)
        ):
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
            )
        self.state.metrics.count(f"violations.{name}.one_to_many", count)
        return after.filter(pa.array(~wrong))
