"""The punctuated range of an input: everything that its source has promised not to send any more.

One structure per shape of promise, so that a million promises cost a lookup what ten cost:

    one column constrained, its type ordered      sorted intervals      (`intervals`)
    single keys, and mixed patterns               hash-sorted entries   (`keyed_patterns`)
    everything                                    a flag

Promises come from punctuations, from clusters that closed, from an order, and from the end of an input; each carries
its source, for the account of what was purged why. `add` returns what is new (a `Delta`): only that has to be purged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import hashes_of, key_name, sort_by_hash, take
from watersmeet.columns.grouping import distinct_keys
from watersmeet.columns.partitions import Partition
from watersmeet.punctuated.promises.elsewhere import elsewhere
from watersmeet.punctuated.promises.intervals import Intervals, IntervalSet, Mask, Sources, batches
from watersmeet.punctuated.promises.keyed_patterns import KeyedPatterns
from watersmeet.punctuated.promises.ordering import Ordering, is_ordered, is_text
from watersmeet.punctuated.promises.patterns import Shaped, normalised, shapes
from watersmeet.state.side_table import SideTable

# Sources of promises, as bits; the lowest one set gives the reason of a purge.
SOURCES = {"punctuation": 1, "clustered": 2, "ordered": 4, "ended": 8}

FORMER = "former"  # among the values that are saved: what former partitions were promised


def reason_of(bits: int) -> str:
    """The name of the first source in a set of bits."""
    return next(name for name, bit in SOURCES.items() if bits & bit)


def by_reason(sources: Sources) -> dict[str, Mask]:
    """Rows without a future by the first of their reasons."""
    found: dict[str, Mask] = {}
    rest = sources > 0
    if not rest.any():
        return found
    for reason, bit in SOURCES.items():
        mine = rest & (sources & np.uint8(bit) > 0)
        if mine.any():
            found[reason] = mine
            rest &= ~mine
    return found


@dataclass
class Delta:
    """Keys newly promised: single keys to look up by hash, intervals of one column to look up by value.

    `ranges` may cover more than was promised (when other columns are constrained too): what is found there is checked.
    """

    points: pa.Table | None = None
    ranges: dict[int, Intervals] = field(default_factory=dict)
    everything: bool = False
    count: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing new was promised."""
        return self.points is None and not self.ranges and not self.everything

    def add(self, other: Delta) -> None:
        """Join another delta to this one."""
        if self.points is None or other.points is None:
            self.points = other.points if self.points is None else self.points
        else:
            self.points = sort_by_hash(pa.concat_tables([self.points, other.points]))
        for column, pieces in other.ranges.items():
            self._cover(column, pieces)
        self.everything |= other.everything
        self.count += other.count

    def _cover(self, column: int, pieces: Intervals) -> None:
        if len(pieces):
            mine = self.ranges.get(column)
            self.ranges[column] = pieces if mine is None else Intervals.joined([mine, pieces]).united()


def arrow_bounds(shaped: Shaped, patterns: KeyedPatterns) -> dict[int, tuple[pa.Array, pa.Array, pa.Array]]:
    """The ranges of patterns of one shape, as entries store them."""
    bounds = {}
    for i, ordering in patterns.orderings.items():
        low, high, endless = shaped.bounds(i, ordering)
        bounds[i] = (ordering.to_arrow(low), ordering.to_arrow(high), pa.array(endless))
    return bounds


