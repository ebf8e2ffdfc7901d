"""Layouts: how a store's runs are grouped, and when runs are merged. A layout decides; the store does.

`HashTiers`    every batch adds a run of level 0; FANOUT runs of one level become one of the next. A probe searches
               O(log batches) runs and a row is rewritten O(log) times (of wide rows WIDE_FANOUT, see there):

                   level 0   o o o            one more makes four: merged with the level 1 runs if they are then four
                   level 1   OO OO OO
                   level 2   OOOOOOOO

`SizeTiers`    levels by the rows that are alive: for stores from which rows leave one by one
`TimeSlices`   no run crosses the border of a slice of time, so that runs expire whole:

                   time      |  slice 3  |  slice 4  |  slice 5  | ...
                   runs      [ one run  ] [ one run  ] [a][b][ c ]     merged into one when a slice is closed
                   horizon         ^ slice 3 is partly expired

               with `whole` a batch is not cut: its run belongs to the slice of its newest row

`FewRuns`      a bounded number of runs: for rows that soon leave again

No merge by tiers makes a run of more than MAX_ROWS or MAX_BYTES: beyond that the number of runs grows by a few for each
so much of state, which costs a probe less than the stall of an ever larger merge would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import take
from watersmeet.state.run import Run

FANOUT = 4
# To write a row once more costs by its bytes, to probe one more run costs a batch so much whatever is beside the keys.
# With n runs of a level that become one, a row is written log(batches) / log(n) times, and n / 2 runs of each level are
# probed: where writing a batch costs as much as probing five runs, sixteen at a time is as cheap as four, and from
# there on cheaper. A run costs a probe as much as writing so many bytes (most of it is the output: every run has arrays
# of its own, one for each column), and so many for each row of a batch.
WIDE_FANOUT, WIDE = 16, 5
PROBE_BYTES, PROBE_ROW_BYTES = 1 << 20, 24
MAX_ROWS = 1 << 21
MAX_BYTES = 1 << 30  # an Arrow column of strings holds less than 2 GiB

Times = npt.NDArray[np.int64]
Count = Callable[[Run], int]  # how many of a run's rows are alive, or dead


@dataclass(frozen=True)
class Merge:
    """Runs that become one of a higher level; without `rewrite` they only move up, each for itself."""

    runs: list[Run]
    level: int
    rewrite: bool = True


class Layout(Protocol):
    """How the runs of a store are grouped."""

    def split(self, rows: pa.Table, times: Times | None) -> Iterator[tuple[dict[str, Any], pa.Table]]:
        """The runs in which a batch's rows are stored: the facts of each, and its rows."""

    def slot_of(self, runs: Sequence[Run]) -> dict[str, Any]:
        """The slot of the living rows of some runs, written anew."""

    def due(self, runs: Sequence[Run], alive: Count) -> Merge | None:
        """The next merge among runs of one tier; None when no more is due."""

    def sparse(self, partly: Sequence[Run], total: int, dead: Count) -> list[Run]:
        """Of the runs that may have dead rows, those to rewrite now; `total` is the rows of all runs, and `dead` may
        have to read a run."""


class _Whole:
    """What most layouts do: a batch is one run, and a run of which more than half is dead is rewritten."""

    def split(self, rows: pa.Table, times: Times | None) -> Iterator[tuple[dict[str, Any], pa.Table]]:
        """One run."""
        yield {}, rows

    def slot_of(self, runs: Sequence[Run]) -> dict[str, Any]:
        """That of the first run."""
        return {"slot": runs[0].slot, "width": runs[0].width}

    def sparse(self, partly: Sequence[Run], total: int, dead: Count) -> list[Run]:
        """Paid for by the rows that died."""
        return [run for run in partly if 2 * dead(run) > run.own]


