"""Sorted, disjoint, half-open intervals of key codes: the punctuated set of a stream whose keys have an order.

    promised   3   4   5        8..12      9..20          values and ranges, in any order
    held       [3 ------ 6)     [8 ------------- 21)      neighbours and overlaps are one interval

Values are neighbours, too, if all between them belong to other partitions (`elsewhere`).

A set is a short list of such arrays, each at most half the length of the one before (new promises are merged into what
is not much longer than they are), so adding costs O(log) per promise and a lookup is a few binary searches. Every
interval remembers which sources promised it (bits) and in which batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import numpy_of
from watersmeet.columns.matching import ranges
from watersmeet.punctuated.promises.codes import Codes, Numbers, concatenated, either, ranked, search
from watersmeet.punctuated.promises.codes import Mask as Mask
from watersmeet.punctuated.promises.elsewhere import Elsewhere
from watersmeet.punctuated.promises.ordering import Ordering
from watersmeet.state.side_table import SideTable

Sources = npt.NDArray[np.uint8]

# A run of promises is merged with the one before it when that is at most this many times longer.
GROWTH = 2


@dataclass(frozen=True)
class Intervals:
    """Parallel arrays; `high` means nothing where `endless` is set."""

    low: Codes
    high: Codes
    endless: Mask
    source: Sources
    oldest: Numbers
    newest: Numbers

    def __len__(self) -> int:
        return len(self.low)

    def where(self, chosen: Any) -> Intervals:
        """The intervals at some positions."""
        return Intervals(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @classmethod
    def promised(cls, low: Codes, high: Codes, endless: Mask, source: int, batch: int) -> Intervals:
        """Intervals promised in one batch, without the empty ones."""
        count = len(low)
        made = cls(
            low, high, endless, np.full(count, source, np.uint8), np.full(count, batch, np.int64),
            np.full(count, batch, np.int64),
        )  # fmt: skip
        return made.where(endless | (low < high))

    @classmethod
    def joined(cls, parts: Iterable[Intervals]) -> Intervals:
        """Several lists one after the other."""
        lists = list(parts)
        return cls(*(concatenated([getattr(part, name) for part in lists]) for name in cls.__dataclass_fields__))

    def united(self) -> Intervals:
        """Sorted and disjoint: overlapping or touching intervals become one."""
        return self if len(self) < 2 else self.united_within(np.zeros(len(self), np.int64))[0]

    def united_within(self, groups: Numbers) -> tuple[Intervals, Numbers]:
        """The same within each group, and the group of every resulting interval; groups are numbered from 0."""
        values, ranks = ranked(concatenated([self.low, self.high]))
        stride = len(values) + 1
        low = groups * stride + ranks[: len(self)]
        high = groups * stride + np.where(self.endless, len(values), ranks[len(self) :])
        order = np.argsort(low, kind="stable")
        low, high = low[order], high[order]
        reach = np.maximum.accumulate(high)
        # An end is below the next group's first position, so intervals of two groups never touch.
        starts = np.flatnonzero(np.concatenate(([True], low[1:] > reach[:-1])))
        end = np.maximum.reduceat(high, starts) % stride
        united = Intervals(
            values[low[starts] % stride],
            values[np.minimum(end, len(values) - 1)],
            end == len(values),
            np.bitwise_or.reduceat(self.source[order], starts),
            np.minimum.reduceat(self.oldest[order], starts),
            np.maximum.reduceat(self.newest[order], starts),
        )
        return united, low[starts] // stride

    def bridged(self, elsewhere: Elsewhere, known: Iterable[Intervals] = ()) -> Intervals:
        """Disjoint intervals become one where no key between them can come here. Gaps that one of the `known` lists has
        too are left: they have been looked at."""
        begin, end = self.high[:-1], self.low[1:]
        width = end - begin  # one that does not fit wraps around, to nothing that is small and positive
        near = (width > 0) & (width <= elsewhere.reach)
        for other in known:
            near &= ~(np.isin(begin, cast(Numbers, other.high)) & np.isin(end, cast(Numbers, other.low)))
        gaps = np.flatnonzero(near)
        belongs = ~elsewhere.has(ranges(begin[gaps], end[gaps]))
        stays = np.zeros(len(gaps), np.bool_)
        stays[np.repeat(np.arange(len(gaps)), width[gaps])[belongs]] = True
        closed = gaps[~stays]
        if not len(closed):
            return self
        numbers = np.arange(len(self))
        first, last = np.delete(numbers, closed + 1), np.delete(numbers, closed)
        return Intervals(
            self.low[first],
            self.high[last],
            self.endless[last],
            np.bitwise_or.reduceat(self.source, first),
            np.minimum.reduceat(self.oldest, first),
            np.maximum.reduceat(self.newest, first),
        )

    def minus(self, other: Intervals) -> Intervals:
        """The parts of these disjoint intervals that the disjoint intervals `other` do not cover."""
        if not len(self) or not len(other):
            return self
        finite = len(other) - int(other.endless[-1])
        first = search(other.high[:finite], self.low, after_equal=True)
        last = np.where(self.endless, len(other), search(other.low, self.high))
        gaps = np.maximum(last - first, 0) + 1
        mine = np.repeat(np.arange(len(self)), gaps)
        step = np.arange(len(mine)) - np.repeat(np.cumsum(gaps) - gaps, gaps)
        before = np.clip(first[mine] + step - 1, 0, len(other) - 1)
        after = np.clip(first[mine] + step, 0, len(other) - 1)
        is_first, is_last = step == 0, step == gaps[mine] - 1
        low = either(is_first, self.low[mine], other.high[before])
        high = either(is_last, self.high[mine], other.low[after])
        endless = is_last & self.endless[mine]
        swallowed = ~is_first & other.endless[before]
        pieces = self.where(mine)
        pieces = Intervals(low, high, endless, pieces.source, pieces.oldest, pieces.newest)
        return pieces.where((endless | (low < high)) & ~swallowed)

    def find(self, codes: Codes) -> Numbers:
        """For each code the interval that holds it, or -1."""
        if not len(self):
            return np.full(len(codes), -1)
        found = np.full(len(codes), -1)
        # Nearly all rows of a truthful source lie beyond what was promised: only the others are searched.
        near = np.flatnonzero((codes >= self.low[:1]) & (self.endless[-1] | (codes < self.high[-1:])))
        wanted = codes[near]
        at = search(self.low, wanted, after_equal=True) - 1
        inside = self.endless[at] | (wanted < self.high[at])
        found[near[inside]] = at[inside]
        return found


class IntervalSet:
    """The promised intervals of one key column.

    >>> held = IntervalSet(Ordering(pa.int64()))
    >>> for value in (3, 5, 4):
    ...     point, flag = np.array([value]), np.array([False])
    ...     _ = held.add(Intervals.promised(point, point + 1, flag, source=1, batch=value))
    >>> [(int(part.low[0]), int(part.high[0])) for part in held.parts], held.find(np.array([2, 4])).tolist()
    ([(3, 6)], [0, 1])
    """

    def __init__(self, ordering: Ordering, label: str = "", column: int = 0) -> None:
        self.ordering = ordering
        self.label = label
        self.column = column
        self.parts: list[Intervals] = []
        self._tables: list[SideTable | None] = []  # a part that was loaded keeps its table: it is not written again

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def add(self, fresh: Intervals, elsewhere: Elsewhere | None = None) -> Intervals:
        """Add intervals; returns what of them was not promised before."""
        fresh = fresh.united()
        new = fresh
        for part in self.parts:
            new = new.minus(part)
        if len(new):
            self.parts.append(fresh.bridged(elsewhere) if elsewhere else fresh)
            self._tables.append(None)
            self._settle(elsewhere)
        return new

    def _settle(self, elsewhere: Elsewhere | None) -> None:
        while len(self.parts) > 1 and len(self.parts[-2]) <= GROWTH * len(self.parts[-1]):
            merged = Intervals.joined(self.parts[-2:]).united()
            merged = merged.bridged(elsewhere, self.parts[-2:]) if elsewhere else merged
            self.parts[-2:], self._tables[-2:] = [merged], [None]

    def covers(self, low: Codes, high: Codes, endless: Mask) -> Mask:
        """Which half-open intervals lie in a held one."""
        covered = np.zeros(len(low), np.bool_)
        for part in self.parts:
            at = part.find(low)
            hit = np.flatnonzero(at >= 0)
            at = at[hit]
            covered[hit] |= part.endless[at] | (~endless[hit] & (high[hit] <= part.high[at]))
        return covered

    def find(self, codes: Codes) -> Sources:
        """The sources that promised each code; 0 where none did."""
        found = np.zeros(len(codes), np.uint8)
        for part in self.parts:
            at = part.find(codes)
            hit = np.flatnonzero(at >= 0)
            found[hit] |= part.source[at[hit]]
        return found

    def explain(self, code: Codes) -> str:
        """The promise that holds one code (an array of length 1), in words."""
        for part in self.parts:
            at = int(part.find(code)[0])
            if at >= 0:
                low, high = part.low[at : at + 1], part.high[at : at + 1]
                words = self.ordering.describe(low, high, endless=bool(part.endless[at]))
                return f"{words} ({batches(int(part.oldest[at]), int(part.newest[at]))})"
        return "nothing"

    def save(self) -> dict[str, SideTable]:
        """The set, under names that begin with its label and say its column."""
        for index, (part, table) in enumerate(zip(self.parts, self._tables, strict=True)):
            if table is None:
                self._tables[index] = self._table(part)
        named = {f"{self.label}/intervals/{self.column}/{i}": table for i, table in enumerate(self._tables)}
        return {name: table for name, table in named.items() if table is not None}

    def restore(self, saved: SideTable) -> None:
        """Take up one of the tables that `save` returned, in their order."""
        table = saved.table
        low, high = (self.ordering.from_arrow(table.column(name)) for name in ("_low", "_high"))
        endless, source, oldest, newest = (
            numpy_of(table.column(name)) for name in ("_endless", "_source", "_oldest", "_newest")
        )
        self.parts.append(Intervals(low, high, endless.astype(np.bool_), source.astype(np.uint8), oldest, newest))
        self._tables.append(saved)

    def _table(self, part: Intervals) -> SideTable:
        table = pa.table(
            {
                "_low": self.ordering.to_arrow(part.low),
                "_high": self.ordering.to_arrow(part.high),
                "_endless": pa.array(part.endless),
                "_source": pa.array(part.source),
                "_oldest": pa.array(part.oldest),
                "_newest": pa.array(part.newest),
            }
        )
        return SideTable.of(table)


def batches(oldest: int, newest: int) -> str:
    """One or several batches in words.

    >>> batches(4, 4), batches(4, 9)
    ('batch 4', 'batches 4 to 9')
    """
    return f"batch {oldest}" if oldest == newest else f"batches {oldest} to {newest}"
