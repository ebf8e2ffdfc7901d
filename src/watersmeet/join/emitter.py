"""The one place that builds output rows, and the one place where payload is gathered.

Operators work on row numbers. Only when the matches are known are the payload columns touched, once each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import HASH, Hashes, Indices, gather, gather_all, hashes_of, key_names
from watersmeet.columns.grouping import repeats
from watersmeet.columns.pieces import has_offsets, pieces
from watersmeet.join.condition import Condition, Taken
from watersmeet.join.join_type import JOIN_TYPES, MATCHED
from watersmeet.join.votes import Ballots
from watersmeet.plan import JoinPlan, OutputColumn
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.parts import Departed, Part, column_of
from watersmeet.state.rules import Horizon, Mask


@dataclass(frozen=True)
class _Sources:
    """Where output columns come from.

    places     by input, the columns of its table that are gathered
    columns    by output column, its input, and which of those it is: -1 for none
    wide       those whose values differ in size: their inputs, and their places in these tables
    """

    places: Mapping[str, list[int]]
    columns: Sequence[tuple[str, int]]
    wide: Sequence[tuple[str, int]]

    @classmethod
    def among(cls, columns: Sequence[OutputColumn], names: Mapping[str, Sequence[str]]) -> _Sources:
        """Given the names of the columns of the inputs' tables."""
        places: dict[str, list[int]] = {}
        found, wide = [], []
        for column in columns:
            name = column.input if column.input in names else column.otherwise
            at = list(names.get(name, ())).index(column.column) if column.column in names.get(name, ()) else -1
            if at < 0:
                found.append((name, -1))
                continue
            mine = places.setdefault(name, [])
            if at not in mine:
                mine.append(at)
            found.append((name, mine.index(at)))
            if has_offsets(column.field.type):
                wide.append((name, at))
        return cls(places, found, wide)


