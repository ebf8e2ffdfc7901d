"""What is known of the keys of two inputs, as Spark sees it: punctuations in rows or beside them, and constraints.

Checks what the user has said, and turns it into the names and columns that the operators know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.errors import ColumnError, KeyTypeError, OptionError
from watersmeet.plan.options import known_fields
from watersmeet.punctuated.promises.constraints import Clustered, Constraint, OneToMany, Ordered
from watersmeet.punctuated.promises.ordering import is_ordered
from watersmeet.spark.binding import internal_name
from watersmeet.spark.promises import FIELDS, Promised
from watersmeet.spark.schema import Source, arrow_type, check_streaming, find_column, quoted

_SEQUENCES = (T.IntegralType, T.FloatType, T.DoubleType, T.DateType, T.TimestampType, T.TimestampNTZType)


@known_fields
@dataclass(frozen=True)
class PunctuationRows:
    """Punctuations are rows of the input itself, marked by a column.

    A boolean column: where it is true, the row is a punctuation for its key (a key column that is null may be
    anything). Or the column that another `punctuated_join` wrote with `propagate`. It is not part of the output.

    >>> PunctuationRows("is_end")
    PunctuationRows(column='is_end')
    """

    column: str


Punctuations = PunctuationRows | DataFrame


class KeyFacts:
    """The constraints and punctuations of a join's two inputs; `key_types` are those of the join's key columns."""

    def __init__(self, who: str, constraints: Sequence[Constraint], key_types: Sequence[T.DataType]) -> None:
        self.who, self.constraints, self.key_types = who, tuple(constraints), tuple(key_types)

    def sequences(self, source: Source) -> list[int]:
        """The positions of an input's columns by which its rows are ordered."""
        return [
            find_column(self.who, source.name, source.frame, one.sequence)
            for one in self.constraints
            if not isinstance(one, OneToMany) and one.input == source.name and one.sequence is not None
        ]

    def resolved(self, sources: Sequence[Source]) -> tuple[Constraint, ...]:
        """The constraints with internal column names."""
        return tuple(self._resolved(constraint, sources) for constraint in self.constraints)

    def _resolved(self, constraint: Constraint, sources: Sequence[Source]) -> Constraint:
        """The constraint with internal column names."""
        if isinstance(constraint, OneToMany):
            return constraint
        source = next(source for source in sources if source.name == constraint.input)
        if constraint.sequence is not None:
            constraint = replace(constraint, sequence=self._sequence(constraint.sequence, source))
        if isinstance(constraint, Clustered):
            return constraint
        index = self._ordered_key(constraint, source)
        if index in source.nulls_match:
            raise OptionError(
                self.who,
                expected="Ordered on a key of which nulls match nothing",
                found=f"nulls_match for {source.fields[source.keys[index]].name}, and Ordered({source.name!r})",
                hint="A null has no place in an order: replace nulls by a value, or leave the constraint out.",
                option="constraints",
                input=source.name,
            )
        return replace(constraint, key=f"_k{index}")

    def check_nulls_match(self, source: Source, option: str) -> None:
        """Refuse an option that speaks of punctuations where nulls match: a null in a punctuation means anything, so
        that none could speak of the key that is null."""
        if source.nulls_match:
            raise OptionError(
                self.who,
                expected=f"nulls_match without {option}",
                found="both: in a punctuation a null in the key means anything",
                hint="Replace nulls in the key by a value, for example with coalesce, and leave nulls_match out.",
                option="nulls_match",
            )

    def _sequence(self, name: str, source: Source) -> str:
        position = find_column(self.who, source.name, source.frame, name)
        kind = source.fields[position].dataType
        if not isinstance(kind, _SEQUENCES):
            raise OptionError(
                self.who,
                expected="a sequence column that is a number, a date or a timestamp",
                found=f"{source.name}.{name}: {kind.simpleString()}",
                hint="Name a column by which the rows of a micro-batch can be put in order.",
                option="constraints",
                column=name,
                input=source.name,
            )
        return internal_name(source, position)

    def _ordered_key(self, constraint: Ordered, source: Source) -> int:
        names = [source.fields[position].name for position in source.keys]
        if constraint.key is None and len(names) > 1:
            raise OptionError(
                self.who,
                expected="Ordered(..., key=...) to name the key column that is in order",
                found=f"no key, and the key columns {', '.join(names)}",
                hint=f"For example Ordered({source.name!r}, key={names[0]!r}).",
                option="constraints",
                input=source.name,
            )
        index = 0
        if constraint.key is not None:
            position = find_column(self.who, source.name, source.frame, constraint.key)
            if position not in source.keys:
                raise ColumnError(
                    self.who,
                    expected=f"Ordered(key=...) to name a key column: {', '.join(names)}",
                    found=repr(constraint.key),
                    hint="Name one of the columns in on.",
                    option="constraints",
                    column=constraint.key,
                    input=source.name,
                )
            index = source.keys.index(position)
        if not is_ordered(arrow_type(self.key_types[index])):
            raise KeyTypeError(
                self.who,
                expected="Ordered on a key of numbers, decimals of up to 18 digits, booleans, times, strings or binary",
                found=f"{source.name}.{names[index]}: {self.key_types[index].simpleString()}",
                hint="Cast the key, or leave the constraint out.",
                option="constraints",
                column=names[index],
                input=source.name,
            )
        return index

    def with_punctuations(self, sources: Sequence[Source], punctuations: Any) -> list[Source]:
        """The sources with their punctuations: marked in the rows, or as sources of their own."""
        by_name = {source.name: source for source in sources}
        own = []
        if not isinstance(punctuations, Mapping | None):
            raise OptionError(
                self.who,
                expected="punctuations = a dict from input to where its punctuations come from",
                found=repr(punctuations),
                hint="Write for example {'right': PunctuationRows('is_end')}.",
                option="punctuations",
            )
        if punctuations:
            self.check_nulls_match(sources[0], "punctuations")
        for name, given in (punctuations or {}).items():
            if name not in by_name:
                raise OptionError(
                    self.who,
                    expected="punctuations for the inputs 'left' and 'right'",
                    found=repr(name),
                    hint="Name the input, not the DataFrame.",
                    option="punctuations",
                )
            if isinstance(given, PunctuationRows):
                by_name[name] = self._marked(by_name[name], given.column)
            elif isinstance(given, DataFrame):
                own.append(self._separate(by_name[name], given))
            else:
                raise OptionError(
                    self.who,
                    expected="punctuations to be PunctuationRows(column) or a streaming DataFrame",
                    found=f"{type(given).__name__} for {name!r}",
                    hint="Mark the punctuations in the input's rows, or send them as a stream of their own.",
                    option="punctuations",
                )
        return [by_name["left"], by_name["right"], *own]

    def _marked(self, source: Source, name: str) -> Source:
        position = find_column(self.who, source.name, source.frame, name)
        kind = source.fields[position].dataType
        payload = [i for i in source.payload if i != position]
        if isinstance(kind, T.BooleanType) and position not in source.keys:
            return replace(source, payload=payload, marker=position)
        if not (
            isinstance(kind, T.StructType)
            and len(kind) == len(self.key_types) + 2
            and kind.names[-2:] == ["part", "parts"]
        ):
            raise ColumnError(
                self.who,
                expected="PunctuationRows to name a boolean column, or one that propagate= has written",
                found=f"{source.name}.{name}: {kind.simpleString()}",
                hint="Add a column that is true in punctuations and false in rows.",
                option="punctuations",
                column=name,
                input=source.name,
            )
        column = quoted(source.fields[position].name)
        ends = []
        for field, key_type in zip(kind.fields, self.key_types, strict=False):
            promised = Promised(self.who, f"{source.name}.{field.name}", key_type)
            # Of a single value only the row itself tells; no range of a type without an order is ever propagated.
            ends += promised.pattern(column.getField(field.name), self._pattern_type(field.name, field.dataType))[1]
        ends += [column.getField("part"), column.getField("parts")]
        width = len(source.fields)
        extended = source.frame.select(
            "*", column.isNotNull().alias(f"_marker{width}"), *(end.alias(f"_end{i}") for i, end in enumerate(ends))
        )
        extra = list(range(width + 1, width + 1 + len(ends)))
        return replace(source, frame=extended, payload=payload + extra, marker=width, marked=len(extra))

    def _separate(self, source: Source, frame: DataFrame) -> Source:
        """A stream of punctuations in the layout of the operator."""
        check_streaming(self.who, f"punctuations of {source.name}", frame, option="punctuations")
        values, ends = [], []
        for position, key_type in zip(source.keys, self.key_types, strict=True):
            name = source.fields[position].name
            at = find_column(self.who, f"punctuations of {source.name}", frame, name)
            kind, column = frame.schema.fields[at].dataType, quoted(frame.columns[at])
            promised = Promised(self.who, f"{source.name}.{name}", key_type)
            if isinstance(kind, T.ArrayType):  # a set of values is as many punctuations
                others = [quoted(c) for i, c in enumerate(frame.columns) if i != at]
                frame = frame.select(*others, F.explode(promised.set(column, kind)).alias(frame.columns[at]))
                kind = kind.elementType
            if isinstance(kind, T.StructType):
                value, of_range = promised.pattern(column, self._ordered_pattern_type(source, name, kind, key_type))
                values.append(value)
                ends += of_range
            else:
                values.append(promised.value(column, kind))
                ends += [F.lit(None).cast(key_type)] * 2 + [F.lit(None).cast("boolean")] * 2
        columns = [*values, *ends]
        made = frame.select(*(column.alias(f"c{i}") for i, column in enumerate(columns)))
        count = len(values)
        return Source(source.name, made, list(range(count)), list(range(count, len(columns))), kind="punctuations")

    def _pattern_type(self, name: str, kind: T.DataType) -> T.StructType:
        if not isinstance(kind, T.StructType) or kind.names != list(FIELDS):
            raise ColumnError(
                self.who,
                expected=f"a pattern for {name!r}: a value, an array of values, or a struct of {', '.join(FIELDS)}",
                found=kind.simpleString(),
                hint="Build it with watersmeet.patterns.",
                option="punctuations",
                column=name,
            )
        return kind

    def _ordered_pattern_type(self, source: Source, name: str, kind: T.DataType, key_type: T.DataType) -> T.StructType:
        """The type of a pattern on a key that has an order."""
        kind = self._pattern_type(name, kind)
        is_range = not isinstance(kind["low"].dataType, T.NullType) or not isinstance(kind["high"].dataType, T.NullType)
        if is_range and not is_ordered(arrow_type(key_type)):
            raise KeyTypeError(
                self.who,
                expected=f"single values as punctuations of {source.name}.{name}",
                found=f"patterns on a key of type {key_type.simpleString()}, which has no order here",
                hint="Send the values themselves, or cast the key.",
                option="punctuations",
                column=name,
                input=source.name,
            )
        return kind
