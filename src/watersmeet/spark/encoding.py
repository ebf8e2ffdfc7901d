"""Types that `mapInArrow` does not return, carried as ones that it does.

    interval year to month, ...   as int, the number of months          also inside arrays, maps and structs
    interval (calendar)           as string, in Spark's own notation    only as a column of its own
    char(n), varchar(n)           as string                             also inside arrays, maps and structs
    struct with a name twice      as struct with numbered fields        also inside arrays, maps and structs

All other types travel as they are. Spark encodes before the shuffle and decodes after the join, without loss.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.errors import ColumnError
from watersmeet.spark.schema import arrow_type

MONTH = T.YearMonthIntervalType.MONTH


def encoded_type(kind: T.DataType) -> T.DataType:
    """The type a column of `kind` travels as."""
    if isinstance(kind, T.CalendarIntervalType):
        return T.StringType()
    return _replace(kind, _wire, rename=True)


def encoded(column: Column, kind: T.DataType) -> Column:
    """A column in the form in which it travels."""
    wire = encoded_type(kind)
    if wire == kind:
        return column
    # Months first: only an interval of a single field converts to a number.
    return column.cast(_replace(kind, _months)).cast(wire)


def decoded(column: Column, kind: T.DataType, nullable: bool = True) -> Column:
    """A column back in its own type."""
    if encoded_type(kind) == kind:
        return column
    result = column.cast(_replace(kind, _months)).cast(kind)
    if isinstance(kind, T.CalendarIntervalType) and not nullable:
        return F.coalesce(result, F.expr("make_interval()"))  # Spark takes any parsed string for nullable
    return result


def check_encodable(who: str, name: str, field: T.StructField) -> None:
    """Refuse a column that cannot be carried: a calendar interval inside another type, or a type of no values."""
    try:
        arrow_type(encoded_type(field.dataType))
    except (TypeError, ValueError):  # pyarrow's own, for elements that are void and not null
        raise ColumnError(
            who,
            expected="columns of types that Spark can hand to Python",
            found=f"{name}.{field.name}: {field.dataType.simpleString()}",
            hint="Cast the column to another type before the join (an interval inside another type to string).",
            column=field.name,
            input=name,
        ) from None


def _wire(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.YearMonthIntervalType):
        return T.IntegerType()
    return T.StringType() if isinstance(kind, (T.CharType, T.VarcharType)) else kind


def _months(kind: T.DataType) -> T.DataType:
    return T.YearMonthIntervalType(MONTH, MONTH) if isinstance(kind, T.YearMonthIntervalType) else kind


def _replace(kind: T.DataType, atom: Callable[[T.DataType], T.DataType], rename: bool = False) -> T.DataType:
    """The type with every atomic type in it replaced, and the fields of ambiguous structs numbered."""
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_replace(kind.elementType, atom, rename), kind.containsNull)
    if isinstance(kind, T.MapType):
        key, value = (_replace(part, atom, rename) for part in (kind.keyType, kind.valueType))
        return T.MapType(key, value, kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        ambiguous = rename and len(set(kind.names)) < len(kind.names)
        names = [f"_{i}" for i in range(len(kind.names))] if ambiguous else kind.names
        return T.StructType(
            [
                T.StructField(name, _replace(f.dataType, atom, rename), f.nullable, f.metadata)
                for name, f in zip(names, kind.fields, strict=True)
            ]
        )
    return atom(kind)