@dataclass
class HashTiers(_Whole):
    """Levels by the number of merges.

    Inputs that get a run in every batch would all merge in the same batch: `lag` lets one wait for so many more runs.
    """

    lag: int = 0
    fanout: int = FANOUT
    max_rows: int = MAX_ROWS
    max_bytes: int = MAX_BYTES

    def due(self, runs: Sequence[Run], alive: Count) -> Merge | None:
        """The first `fanout` runs of level 0 and, in the same pass, the levels that become full with them.

        A full level that would become too large moves up first, as it is: the one below gets its place, and is not
        held up by a large run for ever.
        """
        first = [run for run in runs if run.level == 0]
        if len(first) < self.fanout:
            return None
        fanout = self._fanout_of(first)
        if len(first) < fanout + self.lag % fanout:
            return None
        level, chosen = 0, first[:fanout]
        while True:
            above = [run for run in runs if run.level == level + 1]
            if len(above) + 1 < fanout:
                break
            if self.too_large(chosen + above):
                return self._up(above, level + 2)
            level, chosen = level + 1, above + chosen
        # Too large to be worth a merge: moved up as they are, so that level 0 is free again.
        return self._up(chosen, level + 1) if self.too_large(chosen) else Merge(chosen, level + 1)

    def _fanout_of(self, first: Sequence[Run]) -> int:
        """How many runs of a level become one, given those of level 0: a batch each."""
        probing = sum(PROBE_BYTES + PROBE_ROW_BYTES * run.own for run in first)
        is_wide = sum(run.nbytes for run in first) >= WIDE * probing
        return max(self.fanout, WIDE_FANOUT) if is_wide else self.fanout

    def _up(self, runs: list[Run], level: int) -> Merge:
        """Runs that would be too large as one: the oldest of them that would not, where these are enough to be worth a
        merge; otherwise all move up as they are."""
        most = len(runs)
        while most >= self.fanout and self.too_large(runs[:most]):
            most -= 1
        return Merge(runs[:most], level) if most >= self.fanout else Merge(runs, level, rewrite=False)

    def too_large(self, runs: Sequence[Run]) -> bool:
        """Whether runs are more than one run may be."""
        return sum(run.own for run in runs) > self.max_rows or sum(run.nbytes for run in runs) > self.max_bytes


