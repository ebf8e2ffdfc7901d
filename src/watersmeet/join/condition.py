"""Conditions on pairs (or combinations) of rows with equal keys, evaluated column by column.

A condition is a tree of lists, as it travels in a plan: `["<=", ["column", "left", "_p0"], ["constant", 0]]`. It comes
from SQL, with casts put in (`spark/conditions.py`), so that both sides of an operation have one type.

    column side name        constant number         cast type x         null if x flag
    = < <= <=> x y          and or x y              not x               is null x
    + - * x y               negate x, abs x         coalesce x ...      like x pattern

The meaning is Spark's: three-valued logic, NaN equals NaN and is greater than all other numbers, -0.0 equals 0.0, text
is compared by its bytes. An overflow is an error where it is one for Spark (ANSI mode), and only for pairs for which
Spark evaluates that part: `and`, `or` and `coalesce` evaluate their second part where the first leaves it open.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import Indices, gather, numpy_of
from watersmeet.columns.pieces import pieces
from watersmeet.errors import ConditionError

Tree = list[Any]
Mask = npt.NDArray[np.bool_]
Taken = tuple[pa.Table, Indices]  # a table, and the numbers of its rows

ARITHMETIC = {"+": (pc.add, pc.add_checked), "-": (pc.subtract, pc.subtract_checked)}
ARITHMETIC |= {"*": (pc.multiply, pc.multiply_checked)}
SIGNS = {"negate": (pc.negate, pc.negate_checked), "abs": (pc.abs, pc.abs_checked)}


class Condition:
    """A condition, ready to be evaluated on pairs.

    >>> tree = ["<", ["column", "left", "_p0"], ["constant", 0]]
    >>> condition = Condition.of({"text": "left.a < 2", "tree": tree, "ansi": True, **constants({"0": pa.array([2])})})
    >>> table = pa.table({"_p0": [1, 2, None]})
    >>> condition.holds((table, np.array([0, 1, 2])), (table, np.array([0, 0, 0]))).tolist()
    [True, False, False]
    """

    def __init__(self, text: str, tree: Tree, values: pa.Table, *, ansi: bool) -> None:
        self.text, self.tree, self.ansi = text, tree, ansi
        self.constants = [column[0] for column in values.columns]

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Condition:
        """The condition of a plan."""
        values = pa.ipc.open_stream(base64.b64decode(plan["constants"])).read_all()
        return cls(plan["text"], plan["tree"], values, ansi=plan["ansi"])

    def columns(self, side: str) -> list[str]:
        """The columns of a side that it needs."""
        return list(dict.fromkeys(_columns(self.tree, side)))

    def holds(self, left: Taken, right: Taken) -> Mask:
        """For which pairs of rows it is true: neither false nor null."""
        return self.holds_of({"left": left, "right": right})

    def holds_of(self, taken: Mapping[str, Taken]) -> Mask:
        """The same of combinations of rows of any number of inputs."""
        needed = [(table.column(name), rows) for side, (table, rows) in taken.items() for name in self.columns(side)]
        cut = pieces(needed, len(next(iter(taken.values()))[1]))
        found = [
            self._holds({side: (table, rows[piece]) for side, (table, rows) in taken.items()}, piece.stop - piece.start)
            for piece in cut
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _holds(self, taken: Mapping[str, Taken], count: int) -> Mask:
        pairs = _Pairs(self, taken, count)
        try:
            return numpy_of(pc.fill_null(pairs.value(self.tree), False)).astype(np.bool_)
        except pa.ArrowInvalid as error:
            raise ConditionError(
                f"the condition {self.text!r}",
                expected="results that their types can hold",
                found=str(error),
                hint="Cast the columns to a wider type before the join. Spark raises the same error in ANSI mode.",
            ) from error


def constants(values: Mapping[str, pa.Array]) -> dict[str, str]:
    """The constants of a condition as they travel in a plan."""
    table = pa.table(dict(values)) if values else pa.table({"_": pa.nulls(1)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {"constants": base64.b64encode(sink.getvalue().to_pybytes()).decode()}


def _columns(tree: Tree, side: str) -> list[str]:
    if tree[0] == "column":
        return [tree[2]] if tree[1] == side else []
    return [name for part in tree[1:] if isinstance(part, list) for name in _columns(part, side)]


def _can_fail(tree: Tree) -> bool:
    """Whether an evaluation may raise an error."""
    return tree[0] in ARITHMETIC or tree[0] in SIGNS or any(_can_fail(one) for one in tree[1:] if isinstance(one, list))


@dataclass
class _Pairs:
    """Pairs of rows, and the columns that have been gathered for them."""

    condition: Condition
    taken: Mapping[str, Taken]
    count: int
    gathered: dict[tuple[str, str], pa.Array] = field(default_factory=dict)

    def value(self, tree: Tree) -> pa.Array:
        """The values of an expression."""
        made = getattr(self, f"_{_METHODS.get(tree[0], tree[0])}", None)
        if made is None:
            raise ValueError(f"a condition has no operation {tree[0]!r}")
        found: pa.Array = made(*tree) if tree[0] in _NAMED else made(*tree[1:])
        return found

    # -- values

    def _column(self, side: str, name: str) -> pa.Array:
        if (side, name) not in self.gathered:
            table, rows = self.taken[side]
            self.gathered[side, name] = gather(table.column(name), pa.array(rows, pa.int64()))
        return self.gathered[side, name]

    def _constant(self, number: int) -> pa.Array:
        return pa.repeat(self.condition.constants[number], self.count)

    def _cast(self, kind: str, tree: Tree) -> pa.Array:
        values = self.value(tree)
        if pa.types.is_decimal(values.type) and kind == "double":
            values = values.cast(pa.string())  # by way of text, which is rounded as Java rounds
        return values.cast(_type(kind), safe=pa.types.is_decimal(_type(kind)))

    def _null_if(self, tree: Tree, flag: Tree) -> pa.Array:
        values = self.value(tree)
        return pc.if_else(self.value(flag), pa.scalar(None, values.type), values)

    # -- logic

    def _and(self, one: Tree, other: Tree) -> pa.Array:
        first = self.value(one)
        return pc.and_kleene(first, self._where(other, lambda: pc.fill_null(first, True)))

    def _or(self, one: Tree, other: Tree) -> pa.Array:
        first = self.value(one)
        return pc.or_kleene(first, self._where(other, lambda: pc.invert(pc.fill_null(first, False))))

    def _coalesce(self, *trees: Tree) -> pa.Array:
        found = self.value(trees[0])
        for tree in trees[1:]:
            found = pc.coalesce(found, self._where(tree, partial(pc.is_null, found)))
        return found

    def _where(self, tree: Tree, is_open: Callable[[], pa.Array]) -> pa.Array:
        """An expression where it is needed, null elsewhere."""
        if not _can_fail(tree):
            return self.value(tree)
        rows = np.flatnonzero(numpy_of(is_open()).astype(np.bool_))
        if len(rows) == self.count:
            return self.value(tree)
        taken = {side: (table, numbers[rows]) for side, (table, numbers) in self.taken.items()}
        some = _Pairs(self.condition, taken, len(rows)).value(tree)
        places = np.zeros(self.count, np.int64)
        places[rows] = np.arange(len(rows))
        absent = np.ones(self.count, np.bool_)
        absent[rows] = False
        return pc.take(some, pa.array(places, mask=absent))

    def _not(self, tree: Tree) -> pa.Array:
        return pc.invert(self.value(tree))

    def _is_null(self, tree: Tree) -> pa.Array:
        return pc.is_null(self.value(tree))

    # -- comparisons

    def _compare(self, operation: str, one: Tree, other: Tree) -> pa.Array:
        return _compared(operation, self.value(one), self.value(other))

    def _same(self, one: Tree, other: Tree) -> pa.Array:
        first, second = self.value(one), self.value(other)
        neither = pc.and_(pc.is_null(first), pc.is_null(second))
        return pc.or_(pc.fill_null(_compared("=", first, second), False), neither)

    def _like(self, tree: Tree, pattern: Tree) -> pa.Array:
        text = self.condition.constants[pattern[1]].as_py()
        return pa.nulls(self.count, pa.bool_()) if text is None else pc.match_like(self.value(tree), text)

    # -- numbers and times

    def _arithmetic(self, operation: str, one: Tree, other: Tree) -> pa.Array:
        first, second = self.value(one), self.value(other)
        result = _result_type(operation, first.type, second.type)
        computed = ARITHMETIC[operation][self._is_checked(result)](_number(first), _number(second))
        return computed.view(result) if pa.types.is_temporal(result) else computed

    def _sign(self, operation: str, tree: Tree) -> pa.Array:
        values = self.value(tree)
        computed = SIGNS[operation][self._is_checked(values.type)](_number(values))
        return computed.view(values.type) if pa.types.is_temporal(values.type) else computed

    def _is_checked(self, kind: pa.DataType) -> bool:
        """Spark checks times in any mode, and numbers with a fraction in none."""
        return pa.types.is_temporal(kind) or (self.condition.ansi and not pa.types.is_floating(kind))


_METHODS = {
    **dict.fromkeys(("=", "<", "<="), "compare"),
    **dict.fromkeys(ARITHMETIC, "arithmetic"),
    **dict.fromkeys(SIGNS, "sign"),
    "<=>": "same",
    "is null": "is_null",
    "null if": "null_if",
}
_NAMED = {"=", "<", "<=", *ARITHMETIC, *SIGNS}  # their methods are told which it is


def _type(name: str) -> pa.DataType:
    """A type as it is written in a condition.

    >>> _type("int16"), _type("decimal(12, 2)")
    (DataType(int16), Decimal128Type(decimal128(12, 2)))
    """
    if name.startswith("decimal("):
        precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return pa.type_for_alias(name)


def _compared(operation: str, first: pa.Array, second: pa.Array) -> pa.Array:
    if not pa.types.is_floating(first.type):
        if pa.types.is_boolean(first.type):
            first, second = first.cast(pa.int8()), second.cast(pa.int8())
        return {"=": pc.equal, "<": pc.less, "<=": pc.less_equal}[operation](first, second)
    known = pc.and_(pc.is_valid(first), pc.is_valid(second))
    a, b = (numpy_of(pc.fill_null(values, 0.0)) for values in (first, second))
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    equal, less = (a == b) | (nan_a & nan_b), (a < b) | (~nan_a & nan_b)
    found = {"=": equal, "<": less, "<=": equal | less}[operation]
    return pa.array(found, mask=~numpy_of(known).astype(np.bool_))


def _number(values: pa.Array) -> pa.Array:
    return values.view(pa.int64()) if pa.types.is_temporal(values.type) else values


def _result_type(operation: str, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """A time and an interval give a time, two times an interval."""
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return pa.duration("us")
    return other if pa.types.is_timestamp(other) else one
