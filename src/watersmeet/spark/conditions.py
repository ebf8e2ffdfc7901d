"""`where=`: a SQL condition on pairs of rows with equal keys, from its text to a tree that the tasks evaluate.

    text        "left.price <= right.limit and right.at > left.at + interval 5 minutes"
    parse       sqlglot's tree; the columns that it names
    Spark       says whether names and types are right, what constants are, of which type each part is, and whether it
                reads the text as sqlglot does (both are asked for the text with all its parentheses)
    plan        a tree of columns, constants and operations in which both sides have one type (see `join.condition`)

Whatever is not listed in docs/conditions.md is refused, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, reduce
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from sqlglot import exp

from watersmeet.columns.arrow import relabelled
from watersmeet.errors import ColumnError, OptionError
from watersmeet.join.condition import Tree, constants
from watersmeet.spark.binding import MakeCondition, internal_name, null_flag
from watersmeet.spark.condition_text import ARITHMETIC, constants_in, is_constant, written
from watersmeet.spark.condition_types import INTERVAL, TIMES, arrow_name, common, is_fixed, is_number, supported
from watersmeet.spark.plans import plans
from watersmeet.spark.schema import Source, arrow_type, comparable_name, find_column

SUBSET = (
    "comparisons (=, <=>, <>, <, <=, >, >=), AND, OR, NOT, IS [NOT] NULL, [NOT] IN (...), [NOT] BETWEEN, [NOT] LIKE "
    "with a constant, +, - and * on numbers and times, coalesce, abs, columns and constants"
)
_COMPARISONS: dict[type[exp.Expr], tuple[str, str, bool]] = {
    exp.EQ: ("=", "=", False), exp.LT: ("<", "<", False), exp.LTE: ("<=", "<=", False), exp.GT: (">", "<", True),
    exp.GTE: (">=", "<=", True), exp.NullSafeEQ: ("<=>", "<=>", False),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of a condition: its type, how to compute it, and its text with all parentheses. A constant has no tree."""

    kind: T.DataType
    sql: str
    tree: Tree | None = None
    suffixed: str = ""  # the text with numbers such as 5L


