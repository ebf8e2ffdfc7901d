"""Punctuations of the output: when a promise of an input has become one of the join's results.

No result with key v can come any more (and v is propagated, once) when nothing of v waits unjoined and

    v is promised away on both inputs, or
    v is promised away on one input and no row of v is stored on that input.

Only what can have changed is looked at: the promises of this batch, and the keys of rows that left the state in it. A
range counts the stored rows of its input that lie in it; it holds when none is left.

A propagated punctuation is an output row: key columns that have one value are filled, all other columns are null, and
the punctuation column says for every key column the range it stands for (`low`, `high`, `low_closed`, `high_closed`; no
ends: anything). A single key lives in one partition; a pattern of many keys is emitted by every partition for itself,
so it carries `part` and `parts` and holds once all parts have emitted it. `promises.partial` is the other end of that.

When the state is divided anew, a pattern may have been emitted in one former partition and be pending in another. Then
it is pending in every partition that has keys of both, whatever has been emitted, and is emitted once more: by parts of
the new number, which together with the former parts leave no key out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import HASH, key_name, key_names, numpy_of, take
from watersmeet.columns.grouping import first_of_each
from watersmeet.columns.partitions import Mask, Partition
from watersmeet.plan import JoinPlan
from watersmeet.punctuated.generations import Generations
from watersmeet.punctuated.lookup import Found, covered, everything, has_keys, within
from watersmeet.punctuated.promises.codes import argsort, search
from watersmeet.punctuated.promises.intervals import Intervals
from watersmeet.punctuated.promises.keyed_patterns import KeyedPatterns
from watersmeet.punctuated.promises.ordering import Ordering, is_ordered
from watersmeet.punctuated.promises.patterns import (
    ENDS,
    Shaped,
    normalised,
    pattern_ids,
    punctuation_schema,
    shapes,
)
from watersmeet.punctuated.promises.punctuation import Delta, PunctuatedRange, arrow_bounds
from watersmeet.punctuated.scheduling import WaitingPool, alive_of
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import SizeTiers
from watersmeet.state.parts import Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.sharing import inherit
from watersmeet.state.side_table import SideTable
from watersmeet.state.space import RunSpace

COLUMN = "_punctuation"  # the internal name of the output column
OWED = "output.owed"  # a side table


def punctuation_type(names: Sequence[str], kinds: Sequence[pa.DataType]) -> pa.StructType:
    """The type of the punctuation column: a struct per key column, and the part."""
    fields = []
    for name, kind in zip(names, kinds, strict=True):
        types = (kind, kind, pa.bool_(), pa.bool_())
        ends = [pa.field(end.removeprefix("_"), type_) for end, type_ in zip(ENDS, types, strict=True)]
        fields.append(pa.field(name, pa.struct(ends)))
    return pa.struct([*fields, pa.field("part", pa.int32()), pa.field("parts", pa.int32())])


class Propagation:
    """Promises that have not become punctuations of the output yet."""

    def __init__(
        self, plan: JoinPlan, promises: Mapping[str, PunctuatedRange], space: RunSpace, accounts: Accounts
    ) -> None:
        self.kinds = plan.inputs[0].keys
        self.names = tuple(spec.name for spec in plan.inputs)
        self.partitions = plan.partitions
        self.output = plan.output
        self.promises = promises
        keys = pa.schema([(HASH, pa.uint64()), *((key_name(i), kind) for i, kind in enumerate(self.kinds))])
        self.points = {
            name: RowStore(f"{name}.pending", keys, SizeTiers(), space, accounts, input="") for name in self.names
        }
        self.ranges = {name: self._no_ranges() for name in self.names}
        self.emitted = PunctuatedRange("output", self.kinds)  # patterns of many keys that were propagated
        self.owed = punctuation_schema(self.kinds).empty_table()  # pending in some former partition, emitted or not
        self._changed = Delta()
        self._saved: dict[str, SideTable | None] = dict.fromkeys(self.names)

    def _no_ranges(self) -> pa.Table:
        schema = punctuation_schema(self.kinds).append(pa.field("_count", pa.int64()))
        return schema.empty_table()

    @property
    def pending(self) -> int:
        """How many promises wait."""
        return sum(self.points[name].rows + self.ranges[name].num_rows for name in self.names)

    def fresh_ranges(self, name: str, table: pa.Table) -> pa.Table:
        """Before punctuations are added: those that cover many keys and promise something new, each once."""
        schema = punctuation_schema(self.kinds)
        found = [schema.empty_table()]
        for shaped in shapes(normalised(table, self.kinds), self.kinds):
            if len(shaped.values) < len(self.kinds):
                known = self.promises[name].covers(shaped) | self.emitted.covers(shaped)
                found.append(shaped.table.filter(pa.array(~known)))
        return _distinct(pa.concat_tables(found))

    def promised(self, name: str, delta: Delta, ranges: pa.Table, batch: int) -> None:
        """Promises of this batch: single keys, and patterns of many keys whose rows are not counted yet."""
        self._changed.add(delta)
        if delta.points is not None:
            # A key that the other input has promised already is pending there, or was propagated.
            other = self.promises[self.names[1 - self.names.index(name)]]
            first = delta.points.filter(pa.array(other.find(delta.points) == 0))
            self.points[name].add(first.combine_chunks(), batch)
            self.points[name].settle()
        if ranges.num_rows:
            uncounted = ranges.append_column("_count", pa.nulls(ranges.num_rows, pa.int64()))
            self._set_ranges(name, pa.concat_tables([self.ranges[name], uncounted]))

    def _set_ranges(self, name: str, table: pa.Table) -> None:
        self.ranges[name], self._saved[name] = table, None

    def left_state(self, name: str, rows: pa.Table) -> None:
        """Rows of an input that are not stored any more."""
        self.changed(rows)
        self._shift(name, rows, -1)

    def entered_late(self, name: str, rows: pa.Table) -> None:
        """Rows of an input that were stored after their punctuation came: they had been waiting, or break it and are
        kept."""
        self._shift(name, rows, 1)

    def _shift(self, name: str, rows: pa.Table, sign: int) -> None:
        table = self.ranges[name]
        if rows.num_rows and table.num_rows:
            counts = pc.add(table.column("_count"), pa.array(sign * self._hits(table, rows)))
            at = table.column_names.index("_count")
            self._set_ranges(name, table.set_column(at, "_count", counts))

    def _hits(self, patterns: pa.Table, rows: pa.Table) -> npt.NDArray[np.int64]:
        """How many of the rows each pattern covers."""
        counts = np.zeros(patterns.num_rows, np.int64)
        numbered = patterns.append_column("_id", pa.array(np.arange(patterns.num_rows)))
        for shaped in shapes(numbered, self.kinds):
            counts[numpy_of(shaped.table.column("_id"))] = self._hits_of_shape(shaped, rows)
        return counts

    def _hits_of_shape(self, shaped: Shaped, rows: pa.Table) -> npt.NDArray[np.int64]:
        if not shaped.values and not shaped.ranges:
            return np.full(shaped.table.num_rows, rows.num_rows, np.int64)
        if not shaped.values and len(shaped.ranges) == 1:
            ordering = Ordering(self.kinds[shaped.ranges[0]])
            codes = ordering.codes(rows.column(key_name(shaped.ranges[0])))
            codes = codes[argsort(codes)]
            low, high, endless = shaped.bounds(shaped.ranges[0], ordering)
            ends = np.where(endless, len(codes), search(codes, high))
            return np.maximum(ends - search(codes, low), 0)
        held = KeyedPatterns(self.kinds, shaped.values, shaped.ranges, "")
        entries = held.entries(shaped.table, arrow_bounds(shaped, held), 0, 0)
        hits = held.hits(entries, rows)
        return hits[np.argsort(numpy_of(entries.column("_id")))]

    def _count_rows(self, name: str, stored: RowStore) -> None:
        """Count the stored rows of patterns that have not been counted; nothing of the input may be on disk."""
        table = self.ranges[name]
        unknown = numpy_of(pc.is_null(table.column("_count"))).astype(np.bool_)
        if not unknown.any():
            return
        counts = numpy_of(pc.fill_null(table.column("_count"), 0)).copy()
        numbered = table.append_column("_id", pa.array(np.arange(table.num_rows))).filter(pa.array(unknown))
        names = [HASH, *(key_name(i) for i in range(len(self.kinds)))]
        for shaped in shapes(numbered, self.kinds):
            for part, rows in _candidates(stored, shaped, self.kinds):
                if len(rows):
                    hits = self._hits_of_shape(shaped, take(part.table.select(names), rows))
                    counts[numpy_of(shaped.table.column("_id"))] += hits
        at = table.column_names.index("_count")
        self._set_ranges(name, table.set_column(at, "_count", pa.array(counts)))

    def changed(self, keys: pa.Table) -> None:
        """Keys of which something has changed: their pending promises are looked at again."""
        self._changed.add(Delta(points=keys.select([HASH, *(key_name(i) for i in range(len(self.kinds)))])))

    def changed_everything(self) -> None:
        """Look at all pending promises again."""
        self._changed.everything = True

    def ready(self, stored: Mapping[str, RowStore], pool: WaitingPool, generations: Generations) -> Iterator[pa.Table]:
        """Output rows for the promises that hold for the output now; they are pending no longer."""
        changed, self._changed = self._changed, Delta()
        for name, other in (self.names, self.names[::-1]):
            pending = self.points[name]
            for found in covered(pending, changed):
                for part, candidates in found:
                    at = alive_of(part, candidates)
                    keys = take(part.table, at)
                    done = (self.promises[other].find(keys) > 0) | ~(
                        has_keys(stored[name], keys) | generations.touches(name, keys)
                    )
                    done &= ~(pool.waits(name, keys) | pool.waits(other, keys) | generations.owes(keys))
                    if done.any():
                        pending.remove(Rows(part, at[done]), "punctuation")
                        yield self.rows(keys.filter(pa.array(done)))
            pending.settle()
        if pool.is_empty and not any(generations.is_owing(bucket) for bucket in generations.on_disk()):
            for name in self.names:
                if not stored[name].spilled:
                    self._count_rows(name, stored[name])
                yield from self._ready_ranges(name)

    def _ready_ranges(self, name: str) -> Iterator[pa.Table]:
        """Patterns of many keys of which no row is stored any more, or which the other input has promised away too."""
        table = self.ranges[name]
        if not table.num_rows:
            return
        other = self.promises[self.names[1 - self.names.index(name)]]
        done = numpy_of(pc.fill_null(pc.less_equal(table.column("_count"), 0), False)).astype(np.bool_)
        numbered = table.append_column("_id", pa.array(np.arange(table.num_rows)))
        for shaped in shapes(numbered, self.kinds):
            done[numpy_of(shaped.table.column("_id"))] |= other.covers(shaped)
        if done.any():
            self._set_ranges(name, table.filter(pa.array(~done)))
            yield from self._say_once(table.filter(pa.array(done)).drop_columns(["_count"]))

    def _say_once(self, patterns: pa.Table) -> Iterator[pa.Table]:
        """Both inputs may promise the same range: it is propagated when it first holds."""
        for shaped in shapes(patterns, self.kinds):
            fresh = shaped.table.filter(pa.array(~self.emitted.covers(shaped) | self._take_owed(shaped.table)))
            if fresh.num_rows:
                self.emitted.add_punctuations(fresh, 0)
                yield self.rows(fresh)

    def _take_owed(self, patterns: pa.Table) -> Mask:
        """Which patterns are owed; from now on they are not."""
        if not self.owed.num_rows:
            return np.zeros(patterns.num_rows, np.bool_)
        count = self.owed.num_rows
        ids = pattern_ids(pa.concat_tables([self.owed, patterns.select(self.owed.column_names)]))
        self.owed = self.owed.filter(pa.array(~np.isin(ids[:count], ids[count:])))
        return np.isin(ids[count:], ids[:count])

    def inherit(self, heir: Partition, origins: Mapping[Partition, Propagation]) -> None:
        """What is pending in former partitions, rows not counted, and what was emitted in any of them."""
        for partition, former in origins.items():
            for name, store in self.points.items():
                inherit(store, former.points[name], heir, partition)
            self.emitted.unite(former.emitted)
        for name in self.names:
            pending = [former.ranges[name].drop_columns(["_count"]) for former in origins.values()]
            table = _distinct(pa.concat_tables(pending))
            self._set_ranges(name, table.append_column("_count", pa.nulls(table.num_rows, pa.int64())))
        owed = [former.owed for former in origins.values()]
        if len(origins) > 1:
            owed += [table.drop_columns(["_count"]) for table in self.ranges.values()]
        self.owed = _distinct(pa.concat_tables(owed))

    def rest(self) -> Iterator[pa.Table]:
        """The inputs have ended and all results are out: everything pending holds."""
        for name in self.names:
            for part, rows in everything(self.points[name]):
                if len(rows):
                    yield self.rows(take(part.table, rows))
            yield from self._say_once(self.ranges[name].drop_columns(["_count"]))

    def rows(self, patterns: pa.Table) -> pa.Table:
        """Output rows that carry punctuations."""
        patterns = normalised(patterns, self.kinds)
        count = patterns.num_rows
        is_single = np.ones(count, np.bool_)
        for i in range(len(self.kinds)):
            is_single &= numpy_of(pc.is_valid(patterns.column(key_name(i)))).astype(np.bool_)
        parts = pa.array(np.where(is_single, 1, self.partitions).astype(np.int32))
        columns = []
        for column in self.output:
            kind = column.field.type
            if column.column == COLUMN:
                columns.append(self._struct(patterns, kind, parts))
            elif column.column in key_names(patterns.schema):
                columns.append(patterns.column(column.column).cast(kind))
            else:
                columns.append(pa.nulls(count, kind))
        return pa.Table.from_arrays(columns, schema=pa.schema([column.field for column in self.output]))

    def _struct(self, patterns: pa.Table, kind: pa.StructType, parts: pa.Array) -> pa.Array:
        fields = []
        for i in range(len(self.kinds)):
            value = patterns.column(key_name(i)).combine_chunks()
            fixed = value.is_valid()
            low, high = (pc.coalesce(value, patterns.column(f"{end}{i}").combine_chunks()) for end in ENDS[:2])
            closed = (
                pc.if_else(fixed, True, patterns.column(f"{end}{i}").combine_chunks().fill_null(True))
                for end in ENDS[2:]
            )
            inner = kind.field(i).type
            cells = [cell.cast(inner.field(j).type) for j, cell in enumerate((low, high, *closed))]
            fields.append(pa.StructArray.from_arrays(cells, fields=list(inner)))
        part = pa.array(np.zeros(patterns.num_rows, np.int32))
        return pa.StructArray.from_arrays([*fields, part, parts], fields=list(kind))

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """Tables and values; pending keys are saved with their stores."""
        tables, emitted = self.emitted.save()
        for name in self.names:
            if self.ranges[name].num_rows and self._saved[name] is None:
                self._saved[name] = SideTable.of(self.ranges[name])
            if (saved := self._saved[name]) is not None:
                tables[f"{name}.pending_ranges"] = saved
        if self.owed.num_rows:
            tables[OWED] = SideTable.of(self.owed)
        return tables, {"said": emitted}

    def restore(self, tables: Mapping[str, SideTable], values: Mapping[str, Any]) -> None:
        """What `save` returned; tables of other names are passed over."""
        self.emitted.restore(tables, values["said"])
        for name in self.names:
            if (saved := tables.get(f"{name}.pending_ranges")) is not None:
                self.ranges[name], self._saved[name] = saved.table, saved
        if OWED in tables:
            self.owed = tables[OWED].table


def _distinct(patterns: pa.Table) -> pa.Table:
    """Each pattern once."""
    return take(patterns, first_of_each(pattern_ids(patterns))) if patterns.num_rows else patterns


def _candidates(stored: RowStore, shaped: Shaped, kinds: Sequence[pa.DataType]) -> Found:
    """Stored rows that patterns of one shape may cover."""
    for column in (*shaped.values, *shaped.ranges):
        if is_ordered(kinds[column]):
            low, high, endless = shaped.bounds(column, Ordering(kinds[column]))
            return within(stored, column, Intervals.promised(low, high, endless, 0, 0).united())
    return everything(stored)
