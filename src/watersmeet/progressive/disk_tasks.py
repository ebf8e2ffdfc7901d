"""The work on rows that were flushed: md-tasks (5.1), dd-tasks (5.2), the clean-up, and keeping runs few.

All of it reads pages, never whole runs. A task's results are output tables; `pages` counts what was read and written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from watersmeet.columns.arrow import merge_by_hash
from watersmeet.columns.matching import matches, overlapping
from watersmeet.join.emitter import Emitter
from watersmeet.plan import JoinPlan
from watersmeet.progressive.duplicates import ATS, DTS, departing, new_in_md_task, spilled_schema, times
from watersmeet.progressive.expected import ExpectedResults
from watersmeet.progressive.merge_join import MergeJoin, Source, Stretch, new_pairs
from watersmeet.progressive.units import Segment, Unit, Units
from watersmeet.state.buckets import Buckets
from watersmeet.state.pages import Cursor
from watersmeet.state.rows import RowStore
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
    emitter: Emitter
    buckets: Buckets
    stores: tuple[RowStore, RowStore]
    units: Units
    expected: ExpectedResults
    page_rows: int
    pages: int = 0

    def md(self, index: int, bucket: int, batch: int) -> Iterator[pa.Table]:
        """R_index mem[bucket] meets the other input's R disk[bucket] (Fig. 5).

        Only rows newer than the bucket's last md-task take part: the older ones have met everything on disk.
        """
        last = int(self.expected.last_md[index, bucket])
        tables = (part.table for part in self.stores[index].bucket(bucket))
        fresh = (table.filter(pa.array(times(table, ATS) > last)) for table in tables)
        parts = [table.combine_chunks() for table in fresh if table.num_rows]
        if parts:
            memory = merge_by_hash(parts)
            for segment in self.units.segments(1 - index, bucket):
                for page in segment.read():
                    self.pages += 1
                    yield from self._probe(index, overlapping(memory, page), page)
        self.expected.md_done(index, bucket, batch)

    def _probe(self, index: int, memory: pa.Table, page: pa.Table) -> Iterator[pa.Table]:
        if not memory.num_rows:
            return
        ats, dts = times(memory, ATS), times(page, DTS)
        inner, outer = (self.plan.inputs[number].name for number in (index, 1 - index))
        for i, j in matches(memory, page):
            new = new_in_md_task(ats[i], dts[j])
            yield self.emitter.rows({inner: (memory, i[new]), outer: (page, j[new])})

    def dd(self, bucket: int, fan_in: int, max_pages: int) -> Iterator[pa.Table]:
        """R_1 disk[bucket] meets R_2 disk[bucket]: merging operations until all runs match, or the pages are used."""
        begun = self.pages
        while self.units.unmatched_pairs(bucket) and self.pages - begun < max_pages:
            units = choose_units(self.units.units[bucket], fan_in)
            yield from self._merge(bucket, units, step_rows=fan_in * self.page_rows)

    def clean_up(self, bucket: int, batch: int, *, fan_in: int, step_rows: int) -> Iterator[pa.Table]:
        """All that is still owed in a bucket, from disk and memory; the bucket is empty afterwards.

        As in Fig. 3 what is in memory counts as flushed now, but it is not written. Neither is the last merge.
        """
        held = tuple(int(store.bucket_rows[bucket]) for store in self.stores)
        while self._too_many(bucket, fan_in) and self.units.unmatched_pairs(bucket, (held[0], held[1])):
            yield from self._merge(bucket, choose_units(self.units.units[bucket], fan_in), step_rows=step_rows)
        if self.units.unmatched_pairs(bucket, (held[0], held[1])):
            units = self.units.units[bucket]
            sides = [self._sources(bucket, index, units) for index in (0, 1)]
            for index in (0, 1):
                last = int(self.expected.last_md[index, bucket])
                sides[index] += [
                    Source(Cursor(iter([departing(part.table, batch, last)])), len(units), part.table.num_rows)
                    for part in self.stores[index].bucket(bucket)
                ]
            operation = self._operation(bucket, sides[0], sides[1], step_rows)
            for left, right in operation.run():
                yield from self._results(left, right)
            self.pages += operation.pages_read
        self.units.release(bucket)

    def _too_many(self, bucket: int, fan_in: int) -> bool:
        return any(len(self.units.segments(index, bucket)) > fan_in for index in (0, 1))

    def _merge(self, bucket: int, units: list[Unit], *, step_rows: int) -> Iterator[pa.Table]:
        """One merging operation: the units become one, and each pair across two of them is joined on the way.

        A side with a single segment is read and joined, but has nothing to merge and is not written.
        """
        before = self.units.unmatched_pairs(bucket)
        sides = [self._sources(bucket, index, units) for index in (0, 1)]
        operation = self._operation(bucket, sides[0], sides[1], step_rows)
        writers = [self._writer(index) if len(sides[index]) > 1 else None for index in (0, 1)]
        for stretches in operation.run():
            yield from self._results(*stretches)
            for writer, stretch in zip(writers, stretches, strict=True):
                if writer is not None and stretch is not None:
                    self._write(writer, bucket, stretch)
        self.pages += operation.pages_read
        serials: list[int | None] = []
        for index, writer in enumerate(writers):
            parts = [serial for unit in units if (serial := unit[index]) is not None]
            serials.append(self._finish(index, writer, parts) if writer is not None else next(iter(parts), None))
        self.units.replace_units(bucket, units, Unit(serials[0], serials[1], merged=True))
        self.expected.dd_done(bucket, before, self.units.unmatched_pairs(bucket))

    def combine(self, index: int, parts: Mapping[int, Sequence[int]], *, step_rows: int) -> None:
        """Make one run of segments of one input, given by run and bucket, without a join."""
        writer = self._writer(index)
        for bucket in sorted({bucket for buckets in parts.values() for bucket in buckets}):
            chosen = [serial for serial, buckets in parts.items() if bucket in buckets]
            segments = [self.units.segment(index, serial, bucket) for serial in chosen]
            sources = [Source(Cursor(segment.read()), 0, segment.rows) for segment in segments]
            operation = self._operation(bucket, sources, [], step_rows)
            for stretch, _ in operation.run():
                if stretch is not None:
                    self._write(writer, bucket, stretch)
            self.pages += operation.pages_read
        serial = self._finish(index, writer, list(parts))
        self.units.combine(index, parts, serial)

    def _operation(self, bucket: int, left: list[Source], right: list[Source], step_rows: int) -> MergeJoin:
        return MergeJoin(left, right, *self.buckets.span(bucket), step_rows)

    def _sources(self, bucket: int, index: int, units: Sequence[Unit]) -> list[Source]:
        segments: list[tuple[int, Segment]] = [
            (number, self.units.segment(index, serial, bucket))
            for number, unit in enumerate(units)
            if (serial := unit[index]) is not None
        ]
        return [Source(Cursor(segment.read()), number, segment.rows) for number, segment in segments]

    def _results(self, left: Stretch | None, right: Stretch | None) -> Iterator[pa.Table]:
        first, second = (spec.name for spec in self.plan.inputs)
        for left_table, i, right_table, j in new_pairs(left, right):
            yield self.emitter.rows({first: (left_table, i), second: (right_table, j)})

    def _writer(self, index: int) -> SpillWriter:
        return self.stores[index].writer(spilled_schema(self.plan.inputs[index].schema))

    def _write(self, writer: SpillWriter, bucket: int, stretch: Stretch) -> None:
        rows = stretch.sorted()
        for start in range(0, rows.num_rows, self.page_rows):
            writer.add(bucket, rows.slice(start, self.page_rows))
            self.pages += 1

    def _finish(self, index: int, writer: SpillWriter, parts: list[int]) -> int:
        runs = [self.stores[index].run(serial) for serial in parts]
        oldest, newest = min(run.oldest for run in runs), max(run.newest for run in runs)
        return self.stores[index].adopt(writer, oldest=oldest, newest=newest).id
