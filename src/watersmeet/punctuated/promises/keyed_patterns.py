"""Promises that fix the value of some key columns: found by hash, like the rows they cover.

    values     ranges    pattern on (sensor, day, kind)      shape
    sensor,day,kind      (7, 3, "x")                         a single key
    sensor               (7, *, "x"), (8, *, "y")            some columns, the others may be anything
    sensor     day       (7, day < 3, *)                     per sensor a range of days
               day,kind  (*, day < 3, kind >= "m")           no value at all: every entry is tried

Entries are hash-sorted tables in runs whose lengths fall by halves; a lookup joins the rows with the entries on the
value columns, compares the values themselves and then checks the ranges of the pairs found. Of entries with several
ranges those that another one covers are forgotten when runs are merged; with one range those that touch become one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import (
    HASH,
    Hashes,
    Indices,
    hash_keys,
    hashes_of,
    key_name,
    merge_by_hash,
    numpy_of,
    python_value,
    sort_order,
    take,
)
from watersmeet.columns.grouping import first_of_each, group_ids
from watersmeet.columns.matching import equal_keys, match_blocks
from watersmeet.punctuated.promises.codes import Codes
from watersmeet.punctuated.promises.intervals import GROWTH, Intervals, Mask, Sources, batches
from watersmeet.punctuated.promises.ordering import Ordering
from watersmeet.punctuated.promises.patterns import Shaped
from watersmeet.state.side_table import SideTable

COMPARISONS = 1 << 24  # of entries with several ranges when runs are merged: with more of them the batch would stall

Bounds = tuple[Codes, Codes, Mask]  # low, high, endless


class KeyedPatterns:
    """All promises of one shape: `values` and `ranges` are the numbers of the key columns so constrained."""

    def __init__(self, kinds: Sequence[pa.DataType], values: Sequence[int], ranges: Sequence[int], label: str) -> None:
        self.kinds, self.values, self.ranges, self.label = tuple(kinds), tuple(values), tuple(ranges), label
        self.is_point = len(self.values) == len(self.kinds)
        self.orderings = {i: Ordering(kinds[i]) for i in ranges}
        self.pieces: list[SideTable] = []

    def __len__(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    def entries(
        self, table: pa.Table, bounds: dict[int, tuple[pa.Array, pa.Array, pa.Array]], source: int, batch: int
    ) -> pa.Table:
        """Entries for the rows of a table with key columns; `bounds` has low, high and endless per range column."""
        count = table.num_rows
        columns = {HASH: pa.array(self._hashes(table))}
        columns |= {key_name(i): table.column(key_name(i)) for i in self.values}
        for i, (low, high, endless) in bounds.items():
            columns |= {f"_low{i}": low, f"_high{i}": high, f"_endless{i}": endless}
        columns["_source"] = pa.array(np.full(count, source, np.uint8))
        columns["_oldest"] = columns["_newest"] = pa.array(np.full(count, batch, np.int64))
        if "_id" in table.column_names:
            columns["_id"] = table.column("_id")
        made = pa.table(columns)
        return take(made, sort_order(hashes_of(made)))

    def add(self, entries: pa.Table) -> None:
        """Add entries (sorted by hash). Single keys must not be there already."""
        self._append(self._compacted(entries))

    def _append(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        self.pieces.append(SideTable.of(table))
        while len(self.pieces) > 1 and self.pieces[-2].rows <= GROWTH * self.pieces[-1].rows:
            tables = [piece.table for piece in self.pieces[-2:]]
            self.pieces[-2:] = [SideTable.of(self._compacted(merge_by_hash(tables)))]

    def save(self) -> dict[str, SideTable]:
        """The entries, under names that begin with the label and say the shape."""
        shape = "/".join("-".join(map(str, columns)) for columns in (self.values, self.ranges))
        return {f"{self.label}/keyed/{shape}/{i}": piece for i, piece in enumerate(self.pieces)}

    def find(self, table: pa.Table) -> Sources:
        """The sources that promised each row's key; 0 where none did. A point set needs rows sorted by hash."""
        found = np.zeros(table.num_rows, np.uint8)
        if not self.pieces or not table.num_rows:
            return found
        needles, order = self._needles(table)
        for piece in self.pieces:
            entries = piece.table
            source = numpy_of(entries.column("_source"))
            for i, j in self._pairs(needles, entries):
                np.bitwise_or.at(found, i if order is None else order[i], source[j])
        return found

    def hits(self, entries: pa.Table, rows: pa.Table) -> npt.NDArray[np.int64]:
        """For each of some entries (not necessarily held) how many rows of a table it covers."""
        counts = np.zeros(entries.num_rows, np.int64)
        for _, j in self._pairs(self._needles(rows)[0], entries):
            counts += np.bincount(j, minlength=entries.num_rows)
        return counts

    def covers(self, shaped: Shaped) -> Mask:
        """Which patterns of a shape lie in one that is held: those of the same shape, and those that say more."""
        covered = np.zeros(shaped.table.num_rows, np.bool_)
        says_more = {*self.values} <= {*shaped.values} and {*self.ranges} <= {*shaped.values, *shaped.ranges}
        if not says_more or not self.pieces:
            return covered
        needles, order = self._sorted(shaped.table, self.values)
        bounds = {column: shaped.bounds(column, ordering) for column, ordering in self.orderings.items()}
        for piece in self.pieces:
            for i, j in self._equal(needles, piece.table):
                at = order[i]
                covered[at[_within(bounds, at, self._bounds(piece.table), j)]] = True
        return covered

    def explain(self, row: pa.Table) -> str:
        """The promise that holds a row (a table of one), in words."""
        needles, _ = self._needles(row)
        for piece in self.pieces:
            for _, j in self._pairs(needles, piece.table):
                entry = piece.table.slice(int(j[0]), 1)
                words = [self._words(i, entry) for i in range(len(self.kinds))]
                inside = words[0] if len(words) == 1 else f"({', '.join(words)})"
                oldest, newest = (int(entry.column(name)[0].as_py()) for name in ("_oldest", "_newest"))
                return f"{inside} ({batches(oldest, newest)})"
        return "nothing"

    def _words(self, column: int, entry: pa.Table) -> str:
        if column in self.values:
            return repr(python_value(entry.column(key_name(column))[0]))
        if column in self.ranges:
            ordering = self.orderings[column]
            low, high = (ordering.from_arrow(entry.column(f"{name}{column}")) for name in ("_low", "_high"))
            return ordering.describe(low, high, endless=entry.column(f"_endless{column}")[0].as_py())
        return "*"

    def _needles(self, table: pa.Table) -> tuple[pa.Table, Indices | None]:
        """Rows under this shape's own hash, sorted, and where they stood; single keys have the rows' hash already."""
        return (table, None) if self.is_point else self._sorted(table, range(len(self.kinds)))

    def _sorted(self, table: pa.Table, columns: Sequence[int]) -> tuple[pa.Table, Indices]:
        """Some key columns under this shape's own hash, sorted, and where they stood."""
        hashes = self._hashes(table)
        order = sort_order(hashes)
        keys = pa.table({HASH: pa.array(hashes), **{key_name(i): table.column(key_name(i)) for i in columns}})
        return take(keys, order), order

    def _hashes(self, table: pa.Table) -> Hashes:
        if self.is_point:
            return hashes_of(table)
        if not self.values:
            return np.zeros(table.num_rows, np.uint64)
        return hash_keys([table.column(key_name(i)) for i in self.values])

    def _pairs(self, needles: pa.Table, entries: pa.Table) -> list[tuple[Indices, Indices]]:
        pairs = []
        for i, j in self._equal(needles, entries):
            inside = np.ones(len(i), np.bool_)
            for column, (low, high, endless) in self._bounds(entries).items():
                codes = self.orderings[column].codes(needles.column(key_name(column)))[i]
                inside &= (codes >= low[j]) & (endless[j] | (codes < high[j]))
            if inside.any():
                pairs.append((i[inside], j[inside]))
        return pairs

    def _equal(self, needles: pa.Table, entries: pa.Table) -> Iterator[tuple[Indices, Indices]]:
        """The pairs whose values are equal; the ranges are not looked at."""
        for i, j in match_blocks(hashes_of(needles), hashes_of(entries)):
            same = equal_keys(entries, j, needles, i)  # the entries' schema names the value columns
            if same.any():
                yield i[same], j[same]

    def _bounds(self, entries: pa.Table) -> dict[int, Bounds]:
        """The ranges of entries."""
        found = {}
        for column, ordering in self.orderings.items():
            low, high = (ordering.from_arrow(entries.column(f"{name}{column}")) for name in ("_low", "_high"))
            found[column] = low, high, numpy_of(entries.column(f"_endless{column}")).astype(np.bool_)
        return found

    def _compacted(self, table: pa.Table) -> pa.Table:
        """Equal single keys once; with one range column, the touching ranges of equal values as one; with several, the
        entries that no other one covers."""
        if table.num_rows < 2:
            return table
        if len(self.ranges) > 1:
            return table.filter(pa.array(~self._covered(table)))
        values = [table.column(key_name(i)) for i in self.values]
        ids = group_ids(values) if values else np.zeros(table.num_rows, np.int64)
        if not self.ranges:
            first = first_of_each(ids)
            return table if len(first) == table.num_rows else take(table, first)
        ordering = self.orderings[self.ranges[0]]
        names = [f"{name}{self.ranges[0]}" for name in ("_low", "_high", "_endless")]
        held = Intervals(
            ordering.from_arrow(table.column(names[0])),
            ordering.from_arrow(table.column(names[1])),
            numpy_of(table.column(names[2])).astype(np.bool_),
            *(numpy_of(table.column(name)) for name in ("_source", "_oldest", "_newest")),
        )
        united, groups = held.united_within(ids)
        examples = np.unique(ids, return_index=True)[1][groups]  # a row of each group, for its values
        columns = take(table.select([HASH, *(key_name(i) for i in self.values)]), examples)
        fresh = [
            ordering.to_arrow(united.low), ordering.to_arrow(united.high), pa.array(united.endless),
            pa.array(united.source), pa.array(united.oldest), pa.array(united.newest),
        ]  # fmt: skip
        merged = pa.Table.from_arrays([*columns.columns, *fresh], names=table.column_names)
        return take(merged, sort_order(hashes_of(merged)))

    def _covered(self, entries: pa.Table) -> Mask:
        """Entries that lie in another one of the same table; of equal ones all but the first."""
        covered, bounds = np.zeros(entries.num_rows, np.bool_), self._bounds(entries)
        alike = np.unique(hashes_of(entries), return_counts=True)[1]
        if int(np.sum(alike**2)) > COMPARISONS:
            return covered
        for i, j in self._equal(entries, entries):
            i, j = i[i != j], j[i != j]
            inside = _within(bounds, i, bounds, j)
            inside[inside] = (i > j)[inside] | ~_within(bounds, j[inside], bounds, i[inside])
            covered[i[inside]] = True
        return covered


def _within(bounds: dict[int, Bounds], i: Indices, others: dict[int, Bounds], j: Indices) -> Mask:
    """Of which pairs all ranges of the first lie in those of the second."""
    inside = np.ones(len(i), np.bool_)
    for column, (low, high, endless) in others.items():
        mine, end, has_none = bounds[column]
        inside &= (mine[i] >= low[j]) & (endless[j] | (~has_none[i] & (end[i] <= high[j])))
    return inside