@dataclass
class SizeTiers(_Whole):
    """Levels by the number of rows alive; runs up to `smallest` rows count as equally long.

    A run is probed by so many rows of a batch: to merge what is shorter than half of them is cheaper than to probe it,
    so the store raises `smallest` with the rows that arrive.
    """

    smallest: int = 1024
    fanout: int = FANOUT
    max_rows: int = MAX_ROWS
    max_bytes: int = MAX_BYTES

    def due(self, runs: Sequence[Run], alive: Count) -> Merge | None:
        """The smallest level that is full: all of it, or the oldest of it that may be one run together.

        A run of wide rows that has its share of a run's bytes is as large as runs become, however few its rows are.
        """
        levels: dict[int, list[Run]] = {}
        for run in runs:
            if run.nbytes * self.fanout <= self.max_bytes:
                levels.setdefault(self._level(alive(run)), []).append(run)
        for level in sorted(levels):
            group, rows, nbytes = list[Run](), 0, 0
            for run in levels[level]:
                rows, nbytes = rows + alive(run), nbytes + run.nbytes
                if rows > self.max_rows or nbytes > self.max_bytes:
                    break
                group.append(run)
            if len(group) >= self.fanout:
                return Merge(group, 0)
        return None

    def _level(self, rows: int) -> int:
        """0 up to `smallest` rows, one more for every factor of four."""
        return (((max(rows, 1) - 1) // self.smallest).bit_length() + 1) // 2


@dataclass
class FewRuns(_Whole):
    """At most `most` runs: beyond that the smaller half of them become one. `slot` is that of rows written now.

    A run is probed in every batch, which costs as much as to write some thousand rows, however short it is. So four
    runs that have no more than `short` rows together become one as well.
    """

    most: int = 16
    short: int = 8192
    slot: int = 0

    def split(self, rows: pa.Table, times: Times | None) -> Iterator[tuple[dict[str, Any], pa.Table]]:
        """One run."""
        yield {"slot": self.slot}, rows

    def slot_of(self, runs: Sequence[Run]) -> dict[str, Any]:
        """The present one, whatever theirs was: what has died since is not written."""
        return {"slot": self.slot}

    def due(self, runs: Sequence[Run], alive: Count) -> Merge | None:
        """Those that are short together, or the smaller half, oldest first."""
        order = sorted(range(len(runs)), key=lambda at: (runs[at].own, at))
        together = accumulate(runs[at].own for at in order)
        few = sum(rows <= self.short for rows in together)
        if few < FANOUT:
            if len(runs) <= self.most:
                return None
            few = max(2, self.most // 2)
        return Merge([runs[at] for at in sorted(order[:few])], 0)


@dataclass
class TimeSlices:
    """Runs bounded in time: slices of one `share`-th of the time that the store spans.

    `advance` is how far the horizon moves a batch: slices need not be much finer. `bound` is the time before which no
    more rows are expected: a slice that ends there is closed, once, into one run; late rows of it are merged by size
    among themselves.
    """

    span: int
    share: int
    width: int = 0
    advance: int = 0
    bound: int | None = None
    closed: int = field(default=1 << 16, repr=False)  # the level of the one run of a closed slice
    most_per_batch: int = 16  # a batch that spans more slices gets wider ones
    whole: bool = False  # fewer runs, in exchange for a few rows that are held somewhat longer
    dead_share: int = 4  # dead rows are rewritten away when they are more than one in so many of the live ones
    tiers: HashTiers = field(default_factory=HashTiers)

    def __post_init__(self) -> None:
        self.narrow(self.span)

    def narrow(self, span: int) -> None:
        """The rows span less time than was planned for: from now on slices are as much finer."""
        self.width = max(1, min(self.span, span) // self.share)

    def split(self, rows: pa.Table, times: Times | None) -> Iterator[tuple[dict[str, Any], pa.Table]]:
        """One run per slice."""
        assert times is not None
        first, last = int(times.min()), int(times.max())
        width = self.width
        if self.whole:
            yield {"slot": last // width, "width": width}, rows
            return
        while last // width - first // width >= self.most_per_batch or 2 * width < self.advance:
            width *= 2
        if first // width == last // width:
            yield {"slot": first // width, "width": width}, rows
            return
        numbers = times // width - first // width
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            yield {"slot": first // width + number, "width": width}, take(rows, np.flatnonzero(numbers == number))

    def slot_of(self, runs: Sequence[Run]) -> dict[str, Any]:
        """That of the first run: only runs of one slice are merged."""
        return {"slot": runs[0].slot, "width": runs[0].width}

    def due(self, runs: Sequence[Run], alive: Count) -> Merge | None:
        """Within a slice by tiers; the runs of a slice that ends become one."""
        slices: dict[tuple[object, ...], list[Run]] = {}
        for run in runs:
            slices.setdefault((run.width, run.slot, run.order), []).append(run)
        for group in slices.values():
            is_open = [run for run in group if run.level < self.closed]
            merge = self.tiers.due(is_open, alive)
            if merge is not None:
                return merge
            ends = (group[0].slot + 1) * group[0].width
            if self.bound is not None and ends <= self.bound and len(is_open) == len(group) > 1:
                # Too large for one run: closed as they are.
                return Merge(is_open, self.closed, rewrite=not self.tiers.too_large(is_open))
        return None

    def sparse(self, partly: Sequence[Run], total: int, dead: Count) -> list[Run]:
        """Once there are too many dead rows for the live ones: the runs that are mostly dead, and of the others no more
        than it takes. They are read only if there can be so many."""
        most = sum(run.own for run in partly)
        if most * self.dead_share <= total - most:
            return []
        lost = sum(dead(run) for run in partly)
        live, chosen = total - lost, list[Run]()
        if lost * self.dead_share > live:
            for run in sorted(partly, key=lambda run: dead(run) / max(run.own, 1), reverse=True):
                if lost * self.dead_share > live or 2 * dead(run) > run.own:
                    chosen.append(run)
                    lost -= dead(run)
        return chosen


def due_by_size(sizes: Sequence[int], *, fanout: int = FANOUT, smallest: int, largest: int) -> list[int]:
    """Which of some runs, given their sizes, to merge into one: those of the lowest level that has `fanout` of them.

    Here the level follows from the size, one more for every factor of `fanout` above `smallest`, so runs may come and
    go in any way. Fewer than `fanout` runs are left on a level, unless together they are larger than `largest`.

    >>> due_by_size([5, 90, 7, 6, 80], fanout=3, smallest=10, largest=1000)
    [0, 2, 3]
    >>> due_by_size([18, 90, 80, 75], fanout=3, smallest=10, largest=1000)
    [1, 2, 3]
    >>> due_by_size([18, 90, 80, 75], fanout=3, smallest=10, largest=200)
    []
    """
    levels: dict[int, list[int]] = {}
    for index, size in enumerate(sizes):
        level = 0
        while size > smallest * fanout**level:
            level += 1
        levels.setdefault(level, []).append(index)
    for level in sorted(levels):
        chosen = levels[level]
        if len(chosen) >= fanout and sum(sizes[index] for index in chosen) <= largest:
            return chosen
    return []
