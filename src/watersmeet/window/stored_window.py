"""The rows of one input that are in its window: runs bounded in time, sorted or as they came.

Time is cut into slices, an eighth of the time that the window must span, and no run crosses the border of a slice. So
a run mostly expires as a whole, which costs nothing but its name in the manifest:

    time       |  slice 3  |  slice 4  |  slice 5  | ...
    runs       [ one run  ] [ one run  ] [a][b][ c ]        those of a closed slice are merged into one
    horizon          ^ slice 3 is partly expired: its dead rows are never reported, and rewritten away only
                       if they become more than a quarter of the live ones

Within a slice runs are merged by size tiers. A `hash` run is sorted by (hash, time), a `loop` run is as it came; both
can be in one window while `auto` changes its mind. Runs moved to disk are sorted, and read a page at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from watersmeet.arrow import Indices, hashes_of, take
from watersmeet.matching import scan
from watersmeet.saturating import Times
from watersmeet.state.buckets import Buckets
from watersmeet.state.run import Run, resident_run
from watersmeet.state.space import BucketPage, RunSpace, cut_into_pages
from watersmeet.state.tiers import MAX_ROWS, TieredRuns
from watersmeet.window.batch_costs import SCAN_ROWS, SLICES
from watersmeet.window.kernels import Ordered, distinct, distinct_in, merge_order, order
from watersmeet.window.times import TIME, times_of

# A batch is stored in at most this many slices; one that spans more time gets wider ones.
MAX_SLICES_PER_BATCH = 16
# Dead rows are rewritten away when they are more than one in DEAD_SHARE of the live ones.
DEAD_SHARE = 4
DISK_BUCKETS = 16


@dataclass(frozen=True)
class Rows:
    """Rows of one input with their hashes and times."""

    table: pa.Table
    time_column: str

    @cached_property
    def times(self) -> Times:
        """Microseconds."""
        return times_of(self.table, self.time_column)

    @cached_property
    def ordered(self) -> Ordered:
        """The rows by (hash, time)."""
        return order(hashes_of(self.table), self.times)

    def sorted(self) -> Rows:
        """The same rows, the table itself in that order."""
        rows = self.ordered.rows
        return self if rows is None else Rows(take(self.table, rows), self.time_column)

    def select(self, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Rows:
        """Some of the rows, in the same order."""
        return self if wanted.all() else Rows(take(self.table, np.flatnonzero(wanted)), self.time_column)

    @property
    def content(self) -> pa.Table:
        """The columns as they came, without a time that was put on them."""
        return self.table.drop_columns([TIME]) if self.time_column == TIME else self.table

    def __len__(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True)
class Met:
    """Stored rows that probes may match, in order; their numbers count through all the tables."""

    tables: tuple[pa.Table, ...]
    rows: Ordered

    @cached_property
    def starts(self) -> Indices:
        """The number of each table's first row."""
        return np.cumsum([0, *(table.num_rows for table in self.tables[:-1])], dtype=np.int64)

    def split(self, numbers: Indices) -> Iterator[tuple[pa.Table, Indices, Indices]]:
        """For rows of several tables: a table, which of the rows are in it, and their numbers in it."""
        if len(self.tables) == 1:
            yield self.tables[0], np.arange(len(numbers)), numbers
            return
        place = np.searchsorted(self.starts, numbers, side="right") - 1
        for one in np.flatnonzero(np.bincount(place)):  # few tables: far cheaper than to sort the places
            which = np.flatnonzero(place == one)
            yield self.tables[one], which, numbers[which] - self.starts[one]


