"""The rows of one input in one partition: the one place where rows are kept, whichever join asks.

    runs       immutable tables: resident (memory-mapped) or spilled (pages on disk), see `run`
    live       ranges of a run that are still there: a flushed bucket is a hole
    marks      single rows that are dead, or carry another flag, see `marks`
    rule       rows that die by what has happened since: a horizon in time, chunks read, see `rules`
    layout     how runs are grouped and when they are merged, see `layouts`

A row leaves through `remove`, which says why, keeps the accounts, and hands out what left for whoever wants it. `take`
and `spill` move rows between memory and disk: they are still held. The store knows nothing of joins: what matches what,
and when a row has no future, is decided above.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, concat, hashes_of, merge_by_hash, stretch_bytes, take, times_of
from watersmeet.state.accounts import Accounts
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import Layout, Merge
from watersmeet.state.marks import Marks
from watersmeet.state.parts import DEAD, Before, ByRule, Departed, InBuckets, Part, Rows, What, Whole
from watersmeet.state.rules import Horizon, Mask, Rule
from watersmeet.state.run import InMemory, Order, Run, resident_run
from watersmeet.state.side_table import SideTable
from watersmeet.state.space import PAGE_ROWS, BucketPage, RunSpace, SpillWriter, cut_into_pages

AT_ONCE = 1 << 28  # bytes of runs that are merged together with a copy of their dead rows; of more these go first

Counts = npt.NDArray[np.int64]


@dataclass
class StoreState:
    """What a store keeps between batches."""

    name: str
    input: str
    rows: int
    runs: list[Run]
    tables: dict[str, SideTable]
    values: dict[str, Any]


class RowStore:
    """The rows of one input.

    >>> from watersmeet.plan.metrics import Metrics
    >>> from watersmeet.state.layouts import HashTiers
    >>> from watersmeet.state.space import MemorySpace
    >>> rows = pa.table({"_hash": pa.array([3, 5, 5], pa.uint64()), "_k0": [30, 50, 50]})
    >>> accounts = Accounts(Metrics())
    >>> store = RowStore("left", rows.schema, HashTiers(), MemorySpace(), accounts)
    >>> accounts.arrive("left", 3)
    >>> store.add(rows, batch=0)
    >>> [part] = store.parts()
    >>> gone = store.remove(Rows(part, np.array([1])), "one_to_many")
    >>> store.held, accounts.held("left"), [piece.tolist() for _, piece in gone[0].pieces()]
    (2, 2, [[1]])
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        layout: Layout,
        space: RunSpace,
        accounts: Accounts,
        *,
        input: str | None = None,  # whose rows these are; empty for entries that are no rows of an input
        time: str | None = None,
        rule: Rule | None = None,
        flags: Sequence[str] = (),
        buckets: Buckets | None = None,
        counts_buckets: bool = False,
        describe: Callable[[pa.Table], dict[str, Any]] | None = None,
        merges_spilled: bool = False,
        redundant: Callable[[pa.Table], Mask] | None = None,
        page_rows: int = PAGE_ROWS,
    ) -> None:
        self.name, self.input = name, name if input is None else input
        self.schema, self.layout, self.space, self.accounts = schema, layout, space, accounts
        self.time, self.rule, self.flags = time, rule, tuple(flags)
        self.buckets = buckets  # of the pages of spilled runs
        self.counts_buckets = counts_buckets  # whether rows are moved to disk by the bucket
        self.describe = describe  # further facts of a new run's rows
        self.redundant = redundant  # rows of a table, in its order, that the others make useless
        self.merges_spilled = merges_spilled  # otherwise the join merges them, because it keeps account of pairs
        self.page_rows = page_rows
        self._runs: dict[int, Run] = {}
        self.marks = {flag: Marks() for flag in (DEAD, *self.flags)}
        self.bucket_rows: Counts = np.zeros(
            buckets.count if buckets and counts_buckets else 0, np.int64
        )  # alive in memory
        self._side: dict[tuple[int, str], SideTable] = {}
        self._next = 0
        self._reduced = 0  # redundant rows that a rewrite has just dropped
        self._ruled = 0  # rows that have left by the rule and are still in a run
        self._offsets: dict[int, list[int]] = {}
        self._inside: dict[tuple[int, int, int], int] = {}  # marks within what is left of a run, see `alive`

    # -- how much there is

    @property
    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        return list(self._runs.values())

    @runs.setter
    def runs(self, runs: Iterable[Run]) -> None:
        self._runs = {run.id: run for run in runs}

    @property
    def resident(self) -> list[Run]:
        """The runs in memory, oldest first."""
        return [run for run in self._runs.values() if run.tier == "resident"]

    @property
    def spilled(self) -> list[Run]:
        """The runs on disk, oldest first."""
        return [run for run in self._runs.values() if run.tier == "spilled"]

    def alive(self, run: Run) -> int:
        """The rows of a run that are not marked as dead."""
        marked = self.marks[DEAD].count(run)
        if marked and run.tier == "spilled" and run.live is not None:  # some marks are of buckets that were released
            key = run.id, run.rows, marked
            if key not in self._inside:
                rows = self.marks[DEAD].rows(run)
                self._inside[key] = int(np.diff(np.searchsorted(rows, np.array(run.live).ravel()).reshape(-1, 2)).sum())
            marked = self._inside[key]
        return run.rows - marked

    @property
    def rows(self) -> int:
        """Rows in memory and on disk."""
        return sum(self.alive(run) for run in self._runs.values()) - self._ruled

    held = rows

    @property
    def resident_rows(self) -> int:
        """Rows in memory."""
        return sum(self.alive(run) for run in self.resident) - self._ruled

    @property
    def spilled_rows(self) -> int:
        """Rows on disk."""
        return sum(self.alive(run) for run in self.spilled)

    @property
    def nbytes(self) -> int:
        """Bytes in memory: dead rows until they are rewritten, marks and side tables included."""
        beside = sum(marks.nbytes for marks in self.marks.values()) + sum(table.nbytes for table in self._side.values())
        return sum(run.nbytes for run in self.resident) + beside

    @property
    def spilled_bytes(self) -> int:
        """Bytes on disk, before compression."""
        return sum(run.nbytes for run in self.spilled)

    # -- storing and looking

    def add(
        self, rows: pa.Table, batch: int, *, oldest: int | None = None, order: Order = "hash", level: int = 0
    ) -> None:
        """Store rows in the order given; flags are columns of theirs. Nothing is merged before `settle`.

        Rows that were taken out and come back say in which batch the `oldest` of them came, and their run's `level`.
        """
        if not rows.num_rows:
            return
        first = batch if oldest is None else oldest
        for facts, piece in self.layout.split(rows, times_of(rows, self.time) if self.time else None):
            self._append(piece, first, batch, order=order, level=level, **facts)
        self._count(hashes_of(rows), 1)

    def _append(self, table: pa.Table, oldest: int, newest: int, at: int | None = None, **facts: Any) -> Run:
        run = self._made(
            resident_run(self.name, table, oldest=oldest, newest=newest, **{**facts, "id": self.take_id()})
        )
        self.runs = [*self.runs[:at], run, *(self.runs[at:] if at is not None else ())]
        return run

    def _made(self, run: Run) -> Run:
        """A new resident run with what the store knows of its rows."""
        facts: dict[str, Any] = self.describe(run.table) if self.describe else {}
        if self.time:
            times = times_of(run.table, self.time)
            facts |= {"time_from": int(times.min()), "time_to": int(times.max())}
        return replace(run, **facts) if facts else run

    def take_id(self) -> int:
        """A number for a new run."""
        self._next += 1
        return self._next - 1

    def run(self, number: int) -> Run:
        """The run of that number."""
        return self._runs[number]

    def parts(self, runs: Iterable[Run] | None = None) -> Iterator[Part]:
        """The rows of resident runs (by default of all), without a copy."""
        for run in self.resident if runs is None else runs:
            if run.live is None:
                yield Part(self, run, run.table)
            else:
                for start, stop in run.live:
                    yield Part(self, run, run.table.slice(start, stop - start), start)

    def pages(self, run: Run, buckets: Iterable[int] | None = None) -> Iterator[Part]:
        """The pages of a spilled run, or of some of its buckets, read one at a time."""
        for bucket in run.places if buckets is None else buckets:
            place = run.places.get(int(bucket))
            start = place.start if place else 0
            for index in place.pages if place else ():
                table = run.data.page(index)
                self.accounts.metrics.count("pages_read")
                yield Part(self, run, table, start)
                start += table.num_rows

    def read(self, run: Run, bucket: int) -> Iterator[pa.Table]:
        """The living rows of one bucket of a spilled run, page by page."""
        return (part.take(part.living) for part in self.pages(run, [bucket]))

    def mark(self, part: Part, flag: str, rows: Indices) -> Indices:
        """Set a flag on rows of a part; returns those that did not have it, ascending."""
        if flag != DEAD:
            rows = rows[~part.written(flag, rows)]
        return self.marks[flag].add(part.run, rows, part.hashes, part.base)

    def side(self, run: Run, name: str, make: Callable[[], pa.Table]) -> pa.Table:
        """A table derived from a run that is kept as long as the run is: an order of its rows, for example."""
        key = (run.id, name)
        if key not in self._side:
            self._side[key] = SideTable.of(make(), content=0)
        return self._side[key].table

    def has_side(self, run: Run, name: str) -> bool:
        """Whether such a table is kept with a run."""
        return (run.id, name) in self._side

    def sides(self, run: Run) -> dict[str, SideTable]:
        """The tables that are kept with a run, by name."""
        return {name: table for (number, name), table in self._side.items() if number == run.id}

    def enter(
        self, run: Run, hashes: Hashes, dead: Indices, flagged: Mapping[str, Indices], sides: Mapping[str, SideTable]
    ) -> int:
        """Take up a run that is stored already, with its dead rows, its flags, and the tables kept with it; returns the
        number that it has here."""
        run = replace(run, id=self.take_id())
        self._runs[run.id] = run
        for flag, rows in {DEAD: dead, **flagged}.items():
            self.marks[flag].add(run, rows, hashes)
        self._side |= {(run.id, name): table for name, table in sides.items()}
        if run.tier == "resident" and self.counts_buckets:
            alive = np.ones(len(hashes), np.bool_)
            alive[dead] = False
            for start, stop in run.live if run.live is not None else [(0, len(hashes))]:
                self._count(hashes[start:stop][alive[start:stop]], 1)
        return run.id

    # -- leaving

    def remove(self, what: What, reason: str) -> list[Departed]:
        """The one exit: rows are held no more, for a reason. Returns what left, unread."""
        if isinstance(what, ByRule):
            self._ruled += what.count
            self.accounts.leave(self.input, reason, what.count)
            return []
        if isinstance(what, InBuckets):
            parts = [self._left(part) for bucket in what.buckets for part in self.bucket(bucket)]
            taken = self.take(what.buckets)
            rows = sum(table.num_rows for tables in taken.values() for table in tables)
            self.accounts.leave(self.input, reason, rows)
            return (
                [Departed(self.input, reason, rows, lambda: iter([(part, part.living) for part in parts]))]
                if rows
                else []
            )
        if isinstance(what, Rows):
            fresh = self._kill(what.part, what.rows)
            if not len(fresh):
                return []
            self.accounts.leave(self.input, reason, len(fresh))
            return [Departed(self.input, reason, len(fresh), lambda: iter([(what.part, fresh)]))]
        if isinstance(what, Before):
            assert isinstance(self.rule, Horizon)
            if self.rule.time is not None and what.time <= self.rule.time:
                return []
            self.rule.time, self.rule.reason = what.time, reason
            gone = [run for run in self.runs if run.time_to is not None and run.time_to < what.time]
        elif isinstance(what, Whole):
            gone = [what.run]
            if self.counts_buckets and what.run.tier == "resident":
                for part in self.parts(gone):
                    self._count(part.hashes if part.living is None else part.hashes[part.living], -1)
        else:
            gone = list(self.runs)
            self.bucket_rows = np.zeros_like(self.bucket_rows)
        return [self._leave_whole(run, reason) for run in gone]

    def _leave_whole(self, run: Run, reason: str) -> Departed:
        rows = self.alive(run)
        already = min(rows, self._ruled)
        self._ruled -= already
        self.accounts.leave(self.input, reason, rows - already)
        marks = self._marks_of(run)
        self._replace([run], [])

        def read() -> Iterator[tuple[Part, Indices | None]]:
            for part in self.pages(run) if run.tier == "spilled" else self.parts([run]):
                gone = replace(part, left=marks)
                yield gone, gone.living

        return Departed(self.input, reason, rows, read)

    def _left(self, part: Part) -> Part:
        """A part of a run that is about to leave."""
        return replace(part, left=self._marks_of(part.run))

    def _marks_of(self, run: Run) -> dict[str, Indices]:
        return {flag: marks.rows(run) for flag, marks in self.marks.items() if marks.count(run)}

    def _kill(self, part: Part, rows: Indices) -> Indices:
        """Mark rows as dead; returns those that were not."""
        fresh = self.mark(part, DEAD, rows)
        if part.run.tier == "resident":
            self._count(part.hashes[fresh], -1)
        return fresh

    def _count(self, hashes: Hashes, sign: int) -> None:
        """Rows came into memory, or are there no more."""
        if self.counts_buckets and self.buckets:
            self.bucket_rows = self.bucket_rows + sign * self.buckets.counts(hashes)

    # -- moving between memory and disk

    def bucket(self, bucket: int) -> list[Part]:
        """A bucket's rows in memory, as slices in the order of the hash, oldest run first."""
        return [
            Part(self, run, run.table.slice(start, stop - start), start)
            for run in self.resident
            for start, stop in self._range(run, bucket)
        ]

    def bucket_bytes(self) -> Counts:
        """Bytes in memory, per bucket."""
        assert self.buckets is not None
        found: Counts = np.zeros(self.buckets.count, np.int64)
        for run in self.resident:
            edges = self._edges(run)
            sizes = stretch_bytes(run.table, edges) * np.array([run.has(start) for start in edges[:-1]])
            found += sizes * run.own // run.rows if run.foreign else sizes
        return found

    def take(self, buckets: Sequence[int]) -> dict[int, list[pa.Table]]:
        """Move the rows of some buckets out of memory; they are held, and the caller stores them elsewhere.

        A run without dead rows only gets a hole. `compact` rewrites what that leaves too thin.
        """
        before = self.rows
        wanted = [bucket for bucket in buckets if self.bucket_rows[bucket]]
        taken: dict[int, list[pa.Table]] = {bucket: [] for bucket in wanted}
        runs: list[Run] = []
        for run in self.runs:
            if run.tier == "spilled":
                runs.append(run)
                continue
            found = [(bucket, bounds) for bucket in wanted for bounds in self._range(run, bucket)]
            for bucket, (start, stop) in found:
                part = Part(self, run, run.table.slice(start, stop - start), start)
                taken[bucket].append(part.take(part.living))
            runs.append(self._without(run, [bounds for _, bounds in found]) if found else run)
        kept = {run.id for run in runs if run.rows}
        self._forget([run for run in self.runs if run.id not in kept])
        self.runs = [run for run in runs if run.rows]
        self.bucket_rows = self.bucket_rows.copy()
        self.bucket_rows[wanted] = 0
        self._swept(before - self.rows - sum(table.num_rows for tables in taken.values() for table in tables))
        return {bucket: [table for table in tables if table.num_rows] for bucket, tables in taken.items()}

    def hand_over(self, part: Part, rows: Indices) -> pa.Table:
        """Move some living rows of a part out of the store; the caller stores them elsewhere."""
        taken = part.take(rows)
        self._kill(part, rows)
        return taken

    def drain(self) -> pa.Table:
        """Move all rows in memory out of the store, sorted by hash."""
        before = self.rows
        drained = self._sorted([part.take(part.living) for part in self.parts()], "hash")
        self._forget(self.resident)
        self.runs = self.spilled
        self.bucket_rows = np.zeros_like(self.bucket_rows)
        self._swept(before - self.rows - drained.num_rows)
        return drained

    def release(self, bucket: int, numbers: Collection[int] | None = None) -> None:
        """The rows of a bucket on disk, of all runs or of some, have been moved elsewhere, or have left."""
        chosen = {run.id for run in self.spilled if numbers is None or run.id in numbers}
        runs = [run.without_bucket(bucket) if run.id in chosen else run for run in self.runs]
        self._forget([run for run in runs if not run.rows])
        self.runs = [run for run in runs if run.rows]

    def disk_rows(self) -> Counts:
        """Rows on disk, per bucket."""
        assert self.buckets is not None
        counts: Counts = np.zeros(self.buckets.count, np.int64)
        for run in self.spilled:
            for bucket, place in run.places.items():
                counts[bucket] += place.rows
        return counts

    def _without(self, run: Run, ranges: list[tuple[int, int]]) -> Run:
        """A run less some ranges. With dead rows or flags it is written anew: marks count for whole runs."""
        left = run.without(ranges)
        if not left.rows or not any(marks.count(run) for marks in self.marks.values()):
            return left
        return self._rewritten([left], run.level)

    def compact(self) -> None:
        """Rewrite runs of which more than half has been taken, and those that are still to be written anyway."""
        for run in self.resident:
            if run.live is not None and (isinstance(run.data, InMemory) or 2 * run.rows < run.stored_rows):
                self._merge([run], run.level)

    def spill(self, pages: Iterator[BucketPage], *, oldest: int, newest: int, **facts: Any) -> Run:
        """Write pages to disk, in the order of buckets and hashes, as a run of this store."""
        run = self.space.spill(self.name, pages, oldest=oldest, newest=newest, **{**facts, "id": self.take_id()})
        self._runs[run.id] = self._written(run)
        return run

    def writer(self, schema: pa.Schema | None = None) -> SpillWriter:
        """Pages that are handed over one by one; `adopt` makes them a run of this store."""
        return self.space.writer(self.name, schema or self.schema)

    def adopt(self, writer: SpillWriter, *, oldest: int, newest: int, **facts: Any) -> Run:
        """Take up what was written: rows of runs on disk that were merged."""
        run = writer.finish(oldest=oldest, newest=newest, **{**facts, "id": self.take_id()})
        self._runs[run.id] = self._written(run)
        self.accounts.metrics.count("rows_rewritten", run.rows)
        return run

    def _written(self, run: Run) -> Run:
        self.accounts.metrics.count("pages_written", sum(share.pages for share in run.shares))
        return run

    def retire(self, runs: Sequence[Run]) -> None:
        """All rows of some runs have been moved elsewhere, or have left."""
        gone = {run.id for run in runs}
        self.runs = [run for run in self.runs if run.id not in gone]
        self._forget(runs)

    def spill_run(self, run: Run) -> None:
        """Move a resident run to disk, its living rows sorted."""
        assert self.buckets is not None
        facts = {name: getattr(run, name) for name in ("slot", "width", "time_from", "time_to", "keys")}
        before = self.rows
        table = self._sorted([part.take(part.living) for part in self.parts([run])], "hash")
        self._replace([run], [])
        self._count(hashes_of(table), -1)
        if table.num_rows:
            pages = cut_into_pages(table, self.buckets, self.page_rows)
            self.spill(pages, oldest=run.oldest, newest=run.newest, **facts)
        self._swept(before - self.rows)

    def spill_buckets(self, buckets: Sequence[int], spared: Callable[[Run], bool] = lambda run: False) -> int:
        """Move some buckets of the resident runs to disk, but for runs that are `spared`; returns how many rows.

        Run by run, so that what is near in time stays together. A run without marks only gets a hole.
        """
        assert self.buckets is not None
        moved = 0
        for run in self.resident:
            ranges = [] if spared(run) else [bounds for bucket in buckets for bounds in self._range(run, bucket)]
            if not ranges:
                continue
            before = self.rows
            parts = (Part(self, run, run.table.slice(start, stop - start), start) for start, stop in ranges)
            table = self._sorted([part.take(part.living) for part in parts], "hash")
            left = self._without(run, ranges)
            self.runs = [left if one.id == run.id else one for one in self.runs if one.id != run.id or left.rows]
            if left.id != run.id or not left.rows:
                self._forget([run])
            self._count(hashes_of(table), -1)
            if table.num_rows:
                facts = {name: getattr(run, name) for name in ("slot", "width", "keys")}
                if self.time:
                    times = times_of(table, self.time)
                    facts |= {"time_from": int(times.min()), "time_to": int(times.max())}
                pages = cut_into_pages(table, self.buckets, self.page_rows)
                self.spill(pages, oldest=run.oldest, newest=run.newest, **facts)
            self._swept(before - self.rows)
            moved += table.num_rows
        self.compact()
        return moved

    # -- keeping order

    def settle(self, *, tight: bool = False) -> int:
        """The end of a batch: rewrite what is mostly dead (with `tight`, all that has a dead row), and merge as the
        layout says; returns how many rows were written."""
        written = 0
        partly = [run for run in self.resident if self._may_have_dead(run)]
        if partly:
            dead = cache(self._dead)
            total = sum(run.own for run in self.resident)
            chosen = [run for run in partly if dead(run)] if tight else self.layout.sparse(partly, total, dead)
            for run in chosen:
                written += self._merge([run], run.level)
        while merge := self.layout.due(self.resident, self.alive):
            written += self._apply(merge)
        while self.merges_spilled and (merge := self.layout.due(self.spilled, self.alive)):
            written += self._apply(merge)
        for marks in self.marks.values():
            marks.settle(self._runs)
        return written

    def _may_have_dead(self, run: Run) -> bool:
        return self.marks[DEAD].count(run) > run.foreign or not (self.rule is None or self.rule.spares(run))

    def _dead(self, run: Run) -> int:
        """The dead rows of a resident run; it is read if a rule decides. Rows of other partitions do not count."""
        marked = self.marks[DEAD].count(run) - run.foreign
        if self.rule is None or self.rule.spares(run):
            return marked
        if not self.marks[DEAD].count(run):
            return sum(self.rule.dead(run, part.table) for part in self.parts([run]))
        return run.own - sum(
            part.table.num_rows if part.living is None else len(part.living) for part in self.parts([run])
        )

    def _apply(self, merge: Merge) -> int:
        if merge.rewrite:
            return self._merge(merge.runs, merge.level)
        for run in merge.runs:
            self.update(run, level=merge.level)
        return 0

    def _merge(self, runs: list[Run], level: int) -> int:
        """One run with the living rows of several."""
        before = self.rows
        made = self._rewritten(runs, level) if runs[0].tier == "resident" else self._respilled(runs, level)
        self._replace(runs, [made] if made.rows else [])
        self._swept(before - self.rows)
        return made.rows

    def _rewritten(self, runs: list[Run], level: int) -> Run:
        table = self._living(runs)
        oldest, newest = min(run.oldest for run in runs), max(run.newest for run in runs)
        facts = {**self.layout.slot_of(runs), "level": level, "order": runs[0].order}
        facts |= {"spent": sum(run.spent for run in runs), "id": self.take_id()}
        run = resident_run(self.name, table, oldest=oldest, newest=newest, **facts)
        return self._made(run) if run.rows else run

    def _respilled(self, runs: list[Run], level: int) -> Run:
        assert self.buckets is not None
        buckets = self.buckets

        def pages() -> Iterator[BucketPage]:
            for bucket in range(buckets.count):
                found = [part.take(part.living) for run in runs for part in self.pages(run, [bucket])]
                if found := [table for table in found if table.num_rows]:
                    yield from cut_into_pages(self._sorted(found, "hash"), buckets, self.page_rows)

        oldest, newest = min(run.oldest for run in runs), max(run.newest for run in runs)
        facts = {
            **self.layout.slot_of(runs),
            "level": level,
            "keys": max(run.keys for run in runs),
            "time_from": _least(run.time_from for run in runs),
            "time_to": _most(run.time_to for run in runs),
        }
        written = pages()
        first = next(written, None)
        if first is None:  # all rows were dead
            return resident_run(self.name, self.schema.empty_table(), oldest=oldest, newest=newest)
        run = self.space.spill(
            self.name, chain([first], written), oldest=oldest, newest=newest, id=self.take_id(), **facts
        )
        return self._written(run)

    def _living(self, runs: list[Run]) -> pa.Table:
        """The living rows of resident runs in one table, in their order."""
        parts, order = list(self.parts(runs)), runs[0].order
        flagged = any(self.marks[flag].count(run) for flag in self.flags for run in runs)
        if order == "arrival" or not parts or flagged or sum(run.nbytes for run in runs) > AT_ONCE:
            return self._sorted([part.take(part.living) for part in parts], order)
        tables = [part.table for part in parts]
        return self._reduce(merge_by_hash(tables, self.time, [part.living for part in parts]))

    def _sorted(self, tables: list[pa.Table], order: Order) -> pa.Table:
        tables = [table for table in tables if table.num_rows]
        if order == "arrival" or not tables:
            return concat(tables, self.schema).combine_chunks()
        return self._reduce(merge_by_hash(tables, self.time))

    def without_redundant(self, table: pa.Table) -> pa.Table:
        """A sorted table in hand less the rows that others make useless: those leave."""
        mask = self.redundant(table) if self.redundant else None
        if mask is None or not mask.any():
            return table
        self.accounts.leave(self.input, "redundant", int(np.count_nonzero(mask)))
        return take(table, np.flatnonzero(~mask))

    def _reduce(self, table: pa.Table) -> pa.Table:
        """The same for stored rows that are written anew."""
        kept = self.without_redundant(table)
        if kept is not table:
            self._reduced += table.num_rows - kept.num_rows
            self._count(hashes_of(table), -1)
            self._count(hashes_of(kept), 1)
        return kept

    def _swept(self, rows: int) -> None:
        """Rows that the rule had declared dead are in no run any more; redundant ones have been counted."""
        rows, self._reduced = rows - self._reduced, 0
        if rows:
            assert self.rule is not None
            already = min(rows, self._ruled)
            self._ruled -= already
            self.accounts.leave(self.input, self.rule.reason, rows - already)

    def update(self, run: Run, **facts: Any) -> None:
        """Change what is known of a run; its rows stay."""
        self.runs = [replace(one, **facts) if one is run else one for one in self.runs]

    def reorder(self, run: Run, **facts: Any) -> None:
        """Sort a run that was stored as it came."""
        before = self.rows
        table = self._sorted([part.take(part.living) for part in self.parts([run])], "hash")
        at = self.runs.index(run)
        self._replace([run], [])
        if table.num_rows:
            slot = {"slot": run.slot, "width": run.width}
            self._append(table, run.oldest, run.newest, at, order="hash", **slot, **facts)
        self._swept(before - self.rows)

    def _replace(self, old: Sequence[Run], new: Sequence[Run]) -> None:
        gone = {run.id for run in old}
        at = next(i for i, run in enumerate(self.runs) if run.id in gone)
        before = [run for run in self.runs[:at] if run.id not in gone]
        after = [run for run in self.runs[at:] if run.id not in gone]
        self.runs = [*before, *new, *after]
        self._forget(old)

    def _forget(self, runs: Sequence[Run]) -> None:
        for marks in self.marks.values():
            marks.forget(runs)
        gone = {run.id for run in runs}
        self._side = {key: table for key, table in self._side.items() if key[0] not in gone}
        for number in gone:
            self._offsets.pop(number, None)

    def _edges(self, run: Run) -> list[int]:
        """Where the buckets of a run begin; one more entry than buckets."""
        assert self.buckets is not None
        if run.id not in self._offsets:
            self._offsets[run.id] = self.buckets.offsets(run.hashes).tolist()
        return self._offsets[run.id]

    def _range(self, run: Run, bucket: int) -> list[tuple[int, int]]:
        """Where a bucket lies in a run; nothing if it is empty or was taken."""
        start, stop = self._edges(run)[bucket : bucket + 2]
        return [(start, stop)] if start < stop and run.has(start) else []

    # -- state

    def save(self) -> StoreState:
        """Runs, side tables and values; nothing leaves here."""
        tables: dict[str, SideTable] = {}
        marked: dict[str, Any] = {}
        for flag, marks in self.marks.items():
            found, marked[flag] = marks.save()
            tables |= {f"{flag}.{name}": table for name, table in found.items()}
        tables |= {f"side.{number}.{name}": table for (number, name), table in sorted(self._side.items())}
        values: dict[str, Any] = {"next": self._next, "marks": marked}
        if self._ruled:
            values["ruled"] = self._ruled
        if self.counts_buckets:
            values["bucket_rows"] = self.bucket_rows.tolist()
        if isinstance(self.rule, Horizon):
            values["horizon"] = [self.rule.time, self.rule.reason]
        return StoreState(self.name, self.input, self.rows, list(self.runs), tables, values)

    def restore(self, state: StoreState) -> None:
        """Take up what `save` returned; nothing is read."""
        self.runs, self._next = list(state.runs), state.values["next"]
        self._ruled = state.values.get("ruled", 0)
        for flag, marks in self.marks.items():
            mine = {name.removeprefix(f"{flag}."): t for name, t in state.tables.items() if name.startswith(f"{flag}.")}
            marks.restore(mine, state.values["marks"].get(flag, {}))
        for name, table in state.tables.items():
            if name.startswith("side."):
                _, number, what = name.split(".", 2)
                self._side[int(number), what] = table
        if self.counts_buckets:
            self.bucket_rows = np.array(state.values["bucket_rows"], np.int64)
        if isinstance(self.rule, Horizon):
            self.rule.time, self.rule.reason = state.values["horizon"]


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _most(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
