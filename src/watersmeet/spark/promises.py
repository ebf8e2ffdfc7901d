"""Promises as values of the key's type: never more than the punctuation covers.

A punctuation may come in another type than the key. A value must then be exactly a value of the key's type. The end of
a range is rounded, and whether it belongs to the range follows from the direction:

    key int      2.0     2          less_than(2.5), at_most(2.5)       up to 2, 2 included
                 2.5     an error   at_least(2.5), greater_than(2.5)   from 2 on, 2 not included
                 2**40   an error   less_than(2**40)                   an error: it says nothing of an int

A string stands for another type's value if it is written as Spark writes that value. Spark's `try_cast` is the same
with ANSI mode on and off.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.errors import KeyTypeError, PunctuationError
from watersmeet.spark.failure import raised

FIELDS = ("low", "high", "low_closed", "high_closed")

_STRINGS = (T.StringType, T.VarcharType, T.CharType)
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
# Values of one group are compared with each other; strings may also stand for numbers, booleans, times and bytes.
_GROUPS: tuple[tuple[type[T.DataType], ...], ...] = (
    (T.NumericType,), _TIMES, _STRINGS, (T.BooleanType,), (T.BinaryType,), (T.TimeType,), (T.DayTimeIntervalType,),
    (T.YearMonthIntervalType,),
)  # fmt: skip
_WRITTEN = (T.NumericType, *_TIMES, T.BooleanType, T.BinaryType)


class Promised:
    """The punctuations of one key column: `name` for messages, the type of the key."""

    def __init__(self, who: str, name: str, key_type: T.DataType) -> None:
        self.who, self.name, self.key_type = who, name, key_type

    def check(self, kind: T.DataType) -> None:
        """Refuse values of a type that has nothing to do with the key's."""
        together = any(isinstance(kind, group) and isinstance(self.key_type, group) for group in _GROUPS)
        written = isinstance(kind, _STRINGS) and isinstance(self.key_type, _WRITTEN)
        if not (together or written or isinstance(kind, T.NullType)):
            raise KeyTypeError(
                self.who,
                expected=f"punctuations of {self.name} in its type, {self.key_type.simpleString()}",
                found=kind.simpleString(),
                hint="Cast the column of the punctuations.",
            )

    def value(self, column: Column, kind: T.DataType) -> Column:
        """A value that may be null."""
        self.check(kind)
        converted, back = self._converted(column, kind)
        exact = column.isNull() | F.coalesce(back == column, F.lit(False))
        return F.when(exact, converted).otherwise(self._refused(column, kind))

    def set(self, column: Column, kind: T.ArrayType) -> Column:
        """A set of values, to be exploded: null means anything, an empty set promises nothing."""
        self.check(kind.elementType)
        problem = raised(
            PunctuationError,
            self.who,
            expected=f"values in a set of punctuations of {self.name}",
            found="a null among them",
            hint="Filter it out, or send null in place of the set to mean anything.",
        )
        anything = F.array(F.lit(None).cast(kind.elementType))
        has_null = F.exists(column, lambda value: value.isNull())
        return F.when(column.isNull(), anything).when(has_null, problem.cast(kind)).otherwise(column)

    def pattern(self, column: Column, kind: T.StructType) -> tuple[Column, list[Column]]:
        """A pattern (see `patterns`): the value, null if it is none, and low, high and which of them are closed, all
        null if it is one."""
        low, low_closed, low_exact = self._end(column, kind, "low")
        high, high_closed, high_exact = self._end(column, kind, "high")
        is_value = _surely((low == high) & low_closed & high_closed & low_exact & high_exact)
        if kind["low"].dataType == kind["high"].dataType:  # a single value that the key cannot have
            said = column.getField("low")
            wrong = _surely((said == column.getField("high")) & _closed(column, "low") & _closed(column, "high"))
            low = F.when(wrong & ~low_exact, self._refused(said, kind["low"].dataType)).otherwise(low)
        return F.when(is_value, low), [F.when(~is_value, end) for end in (low, high, low_closed, high_closed)]

    def _end(self, column: Column, kind: T.StructType, name: str) -> tuple[Column, Column, Column]:
        """An end in the key's type, whether it belongs to the range, and whether it is exactly what was given."""
        end, end_kind = column.getField(name), kind[name].dataType
        self.check(end_kind)
        converted, back = self._converted(end, end_kind)
        exact = end.isNull() | F.coalesce(back == end, F.lit(False))
        usable = exact if isinstance(end_kind, _STRINGS) else end.isNull() | back.isNotNull()
        closed = F.when(end.isNotNull() & column.getField(f"{name}_closed").isNull(), self._unclear(name))
        inwards = back > end if name == "low" else back < end
        closed = closed.when(exact, column.getField(f"{name}_closed")).otherwise(inwards)
        return F.when(usable, converted).otherwise(self._refused(end, end_kind)), closed, exact

    def _converted(self, column: Column, kind: T.DataType) -> tuple[Column, Column]:
        """A column in the key's type, and that again in its own; null where there is no such value."""
        if isinstance(kind, T.NullType):
            return F.lit(None).cast(self.key_type), F.lit(None).cast(self.key_type)
        converted = column.try_cast(self.key_type)
        if kind == self.key_type:
            return converted, column
        back = converted.try_cast(kind)
        for long, real, floating in ((kind, self.key_type, converted), (self.key_type, kind, column)):
            if isinstance(long, T.LongType) and isinstance(real, (T.FloatType, T.DoubleType)):
                back = F.when(floating < F.lit(2.0**63), back)  # Spark takes 2**63 for the largest long
        return converted, back

    def _refused(self, column: Column, kind: T.DataType) -> Column:
        return raised(
            PunctuationError,
            self.who,
            expected=f"punctuations of {self.name} with values of type {self.key_type.simpleString()}",
            found=F.concat(column.cast("string"), F.lit(f" ({kind.simpleString()})")),
            hint="Correct the punctuation, or cast it so that it promises what the source keeps.",
        ).cast(self.key_type)

    def _unclear(self, name: str) -> Column:
        return raised(
            PunctuationError,
            self.who,
            expected=f"patterns of {self.name} with {name}_closed true or false",
            found="null",
            hint="Build them with watersmeet.patterns.",
        ).cast("boolean")


def _closed(column: Column, name: str) -> Column:
    return column.getField(f"{name}_closed")


def _surely(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