class Where:
    """The condition of a join. Its inputs are called by the names in `sources`, their own and their aliases."""

    def __init__(self, who: str, text: str, sources: Mapping[str, Source]) -> None:
        self.who, self.text = who, text
        self.sources = dict(sources)
        self.session: Any = next(iter(sources.values())).frame.sparkSession
        self.root = self._parsed()
        self.found = {id(node): self._resolved(node) for node in self.root.find_all(exp.Column)}
        self._constants: list[tuple[str, T.DataType]] = []
        self._probes: list[tuple[str, T.DataType]] = []

    def needed(self, side: str) -> list[int]:
        """The positions of the columns of a side that it names."""
        return sorted({position for name, position in self.found.values() if name == side})

    def plan(self, sources: Sequence[Source], key_types: Sequence[T.DataType]) -> dict[str, Any]:
        """What the tasks evaluate; `sources` are as they travel."""
        self.sources = dict(zip(self.sources, sources, strict=True))
        self.key_types = key_types
        self._constants, self._probes = [], []
        part = self._part(self.root)
        if not isinstance(part.kind, T.BooleanType):
            self._refuse(self.root, f"it is of type {part.kind.simpleString()}", "Write a condition, such as a < b.")
        tree = self._tree(part)
        self._check_with_spark(part)
        return {"text": self.text, "tree": tree, "ansi": self._ansi, **constants(self._folded())}

    # -- names

    def _parsed(self) -> exp.Expr:
        text: Any = self.text
        if not isinstance(text, str) or not text.strip():
            raise OptionError(
                self.who,
                expected="where = a SQL condition as text",
                found=repr(self.text),
                hint="Write for example where='left.price <= right.limit'.",
                option="where",
            )
        try:
            return sqlglot.parse_one(self.text, dialect="spark")
        except sqlglot.errors.SqlglotError as error:
            reason = re.sub(r"Required keyword: .* for <class .*>", "a part is missing", str(error).splitlines()[0])
            raise OptionError(
                self.who,
                expected="where = a condition in Spark's SQL",
                found=f"{self.text!r} ({reason})",
                hint="Write for example where='left.price <= right.limit'.",
                option="where",
            ) from None

    @cached_property
    def _qualifiers(self) -> dict[str, str]:
        """The names by which the inputs may be called."""
        aliases = {side: plans(source.frame).alias() for side, source in self.sources.items()}
        named = {comparable_name(self.session, name): side for side, name in aliases.items() if name}
        if len(named) < sum(map(bool, aliases.values())):
            named = {}  # two have the same
        own = {comparable_name(self.session, source.name): side for side, source in self.sources.items()}
        return {**named, **own, **{comparable_name(self.session, side): side for side in self.sources}}

    def _resolved(self, node: exp.Column) -> tuple[str, int]:
        """The input and the position of a column."""
        if node.args.get("db") is not None:
            self._refuse(node, "it is a field of a column, or has too many names", "Select the field before the join.")
        if node.table:
            side = self._qualifiers.get(comparable_name(self.session, node.table))
            if side is None:
                self._refuse(
                    node, f"no input is called {node.table!r}", f"The inputs are {', '.join(self._qualifiers)}."
                )
            sides = [side]
        else:
            wanted = comparable_name(self.session, node.name)
            sides = [
                side
                for side, source in self.sources.items()
                if wanted in (comparable_name(self.session, name) for name in source.frame.columns)
            ]
            if len(sides) != 1:
                several = "both" if len(self.sources) == 2 else "several"
                found = f"{several} inputs have" if sides else "no input has"
                names = " or ".join(f"{side}.name" for side in list(self.sources)[:2])
                self._refuse(node, f"{found} a column {node.name!r}", f"Write {names}.")
        source = self.sources[sides[0]]
        position = find_column(self.who, sides[0], source.frame, node.name)
        if position not in source.keys and position not in source.payload:
            raise ColumnError(
                self.who,
                expected="where to name columns of rows",
                found=f"{node.sql()}, which marks punctuations",
                hint="Leave it out.",
                option="where",
                column=node.name,
                input=sides[0],
            )
        return sides[0], position

    def _named(self, side: str, position: int) -> str:
        return f"{_quoted(self.called(side))}.{_quoted(self.sources[side].fields[position].name)}"

    def called(self, side: str) -> str:
        """What the text calls an input."""
        named = [
            node.table for node in self.root.find_all(exp.Column) if node.table and self.found[id(node)][0] == side
        ]
        if len({comparable_name(self.session, name) for name in named}) > 1:
            self._refuse(self.root, f"it calls input {side!r} by several names", "Use one of them.")
        return named[0] if named else side

    # -- parts

    def _part(self, node: exp.Expr) -> Part:
        """A part with its type."""
        if isinstance(node, exp.Paren):
            return self._part(node.this)
        if is_constant(node):
            return self._constant(node)
        if isinstance(node, exp.Column):
            return self._column(node)
        for kind, make in self._MAKERS.items():
            if isinstance(node, kind):
                made: Part = make(self, node)
                return made
        what = f"no function {node.name.lower()}" if isinstance(node, exp.Anonymous) else "nothing like it"
        return self._refuse(node, f"conditions have {what}", f"They have {SUBSET}.")

    def _column(self, node: exp.Column) -> Part:
        side, position = self.found[id(node)]
        source = self.sources[side]
        declared = source.fields[position].dataType
        kind = supported(declared)
        if kind is None or isinstance(
            kind, T.NullType
        ):  # a bare NULL takes the type it is compared with, no column does
            self._refuse(node, f"it is of type {declared.simpleString()}", "Cast the column before the join.")
        tree: Tree = ["column", side, internal_name(source, position)]
        if position in source.keys:
            key = self.key_types[source.keys.index(position)]
            if key != declared and is_number(kind):  # keys of two widths are compared as the wider one
                tree = ["cast", arrow_name(kind), tree]
            if flag := null_flag(source, position):
                tree = ["null if", tree, ["column", side, flag]]
        return Part(kind, self._named(side, position), tree)

    def _constant(self, node: exp.Expr) -> Part:
        sql = written(node)
        declared = self._constant_types[sql]
        kind = supported(declared)
        if kind is None:
            self._refuse(node, f"it is of type {declared.simpleString()}", "Write a constant of another type.")
        return Part(kind, sql, suffixed=written(node, suffixes=True))

    @cached_property
    def _constant_types(self) -> dict[str, T.DataType]:
        """The type of each constant, by its text: Spark is asked once for all."""
        texts = list(dict.fromkeys(written(node) for node in constants_in(self.root)))
        try:
            fields = self.session.sql(f"SELECT {', '.join(texts)}").schema.fields
        except PySparkException as error:
            self._refuse(self.root, _first_line(error), "Correct the constant.")
        return {text: field.dataType for text, field in zip(texts, fields, strict=True)}

    def _compared(self, node: exp.Expr) -> Part:
        shown, operation, swap = next(named for kind, named in _COMPARISONS.items() if type(node) is kind)
        one, other = self._part(node.this), self._part(node.expression)
        kind = self._common(node, one, other)
        trees = [self._tree(one, kind), self._tree(other, kind)]
        tree = [operation, *(reversed(trees) if swap else trees)]
        return _made(T.BooleanType(), tree, "({} {} {})", one, shown, other)

    def _different(self, node: exp.Expr) -> Part:
        null_safe = isinstance(node, exp.NullSafeNEQ)
        one, other = self._part(node.this), self._part(node.expression)
        kind = self._common(node, one, other)
        tree = ["not", ["<=>" if null_safe else "=", self._tree(one, kind), self._tree(other, kind)]]
        return _made(T.BooleanType(), tree, "({} {} {})", one, "IS DISTINCT FROM" if null_safe else "<>", other)

    def _logical(self, node: exp.Expr) -> Part:
        """A chain of one operator becomes a balanced tree, as Spark makes one of it."""
        word, kind = ("AND", exp.And) if isinstance(node, exp.And) else ("OR", exp.Or)
        links = []
        while isinstance(node, kind):
            links.append(node.expression)
            node = node.this
        parts = [self._truth(link) for link in (node, *reversed(links))]

        def balanced(low: int, high: int) -> Part:
            if low == high:
                return parts[low]
            middle = low + (high - low) // 2
            one, other = balanced(low, middle), balanced(middle + 1, high)
            tree = [word.lower(), self._tree(one), self._tree(other)]
            return _made(T.BooleanType(), tree, "({} {} {})", one, word, other)

        return balanced(0, len(parts) - 1)

    def _negated(self, node: exp.Expr) -> Part:
        inner = node.this
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            part = self._part(inner.this)
            return _made(T.BooleanType(), ["not", ["is null", self._tree(part)]], "({} IS NOT NULL)", part)
        part = self._truth(inner)
        return _made(T.BooleanType(), ["not", self._tree(part)], "(NOT {})", part)

    def _truth(self, node: exp.Expr) -> Part:
        part = self._part(node)
        if not isinstance(part.kind, T.BooleanType | T.NullType):
            self._refuse(node, f"it is of type {part.kind.simpleString()}", "Write a condition.")
        return part

    def _is(self, node: exp.Expr) -> Part:
        if not isinstance(node.expression, exp.Null):
            self._refuse(node, "only IS NULL is known", "Write a = true, or coalesce(a, false).")
        part = self._part(node.this)
        return _made(T.BooleanType(), ["is null", self._tree(part)], "({} IS NULL)", part)

    def _in(self, node: exp.Expr) -> Part:
        if node.args.get("query") is not None or not node.expressions:
            self._refuse(node, "it is no list of values", "Join with the other table instead.")
        one, others = self._part(node.this), [self._part(value) for value in node.expressions]
        kind = one.kind
        for other in others:
            kind = self._common(node, Part(kind, "", one.tree), other)
        trees = [["=", self._tree(one, kind), self._tree(other, kind)] for other in others]
        tree = trees[0]
        for more in trees[1:]:
            tree = ["or", tree, more]
        listed = ", ".join(["{}"] * len(others))
        return _made(T.BooleanType(), tree, f"({{}} IN ({listed}))", one, *others)

    def _between(self, node: exp.Expr) -> Part:
        one, low, high = (self._part(node.args[name]) for name in ("this", "low", "high"))
        from_low, to_high = self._common(node, one, low), self._common(node, one, high)
        tree = [
            "and",
            ["<=", self._tree(low, from_low), self._tree(one, from_low)],
            ["<=", self._tree(one, to_high), self._tree(high, to_high)],
        ]
        return _made(T.BooleanType(), tree, "({} BETWEEN {} AND {})", one, low, high)

    def _like(self, node: exp.Expr) -> Part:
        one, pattern = self._part(node.this), self._part(node.expression)
        if not all(isinstance(part.kind, T.StringType) for part in (one, pattern)) or pattern.tree is not None:
            self._refuse(node, "LIKE needs text and a constant pattern", "Write for example left.name LIKE 'a%'.")
        if "\\" in str(self._value(pattern)):
            self._refuse(node, "the pattern has an escape", "Compare with = what has % or _ in it.")
        tree = ["like", self._tree(one), self._tree(pattern)]
        if node.args.get("negate"):
            return _made(T.BooleanType(), ["not", tree], "(NOT ({} LIKE {}))", one, pattern)
        return _made(T.BooleanType(), tree, "({} LIKE {})", one, pattern)

    def _coalesced(self, node: exp.Expr) -> Part:
        parts = [self._part(value) for value in (node.this, *node.expressions)]
        kind = parts[0].kind
        for part in parts[1:]:
            kind = self._common(node, Part(kind, "", ["?"]), part)
        listed = ", ".join(["{}"] * len(parts))
        trees = [self._tree(part, kind) for part in parts]
        return self._probed(_made(kind, ["coalesce", *trees], f"coalesce({listed})", *parts))

    def _signed(self, node: exp.Expr) -> Part:
        operation, text = ("negate", "(- {})") if isinstance(node, exp.Neg) else ("abs", "abs({})")
        part = self._part(node.this)
        if not is_number(part.kind) and (operation == "abs" or part.kind != INTERVAL):
            self._refuse(node, f"{part.sql} is of type {part.kind.simpleString()}", _NUMBERS)
        return self._probed(_made(part.kind, [operation, self._tree(part)], text, part))

    def _computed(self, node: exp.Expr) -> Part:
        operation = ARITHMETIC[type(node)]
        one, other = self._part(node.this), self._part(node.expression)
        if any(isinstance(part.kind, (*TIMES, T.DayTimeIntervalType)) for part in (one, other)):
            return self._shifted(node, operation, one, other)
        kind = common(one.kind, other.kind, ansi=self._ansi)
        if kind is None or not is_number(kind):
            kinds = " and ".join(part.kind.simpleString() for part in (one, other))
            self._refuse(node, f"its parts are of types {kinds}", _NUMBERS)
        tree = [operation, self._tree(one, kind), self._tree(other, kind)]
        return self._probed(_made(kind, tree, "({} {} {})", one, operation, other))

    def _shifted(self, node: exp.Expr, operation: str, one: Part, other: Part) -> Part:
        """A time and an interval, two times, or two intervals."""
        kinds, moments = (one.kind, other.kind), (T.TimestampType, T.TimestampNTZType)
        kind: T.DataType = INTERVAL
        if isinstance(one.kind, moments) and other.kind == INTERVAL and operation in "+-":
            kind = one.kind
        elif one.kind == INTERVAL and isinstance(other.kind, moments) and operation == "+":
            kind = other.kind
        elif not (
            (operation == "-" and isinstance(one.kind, moments) and one.kind == other.kind)
            or (operation in "+-" and kinds == (INTERVAL, INTERVAL))
        ):
            named = " and ".join(kind.simpleString() for kind in kinds)
            self._refuse(node, f"its parts are of types {named}", "Add intervals of days to seconds to timestamps.")
        if T.TimestampType() in kinds and not is_fixed(self._zone):
            interval = next((part for part in (one, other) if part.kind == INTERVAL), None)
            value = self._value(interval) if interval is not None and interval.tree is None else None
            if not isinstance(value, timedelta) or abs(value) >= timedelta(days=1):
                self._refuse(
                    node,
                    f"days have different lengths in the session's time zone, {self._zone}",
                    "Set spark.sql.session.timeZone to UTC, use timestamp_ntz, or an interval of less than a day.",
                )
        return self._probed(
            _made(kind, [operation, self._tree(one), self._tree(other)], "({} {} {})", one, operation, other)
        )

    _MAKERS: ClassVar[dict[type[exp.Expr], Callable[..., Part]]] = {
        **dict.fromkeys(_COMPARISONS, _compared),
        **dict.fromkeys((exp.NEQ, exp.NullSafeNEQ), _different),
        **dict.fromkeys((exp.And, exp.Or), _logical),
        exp.Not: _negated,
        exp.Is: _is,
        exp.In: _in,
        exp.Between: _between,
        exp.Like: _like,
        exp.Coalesce: _coalesced,
        **dict.fromkeys((exp.Neg, exp.Abs), _signed),
        **dict.fromkeys(ARITHMETIC, _computed),
    }

    # -- types and trees

    def _common(self, node: exp.Expr, one: Part, other: Part) -> T.DataType:
        for text, time in ((one, other), (other, one)):
            if text.tree is None and isinstance(text.kind, T.StringType) and isinstance(time.kind, TIMES):
                return time.kind  # as Spark reads constant text beside a time
        kind = common(one.kind, other.kind, ansi=self._ansi)
        if kind is None or isinstance(kind, T.NullType):
            kinds = " and ".join(part.kind.simpleString() for part in (one, other))
            self._refuse(node, f"it compares {kinds}", "Cast one of them before the join, or write another constant.")
        return kind

    def _tree(self, part: Part, kind: T.DataType | None = None) -> Tree:
        """How to compute a part, in its own type or in another one."""
        if part.tree is None:
            kind = kind or (T.BooleanType() if isinstance(part.kind, T.NullType) else part.kind)
            self._constants.append((f"CAST({part.sql} AS {kind.simpleString()})", kind))
            return ["constant", len(self._constants) - 1]
        return part.tree if kind is None or kind == part.kind else ["cast", arrow_name(kind), part.tree]

    def _probed(self, part: Part) -> Part:
        """A part of which Spark is asked whether it has this type."""
        self._probes.append((part.sql, part.kind))
        return part

    # -- what Spark says

    @cached_property
    def _ansi(self) -> bool:
        return str(self.session.conf.get("spark.sql.ansi.enabled")).lower() == "true"

    @cached_property
    def _zone(self) -> str:
        """Where it is not set, it is that of Spark's machine: a default given here would hide it."""
        return str(self.session.conf.get("spark.sql.session.timeZone"))

    def _pairs(self) -> DataFrame:
        """The columns that the condition names; only their types matter."""
        sides = []
        for side, source in self.sources.items():
            fields = [source.fields[position] for position in self.needed(side)]
            columns = ", ".join(
                f"CAST(NULL AS {(supported(field.dataType) or field.dataType).simpleString()}) AS {_quoted(field.name)}"
                for field in fields
            )
            sides.append(self.session.sql(f"SELECT {columns or '1 AS _'}").alias(self.called(side)))
        together: DataFrame = reduce(DataFrame.crossJoin, sides)
        return together

    def _check_with_spark(self, part: Part) -> None:
        """Names and types must be right for Spark too, and it must read the text as it was read here."""
        probes = [f"{sql} AS p{number}" for number, (sql, _) in enumerate(self._probes)]
        texts = [self.text, part.sql, part.suffixed or part.sql]
        try:
            fields = self._pairs().selectExpr(*texts, *probes).schema.fields
        except PySparkException as error:
            self._refuse(self.root, _first_line(error), "Correct the condition.")
        if fields[0].name not in (fields[1].name, fields[2].name):
            self._refuse(
                self.root, f"Spark reads it as {fields[0].name}", f"Write it with all its parentheses: {part.sql}"
            )
        for (sql, kind), field in zip(self._probes, fields[3:], strict=True):
            if supported(field.dataType) != kind:
                self._refuse(
                    self.root,
                    f"{sql} is of type {field.dataType.simpleString()} for Spark and {kind.simpleString()} here",
                    "Cast the columns to one type before the join.",
                )

    def _folded(self) -> dict[str, pa.Array]:
        """The values of all constants, as Spark computes them."""
        if not self._constants:
            return {}
        columns = ", ".join(f"{sql} AS c{number}" for number, (sql, _) in enumerate(self._constants))
        try:
            table = self.session.sql(f"SELECT {columns}").toArrow()
        except PySparkException as error:
            self._refuse(self.root, _first_line(error), "Correct the constant.")
        kinds = [arrow_type(kind) for _, kind in self._constants]
        chunks = (column.combine_chunks() for column in table.columns)
        return {f"c{n}": relabelled(_whole(one), kind) for n, (one, kind) in enumerate(zip(chunks, kinds, strict=True))}

    def _value(self, part: Part) -> Any:
        """The value of a constant."""
        return self.session.sql(f"SELECT {part.sql} AS c").toArrow().column(0)[0].as_py()

    def _refuse(self, node: exp.Expr, why: str, hint: str) -> NoReturn:
        shown = node.sql(dialect="spark")
        inside = "" if node is self.root else f" in {self.text!r}"
        raise OptionError(
            self.who,
            expected="where = a condition that can be evaluated in the join",
            found=f"{shown!r}{inside}: {why}",
            hint=hint,
            option="where",
        )


_NUMBERS = "Compute with whole numbers, float and double; cast decimals to double before the join, and write 1.5D."


def where_of(
    who: str, text: str | None, sources: Sequence[Source], sides: Sequence[str] = ("left", "right")
) -> Where | None:
    """The condition of a join, if it has one."""
    return None if text is None else Where(who, text, dict(zip(sides, sources, strict=False)))


def condition_columns(where: Where | None) -> list[int]:
    """The positions of the right input's columns that a condition needs."""
    return [] if where is None else where.needed("right")


def condition_of(where: Where | None) -> MakeCondition | None:
    """What makes the condition of a plan."""
    return None if where is None else where.plan


def _made(kind: T.DataType, tree: Tree, text: str, *pieces: Part | str) -> Part:
    shown = [piece if isinstance(piece, str) else piece.sql for piece in pieces]
    suffixed = [piece if isinstance(piece, str) else piece.suffixed or piece.sql for piece in pieces]
    return Part(kind, text.format(*shown), tree, text.format(*suffixed))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _whole(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _first_line(error: PySparkException) -> str:
    return str(error).strip().splitlines()[0]
