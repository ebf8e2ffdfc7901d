"""The work on rows that were flushed: md-tasks (5.1), dd-tasks (5.2), the clean-up, and keeping runs few.

All of it reads pages, never whole runs. A task's results are output tables; `pages` counts what was read and written,
`merged_rows` and `merged_runs` what merging operations read and wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, concat, hashes_of, sort_order, take
from watersmeet.columns.matching import near_matches
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.join.hand import Hand
from watersmeet.join.join_type import MATCHED
from watersmeet.plan import JoinPlan
from watersmeet.progressive.duplicates import ATS, DTS, departing, new_in_md_task, times
from watersmeet.progressive.expected import ExpectedResults
from watersmeet.progressive.merge_join import MergeJoin, Source, Stretch, new_pairs
from watersmeet.progressive.units import Segment, Unit, Units
from watersmeet.state.buckets import Buckets
from watersmeet.state.pages import Cursor
from watersmeet.state.parts import Part, Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run
from watersmeet.state.space import SpillWriter


def choose_units(units: Sequence[Unit], fan_in: int) -> list[Unit]:
    """The units of the next merging operation: the first ones with at most `fan_in` segments of each input.

    >>> [(unit.left, unit.right) for unit in choose_units([Unit(1, None), Unit(2, None), Unit(3, None), Unit(4, 4)], 2)]
    [(1, None), (2, None)]
    """
    chosen, room = [], [fan_in, fan_in]
    for unit in units:
        wanted = [int(unit[index] is not None) for index in (0, 1)]
        if all(want <= free for want, free in zip(wanted, room, strict=True)):
            chosen.append(unit)
            room = [free - want for want, free in zip(wanted, room, strict=True)]
    return chosen


@dataclass
class DiskTasks:
    """Tasks on the state of one join."""

    plan: JoinPlan
    emitter: BinaryEmitter
    buckets: Buckets
    stores: tuple[RowStore, RowStore]
    units: Units
    expected: ExpectedResults
    page_rows: int
    pages: int = 0
    merged_rows: int = 0
    merged_runs: int = 0

    def md(self, index: int, bucket: int, batch: int) -> Iterator[pa.Table]:
        """R_index mem[bucket] joined with the other input's R disk[bucket] (Fig. 5).

        Only rows newer than the bucket's last md-task take part: the older ones were joined with everything on disk.
        """
        memory = InMemoryRows(self.stores[index], bucket, int(self.expected.last_md[index, bucket]))
        if memory.table.num_rows:
            name = self.emitter.names[index]
            hand = Hand(self.emitter, {name: memory.table})
            ats = times(memory.table, ATS)
            for segment in self.units.segments(1 - index, bucket):
                for part in segment.parts():
                    self.pages += 1
                    dts = times(part.table, DTS)
                    for i, j in near_matches(memory.table, part.table):
                        new = new_in_md_task(ats[i], dts[j])
                        alive = part.alive(j)
                        new = new if alive is None else new & alive
                        if new.any():
                            yield from hand.stored(name, i[new], part, j[new])
            yield from memory.note(hand, name)
        self.expected.md_done(index, bucket, batch)

    def dd(self, bucket: int, fan_in: int, max_pages: int) -> Iterator[pa.Table]:
        """R_1 disk[bucket] joined with R_2 disk[bucket]: merges until all runs match, or the pages are used."""
        begun = self.pages
        while self.units.unmatched_pairs(bucket) and self.pages - begun < max_pages:
            units = choose_units(self.units.units[bucket], fan_in)
            yield from self._merge(bucket, units, step_rows=fan_in * self.page_rows)
        if not self.units.unmatched_pairs(bucket):  # rows that were expected to give results may have left
            self.expected.nothing_on_disk(bucket)

    def clean_up(self, bucket: int, batch: int, *, fan_in: int, step_rows: int) -> Iterator[pa.Table]:
        """All that is still owed in a bucket, from disk and memory; the bucket is empty afterwards.

        As in Fig. 3 what is in memory counts as flushed now, but it is not written. Neither is the last merge.
        """
        held = tuple(int(store.bucket_rows[bucket]) for store in self.stores)
        while self._too_many(bucket, fan_in) and self.units.unmatched_pairs(bucket, (held[0], held[1])):
            yield from self._merge(bucket, choose_units(self.units.units[bucket], fan_in), step_rows=step_rows)
        if self.emitter.judges or self.units.unmatched_pairs(bucket, (held[0], held[1])):
            units = self.units.units[bucket]
            sides = [self._sources(bucket, index, units) for index in (0, 1)]
            for index in (0, 1):
                last = int(self.expected.last_md[index, bucket])
                tables = [part.take(part.living) for part in self.stores[index].bucket(bucket)]
                sides[index] += [
                    Source(Cursor(iter([departing(table, batch, last)])), len(units), table.num_rows)
                    for table in tables
                ]
            operation = self._operation(bucket, sides[0], sides[1], step_rows)
            for stretches in operation.run():
                hand = self._hand(stretches)
                yield from self._results(hand, *stretches)
                if self.emitter.judges:
                    yield from hand.settle()
                    for name in self.emitter.names:
                        yield from hand.leave_all(name, "ended")
            self.pages += operation.pages_read
            if self.emitter.judges:  # the rows have left one by one
                for store in self.stores:
                    store.take([bucket])
                    store.release(bucket)
        self.units.release(bucket)

    def _too_many(self, bucket: int, fan_in: int) -> bool:
        return any(len(self.units.segments(index, bucket)) > fan_in for index in (0, 1))

    def _merge(self, bucket: int, units: list[Unit], *, step_rows: int) -> Iterator[pa.Table]:
        """One merging operation: the units become one, and each pair across two of them is joined on the way.

        A side with a single segment is read and joined, but has nothing to merge and is not written, unless its rows
        remember whether they have matched.
        """
        before = self.units.unmatched_pairs(bucket)
        sides = [self._sources(bucket, index, units) for index in (0, 1)]
        operation = self._operation(bucket, sides[0], sides[1], step_rows)
        written = [len(sides[index]) > 1 or self._notes(index) for index in (0, 1)]
        writers: dict[int, SpillWriter] = {}
        for stretches in operation.run():
            hand = self._hand(stretches)
            yield from self._results(hand, *stretches)
            for index, stretch in enumerate(stretches):
                if written[index] and stretch is not None:
                    self._write(writers, index, bucket, hand, stretch)
            yield from hand.settle()
        self.pages += operation.pages_read
        serials: list[int | None] = []
        for index in (0, 1):
            parts = [serial for unit in units if (serial := unit[index]) is not None]
            run = self._finish(index, writers, parts)
            rows = sum(self.units.segment(index, serial, bucket).rows for serial in parts)
            self.merged_rows += rows + (rows if written[index] else 0)
            self.merged_runs += len(parts) + int(written[index] and bool(parts))
            serials.append((run.id if run else None) if written[index] else next(iter(parts), None))
        self.units.replace_units(bucket, units, Unit(serials[0], serials[1], merged=True))
        self.expected.dd_done(bucket, before, self.units.unmatched_pairs(bucket))

    def combine(self, index: int, parts: Mapping[int, Sequence[int]], *, step_rows: int) -> None:
        """Make one run of segments of one input, given by run and bucket, without a join."""
        writers: dict[int, SpillWriter] = {}
        for bucket in sorted({bucket for buckets in parts.values() for bucket in buckets}):
            chosen = [serial for serial, buckets in parts.items() if bucket in buckets]
            segments = [self.units.segment(index, serial, bucket) for serial in chosen]
            sources = [Source(Cursor(segment.read()), 0, segment.rows) for segment in segments]
            operation = self._operation(bucket, sources, [], step_rows)
            for stretch, _ in operation.run():
                if stretch is not None:
                    hand = Hand(self.emitter, {self.emitter.names[index]: stretch.table})
                    self._write(writers, index, bucket, hand, stretch)
                    for _ in hand.settle():
                        raise AssertionError("nothing has matched here")
            self.pages += operation.pages_read
        self.units.combine(index, parts, self._finish(index, writers, list(parts)))

    def _operation(self, bucket: int, left: list[Source], right: list[Source], step_rows: int) -> MergeJoin:
        return MergeJoin(left, right, *self.buckets.span(bucket), step_rows)

    def _sources(self, bucket: int, index: int, units: Sequence[Unit]) -> list[Source]:
        segments: list[tuple[int, Segment]] = [
            (number, self.units.segment(index, serial, bucket))
            for number, unit in enumerate(units)
            if (serial := unit[index]) is not None
        ]
        return [Source(Cursor(segment.read()), number, segment.rows) for number, segment in segments]

    def _notes(self, index: int) -> bool:
        """Whether rows of an input on disk remember that they have matched."""
        return bool(self.emitter.flags(self.emitter.names[index]))

    def _hand(self, stretches: tuple[Stretch | None, Stretch | None]) -> Hand:
        empty = (store.schema.empty_table() for store in self.stores)
        tables = (nothing if one is None else one.table for one, nothing in zip(stretches, empty, strict=True))
        return Hand(self.emitter, dict(zip(self.emitter.names, tables, strict=True)))

    def _results(self, hand: Hand, left: Stretch | None, right: Stretch | None) -> Iterator[pa.Table]:
        for i, j in new_pairs(left, right):
            yield from hand.pairs(i, j)

    def _write(self, writers: dict[int, SpillWriter], index: int, bucket: int, hand: Hand, stretch: Stretch) -> None:
        """Write the rows of a step in the order of their hashes, less those that have matched and are done with."""
        name = self.emitter.names[index]
        order, table = stretch.order, hand.flagged(name)
        if name == self.emitter.once:
            order = order[~hand.matched[name][order]]
        rows = take(table, order)
        for start in range(0, rows.num_rows, self.page_rows):
            if index not in writers:
                writers[index] = self.stores[index].writer(rows.schema)
            writers[index].add(bucket, rows.slice(start, self.page_rows))
            self.pages += 1

    def _finish(self, index: int, writers: dict[int, SpillWriter], parts: list[int]) -> Run | None:
        """The run that was written, if any row was left to write."""
        if index not in writers:
            return None
        runs = [self.stores[index].run(serial) for serial in parts]
        oldest, newest = min(run.oldest for run in runs), max(run.newest for run in runs)
        return self.stores[index].adopt(writers[index], oldest=oldest, newest=newest)


class InMemoryRows:
    """Rows of a bucket that came after a batch, from all runs in memory, sorted by hash."""

    def __init__(self, store: RowStore, bucket: int, after: int) -> None:
        self.store = store
        self.origins: list[tuple[Part, Indices]] = []
        for part in store.bucket(bucket):
            rows = np.flatnonzero(times(part.table, ATS) > after)
            alive = part.alive(rows)
            self.origins.append((part, rows if alive is None else rows[alive]))
        taken = concat([part.take(rows) for part, rows in self.origins], store.schema).combine_chunks()
        self.order = sort_order(hashes_of(taken))
        self.table = take(taken, self.order)

    def note(self, hand: Hand, name: str) -> Iterator[pa.Table]:
        """Mark the rows that have matched where they lie; those that are done with leave."""
        if name not in hand.matched:
            return
        matched = np.zeros(len(self.order), np.bool_)
        matched[self.order] = hand.matched[name]
        start = 0
        for part, rows in self.origins:
            found = rows[matched[start : start + len(rows)]]
            start += len(rows)
            if name == hand.emitter.once:
                yield from hand.emitter.first_matches(self.store.remove(Rows(part, found), "matched"))
            else:
                self.store.mark(part, MATCHED, found)
