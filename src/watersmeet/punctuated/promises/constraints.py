"""What is known of an input beforehand, and what follows from it while rows arrive.

`OneToMany`   a key occurs at most once on one input: a row of the other has no future once it has matched its partner.
`Clustered`   rows with one key come together: when the key changes, the cluster's key is promised away.
`Ordered`     keys come in order: everything before the last key is promised away.

Inside a micro-batch rows have no order unless the constraint names a *sequence* column. Without one the rules are those
that hold for every order the rows could have come in (see `ClusterTracker`). A row with no value in that column breaks
the constraint by itself; of the others' order, and of its key, it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict

from watersmeet.columns.arrow import HASH, key_name, key_names, numpy_of, take
from watersmeet.columns.grouping import first_of_each, group_ids, key_columns
from watersmeet.columns.partitions import Partition
from watersmeet.plan.options import known_fields
from watersmeet.punctuated.promises.codes import argsort, ranked
from watersmeet.punctuated.promises.intervals import Mask
from watersmeet.punctuated.promises.ordering import Ordering
from watersmeet.punctuated.promises.patterns import punctuation_schema
from watersmeet.state.side_table import SideTable

Side = Literal["left", "right"]
# Checked with the other options of the join, so that a wrong value is reported as they are.
_CHECKED = ConfigDict(extra="forbid", revalidate_instances="always")


@known_fields
@dataclass(frozen=True)
class OneToMany:
    """Every key occurs at most once on the input `one`. Given for both inputs, the join is one-to-one.

    >>> OneToMany(one="left")
    OneToMany(one='left', kind='one_to_many')
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CHECKED

    one: Side
    kind: Literal["one_to_many"] = "one_to_many"


@known_fields
@dataclass(frozen=True)
class Clustered:
    """Rows of `input` with equal keys come one after the other. `sequence` names a column of the input by which the
    rows of one micro-batch are ordered.

    >>> Clustered("right", sequence="offset")
    Clustered(input='right', sequence='offset', kind='clustered')
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CHECKED

    input: Side
    sequence: str | None = None
    kind: Literal["clustered"] = "clustered"


@known_fields
@dataclass(frozen=True)
class Ordered:
    """Rows of `input` come in the order of their key; equal keys may follow each other. `key` names the key column
    meant if there are several.

    >>> Ordered("right", "ascending")
    Ordered(input='right', direction='ascending', sequence=None, key=None, kind='ordered')
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CHECKED

    input: Side
    direction: Literal["ascending", "descending"] = "ascending"
    sequence: str | None = None
    key: str | None = None
    kind: Literal["ordered"] = "ordered"


Constraint = OneToMany | Clustered | Ordered


def one_sides(constraints: Iterable[Constraint]) -> frozenset[str]:
    """The inputs on which a key occurs at most once."""
    return frozenset(one.one for one in constraints if isinstance(one, OneToMany))