class StoredWindow:
    """The stored rows of one input."""

    def __init__(self, name: str, time_column: str, span: int, space: RunSpace, runs: Sequence[Run] = ()) -> None:
        self.name = name
        self.time_column = time_column
        self.span = span
        self.slice = max(1, span // SLICES)
        self.space = space
        self.runs = list(runs)
        self.horizon: int | None = None
        self.rows_rewritten = 0
        self.scanned: list[tuple[Run, int]] = []  # unsorted runs met in this batch, and their candidates

    @property
    def resident(self) -> list[Run]:
        """The runs in memory."""
        return [run for run in self.runs if run.tier == "resident"]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(run.nbytes for run in self.resident)

    @property
    def rows(self) -> int:
        """All rows, on disk too, and those expired but not yet dropped."""
        return sum(run.rows for run in self.runs)

    @property
    def keys(self) -> float:
        """About how many distinct keys the window has."""
        largest = max(self.runs, key=lambda run: run.rows, default=None)
        return distinct_in(self.rows, largest.rows, largest.attributes["keys"]) if largest else 0.0

    # -- probing

    def meet(self, earliest: int, latest: int, probes: Ordered) -> Iterator[Met]:
        """Rows with times from `earliest` to `latest` that the probes may match."""
        unsorted: list[Run] = []
        for run in self.runs:
            if run.attributes["to"] < earliest or run.attributes["from"] > latest:
                continue
            if run.tier == "spilled":
                for page in self._pages(run, probes):
                    yield Met((page,), self._alive(page, run))
            elif run.attributes["ordered"]:
                yield Met((run.table,), self._alive(run.table, run))
            else:
                unsorted.append(run)
        unsorted.sort(key=lambda run: int(run.attributes["from"]))  # almost in order of time: little is left to order
        for group in _groups(unsorted, SCAN_ROWS):
            yield self._scan(group, probes)

    def _alive(self, table: pa.Table, run: Run) -> Ordered:
        """A sorted table's rows. One before the horizon is gone, whether or not its run is still there."""
        rows = Ordered(hashes_of(table), times_of(table, self.time_column))
        if self.horizon is None or run.attributes["from"] >= self.horizon:
            return rows
        return rows.select(np.flatnonzero(rows.times >= self.horizon))

    def _scan(self, runs: Sequence[Run], probes: Ordered) -> Met:
        """Several unsorted runs are scanned as one: what a scan costs however few the rows is paid once."""
        tables = tuple(run.table for run in runs)
        hashes = np.concatenate([hashes_of(table) for table in tables])
        times = np.concatenate([times_of(table, self.time_column) for table in tables])
        found = scan(hashes, probes.hashes)
        met = Met(tables, Ordered(hashes, times))
        counts = np.diff(np.append(np.searchsorted(found, met.starts), len(found)))
        self.scanned += zip(runs, counts.tolist(), strict=True)
        if self.horizon is not None and any(run.attributes["from"] < self.horizon for run in runs):
            found = found[times[found] >= self.horizon]
        candidates = order(hashes[found], times[found])
        numbers = found if candidates.rows is None else found[candidates.rows]
        return Met(tables, Ordered(candidates.hashes, candidates.times, numbers))

    def _pages(self, run: Run, probes: Ordered) -> Iterator[pa.Table]:
        wanted = np.diff(Buckets(DISK_BUCKETS).offsets(probes.hashes))
        for bucket in np.flatnonzero(wanted):
            yield from run.read(int(bucket))

    # -- storing

    def add(self, rows: Rows, batch: int, *, ordered: bool, advance: int) -> None:
        """Store a batch's rows; `advance` is how far the horizon moved, because slices need not be much finer."""
        if not len(rows):
            return
        if ordered:
            rows = rows.sorted()
        first, last = int(rows.times.min()), int(rows.times.max())
        width = self.slice
        while last // width - first // width >= MAX_SLICES_PER_BATCH or 2 * width < advance:
            width *= 2
        if first // width == last // width:
            self._store(self._run(rows, batch, batch, width, ordered))
            return
        number = rows.times // width - first // width
        for one in np.flatnonzero(np.bincount(number)):
            self._store(self._run(rows.select(number == one), batch, batch, width, ordered))

    def _run(self, rows: Rows, oldest: int, newest: int, width: int, ordered: bool) -> Run:
        times = rows.times
        return resident_run(
            self.name,
            rows.table,
            oldest=oldest,
            newest=newest,
            width=width,
            slice=int(times[0]) // width,
            ordered=ordered,
            keys=distinct(hashes_of(rows.table)),
            spent=0,
            **{"from": int(times.min()), "to": int(times.max())},
        )

    def _store(self, run: Run) -> None:
        alike = [other for other in self.runs if _kind(other) == _kind(run)]
        tiers = TieredRuns(alike, merge=self._merge_disk if run.tier == "spilled" else self._merge)
        self.rows_rewritten += tiers.add(run)
        self._replace(alike, tiers.runs)

    def _replace(self, old: Sequence[Run], new: Sequence[Run]) -> None:
        gone = {id(run) for run in old}
        self.runs = [run for run in self.runs if id(run) not in gone] + list(new)

    def _merge(self, runs: list[Run]) -> Run:
        """One run with the live rows of several runs of one slice."""
        tables = [self._live(Rows(run.table, self.time_column)).table for run in runs]
        rows = Rows(pa.concat_tables(tables).combine_chunks(), self.time_column)
        ordered = bool(runs[0].attributes["ordered"])
        if ordered:
            rows = Rows(take(rows.table, merge_order(hashes_of(rows.table), rows.times)), self.time_column)
        merged = self._run(
            rows, min(run.oldest for run in runs), max(run.newest for run in runs), runs[0].attributes["width"], ordered
        )
        return merged.with_attributes(spent=sum(run.attributes["spent"] for run in runs))

    def _merge_disk(self, runs: list[Run]) -> Run:
        """The same for runs on disk, a bucket at a time."""

        def pages() -> Iterator[BucketPage]:
            for bucket in range(DISK_BUCKETS):
                found = [page for run in runs for page in run.read(bucket)]
                if found:
                    rows = self._live(Rows(pa.concat_tables(found).combine_chunks(), self.time_column)).sorted()
                    yield from cut_into_pages(rows.table, Buckets(DISK_BUCKETS))

        attributes = {**runs[0].attributes}
        attributes["from"] = min(run.attributes["from"] for run in runs)
        attributes["to"] = max(run.attributes["to"] for run in runs)
        attributes["keys"] = max(run.attributes["keys"] for run in runs)
        oldest, newest = min(run.oldest for run in runs), max(run.newest for run in runs)
        return self.space.spill(self.name, pages(), oldest=oldest, newest=newest, **attributes)

    def _live(self, rows: Rows) -> Rows:
        return rows if self.horizon is None else rows.select(rows.times >= self.horizon)

    def close(self, bound: int | None) -> None:
        """Merge the runs of every slice in which no more rows are expected into one."""
        if bound is None:
            return
        groups: dict[tuple[object, ...], list[Run]] = {}
        for run in self.resident:
            groups.setdefault(_kind(run), []).append(run)
        for runs in groups.values():
            end = (runs[0].attributes["slice"] + 1) * runs[0].attributes["width"]
            if len(runs) > 1 and end <= bound and sum(run.rows for run in runs) <= MAX_ROWS:
                merged = self._merge(runs).with_attributes(level=max(run.attributes["level"] for run in runs))
                self.rows_rewritten += merged.rows
                self._replace(runs, [merged])

    def index(self, run: Run) -> None:
        """Sort a run that was stored as it came."""
        rows = Rows(run.table, self.time_column).sorted()
        indexed = self._run(rows, run.oldest, run.newest, run.attributes["width"], ordered=True)
        self.rows_rewritten += run.rows
        self._replace([run], [])
        self._store(indexed)

    def note(self, run: Run, spent: int) -> None:
        """Remember what scanning an unsorted run has cost so far, in nanoseconds."""
        self.runs = [one.with_attributes(spent=spent) if one is run else one for one in self.runs]

    def narrow(self, length: int) -> None:
        """The window spans less time than it was made for: from now on its slices are as much finer."""
        self.slice = max(1, min(self.span, length) // SLICES)

    def spill(self, run: Run) -> None:
        """Move a run to disk."""
        rows = self._live(Rows(run.table, self.time_column)).sorted()
        attributes = {**run.attributes, "ordered": True}
        pages = cut_into_pages(rows.table, Buckets(DISK_BUCKETS))
        moved = self.space.spill(self.name, pages, oldest=run.oldest, newest=run.newest, **attributes)
        self._replace([run], [])
        self._store(moved)

    # -- expiring

    def expire(self, horizon: int | None) -> tuple[int, int]:
        """Drop the runs that are wholly before the horizon, unread; returns how many runs and rows that were."""
        if horizon is None or (self.horizon is not None and horizon < self.horizon):
            return 0, 0
        self.horizon = horizon
        gone = [run for run in self.runs if run.attributes["to"] < horizon]
        self._replace(gone, [])
        return len(gone), sum(run.rows for run in gone)

    def compact(self, *, to_the_row: bool = False) -> int:
        """Rewrite partly expired runs if their dead rows are too many for the live ones, or if asked `to_the_row`.

        Runs are read only if the rows in partly expired ones could be too many. Returns the rows dropped.
        """
        horizon = self.horizon
        if horizon is None:
            return 0
        partly = [run for run in self.resident if run.attributes["from"] < horizon]
        rows, total = sum(run.rows for run in partly), sum(run.rows for run in self.resident)
        if not to_the_row and rows * DEAD_SHARE <= total - rows:
            return 0
        dead = {id(run): int(np.count_nonzero(times_of(run.table, self.time_column) < horizon)) for run in partly}
        lost = sum(dead.values())
        if not to_the_row and lost * DEAD_SHARE <= total - lost:
            return 0
        for run in partly:
            live = self._live(Rows(run.table, self.time_column))
            attributes = {name: run.attributes[name] for name in ("level", "spent")}
            kept = self._run(live, run.oldest, run.newest, run.attributes["width"], run.attributes["ordered"])
            self._replace([run], [kept.with_attributes(**attributes)])
        self.rows_rewritten += sum(run.rows for run in partly) - lost
        return lost

    def newest(self, rows: int) -> int | None:
        """The earliest time from which on there are at most `rows` rows in memory; None if all of them are that few.

        Only runs that the answer may lie in are read.
        """

        def from_(time: int) -> int:
            whole = sum(run.rows for run in self.resident if run.attributes["from"] >= time)
            partly = [run for run in self.resident if run.attributes["from"] < time <= run.attributes["to"]]
            return whole + sum(int(np.count_nonzero(times_of(run.table, self.time_column) >= time)) for run in partly)

        start = min((run.attributes["from"] for run in self.resident), default=0)
        low = start if self.horizon is None else max(start, self.horizon)
        if from_(low) <= rows:
            return None
        edges = {edge for run in self.resident for edge in (run.attributes["from"], run.attributes["to"] + 1)}
        ascending = [low, *sorted(edge for edge in edges if edge > low)]
        below, above = 0, len(ascending) - 1  # from_(ascending[above]) <= rows: nothing is after the last edge
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (below, middle) if from_(ascending[middle]) <= rows else (middle, above)
        low, high = ascending[below], ascending[above]
        around = [run for run in self.resident if run.attributes["from"] < high and run.attributes["to"] >= low]
        times = np.concatenate([times_of(run.table, self.time_column) for run in around])
        times = np.sort(times[(times >= low) & (times < high)])
        # Rows of one time stay or go together: the newest row that must go takes its equals with it.
        return int(times[len(times) - 1 - (rows - from_(high))]) + 1


def _groups(runs: Sequence[Run], most: int) -> Iterator[list[Run]]:
    """Runs in groups of at most so many rows, or of one run."""
    group: list[Run] = []
    for run in runs:
        if group and sum(one.rows for one in group) + run.rows > most:
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _kind(run: Run) -> tuple[object, ...]:
    """Runs are merged with their like only."""
    attributes = run.attributes
    return run.tier, attributes["width"], attributes["slice"], attributes["ordered"]
