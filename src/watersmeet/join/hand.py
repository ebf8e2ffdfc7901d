"""Rows in hand: what a batch (or a step of a merge) joins, with each other and with stored rows.

    hand = Hand(emitter, {"left": ..., "right": ...})
    probe(...)             pairs of rows in hand and stored ones with equal keys
    hand.stored(...)       rows in hand match stored ones     results leave, matches are noted on both sides
    hand.pairs(...)        rows in hand match each other
    hand.settle()          what is done with at its first match leaves (semi, anti)
    hand.leave(...)        rows without a future leave; those that never matched are emitted
    hand.rest(...)         what is left, to be stored

So a row that matches within its batch is never unmatched, and a row that is kept remembers whether it has matched. An
inner join notes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, numpy_of, take
from watersmeet.columns.matching import matches
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.join.join_type import MATCHED
from watersmeet.state.parts import Part, Rows, column_of
from watersmeet.state.rules import Mask


class Hand:
    """Tables of one or both inputs of a join. `matched` says which of their rows have, where that matters."""

    def __init__(self, emitter: BinaryEmitter, tables: Mapping[str, pa.Table]) -> None:
        self.emitter = emitter
        self.tables = dict(tables)
        noted = emitter.flagged if emitter.once is None else {emitter.once}
        self.matched = {name: known(table) for name, table in tables.items() if name in noted}
        # Rows of a semi join that matched while they were on disk have been emitted then.
        self._emitted = {name: mask.copy() for name, mask in self.matched.items() if name == emitter.once}

    def stored(self, name: str, i: Indices, part: Part, j: Indices) -> Iterator[pa.Table]:
        """Rows of an input match stored rows of the other with equal keys, if the condition holds."""
        emitter, other = self.emitter, self.emitter.other[name]
        i, j = emitter.matching(name, (self.tables[name], i), (part.table, j))
        if not len(i):
            return
        if emitter.type.pairs:
            yield from emitter.rows({name: (self.tables[name], i), other: (part.table, j)})
        if name in self.matched:
            self.matched[name][i] = True
        if other in emitter.flagged:
            part.store.mark(part, MATCHED, j)
        elif other == emitter.once and (part.run.tier == "resident" or not part.store.flags):
            yield from emitter.first_matches(part.store.remove(Rows(part, j), "matched"))
        elif other == emitter.once:
            fresh = emitter.own(other, part.table, part.store.mark(part, MATCHED, j))
            if emitter.type.semi and len(fresh):
                yield from emitter.rows({other: (part.table, fresh)})

    def pairs(self, i: Indices, j: Indices) -> Iterator[pa.Table]:
        """Left and right rows with equal keys match each other, if the condition holds."""
        emitter, (left, right) = self.emitter, self.emitter.names
        i, j = emitter.matching(left, (self.tables[left], i), (self.tables[right], j))
        if not len(i):
            return
        if emitter.type.pairs:
            yield from emitter.rows({left: (self.tables[left], i), right: (self.tables[right], j)})
        for name, rows in zip(emitter.names, (i, j), strict=True):
            if name in self.matched:
                self.matched[name][rows] = True

    def settle(self) -> Iterator[pa.Table]:
        """All matches are known: rows that are done with at their first match leave."""
        emitter, name = self.emitter, self.emitter.once
        if name not in self.matched or not self.matched[name].any():
            return
        assert name is not None
        emitter.accounts.leave(name, "matched", int(np.count_nonzero(self.matched[name])))
        rows = emitter.own(name, self.tables[name], np.flatnonzero(self.matched[name] & ~self._emitted[name]))
        if emitter.type.semi and len(rows):
            yield from emitter.rows({name: (self.tables[name], rows)})
        self._keep(name, ~self.matched[name])

    def leave(self, name: str, which: Mask, reason: str) -> Iterator[pa.Table]:
        """Rows leave: no row still to come can match them."""
        rows = np.flatnonzero(which)
        if not len(rows):
            return
        emitter = self.emitter
        emitter.accounts.leave(name, reason, len(rows))
        unmatched = rows
        if name in self.matched:
            has_matched = self.matched[name][rows]
            emitter.matched(name, self.tables[name], rows[has_matched])
            unmatched = rows[~has_matched]
        yield from emitter.unmatched(name, self.tables[name], unmatched, reason)
        self._keep(name, ~which)

    def leave_by(self, name: str, reasons: Mapping[str, Mask]) -> Iterator[pa.Table]:
        """Rows leave for different reasons; each mask is of the rows in hand, and no row is in two."""
        staying = np.ones(self.tables[name].num_rows, np.bool_)
        for reason, mask in reasons.items():
            yield from self.leave(name, mask[staying], reason)
            staying &= ~mask

    def leave_all(self, name: str, reason: str) -> Iterator[pa.Table]:
        """All rows of an input leave."""
        return self.leave(name, np.ones(self.tables[name].num_rows, np.bool_), reason)

    def _keep(self, name: str, wanted: Mask) -> None:
        self.tables[name] = take(self.tables[name], np.flatnonzero(wanted))
        if name in self.matched:
            self.matched[name] = self.matched[name][wanted]
        if name in self._emitted:
            self._emitted[name] = self._emitted[name][wanted]

    def rest(self, name: str) -> pa.Table:
        """The rows that are left, with their flags; of an input that is wanted for its keys, one of each."""
        table = self.tables[name]
        if name == self.emitter.keys_only:
            return self._distinct(name, table.select(self.emitter.stored_columns(name, table.schema)))
        return self.flagged(name)

    def flagged(self, name: str) -> pa.Table:
        """The rows that are left, with their flags and all their columns."""
        table = self.tables[name]
        return with_flag(table, self.matched[name]) if self.emitter.flags(name) else table

    def _distinct(self, name: str, table: pa.Table) -> pa.Table:
        redundant = self.emitter.redundant(name)
        again = redundant(table) if redundant else None
        if again is None or not again.any():
            return table
        self.emitter.accounts.leave(name, "redundant", int(np.count_nonzero(again)))
        return take(table, np.flatnonzero(~again))


def known(table: pa.Table) -> Mask:
    """Which rows of a table have matched before: those of rows that come from a store say so."""
    at = table.schema.get_field_index(column_of(MATCHED))
    return np.zeros(table.num_rows, np.bool_) if at < 0 else numpy_of(table.column(at)).astype(np.bool_)


def with_flag(table: pa.Table, matched: Mask) -> pa.Table:
    """A table with the flags of its rows."""
    name = column_of(MATCHED)
    at, column = table.schema.get_field_index(name), pa.array(matched)
    return table.append_column(name, column) if at < 0 else table.set_column(at, name, column)


def probe(table: pa.Table, parts: Iterable[Part]) -> Iterator[tuple[Part, Indices, Indices]]:
    """Pairs of rows of a hash-sorted table and living rows of hash-sorted parts with equal keys, in blocks."""
    if not table.num_rows:
        return
    for part in parts:
        for i, j in matches(table, part.table):
            alive = part.alive(j)
            if alive is not None:
                i, j = i[alive], j[alive]
            if len(i):
                yield part, i, j
