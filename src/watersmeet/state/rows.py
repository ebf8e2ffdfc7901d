"""The rows of one input in one partition: the one place where rows are kept, whichever join asks.

    shelf      the runs, resident and spilled, with the marks and tables of each
    merging    a shelf whose runs are kept few and dense, as the layout says
    rows       here: how rows come, move between memory and disk, and leave

A row leaves through `remove`, which says why, keeps the accounts, and hands out what left for whoever wants it. `take`
and `spill` move rows between memory and disk: they are still held. The store knows nothing of joins: what matches what,
and when a row has no future, is decided above.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, empty, hashes_of, times_of
from watersmeet.state.merging import MergingShelf
from watersmeet.state.parts import DEAD, Before, ByRule, Departed, InBuckets, Part, Rows, What, Whole
from watersmeet.state.rules import Horizon
from watersmeet.state.run import Order, Run
from watersmeet.state.space import BucketPage, SpillWriter, cut_into_pages


class RowStore(MergingShelf):
    """The rows of one input.

    >>> from watersmeet.plan.metrics import Metrics
    >>> from watersmeet.state.accounts import Accounts
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
            run = self._made(piece, oldest=first, newest=batch, order=order, level=level, id=self.take_id(), **facts)
            self._runs[run.id] = run
        self._count(hashes_of(rows), 1)

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
        self.retire([run])

        def read() -> Iterator[tuple[Part, Indices | None]]:
            for part in self.pages(run) if run.tier == "spilled" else self.parts([run]):
                gone = replace(part, left=marks)
                yield gone, gone.living

        return Departed(self.input, reason, rows, read)

    def _left(self, part: Part) -> Part:
        """A part of a run that is about to leave."""
        return replace(part, left=self._marks_of(part.run))

    def _kill(self, part: Part, rows: Indices) -> Indices:
        """Mark rows as dead; returns those that were not."""
        fresh = self.mark(part, DEAD, rows)
        if part.run.tier == "resident":
            self._count(part.hashes[fresh], -1)
        return fresh

    # -- moving between memory and disk

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
        if not self.resident:
            return empty(self.schema)
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

    def spill_run(self, run: Run) -> None:
        """Move a resident run to disk, its living rows sorted."""
        assert self.buckets is not None
        facts = {name: getattr(run, name) for name in ("slot", "width", "time_from", "time_to", "keys")}
        before = self.rows
        table = self._sorted([part.take(part.living) for part in self.parts([run])], "hash")
        self.retire([run])
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
