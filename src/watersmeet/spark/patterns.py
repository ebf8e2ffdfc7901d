"""Patterns for punctuations: what a punctuation says of one key column.

    patterns.value(3)              exactly 3                patterns.at_most(9)          everything up to 9
    patterns.one_of(3, 5, 8)       any of these             patterns.less_than(9)        everything below 9
    patterns.between(3, 9)         from 3 to 9              patterns.at_least(3)         everything from 3 on
    patterns.anything()            whatever it is           patterns.greater_than(3)     everything above 3

Each gives a Spark column for a DataFrame of punctuations, one column per key column. An argument is a value, or a
Column of the DataFrame the punctuations are made from. A null in it is an error, neither a value nor an end of a range:
to promise everything, say `anything()`.
"""

from __future__ import annotations

from typing import Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from watersmeet.errors import OptionError, PunctuationError
from watersmeet.plan.options import check_choice
from watersmeet.spark.failure import raised
from watersmeet.spark.java import Py4JError
from watersmeet.spark.promises import FIELDS

Closed = Literal["both", "left", "right", "neither"]


def value(value: Any) -> Column:
    """Exactly this value.

    >>> import watersmeet as wm
    >>> ends = closed_days.select(wm.patterns.value(F.col("day")).alias("day"))  # doctest: +SKIP
    """
    end = _given("value", "value", value)
    return _struct(end, end, low_closed=True, high_closed=True)


def one_of(*values: Any) -> Column:
    """Any of these values; none of them means that nothing is promised.

    >>> ends = done.select(one_of(3, 5, 8).alias("sno"))  # doctest: +SKIP
    """
    return F.array(*(_given("one_of", "values", value) for value in values))


def between(low: Any, high: Any, closed: Closed = "both") -> Column:
    """The values between two ends; `closed` says which ends belong to the range.

    >>> ends = hours.select(between(F.col("from"), F.col("to"), closed="left").alias("at"))  # doctest: +SKIP
    """
    check_choice("patterns.between", "closed", closed, ("both", "left", "right", "neither"))
    ends = (_given("between", name, end) for name, end in (("low", low), ("high", high)))
    return _struct(*ends, low_closed=closed in ("both", "left"), high_closed=closed in ("both", "right"))


def at_most(high: Any) -> Column:
    """Everything up to a value, the value included."""
    return _struct(None, _given("at_most", "high", high), low_closed=True, high_closed=True)


def less_than(high: Any) -> Column:
    """Everything below a value."""
    return _struct(None, _given("less_than", "high", high), low_closed=True, high_closed=False)


def at_least(low: Any) -> Column:
    """Everything from a value on."""
    return _struct(_given("at_least", "low", low), None, low_closed=True, high_closed=True)


def greater_than(low: Any) -> Column:
    """Everything above a value."""
    return _struct(_given("greater_than", "low", low), None, low_closed=False, high_closed=True)


def anything() -> Column:
    """The wildcard: the column may be anything."""
    return _struct(None, None, low_closed=True, high_closed=True)


def _given(pattern: str, name: str, value: Any) -> Column:
    """An argument as a column that is never null."""
    who = f"patterns.{pattern}"
    problem = {
        "expected": f"{name} = a value",
        "found": "null",
        "hint": "Filter such punctuations out; patterns.anything() promises everything.",
        "option": name,
    }
    if isinstance(value, Column):
        return F.coalesce(value, raised(PunctuationError, who, **problem))
    if value is None:
        raise OptionError(who, **problem)
    try:
        return F.lit(value)
    except (PySparkException, Py4JError, AttributeError) as error:  # the last is what py4j says of a foreign object
        raise OptionError(
            who,
            expected=f"{name} = a column, or a value that Spark has a type for",
            found=repr(value),
            hint="Give a number, text, a date, a timestamp or a Column.",
            option=name,
        ) from error


def _struct(low: Column | None, high: Column | None, *, low_closed: bool, high_closed: bool) -> Column:
    ends = (F.lit(None) if end is None else end for end in (low, high))
    parts = (*ends, F.lit(low_closed), F.lit(high_closed))
    return F.struct(*(part.alias(name) for part, name in zip(parts, FIELDS, strict=True)))
