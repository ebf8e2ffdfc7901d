"""Optional inputs under a window: combinations that lack one, in the batch in which that is certain.

The required rows of a combination lie within the window. Then come the optional inputs, in the order given: a row o
fits what is chosen so far, p, if both together lie within the window: latest(p) - window <= o <= earliest(p) + window.
If an input has no row that fits, p goes on without. No row before its bound is accepted on an optional input any more
(a late one is not joined at all), so p lacks the input for certain once

    earliest(p) < horizon        the input's bound less the window; everything, once the input has ended

and a result with absences is due in the batch in which it has come whole and the last of its absences is certain. That
is when a row of it is new, or when a row of it is the earliest of what lacks an input whose horizon has just passed it:

    horizon of an input    before ----------> after
    stored rows         x   x  |  o    o  o  |   x          those in between drive, as the new rows do

So each row drives when it comes, and once more for every optional input. A result is found from the first of its inputs
whose row drives. Of an optional input's rows it must be known until nothing new can come to what they fit: those keep
for two windows behind the optional inputs (see `horizons`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, numpy_of, times_of
from watersmeet.columns.matching import BLOCK_ROWS, ranges
from watersmeet.columns.saturating import Times, shifted
from watersmeet.join.expiry import SCANNED_ROWS
from watersmeet.multiway.absence import Absence
from watersmeet.multiway.combinations import combinations
from watersmeet.multiway.former_clocks import FormerClock
from watersmeet.multiway.hash_table import HashTable, Mask
from watersmeet.multiway.probe import ABSENT, Matches, Probe, key_layers
from watersmeet.multiway.results import Results
from watersmeet.multiway.window import in_window, within_window
from watersmeet.plan.metrics import Metrics
from watersmeet.state.parts import Part

BY_TIME = "by_time"

Horizons = Mapping[int, float]  # per optional input; -inf: nothing is known, inf: it has ended


@dataclass(frozen=True)
class Chosen:
    """Combinations so far: per input the numbers of their rows, and what is known of each combination."""

    rows: dict[int, Indices]
    groups: Indices
    earliest: Times
    latest: Times
    lacks: Mask  # some optional input is absent
    is_new: Mask  # a row is new, or an absence was not certain before
    by_end: Mask  # an absence is certain because its input has ended

    def take(self, at: Indices | Mask) -> Chosen:
        """Some of them."""
        return Chosen(
            {index: rows[at] for index, rows in self.rows.items()},
            self.groups[at],
            self.earliest[at],
            self.latest[at],
            self.lacks[at],
            self.is_new[at],
            self.by_end[at],
        )

    def with_rows(self, index: int, rows: Indices, times: Times, fresh: Mask) -> Chosen:
        """All of them with a row of one more input."""
        return replace(
            self,
            rows={**self.rows, index: rows},
            earliest=np.minimum(self.earliest, times),
            latest=np.maximum(self.latest, times),
            is_new=self.is_new | fresh,
        )


class Found:
    """The rows of an input that a probe has found, to be looked up by group and time."""

    def __init__(self, matches: Matches, time: str) -> None:
        self.matches = matches
        self.times = times_of(matches.table, time) if matches.table.num_rows else np.empty(0, np.int64)

    @cached_property
    def _ordered(self) -> tuple[Indices, Indices, Times]:
        """The rows by group and time, the place of each in that order, and all times there are."""
        groups, at = np.repeat(np.arange(len(self.matches.counts)), self.matches.counts), self.times[self.matches.rows]
        # Times become ranks, so that group and time fit into one number that can be searched for.
        ranks = np.unique(at)
        places = groups * (len(ranks) + 1) + np.searchsorted(ranks, at)
        order = np.argsort(places, kind="stable")
        return self.matches.rows[order], places[order], ranks

    @property
    def rows(self) -> Indices:
        """The rows by group and time."""
        return self._ordered[0]

    def between(self, groups: Indices, low: Times, high: Times) -> tuple[Indices, Indices]:
        """For each group and span of time, where its rows begin in `rows` and how many they are."""
        _, places, ranks = self._ordered
        base = groups * (len(ranks) + 1)
        first = np.searchsorted(places, base + np.searchsorted(ranks, low, side="left"))
        last = np.searchsorted(places, base + np.searchsorted(ranks, high, side="right"))
        return first, last - first

    def fresh(self, rows: Indices) -> Mask:
        """Which of some rows came in this batch."""
        return np.asarray(self.matches.fresh[rows])


class Passing:
    """The results of a windowed join that lack an optional input."""

    def __init__(self, results: Results, absence: Absence, times: Sequence[str], window: int, metrics: Metrics) -> None:
        self.results, self.absence, self.metrics = results, absence, metrics
        self.times, self.window = times, window
        self.before: Horizons = {}
        self.after: Horizons = {}
        self.apart: Sequence[tuple[FormerClock, Horizons]] = ()  # keys whose horizons were others
        self._hashes: Hashes = np.empty(0, np.uint64)  # of the groups that are looked at

    def of(
        self,
        tables: Sequence[HashTable],
        before: Horizons,
        after: Horizons,
        allowed: int,
        apart: Sequence[tuple[FormerClock, Horizons]] = (),
    ) -> Iterator[pa.Table]:
        """What is due in a batch whose rows have all been joined, at most `allowed` results; the horizons were and are
        now as given. For some keys they may have been others, further behind or not: those of the partitions that they
        were in."""
        self.before, self.after, self.apart = before, after, apart
        if apart:
            self.before = {index: min(one[index] for _, one in apart) for index in before}
        reach = max(after.values()) + self.window  # nothing that a row at or after it belongs to lacks an input yet
        for driver, table in enumerate(tables):
            for rows_of, rows, is_new in self._driving(driver, table):
                near = rows[times_of(rows_of, self.times[driver])[rows] < reach]
                hashes = numpy_of(rows_of.column("_hash"))
                for start in range(0, len(near), BLOCK_ROWS):
                    some = near[start : start + BLOCK_ROWS]
                    for probe in key_layers(rows_of, some, hashes[some]):
                        for block in self._due(probe, driver, tables, is_new=is_new):
                            allowed -= block.num_rows
                            if allowed < 0:
                                self.results.refuse(f"{-allowed} more that lack an optional input")
                            yield block

    # -- which rows drive

    def _driving(self, index: int, table: HashTable) -> Iterator[tuple[pa.Table, Indices, bool]]:
        """New rows of an input, and stored ones that a horizon has passed."""
        if table.buffer is not None and table.buffer.num_rows:
            yield table.buffer, np.arange(table.buffer.num_rows), True
        spans = self._spans
        for part in table.store.parts() if spans else ():
            rows = self._crossed(part, spans)
            alive = part.alive(rows)
            rows = rows if alive is None else rows[alive]
            if len(rows):
                yield part.table, rows, False

    @property
    def _spans(self) -> list[tuple[float, float]]:
        spans = ((self.before[index], self.after[index]) for index in self.absence.optional)
        return [(low, high) for low, high in spans if low < high]

    def _crossed(self, part: Part, spans: Sequence[tuple[float, float]]) -> Indices:
        """The rows of a part in some spans of time; of a large run by their order in time, which is put down once."""
        run = part.run
        assert run.time_from is not None
        assert run.time_to is not None
        spans = [(low, high) for low, high in spans if run.time_from < high and run.time_to >= low]
        if not spans:
            return np.empty(0, np.int64)
        times = part.times
        if run.stored_rows <= SCANNED_ROWS:
            return np.flatnonzero(_inside(times, spans))
        order = numpy_of(part.store.side(run, BY_TIME, lambda: _by_time(times)).column(0))
        ends = [[bisect_left(order, end, key=lambda row: int(times[row])) for end in span] for span in spans]
        return np.unique(np.concatenate([order[low:high] for low, high in ends])).astype(np.int64)

    def _drives(self, found: Found, rows: Indices) -> Mask:
        """Which of some rows drive in this batch."""
        return found.fresh(rows) | _inside(found.times[rows], self._spans)

    # -- what they belong to

    def _due(self, probe: Probe, driver: int, tables: Sequence[HashTable], *, is_new: bool) -> Iterator[pa.Table]:
        """The results that the rows of a probe are the first to find."""
        for index in (*self.absence.required, *self.absence.optional):
            if index != driver and len(probe.alive):
                optional = index in self.absence.optional
                probe.visit(index, tables[index], np.ones(len(probe.alive), np.bool_) if optional else None)
        self.metrics.count("lookups", probe.looked_up)
        if not len(probe.alive):
            return
        self._hashes = probe.needles
        found = {
            index: Found(
                probe.driver_matches(is_fresh=is_new)
                if index == driver
                else probe.matches(index, self.results.columns[index], with_absent=False),
                self.times[index],
            )
            for index in range(len(tables))
        }
        for chosen in self._required(probe, driver, found, is_new=is_new):
            for whole in self._extended(chosen, driver, found, self.absence.optional):
                yield from self._built(whole.take(whole.lacks & whole.is_new), found)

    def _required(self, probe: Probe, driver: int, found: Mapping[int, Found], *, is_new: bool) -> Iterator[Chosen]:
        """Combinations of required rows within the window, with the driver's row if it is optional.

        Most of them may have been results before, in this batch too. So those of new rows may be as many as a batch has
        results, whatever it has had so far; those of stored rows have all been looked at when the last of them came.
        """
        inputs = sorted({*self.absence.required, driver})
        times = [found[index].times for index in inputs]
        place = inputs.index(driver)
        units = within_window([found[index].matches for index in inputs], times, place, self.window)
        if is_new:
            names = [self.results.names[index] for index in inputs]
            self.results.check_limit(dict(zip(names, units, strict=True)), self.results.options.max_results)
        for block in in_window(combinations(units), times, self.window):
            rows = dict(zip(inputs, block, strict=True))
            keep = np.ones(len(block[0]), np.bool_)
            for index in inputs[:place]:
                keep &= ~self._drives(found[index], rows[index])
            rows = {index: some[keep] for index, some in rows.items()}
            yield self._start(probe, rows, driver, found)

    def _start(self, probe: Probe, rows: dict[int, Indices], driver: int, found: Mapping[int, Found]) -> Chosen:
        """Combinations of required rows, which all that follows is added to; the driver's row waits for its turn."""
        place = np.searchsorted(probe.rows, rows[driver])
        groups = np.searchsorted(probe.alive, np.searchsorted(probe.begins, place, side="right") - 1)
        times = [found[index].times[rows[index]] for index in self.absence.required]
        fresh = [found[index].fresh(rows[index]) for index in self.absence.required]
        no = np.zeros(len(groups), np.bool_)
        earliest, latest = np.minimum.reduce(times), np.maximum.reduce(times)
        return Chosen(rows, groups, earliest, latest, no, np.logical_or.reduce(fresh), no)

    def _extended(
        self, chosen: Chosen, driver: int, found: Mapping[int, Found], optional: Sequence[int]
    ) -> Iterator[Chosen]:
        """Combinations with a row of each optional input, or without, if it is certain that none fits."""
        if not optional or not len(chosen.groups):
            yield chosen
            return
        index, *others = optional
        mine = found[index]
        low, high = shifted(chosen.latest, -self.window), shifted(chosen.earliest, self.window)
        if index == driver:
            at = mine.times[chosen.rows[index]]
            fitting, at = chosen.take((at >= low) & (at <= high)), at[(at >= low) & (at <= high)]
            rows = fitting.rows[index]
            yield from self._extended(fitting.with_rows(index, rows, at, mine.fresh(rows)), driver, found, others)
            return
        begins, counts = mine.between(chosen.groups, low, high)
        yield from self._extended(self._without(chosen.take(counts == 0), index), driver, found, others)
        for some in _pieces(counts):
            at = np.repeat(some, counts[some])
            rows = mine.rows[ranges(begins[some], begins[some] + counts[some])]
            if index < driver:
                first = ~self._drives(mine, rows)
                at, rows = at[first], rows[first]
            longer = chosen.take(at).with_rows(index, rows, mine.times[rows], mine.fresh(rows))
            yield from self._extended(longer, driver, found, others)

    def _without(self, chosen: Chosen, index: int) -> Chosen:
        """Those combinations that lack an input for certain."""
        chosen = chosen.take(chosen.earliest < self.after[index])
        return replace(
            chosen,
            rows={**chosen.rows, index: np.full(len(chosen.groups), ABSENT)},
            lacks=np.ones(len(chosen.groups), np.bool_),
            is_new=chosen.is_new | (chosen.earliest >= self._before(chosen, index)),
            by_end=chosen.by_end | (self.after[index] == inf),
        )

    def _before(self, chosen: Chosen, index: int) -> float | npt.NDArray[np.float64]:
        """Where the horizon of an input was, for each combination."""
        if not self.apart:
            return self.before[index]
        found = np.full(len(chosen.groups), self.before[index])
        for clock, before in self.apart:
            found[clock.owns(self._hashes[chosen.groups])] = before[index]
        return found

    def _built(self, whole: Chosen, found: Mapping[int, Found]) -> Iterator[pa.Table]:
        names = self.results.names
        for reason, which in (("ended", whole.by_end), ("expired", ~whole.by_end)):
            at = np.flatnonzero(which)
            for start in range(0, len(at), BLOCK_ROWS):
                some = whole.take(at[start : start + BLOCK_ROWS])
                taken = {names[index]: (found[index].matches.table, rows) for index, rows in some.rows.items()}
                yield from self.results.built(taken, reason)


def _inside(times: Times, spans: Sequence[tuple[float, float]]) -> Mask:
    found = np.zeros(len(times), np.bool_)
    for low, high in spans:
        found |= (times >= low) & (times < high)
    return found


def _by_time(times: Times) -> pa.Table:
    return pa.table({"_row": pa.array(np.argsort(times, kind="stable").astype(np.uint32))})


def _pieces(counts: Indices) -> Iterator[Indices]:
    """Combinations that go on with at least one row, in pieces that give about a block each."""
    at = np.flatnonzero(counts)
    ends = np.cumsum(counts[at])
    start = 0
    while start < len(at):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + BLOCK_ROWS, side="right")))
        yield at[start:stop]
        start = stop
