"""The runs of a store, and what belongs to a run: its marks, and the tables that are kept with it.

    runs       immutable tables: resident (memory-mapped) or spilled (pages on disk), see `run`
    live       ranges of a run that are still there: a flushed bucket is a hole
    marks      single rows that are dead, or carry another flag, see `marks`
    rule       rows that die by what has happened since: a horizon in time, chunks read, see `rules`
    sides      tables derived from a run: an order of its rows, for example

Here runs are counted, read, marked, exchanged for others, saved and restored. How several become one is decided by the
layout and done in `merging`; how rows come, move and leave is in `rows`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, stretch_bytes
from watersmeet.state.accounts import Accounts
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import Layout
from watersmeet.state.marks import Marks
from watersmeet.state.parts import DEAD, Departed, Part, What
from watersmeet.state.rules import Horizon, Mask, Rule
from watersmeet.state.run import Run
from watersmeet.state.side_table import SideTable
from watersmeet.state.space import PAGE_ROWS, RunSpace

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


class Shelf(ABC):
    """The runs of one input."""

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
        by_time: bool = True,
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
        self.tie_break = time if by_time else None  # what rows of equal hash are ordered by when runs are merged
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

    def _all_alive(self, runs: Iterable[Run]) -> int:
        """The same for several runs. Many a store never has a dead row."""
        return sum(run.rows for run in runs) if self.marks[DEAD].is_empty else sum(self.alive(run) for run in runs)

    @property
    def rows(self) -> int:
        """Rows in memory and on disk."""
        return self._all_alive(self._runs.values()) - self._ruled

    held = rows

    @property
    def resident_rows(self) -> int:
        """Rows in memory."""
        return self._all_alive(self.resident) - self._ruled

    @property
    def spilled_rows(self) -> int:
        """Rows on disk."""
        return self._all_alive(self.spilled)

    @property
    def nbytes(self) -> int:
        """Bytes in memory: dead rows until they are rewritten, marks and side tables included."""
        beside = sum(marks.nbytes for marks in self.marks.values()) + sum(table.nbytes for table in self._side.values())
        return sum(run.nbytes for run in self.resident) + beside

    @property
    def spilled_bytes(self) -> int:
        """Bytes on disk, before compression."""
        return sum(run.nbytes for run in self.spilled)

    def bucket_bytes(self) -> Counts:
        """Bytes in memory, per bucket."""
        assert self.buckets is not None
        found: Counts = np.zeros(self.buckets.count, np.int64)
        for run in self.resident:
            edges = self._edges(run)
            sizes = stretch_bytes(run.table, edges) * np.array([run.has(start) for start in edges[:-1]])
            found += sizes * run.own // run.rows if run.foreign else sizes
        return found

    def disk_rows(self) -> Counts:
        """Rows on disk, per bucket."""
        assert self.buckets is not None
        counts: Counts = np.zeros(self.buckets.count, np.int64)
        for run in self.spilled:
            for bucket, place in run.places.items():
                counts[bucket] += place.rows
        return counts

    # -- looking

    def run(self, number: int) -> Run:
        """The run of that number."""
        return self._runs[number]

    def holds(self, run: Run) -> bool:
        """Whether this is one of the runs, as it stands."""
        return self._runs.get(run.id) is run

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

    def bucket(self, bucket: int) -> list[Part]:
        """A bucket's rows in memory, as slices in the order of the hash, oldest run first."""
        return [
            Part(self, run, run.table.slice(start, stop - start), start)
            for run in self.resident
            for start, stop in self._range(run, bucket)
        ]

    def mark(self, part: Part, flag: str, rows: Indices) -> Indices:
        """Set a flag on rows of a part; returns those that did not have it, ascending."""
        if flag != DEAD:
            rows = rows[~part.written(flag, rows)]
        return self.marks[flag].add(part.run, rows, part.hashes, part.base)

    def _marks_of(self, run: Run) -> dict[str, Indices]:
        return {flag: marks.rows(run) for flag, marks in self.marks.items() if marks.count(run)}

    def _count(self, hashes: Hashes, sign: int) -> None:
        """Rows came into memory, or are there no more."""
        if self.counts_buckets and self.buckets:
            self.bucket_rows = self.bucket_rows + sign * self.buckets.counts(hashes)

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

    @abstractmethod
    def remove(self, what: What, reason: str) -> list[Departed]:
        """The one exit, see `rows`."""

    # -- tables kept with a run

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

    # -- exchanging runs

    def take_id(self) -> int:
        """A number for a new run."""
        self._next += 1
        return self._next - 1

    def update(self, run: Run, **facts: Any) -> None:
        """Change what is known of a run; its rows stay."""
        if self.holds(run):
            self._runs[run.id] = replace(run, **facts)

    def retire(self, runs: Sequence[Run]) -> None:
        """All rows of some runs have been moved elsewhere, or have left."""
        for run in runs:
            self._runs.pop(run.id, None)
        self._forget(runs)

    def _replace(self, old: Sequence[Run], new: Run) -> None:
        """A new run in the place of the first of some old ones; none if it has no rows."""
        if new.rows:
            gone = {run.id for run in old}
            first = next(number for number in self._runs if number in gone)
            self.runs = [new if run.id == first else run for run in self.runs]
        self.retire(old)

    def _forget(self, runs: Sequence[Run]) -> None:
        for marks in self.marks.values():
            marks.forget(runs)
        gone = {run.id for run in runs}
        self._side = {key: table for key, table in self._side.items() if key[0] not in gone}
        for number in gone:
            self._offsets.pop(number, None)

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
        # So that nobody has to read marks, of which some are of buckets that were released, to count what is alive.
        partly = (run for run in self.spilled if run.live is not None and self.marks[DEAD].count(run))
        if alive := {str(run.id): self.alive(run) for run in partly}:
            values["alive"] = alive
        return StoreState(self.name, self.input, self.rows, list(self.runs), tables, values)

    def restore(self, state: StoreState) -> None:
        """Take up what `save` returned; nothing is read."""
        self.runs, self._next = list(state.runs), state.values["next"]
        self._ruled = state.values.get("ruled", 0)
        for flag, marks in self.marks.items():
            mine = {name.removeprefix(f"{flag}."): t for name, t in state.tables.items() if name.startswith(f"{flag}.")}
            marks.restore(mine, state.values["marks"].get(flag, {}))
        for number, alive in state.values.get("alive", {}).items():
            run = self._runs[int(number)]
            self._inside[run.id, run.rows, self.marks[DEAD].count(run)] = run.rows - alive
        for name, table in state.tables.items():
            if name.startswith("side."):
                _, number, what = name.split(".", 2)
                self._side[int(number), what] = table
        if self.counts_buckets:
            self.bucket_rows = np.array(state.values["bucket_rows"], np.int64)
        if isinstance(self.rule, Horizon):
            self.rule.time, self.rule.reason = state.values["horizon"]
