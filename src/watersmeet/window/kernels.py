"""The vectorised kernels of the window join: ordering rows, scanning for keys, matching within the window.

Rows are probed in the order of (hash, time). Then the partners of a row are one range: its key's rows are adjacent, and
among them those within reach of its time are adjacent too.

    hash     3   3   3   3   7   7   9
    time    10  14  15  31   2  40   6        a row (3, 15) that reaches from -5 to +5 finds the rows 0 to 2
            |-------|
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import expm1

import numpy as np

from watersmeet.columns.arrow import Hashes, Indices, order_times, sort_order
from watersmeet.columns.matching import BLOCK_ROWS, equal_ranges, expand, known_among
from watersmeet.columns.saturating import EARLIEST, LATEST, Times, shifted

# With more candidates than this per row looked up, the range of times is searched before pairs are made.
NARROW = 4
SAMPLE = 4096  # rows of which the different keys are counted


@dataclass(frozen=True)
class Ordered:
    """Rows in the order of (hash, time). `rows` gives their numbers in their table; None if it has that order."""

    hashes: Hashes
    times: Times
    rows: Indices | None = None

    def numbers(self, at: Indices) -> Indices:
        """The row numbers of positions."""
        return at if self.rows is None else self.rows[at]

    def select(self, at: Indices) -> Ordered:
        """The rows at ascending positions."""
        return Ordered(self.hashes[at], self.times[at], self.numbers(at))


@dataclass(frozen=True)
class Reach:
    """How far in time a row's partners may lie from it, both ends included."""

    low: int
    high: int

    def reversed(self) -> Reach:
        """The same condition seen from the other side."""
        return Reach(-self.high, -self.low)


def order(hashes: Hashes, times: Times) -> Ordered:
    """Rows in the order of (hash, time)."""
    if len(hashes) < 2 or not np.any(hashes[1:] < hashes[:-1]):
        rows = np.arange(len(hashes), dtype=np.int64)
        ordered = order_times(rows, hashes, times)
        return Ordered(hashes, times) if ordered is rows else Ordered(hashes, times[ordered], ordered)
    rows = sort_order(hashes)
    rows = order_times(rows, hashes[rows], times[rows])
    return Ordered(hashes[rows], times[rows], rows)


def pairs(
    left: Ordered, right: Ordered, reach: Reach, block_rows: int = BLOCK_ROWS
) -> Iterator[tuple[Indices, Indices]]:
    """Row numbers (i, j) of all pairs with equal hashes and reach.low <= time[j] - time[i] <= reach.high, in blocks.

    The shorter side is looked up in the longer one: sorted needles make `searchsorted` walk memory forwards.
    """
    if len(left.hashes) > len(right.hashes):
        for j, i in pairs(right, left, reach.reversed(), block_rows):
            yield i, j
        return
    if not len(left.hashes):
        return
    left = _with_partners(left, reach)
    known = known_among(left.hashes, right.hashes)
    if known is not None:
        left = left.select(known)
    hit, start, counts = equal_ranges(left.hashes, right.hashes)
    stop = start + counts
    narrowed = int(counts.sum()) > NARROW * len(hit)
    earliest, latest = shifted(left.times, reach.low), shifted(left.times, reach.high)
    if narrowed:
        start = _first(right.times, start, stop, earliest[hit])
        stop = _first(right.times, start, stop, latest[hit], after=True)
    for i, j in expand(hit, start, stop - start, block_rows):
        if not narrowed:
            times = right.times[j]
            near = (times >= earliest[i]) & (times <= latest[i])
            i, j = i[near], j[near]
        if len(i):
            yield left.numbers(i), right.numbers(j)


def _with_partners(rows: Ordered, reach: Reach) -> Ordered:
    """The rows less those whose partners would lie beyond the times there are. They matter where no reach is zero: a
    bound beyond the last time becomes the last time, which is a time."""
    if reach.low <= 0 <= reach.high or not len(rows.times):
        return rows
    first, last = EARLIEST - min(reach.high, 0), LATEST - max(reach.low, 0)
    possible = (rows.times >= first) & (rows.times <= last)
    return rows if possible.all() else rows.select(np.flatnonzero(possible))


def _first(times: Times, start: Indices, stop: Indices, wanted: Times, *, after: bool = False) -> Indices:
    """For each range [start, stop) of ascending times, the first position not before `wanted`; one bisection.

    With `after`, the first position after it.
    """
    is_before = np.less_equal if after else np.less
    low, high = start.copy(), stop.copy()
    for _ in range(int((stop - start).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        open_ = low < high
        before = open_ & is_before(times[np.minimum(middle, len(times) - 1)], wanted)
        low[before] = middle[before] + 1
        after = open_ & ~before
        high[after] = middle[after]
    return low


def distinct(hashes: Hashes, sample: int = SAMPLE) -> int:
    """About how many different hashes there are; exact up to `sample` rows, else from a part of the hashes."""
    count = len(hashes)
    if count <= sample:
        return _different(hashes)
    share = sample / count
    low = hashes[hashes < np.uint64(int(share * 2**64))]
    return max(1, round(_different(low) / share))


def _different(hashes: Hashes) -> int:
    """How many different ones; counted without a sort where they ascend, as those of a sorted run do."""
    if len(hashes) < 2 or np.any(hashes[1:] < hashes[:-1]):
        return len(np.unique(hashes))
    return 1 + int(np.count_nonzero(hashes[1:] != hashes[:-1]))


def distinct_in(rows: int, seen_rows: int, seen_keys: int) -> float:
    """How many different keys `rows` rows have, when `seen_rows` of them have `seen_keys`: equal chances for all keys.

    n rows over D keys show D (1 - exp(-n / D)) of them; D is found by bisection.

    >>> round(distinct_in(1_000, 1_000, 1_000)), round(distinct_in(100_000, 1_000, 10))
    (1000, 10)
    """
    if not seen_rows or not rows:
        return 0.0
    if seen_keys >= seen_rows:
        return float(rows)
    low, high = float(seen_keys), float(seen_keys) * 1e6
    for _ in range(60):
        middle = (low * high) ** 0.5
        if middle * -expm1(-seen_rows / middle) < seen_keys:
            low = middle
        else:
            high = middle
    return min(float(rows), high * -expm1(-rows / high))
