"""Types that Spark does not hand to Python, carried as ones that it does."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import types as T


def encoded_type(kind: T.DataType) -> T.DataType:
    """The type a column of `kind` travels as."""
    return kind


def encoded(column: Column, kind: T.DataType) -> Column:
    """A column in the form in which it travels."""
    return column


def decoded(column: Column, kind: T.DataType) -> Column:
    """A column back in its own type."""
    return column
