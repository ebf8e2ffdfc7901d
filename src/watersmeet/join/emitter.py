"""The one place that builds output rows, and the one place where payload is gathered.

Operators work on row numbers. Only when the matches are known are the payload columns touched, once each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from watersmeet.columns.arrow import HASH, Indices, gather, key_names
from watersmeet.join.join_type import JOIN_TYPES, MATCHED
from watersmeet.plan import JoinPlan, OutputColumn
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.parts import Departed, column_of

Taken = tuple[pa.Table, Indices]  # a table, and the numbers of its rows


class Emitter:
    """Builds output rows from row numbers of the inputs' tables. A column that no table given here has is null.

    >>> import numpy as np
    >>> left = pa.table({"_k0": [1, 2], "_p0": ["a", "b"]})
    >>> right = pa.table({"_k0": [2], "_p0": [0.5]})
    >>> emitter = Emitter(
    ...     [
    ...         OutputColumn(pa.field("k", pa.int64()), "left", "_k0", otherwise="right"),
    ...         OutputColumn(pa.field("name", pa.string()), "left", "_p0"),
    ...         OutputColumn(pa.field("share", pa.float64()), "right", "_p0"),
    ...     ]
    ... )
    >>> emitter.rows({"left": (left, np.array([1])), "right": (right, np.array([0]))}).to_pylist()
    [{'k': 2, 'name': 'b', 'share': 0.5}]
    >>> emitter.rows({"left": (left, np.array([0]))}).to_pylist()
    [{'k': 1, 'name': 'a', 'share': None}]
    >>> emitter.rows({"right": (right, np.array([0]))}).to_pylist()
    [{'k': 2, 'name': None, 'share': 0.5}]
    """

    def __init__(self, columns: Sequence[OutputColumn]) -> None:
        self.columns = tuple(columns)
        self.schema = pa.schema([column.field for column in columns])

    def rows(self, taken: Mapping[str, Taken], optional: Collection[str] = ()) -> pa.Table:
        """Output rows: row i is made of row `numbers[i]` of each input's table.

        Of an `optional` input a negative number stands for no row.
        """
        wanted = {
            name: pa.array(numbers, pa.int64(), mask=numbers < 0 if name in optional else None)
            for name, (_, numbers) in taken.items()
        }
        count = len(next(iter(wanted.values())))
        arrays = []
        for column in self.columns:
            name = column.input if column.input in taken else column.otherwise
            table = taken[name][0] if name in taken else None
            at = -1 if table is None else table.schema.get_field_index(column.column)
            if table is None or at < 0:
                arrays.append(pa.nulls(count, column.field.type))
                continue
            values = gather(table.column(at), wanted[name])
            arrays.append(values if values.type == column.field.type else values.cast(column.field.type))
        if not arrays:  # an output of no columns still has a number of rows
            return pa.table({"_": pa.nulls(count)}).select([])
        return pa.Table.from_arrays(arrays, schema=self.schema)


class BinaryEmitter(Emitter):
    """The output of a join of two inputs, whatever its type. Rows that match are in a `Hand` (see there).

    `beside` names a column that stored rows need beside their keys; with `distinct` rows that agree in both are
    redundant in a semi or anti join. With `marks_once` rows that leave at their first match may lie on disk, where they
    are marked and leave when they are read for something else. `right` names a table that is joined without being an
    input.

    preserved    inputs whose rows are emitted if they never match
    flagged      those whose stored rows remember whether they have matched
    once         the input whose rows leave at their first match: the left one of a semi or anti join
    keys_only    the one of which only keys are stored (and times, in a window): the right one of such a join
    """

    def __init__(
        self,
        plan: JoinPlan,
        accounts: Accounts,
        metrics: Metrics,
        *,
        beside: Mapping[str, str] | None = None,
        distinct: bool = True,
        marks_once: bool = False,
        right: str | None = None,
    ) -> None:
        super().__init__(plan.output)
        self.beside, self.distinct = dict(beside or {}), distinct
        self.type = JOIN_TYPES[plan.how]
        self.accounts, self.metrics = accounts, metrics
        self.left, self.right = self.names = (plan.inputs[0].name, right or plan.inputs[1].name)
        self.other = {self.left: self.right, self.right: self.left}
        self.preserved = frozenset(name for name, kept in zip(self.names, self.type.unmatched, strict=True) if kept)
        self.flagged = frozenset() if self.type.exists else self.preserved
        self.once: str | None = self.left if self.type.exists else None
        self._marked = self.flagged | ({self.once} if marks_once else set())
        self.keys_only: str | None = self.right if self.type.exists else None

    def flags(self, name: str) -> tuple[str, ...]:
        """The flags of an input's stored rows."""
        return (MATCHED,) if name in self._marked else ()

    def stored_schema(self, name: str, schema: pa.Schema) -> pa.Schema:
        """The columns of an input's stored rows: those that are needed, and its flags."""
        if name == self.keys_only:
            return pa.schema([schema.field(column) for column in self.stored_columns(name, schema)])
        return schema.append(pa.field(column_of(MATCHED), pa.bool_())) if self.flags(name) else schema

    def stored_columns(self, name: str, schema: pa.Schema) -> list[str]:
        """The columns by which a row is matched."""
        return [HASH, *key_names(schema), *([self.beside[name]] if name in self.beside else [])]

    def unmatched(self, name: str, table: pa.Table, rows: Indices, reason: str) -> Iterator[pa.Table]:
        """Rows of an input that can match nothing any more and never did."""
        if name in self.preserved and len(rows):
            self.metrics.count(f"unmatched.{name}.{reason}", len(rows))
            yield self.rows({name: (table, rows)})

    def departed(self, gone: Iterable[Departed]) -> Iterator[pa.Table]:
        """Stored rows have left without a future: those that never matched are emitted, if the type wants them."""
        for one in gone:
            if one.input not in self.preserved:
                continue
            for part, rows in one.pieces():
                if MATCHED in part.store.flags:
                    rows = rows[~part.flag(MATCHED, rows)]
                yield from self.unmatched(one.input, part.table, rows, one.reason)

    @property
    def judges(self) -> bool:
        """Whether it matters which rows have matched."""
        return bool(self.preserved) or self.type.exists

    def first_matches(self, gone: Iterable[Departed]) -> Iterator[pa.Table]:
        """Stored rows have left because they matched for the first time."""
        for one in gone if self.type.semi else ():
            for part, rows in one.pieces():
                yield self.rows({one.input: (part.table, rows)})