def unpassed(part: Part, rows: Indices) -> Indices:
    """Those of some rows that the horizon of their store has not passed. Of the others partitions have said when it
    did whether they have matched, wherever they lie until their run is rewritten (`expiry.expiring`)."""
    rule = part.store.rule
    if not isinstance(rule, Horizon) or rule.time is None:
        return rows
    return rows[part.times[rows] >= rule.time]


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
    >>> next(emitter.rows({"left": (left, np.array([1])), "right": (right, np.array([0]))})).to_pylist()
    [{'k': 2, 'name': 'b', 'share': 0.5}]
    >>> next(emitter.rows({"left": (left, np.array([0]))})).to_pylist()
    [{'k': 1, 'name': 'a', 'share': None}]
    >>> next(emitter.rows({"right": (right, np.array([0]))})).to_pylist()
    [{'k': 2, 'name': None, 'share': 0.5}]
    """

    def __init__(self, columns: Sequence[OutputColumn]) -> None:
        self.columns = tuple(columns)
        self.schema = pa.schema([column.field for column in columns])
        self._found: dict[tuple[tuple[str, tuple[str, ...]], ...], _Sources] = {}

    def rows(self, taken: Mapping[str, Taken], optional: Collection[str] = ()) -> Iterator[pa.Table]:
        """Output rows: row i is made of row `numbers[i]` of each input's table. Mostly they are one table; where values
        are so wide that an array cannot hold them all, several.

        Of an `optional` input a negative number stands for no row.
        """
        count = len(next(iter(taken.values()))[1])
        sources = self._sources(taken)
        wide = [(taken[name][0].column(at), taken[name][1]) for name, at in sources.wide]
        for piece in pieces(wide, count):
            yield self._built({name: (table, rows[piece]) for name, (table, rows) in taken.items()}, sources, optional)

    def _sources(self, taken: Mapping[str, Taken]) -> _Sources:
        """Where the output columns come from, given tables with such columns: looked for once."""
        key = tuple((name, tuple(table.schema.names)) for name, (table, _) in taken.items())
        if key not in self._found:
            self._found[key] = _Sources.among(self.columns, dict(key))
        return self._found[key]

    def _built(self, taken: Mapping[str, Taken], sources: _Sources, optional: Collection[str]) -> pa.Table:
        wanted = {
            name: pa.array(numbers, pa.int64(), mask=numbers < 0 if name in optional else None)
            for name, (_, numbers) in taken.items()
        }
        count = len(next(iter(wanted.values())))
        gathered = {name: gather_all(taken[name][0], wanted[name], places) for name, places in sources.places.items()}
        arrays = []
        for column, (name, at) in zip(self.columns, sources.columns, strict=True):
            if at < 0:
                arrays.append(pa.nulls(count, column.field.type))
                continue
            values = gathered[name][at]
            if column.null_if:
                is_null = gather(taken[name][0].column(column.null_if), wanted[name])
                values = pc.if_else(is_null, pa.scalar(None, values.type), values)
            arrays.append(values if values.type == column.field.type else values.cast(column.field.type))
        if not arrays:  # an output of no columns still has a number of rows
            return pa.table({"_": pa.nulls(count)}).select([])
        return pa.Table.from_arrays(arrays, schema=self.schema)


class BinaryEmitter(Emitter):
    """The output of a join of two inputs, whatever its type. Rows that match are in a `Hand` (see there).

    `beside` names a column that stored rows need beside their keys; with `distinct` rows of a semi or anti join that
    agree in both, and in what the plan's condition needs, are redundant. With `marks_once` rows that leave at their
    first match may lie on disk, where they are marked and leave when they are read for something else. `right` names a
    table that is joined without being an input.

    preserved    inputs whose rows are emitted if they never match
    flagged      those whose stored rows remember whether they have matched
    once         the input whose rows leave at their first match: the left one of a semi or anti join
    keys_only    the one of which only keys are stored (and times, in a window, and what the condition needs): the right
                 one of such a join
    condition    what must hold for a pair of rows with equal keys to match; None: they match
    hushed       by input, the keys whose rows, matched or not, another partition emits (see `Operator.hush`)
    ballots      where what this partition knows of rows goes that all who have them vote on (see `votes`)
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
        self.condition = None if plan.condition is None else Condition.of(plan.condition)
        self.hushed: Mapping[str, Hashes] = {}
        self.ballots: Ballots | None = None

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
        beside = [self.beside[name]] if name in self.beside else []
        columns = [HASH, *key_names(schema), *beside, *self.needed(name)]
        return list(dict.fromkeys(columns))

    def needed(self, name: str) -> list[str]:
        """The columns of an input that the condition needs."""
        return [] if self.condition is None else self.condition.columns("left" if name == self.left else "right")

    def redundant(self, name: str) -> Callable[[pa.Table], Mask] | None:
        """Which rows of a table, sorted by hash, others make useless: where only keys are wanted."""
        return partial(repeats, beside=self.needed(name)) if name == self.keys_only and self.distinct else None

    def matching(self, name: str, mine: Taken, theirs: Taken) -> tuple[Indices, Indices]:
        """Of pairs of rows with equal keys those that match; the first ones are rows of an input, the others of the
        other."""
        if self.condition is None:
            return mine[1], theirs[1]
        left, right = (mine, theirs) if name == self.left else (theirs, mine)
        holds = self.condition.holds(left, right)
        rejected = len(holds) - int(np.count_nonzero(holds))
        if not rejected:
            return mine[1], theirs[1]
        self.metrics.count("pairs_rejected", rejected)
        return mine[1][holds], theirs[1][holds]

    def own(self, name: str, table: pa.Table, rows: Indices) -> Indices:
        """Those of some rows that no other partition emits."""
        hushed = self.hushed.get(name)
        return rows if hushed is None else rows[~np.isin(hashes_of(table)[rows], hushed)]

    def unmatched(self, name: str, table: pa.Table, rows: Indices, reason: str) -> Iterator[pa.Table]:
        """Rows of an input that can match nothing any more and never did."""
        if name not in self.preserved:
            return
        rows = rows if reason == "null_key" else self.own(name, table, rows)
        if self.ballots is not None and reason != "null_key":
            rows = self.ballots.unmatched(name, table, rows, lambda table, rows: self.rows({name: (table, rows)}))
        if len(rows):
            self.metrics.count(f"unmatched.{name}.{reason}", len(rows))
            yield from self.rows({name: (table, rows)})

    def matched(self, name: str, table: pa.Table, rows: Indices) -> None:
        """Rows of an input leave that have matched: of interest if other partitions have them, too."""
        if self.ballots is not None:
            self.ballots.matched(name, table, rows)

    def departed(self, gone: Iterable[Departed]) -> Iterator[pa.Table]:
        """Stored rows have left without a future: those that never matched are emitted, if the type wants them."""
        for one in gone:
            if one.input not in self.preserved:
                continue
            for part, rows in one.pieces():
                if MATCHED in part.store.flags:
                    has_matched = part.flag(MATCHED, rows)
                    if self.ballots is not None:
                        self.matched(one.input, part.table, unpassed(part, rows[has_matched]))
                    rows = rows[~has_matched]
                yield from self.unmatched(one.input, part.table, rows, one.reason)

    @property
    def judges(self) -> bool:
        """Whether it matters which rows have matched."""
        return bool(self.preserved) or self.type.exists

    def first_matches(self, gone: Iterable[Departed]) -> Iterator[pa.Table]:
        """Stored rows have left because they matched for the first time."""
        for one in gone if self.type.semi else ():
            for part, rows in one.pieces():
                yield from self.rows({one.input: (part.table, self.own(one.input, part.table, rows))})
