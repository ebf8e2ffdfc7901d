"""The types in which Spark compares and computes, as far as conditions have them.

numbers      byte < short < int < long < float < double; a whole number and a float are compared as double (in
             ANSI mode, else as float); decimals are compared with whole numbers and decimals exactly, and with
             fractions as double
times        dates, timestamps and timestamps without a zone only with their own type; constant text stands for them
intervals    of days to seconds, whatever their fields are: all are microseconds
"""

from __future__ import annotations

import re

from pyspark.sql import types as T

INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
FRACTIONS = (T.FloatType, T.DoubleType)
TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
INTERVAL = T.DayTimeIntervalType()
MAX_DIGITS = 38  # of a decimal
_PLAIN = (T.BooleanType, T.BinaryType, T.TimeType, *TIMES)
_DIGITS: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 20}
_ARROW: dict[type[T.DataType], str] = {
    T.ByteType: "int8", T.ShortType: "int16", T.IntegerType: "int32", T.LongType: "int64",
    T.FloatType: "float", T.DoubleType: "double",
}  # fmt: skip
_FIXED_ZONE = re.compile(r"(Etc/)?(UTC|GMT|UCT|Zulu|Z|Universal|Greenwich)|((UTC|GMT|UT)?[+-]\d{1,2}(:?\d\d)*)", re.I)


def supported(kind: T.DataType) -> T.DataType | None:
    """A type as conditions take it; None if they do not."""
    if isinstance(kind, T.DayTimeIntervalType):
        return INTERVAL
    if isinstance(kind, T.VarcharType):
        return T.StringType()
    if isinstance(kind, T.StringType) and not isinstance(kind, T.CharType):
        return kind if kind.collation == "UTF8_BINARY" else None
    return kind if isinstance(kind, (*INTEGRAL, *FRACTIONS, T.DecimalType, T.NullType, *_PLAIN)) else None


def arrow_name(kind: T.DataType) -> str:
    """A number's type as `join.condition` writes it."""
    if isinstance(kind, T.DecimalType):
        return f"decimal({kind.precision}, {kind.scale})"
    return _ARROW[type(kind)]


def is_number(kind: T.DataType) -> bool:
    """Whether a condition can compute with it. Decimals are only compared: their results have types of their own."""
    return isinstance(kind, (*INTEGRAL, *FRACTIONS))


def common(one: T.DataType, other: T.DataType, *, ansi: bool) -> T.DataType | None:
    """The type in which two values are compared; None if there is none here."""
    for kind, another in ((one, other), (other, one)):
        if kind == another or isinstance(kind, T.NullType):
            return another
        if isinstance(kind, T.DoubleType) and isinstance(another, (*INTEGRAL, T.FloatType, T.DecimalType)):
            return kind
        if isinstance(kind, T.FloatType) and isinstance(another, T.DecimalType):
            return T.DoubleType()
        if isinstance(kind, T.FloatType) and isinstance(another, INTEGRAL):
            return T.DoubleType() if ansi else kind
    if isinstance(one, INTEGRAL) and isinstance(other, INTEGRAL):
        return max(one, other, key=lambda kind: INTEGRAL.index(type(kind)))
    if isinstance(one, (*INTEGRAL, T.DecimalType)) and isinstance(other, (*INTEGRAL, T.DecimalType)):
        (digits, scale), (more_digits, more_scale) = _decimal(one), _decimal(other)
        widest = max(digits - scale, more_digits - more_scale) + max(scale, more_scale)
        return T.DecimalType(widest, max(scale, more_scale)) if widest <= MAX_DIGITS else None
    return None


def _decimal(kind: T.DataType) -> tuple[int, int]:
    return (kind.precision, kind.scale) if isinstance(kind, T.DecimalType) else (_DIGITS[type(kind)], 0)


def is_fixed(zone: str) -> bool:
    """Whether all days of a time zone have 24 hours.

    >>> [is_fixed(zone) for zone in ("UTC", "Etc/UTC", "+05:30", "GMT+2", "Europe/Berlin")]
    [True, True, True, True, False]
    """
    return _FIXED_ZONE.fullmatch(zone) is not None