class PunctuatedRange:
    """The promises of one input (PR in the paper)."""

    def __init__(self, name: str, kinds: Sequence[pa.DataType], partitions: int = 1) -> None:
        self.name = name
        self.kinds = tuple(kinds)
        self.partitions = partitions
        self.label = f"{name}.promises"
        self.everything: dict[str, int] = {}  # source and batch of a promise that covers all keys
        self.intervals: dict[int, IntervalSet] = {}
        self.keyed: dict[tuple[tuple[int, ...], tuple[int, ...]], KeyedPatterns] = {}
        self.voided = KeyedPatterns(kinds, range(len(kinds)), (), f"{name}.voided")
        # What former partitions were promised. It is true of their own keys: gaps between these are bridged
        # (`elsewhere`) over keys that may be here now, and of which nothing was promised.
        self.former: dict[Partition, PunctuatedRange] = {}

    def __len__(self) -> int:
        ordered = sum(len(held) for held in self.intervals.values()) + sum(len(held) for held in self.former.values())
        return ordered + sum(len(patterns) for patterns in self.keyed.values()) + len(self.everything)

    def find(self, table: pa.Table) -> Sources:
        """For rows sorted by hash: the sources that promised each row's key away, 0 where none did."""
        found = np.zeros(table.num_rows, np.uint8)
        if not table.num_rows:
            return found
        for source in self.everything:
            found |= np.uint8(SOURCES[source])
        for column, held in self.intervals.items():
            found |= held.find(held.ordering.codes(table.column(key_name(column))))
        for patterns in self.keyed.values():
            found |= patterns.find(table)
        for partition, held_there in self.former.items():
            mine = np.flatnonzero(partition.owns(hashes_of(table)))
            found[mine] |= held_there.find(take(table, mine))
        if found.any():
            found[self.find_voided(table)] = 0
        return found

    def find_voided(self, table: pa.Table) -> Mask:
        """Of which rows, sorted by hash, the promises of the key were taken back."""
        return self.voided.find(table) > 0

    def explain(self, row: pa.Table) -> str:
        """The promise that covers a row (a table of one), in words."""
        for source, batch in self.everything.items():
            return f"{source} of everything ({batches(batch, batch)})"
        for column, held in self.intervals.items():
            code = held.ordering.codes(row.column(key_name(column)))
            if held.find(code)[0]:
                return f"{reason_of(int(held.find(code)[0]))} {held.explain(code)}"
        for patterns in self.keyed.values():
            if patterns.find(row)[0]:
                return f"{reason_of(int(patterns.find(row)[0]))} {patterns.explain(row)}"
        for partition, held_there in self.former.items():
            if partition.owns(hashes_of(row))[0] and held_there.find(row)[0]:
                return held_there.explain(row)
        return "nothing"

    def covers(self, shaped: Shaped) -> Mask:
        """Which patterns of one shape are surely promised already (a pattern that only several promises together
        cover may be missed)."""
        if self.voided.pieces:
            return np.zeros(shaped.table.num_rows, np.bool_)
        return self._holds(shaped) | bool(self.everything)

    def _holds(self, shaped: Shaped) -> Mask:
        """The same, whatever was taken back."""
        held = np.zeros(shaped.table.num_rows, np.bool_)
        for column in (*shaped.values, *shaped.ranges):
            if (intervals := self.intervals.get(column)) is not None:
                held |= intervals.covers(*shaped.bounds(column, intervals.ordering))
        for patterns in self.keyed.values():
            held |= patterns.covers(shaped)
        return held

    def void(self, rows: pa.Table, batch: int) -> None:
        """Take the promises back for the keys of these rows, until the input ends."""
        keys = distinct_keys(rows)
        keys = keys.filter(pa.array(self.voided.find(keys) == 0))
        self.voided.add(self.voided.entries(keys, {}, 1, batch))

    def add_everything(self, source: str, batch: int) -> Delta:
        """Promise all keys away; smaller promises are forgotten.

        An end cannot be broken: rows after it are refused. So it also holds for keys whose promises were taken back.
        """
        if self.everything and not (source == "ended" and self.voided.pieces):
            return Delta()
        if source == "ended":
            self.voided.pieces = []
        self.everything = {source: batch}
        self.intervals, self.keyed, self.former = {}, {}, {}
        return Delta(everything=True, count=1)

    def add_punctuations(self, table: pa.Table, batch: int, source: str = "punctuation") -> Delta:
        """Add punctuations in the layout of `patterns`."""
        delta = Delta()
        for shaped in shapes(normalised(table, self.kinds), self.kinds):
            if self.everything and source != "ended":
                break
            if not shaped.values and not shaped.ranges:
                delta.add(self.add_everything(source, batch))
            elif len(shaped.values) == len(self.kinds):
                delta.add(self.add_keys(shaped.table, batch, source))
            else:
                delta.add(self._add_shaped(shaped, batch, source))
        return delta

    def add_keys(self, table: pa.Table, batch: int, source: str) -> Delta:
        """Promise single keys away: rows with `_hash` and key columns."""
        keys = distinct_keys(table)
        keys = keys.filter(pa.array(self.find(keys) == 0))
        if not keys.num_rows or self.everything:
            return Delta()
        if len(self.kinds) == 1 and is_ordered(self.kinds[0]) and not is_text(self.kinds[0]):
            pieces = self._intervals(Shaped((0,), (), keys), 0, batch, source)
            codes = Ordering(self.kinds[0]).codes(keys.column(key_name(0)))
            self._interval_set(0).add(pieces, elsewhere(hashes_of(keys), codes, self.partitions))
        else:
            patterns = self._patterns(tuple(range(len(self.kinds))), ())
            patterns.add(patterns.entries(keys, {}, SOURCES[source], batch))
        return Delta(points=keys, count=keys.num_rows)

    def add_intervals(self, column: int, pieces: Intervals) -> Delta:
        """Promise intervals of one column away, whatever the other columns hold."""
        new = self._interval_set(column).add(pieces)
        return Delta(ranges={column: new} if len(new) else {}, count=len(new))

    def _add_shaped(self, shaped: Shaped, batch: int, source: str) -> Delta:
        constrained = (*shaped.values, *shaped.ranges)
        ordered = [i for i in constrained if is_ordered(self.kinds[i])]
        text_value = len(constrained) == 1 and bool(shaped.values) and is_text(self.kinds[constrained[0]])
        if len(constrained) == 1 and ordered and not text_value:
            delta = self.add_intervals(ordered[0], self._intervals(shaped, ordered[0], batch, source))
            delta.count = shaped.table.num_rows
            return delta
        shaped = replace(shaped, table=shaped.table.filter(pa.array(~self._holds(shaped))))
        if not shaped.table.num_rows:
            return Delta()
        patterns = self._patterns(shaped.values, shaped.ranges)
        patterns.add(patterns.entries(shaped.table, arrow_bounds(shaped, patterns), SOURCES[source], batch))
        delta = Delta(count=shaped.table.num_rows)
        if ordered:
            delta.ranges = {ordered[0]: self._intervals(shaped, ordered[0], batch, source).united()}
        else:
            delta.everything = True  # no order to search by: look at all rows
        return delta

    def _intervals(self, shaped: Shaped, column: int, batch: int, source: str) -> Intervals:
        low, high, endless = shaped.bounds(column, Ordering(self.kinds[column]))
        return Intervals.promised(low, high, endless, SOURCES[source], batch)

    def _interval_set(self, column: int) -> IntervalSet:
        if column not in self.intervals:
            self.intervals[column] = IntervalSet(Ordering(self.kinds[column]), self.label, column)
        return self.intervals[column]

    def _patterns(self, values: tuple[int, ...], ranges: tuple[int, ...]) -> KeyedPatterns:
        shape = (values, ranges)
        if shape not in self.keyed:
            self.keyed[shape] = KeyedPatterns(self.kinds, values, ranges, self.label)
        return self.keyed[shape]

    def inherit(self, origins: Mapping[Partition, PunctuatedRange]) -> None:
        """Take up what former partitions were promised."""
        if len(origins) == 1:  # all keys of the heir were the origin's, so all that holds there holds here
            (origin,) = origins.values()
            self.everything, self.intervals, self.keyed = origin.everything, origin.intervals, origin.keyed
            self.voided, self.former = origin.voided, origin.former
            return
        self.everything = next((one.everything for one in origins.values() if one.everything), {})
        self.voided.pieces = [piece for one in origins.values() for piece in one.voided.pieces]
        for partition, origin in origins.items():
            for before, held in (*origin.former.items(), (partition, origin)):
                mine = self.former.setdefault(before, self._former(before))
                if not len(mine):
                    tables, _ = held.save()
                    renamed = {name.replace(held.name, mine.name, 1): table for name, table in tables.items()}
                    mine.restore(renamed, held.everything)
        self.former = {partition: held for partition, held in self.former.items() if len(held)}

    def unite(self, other: PunctuatedRange) -> None:
        """Add what `covers` asks of another range."""
        self.everything = self.everything or other.everything
        for column, held in other.intervals.items():
            for part in held.parts:
                self._interval_set(column).add(part)
        for shape, patterns in other.keyed.items():
            for piece in patterns.pieces:
                self._patterns(*shape).add(piece.table)

    def _former(self, partition: Partition) -> PunctuatedRange:
        name = f"{self.name}@{partition.division}-{partition.number}-{partition.of}"
        return PunctuatedRange(name, self.kinds)

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """Tables and values."""
        tables: dict[str, SideTable] = {}
        for column in sorted(self.intervals):
            tables |= self.intervals[column].save()
        for shape in sorted(self.keyed):
            tables |= self.keyed[shape].save()
        values: dict[str, Any] = dict(self.everything)
        for partition, held in self.former.items():
            there, known = held.save()
            tables |= there
            values.setdefault(FORMER, []).append([partition.number, partition.of, partition.division, known])
        return tables | self.voided.save(), values

    def restore(self, tables: Mapping[str, SideTable], everything: Mapping[str, Any]) -> None:
        """What `save` returned; tables of other labels are passed over."""
        self.everything = {source: batch for source, batch in everything.items() if source != FORMER}
        for number, of, division, known in everything.get(FORMER, ()):
            partition = Partition(number, of, division)
            self.former[partition] = self._former(partition)
            self.former[partition].restore(tables, known)
        for name, table in tables.items():
            label, _, shape = name.partition("/")
            if label == self.voided.label:
                self.voided.pieces.append(table)
            elif label == self.label:
                structure, *columns, _ = shape.split("/")
                numbers = [tuple(int(i) for i in group.split("-") if i) for group in columns]
                if structure == "intervals":
                    self._interval_set(numbers[0][0]).restore(table)
                else:
                    self._patterns(numbers[0], numbers[1]).pieces.append(table)
