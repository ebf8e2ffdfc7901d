"""Types that `mapInArrow` does not return, carried as ones that it does.

    interval year to month, ...   as int, the number of months          also inside arrays, maps and structs
    interval (calendar)           as string, in Spark's own notation    only as a column of its own
    char(n), varchar(n)           as string                             also inside arrays, maps and structs

All other types travel as they are. Encoding is done by Spark before the shuffle and undone after the join, without loss.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.errors import ColumnError

MONTH = T.YearMonthIntervalType.MONTH


def encoded_type(kind: T.DataType) -> T.DataType:
    """The type a column of `kind` travels as."""
    if isinstance(kind, T.CalendarIntervalType):
        return T.StringType()
    return _replace(kind, _wire)


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
    """Refuse a column that cannot be carried: a calendar interval inside another type."""
    if not isinstance(field.dataType, T.CalendarIntervalType) and _holds_calendar_interval(field.dataType):
        raise ColumnError(
            who,
            expected="calendar intervals only as columns of their own",
            found=f"{name}.{field.name}: {field.dataType.simpleString()}",
            hint="Move the interval to a column of its own or cast it to string before the join.",
        )


def _wire(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.YearMonthIntervalType):
        return T.IntegerType()
    return T.StringType() if isinstance(kind, (T.CharType, T.VarcharType)) else kind


def _months(kind: T.DataType) -> T.DataType:
    return T.YearMonthIntervalType(MONTH, MONTH) if isinstance(kind, T.YearMonthIntervalType) else kind


def _replace(kind: T.DataType, atom: Callable[[T.DataType], T.DataType]) -> T.DataType:
    """The type with every atomic type in it replaced."""
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_replace(kind.elementType, atom), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(_replace(kind.keyType, atom), _replace(kind.valueType, atom), kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        return T.StructType(
            [T.StructField(f.name, _replace(f.dataType, atom), f.nullable, f.metadata) for f in kind.fields]
        )
    return atom(kind)


def _holds_calendar_interval(kind: T.DataType) -> bool:
    if isinstance(kind, T.ArrayType):
        return _holds_calendar_interval(kind.elementType)
    if isinstance(kind, T.MapType):
        return _holds_calendar_interval(kind.keyType) or _holds_calendar_interval(kind.valueType)
    if isinstance(kind, T.StructType):
        return any(_holds_calendar_interval(f.dataType) for f in kind.fields)
    return isinstance(kind, T.CalendarIntervalType)
