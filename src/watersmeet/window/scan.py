"""Looking for partners in a window: sorted runs, runs as they came, and pages on disk.

A sorted run is probed where it lies. Runs as they came are scanned, several as one, because what a scan costs however
few the rows is then paid once; a run that has been scanned for as much as sorting it costs is sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, hashes_of, take, times_of
from watersmeet.columns.matching import KeyFilter
from watersmeet.columns.saturating import Times
from watersmeet.state.pages import together
from watersmeet.state.parts import Part
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon, Mask
from watersmeet.state.run import Run
from watersmeet.window.batch_costs import SCAN_ROWS
from watersmeet.window.kernels import Ordered, distinct_in, order

TIME = "_time"  # the time put on rows that have none of their own

ROW_BITS = 40
ROW_MASK = (1 << ROW_BITS) - 1

Scanned = list[tuple[Run, int]]  # runs as they came that a batch has scanned, and how many candidates each had


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

    def select(self, wanted: Mask) -> Rows:
        """Some of the rows, in the same order."""
        return self if wanted.all() else Rows(take(self.table, np.flatnonzero(wanted)), self.time_column)

    @property
    def content(self) -> pa.Table:
        """The columns as they came, without a time that was put on them."""
        return self.table.drop_columns([TIME]) if self.time_column == TIME else self.table

    def __len__(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True)
class Candidates:
    """Stored rows that probes may match, in order. A number is that of a part, above `ROW_BITS`, and of a row in it."""

    parts: tuple[Part, ...]
    rows: Ordered

    def split(self, numbers: Indices) -> Iterator[tuple[Part, Indices | slice, Indices]]:
        """For rows of several parts: a part, which of the rows are in it, and their numbers in it."""
        if len(self.parts) == 1:
            yield self.parts[0], slice(None), numbers
            return
        for part, which in zip(self.parts, by_part(numbers, len(self.parts)), strict=True):
            if len(which):
                yield part, which, numbers[which] & ROW_MASK


def by_part(numbers: Indices, parts: int) -> list[Indices]:
    """For each part, which of the numbers are in it, ascending."""
    place = (numbers >> ROW_BITS).astype(np.uint16)  # of so few bits NumPy's stable sort takes two passes
    ends = np.cumsum(np.bincount(place, minlength=parts))
    return np.split(np.argsort(place, kind="stable"), ends[:-1])


def candidates(store: RowStore, earliest: int, latest: int, probes: Ordered, scanned: Scanned) -> Iterator[Candidates]:
    """Rows with times from `earliest` to `latest` that the probes may match."""
    unsorted: list[Run] = []
    for run in store.runs:
        assert run.time_from is not None
        assert run.time_to is not None
        if run.time_to < earliest or run.time_from > latest:
            continue
        if run.tier == "spilled":
            assert store.buckets is not None
            wanted = np.flatnonzero(np.diff(store.buckets.offsets(probes.hashes)))
            for part in together(store.pages(run, wanted.tolist()), store.page_rows):
                yield Candidates((part,), _ordered(part))
        elif run.order == "hash":
            for part in store.parts([run]):
                yield Candidates((part,), _ordered(part))
        else:
            unsorted.append(run)
    unsorted.sort(key=lambda run: run.time_from or 0)  # almost in order of time: little is left to order
    for group in _groups(unsorted, SCAN_ROWS):
        yield _scan(store, group, probes, scanned)


def _ordered(part: Part) -> Ordered:
    """A sorted part's rows. One before the horizon is gone, whether or not its run is still there. Rows of other
    partitions are left to whoever finds them: there may be many, and few are found."""
    rows = Ordered(part.hashes, part.times)
    return rows if part.is_shared_only or part.living is None else rows.select(part.living)


def _scan(store: RowStore, runs: Sequence[Run], probes: Ordered, scanned: Scanned) -> Candidates:
    """Several runs as they came are scanned one by one, and what was found is put in order as one."""
    parts, wanted = tuple(store.parts(runs)), KeyFilter(probes.hashes)
    numbers, hashes, times = [], [], []
    for place, part in enumerate(parts):
        found = wanted.among(part.hashes)
        scanned.append((part.run, len(found)))
        found = _living(part, found)
        numbers.append(found | (place << ROW_BITS))
        hashes.append(part.hashes[found])
        times.append(part.times[found])
    matching, places = order(np.concatenate(hashes), np.concatenate(times)), np.concatenate(numbers)
    places = places if matching.rows is None else places[matching.rows]
    return Candidates(parts, Ordered(matching.hashes, matching.times, places))


def _living(part: Part, rows: Indices) -> Indices:
    alive = part.alive(rows)
    return rows if alive is None else rows[alive]


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


def distinct_keys(store: RowStore) -> float:
    """About how many different keys a window has."""
    largest = max(store.runs, key=lambda run: run.own, default=None)
    return distinct_in(store.rows, largest.own, largest.keys) if largest else 0.0


def newest(store: RowStore, rows: int) -> int | None:
    """The earliest time from which on a store has at most `rows` rows in memory; None if all of them are that few.

    The edges of the runs are bisected first; only the runs around the edge that the answer lies at are read:

        runs      [0 ..... 9] [5 ....... 18] [20 . 24]       rows=7: from 5 on there are 12, from 20 on 3,
        edges     0     5     10        19   20     25       so the answer lies between 5 and 20
    """
    resident = [(run, run.time_from or 0, run.time_to or 0) for run in store.resident]

    def times(run: Run) -> Times:
        return np.concatenate([part.times[part.undead] for part in store.parts([run])])

    def rows_from(time: int) -> int:
        whole = sum(store.alive(run) for run, first, _ in resident if first >= time)
        partly = [run for run, first, last in resident if first < time <= last]
        return whole + sum(int(np.count_nonzero(times(run) >= time)) for run in partly)

    start = min((first for _, first, _ in resident), default=0)
    horizon = store.rule.time if isinstance(store.rule, Horizon) else None
    low = start if horizon is None else max(start, horizon)
    if rows_from(low) <= rows:
        return None
    edges = {edge for _, first, last in resident for edge in (first, last + 1)}
    ascending = [low, *sorted(edge for edge in edges if edge > low)]
    below, above = 0, len(ascending) - 1  # rows_from(ascending[above]) <= rows: nothing is after the last edge
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if rows_from(ascending[middle]) <= rows else (middle, above)
    low, high = ascending[below], ascending[above]
    around = [run for run, first, last in resident if first < high and last >= low]
    found = np.concatenate([times(run) for run in around])
    found = np.sort(found[(found >= low) & (found < high)])
    # Rows of one time stay or go together: the newest row that must go takes its equals with it.
    return int(found[len(found) - 1 - (rows - rows_from(high))]) + 1