class ClusterTracker:
    """Clusters of one input: which keys may still go on, and which have ended.

    Without a sequence column the rows of a batch may have come in any order; then at most one key can straddle two
    batches that follow each other. Every other open key has ended; the straddler has ended too if its second batch
    holds another key. With a sequence column only the key of the last row stays open, and keys of rows without a place.
    """

    def __init__(self, constraint: Clustered, kinds: tuple[pa.DataType, ...]) -> None:
        self.input, self.sequence = constraint.input, constraint.sequence
        self.label = f"{self.input}.open"
        names = [HASH, *(key_name(i) for i in range(len(kinds)))]
        self._schema = pa.schema(list(zip(names, (pa.uint64(), *kinds), strict=True)))
        self.open = self._schema.empty_table()
        self._table: SideTable | None = None

    def violations(self, table: pa.Table) -> Mask:
        """Rows of a new batch that tear a cluster apart."""
        wrong = np.zeros(table.num_rows, np.bool_)
        if table.num_rows < 2:
            return wrong
        ids, opened = self._ids(table)
        straddling = np.isin(ids, opened)
        if self.sequence is None:
            # More than one key goes on: none of them can be told to be the right one.
            return straddling if len(np.unique(ids[straddling])) > 1 else wrong
        known, places = _placed(table, self.sequence)
        wrong[known] = _torn(ids[known], places, opened)
        return wrong

    def close(self, table: pa.Table) -> pa.Table:
        """After a batch's rows: the keys of the clusters that have ended, as punctuations."""
        if not table.num_rows:
            return self._schema.empty_table()
        keys = table.select(self._schema.names)
        ids, opened = self._ids(table)
        distinct = first_of_each(ids)
        if self.sequence is None:
            straddling = np.isin(ids[distinct], opened)
            still = ~straddling if len(distinct) > 1 else np.ones(len(distinct), np.bool_)
        else:
            known, places = _placed(table, self.sequence)
            if not len(places):  # nobody knows when these rows came: what was open may still go on
                return self._go_on(take(keys, distinct))
            latest = ~known  # they may have come last
            latest[known] = places == places.max()
            still = np.isin(ids[distinct], ids[latest])
        here = take(keys, distinct)
        going = here.filter(pa.array(still))
        ended = pa.concat_tables([here.filter(pa.array(~still)), self.open])
        both = group_ids(key_columns(pa.concat_tables([going, ended])))
        ended = ended.filter(pa.array(~np.isin(both[going.num_rows :], both[: going.num_rows])))
        self.open, self._table = going, None
        return ended

    def _go_on(self, here: pa.Table) -> pa.Table:
        """Some keys are open, too; none has ended."""
        both = pa.concat_tables([self.open, here])
        self.open, self._table = take(both, first_of_each(group_ids(key_columns(both)))), None
        return here.slice(0, 0)

    def _ids(self, table: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Group numbers of the rows and of the open keys."""
        names = key_names(table.schema)
        ids = group_ids(key_columns(pa.concat_tables([table.select(names), self.open.select(names)])))
        return ids[: table.num_rows], ids[table.num_rows :]

    def inherit(self, former: ClusterTracker, heir: Partition) -> None:
        """Keys of a former partition that may go on here."""
        mine = former.open.filter(pa.array(heir.owns(numpy_of(former.open.column(HASH)))))
        self.open, self._table = pa.concat_tables([self.open, mine]).combine_chunks(), None

    def save(self) -> dict[str, SideTable]:
        """The open keys."""
        if self._table is None and self.open.num_rows:
            self._table = SideTable.of(self.open)
        return {} if self._table is None else {self.label: self._table}

    def restore(self, tables: Mapping[str, SideTable]) -> None:
        """What `save` returned; tables of other names are passed over."""
        if self.label in tables:
            self._table = tables[self.label]
            self.open = self._table.table


class OrderTracker:
    """The order of one input: the last key so far, before which nothing more will come."""

    def __init__(self, constraint: Ordered, column: int, kinds: tuple[pa.DataType, ...]) -> None:
        self.input, self.sequence, self.column = constraint.input, constraint.sequence, column
        self.ascending = constraint.direction == "ascending"
        self.kinds = kinds
        self.ordering = Ordering(kinds[column])

    def violations(self, table: pa.Table) -> Mask:
        """Rows out of order inside a batch (those before earlier batches' last key break a promise anyway)."""
        wrong = np.zeros(table.num_rows, np.bool_)
        if self.sequence is None or table.num_rows < 2:
            return wrong
        known, sequence = _placed(table, self.sequence)
        if not len(sequence):
            return wrong
        codes = ranked(self.ordering.codes(table.column(key_name(self.column))))[1][known]
        codes = codes if self.ascending else -codes
        order = np.argsort(sequence, kind="stable")
        places, starts = np.unique(sequence[order], return_index=True)
        reached = np.maximum.accumulate(np.maximum.reduceat(codes[order], starts))
        earlier = np.concatenate(([np.iinfo(np.int64).min], reached[:-1]))  # rows of one place have no order
        wrong[known] = codes < earlier[np.searchsorted(places, sequence)]
        return wrong

    def close(self, table: pa.Table) -> pa.Table:
        """After a batch's rows: everything before the last key, as a punctuation."""
        schema = punctuation_schema(self.kinds)
        if not table.num_rows:
            return schema.empty_table()
        column = table.column(key_name(self.column))
        codes = self.ordering.codes(column)
        last = int(argsort(codes)[-1 if self.ascending else 0])
        end = "_high" if self.ascending else "_low"
        known = {f"{end}{self.column}": column.slice(last, 1), f"{end}_closed{self.column}": pa.array([False])}
        return pa.table([known.get(field.name, pa.nulls(1, field.type)) for field in schema], schema=schema)


def unplaced(table: pa.Table, sequence: str) -> Mask:
    """Rows without a place in the order of a sequence column: a null or NaN is none."""
    return numpy_of(pc.is_null(table.column(sequence), nan_is_null=True)).astype(np.bool_)


def _placed(table: pa.Table, sequence: str) -> tuple[Mask, npt.NDArray[Any]]:
    """Which rows have a place, and these places. (With the nulls among them whole numbers would become floats.)"""
    known = ~unplaced(table, sequence)
    return known, numpy_of(table.column(sequence).filter(pa.array(known)))


def _torn(ids: npt.NDArray[np.int64], sequence: npt.NDArray[Any], opened: npt.NDArray[np.int64]) -> Mask:
    """Rows before which, but after the beginning of their cluster, another key came. An open cluster began before."""
    values, places = np.unique(sequence, return_inverse=True)
    pairs, inverse, counts = np.unique(ids * len(values) + places, return_inverse=True, return_counts=True)
    before = np.cumsum(counts) - counts  # rows of smaller groups, and of this group at earlier places
    heads = np.flatnonzero(np.concatenate(([True], np.diff(pairs // len(values)) > 0)))
    head = heads[np.searchsorted(heads, inverse, side="right") - 1]  # the row's group at its first place
    is_open = np.isin(ids, opened)
    reached = np.concatenate(([0], np.cumsum(np.bincount(places))))  # rows before each place
    first = (pairs % len(values))[head]
    all_between = reached[places] - np.where(is_open, 0, reached[first + 1])
    own_between = before[inverse] - before[head] - np.where(is_open, 0, counts[head])
    return np.asarray((is_open | (places > first)) & (all_between > own_between))


def duplicate_keys(table: pa.Table) -> Mask:
    """Rows of a hash-sorted table whose key another of its rows has too."""
    hashes = numpy_of(table.column(HASH))
    twin = np.zeros(len(hashes), np.bool_)
    if len(hashes) > 1:
        same = hashes[1:] == hashes[:-1]
        twin[1:] |= same
        twin[:-1] |= same
    if twin.any():
        rows = np.flatnonzero(twin)
        ids = group_ids(key_columns(take(table, rows)))
        twin[rows] = np.bincount(ids)[ids] > 1
    return twin
