"""How runs of a store are written anew: merged as the layout says, sorted, rid of their dead rows.

Two sorts of rows leave with that: those that a rule has declared dead, which are counted when they are gone from the
runs (`_swept`), and those that others make useless (`redundant`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import concat, hashes_of, merge_by_hash, take, times_of
from watersmeet.state.layouts import Merge
from watersmeet.state.parts import DEAD
from watersmeet.state.run import InMemory, Order, Run, resident_run
from watersmeet.state.shelf import Shelf
from watersmeet.state.space import BucketPage, cut_into_pages

AT_ONCE = 1 << 28  # bytes of runs that are merged together with a copy of their dead rows; of more these go first


class MergingShelf(Shelf):
    """The runs of one input, kept few and dense."""

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
        self._replace(runs, made)
        self._swept(before - self.rows)
        return made.rows

    def _rewritten(self, runs: list[Run], level: int) -> Run:
        table = self._living(runs)
        oldest, newest = min(run.oldest for run in runs), max(run.newest for run in runs)
        facts = {**self.layout.slot_of(runs), "level": level, "order": runs[0].order}
        facts |= {"spent": sum(run.spent for run in runs), "id": self.take_id()}
        return self._made(table, oldest=oldest, newest=newest, **facts)

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
        return self._reduce(merge_by_hash(tables, self.tie_break, [part.living for part in parts]))

    def _sorted(self, tables: list[pa.Table], order: Order) -> pa.Table:
        tables = [table for table in tables if table.num_rows]
        if order == "arrival" or not tables:
            return concat(tables, self.schema).combine_chunks()
        return self._reduce(merge_by_hash(tables, self.tie_break))

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

    def reorder(self, run: Run, **facts: Any) -> None:
        """Sort a run that was stored as it came."""
        before = self.rows
        table = self._sorted([part.take(part.living) for part in self.parts([run])], "hash")
        facts |= {"order": "hash", "slot": run.slot, "width": run.width, "id": self.take_id()}
        self._replace([run], self._made(table, oldest=run.oldest, newest=run.newest, **facts))
        self._swept(before - self.rows)

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

    def _made(self, table: pa.Table, *, oldest: int, newest: int, **facts: Any) -> Run:
        """A new resident run with what the store knows of its rows."""
        if table.num_rows:
            facts |= self.describe(table) if self.describe else {}
            if self.time:
                times = times_of(table, self.time)
                facts |= {"time_from": int(times.min()), "time_to": int(times.max())}
        return resident_run(self.name, table, oldest=oldest, newest=newest, **facts)

    def _written(self, run: Run) -> Run:
        self.accounts.metrics.count("pages_written", sum(share.pages for share in run.shares))
        return run


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _most(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
