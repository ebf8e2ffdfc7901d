"""Output columns: those of Spark's own join, and no two with one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import SparkSession

from watersmeet.errors import ColumnError
from watersmeet.spark.binding import Output
from watersmeet.spark.schema import Source, comparable_name


def binary_output(who: str, left: Source, right: Source, *, shared: bool) -> list[Output]:
    """The columns of `left.join(right, on)`.

    With shared names the keys come first and once, from the left; with pairs all columns of both sides are kept.
    """
    if shared:
        columns = [Output(left.fields[i], left.name, i) for i in left.keys]
        columns += [Output(left.fields[i], left.name, i) for i in left.payload]
        columns += [Output(right.fields[i], right.name, i) for i in right.payload]
    else:
        columns = [Output(f, left.name, i) for i, f in enumerate(left.fields)]
        columns += [Output(f, right.name, i) for i, f in enumerate(right.fields)]
    check_clashes(who, columns, left.frame.sparkSession)
    return columns


def check_clashes(who: str, columns: Sequence[Output], session: SparkSession) -> None:
    """Two columns of one name could not be told apart downstream: an error that names them."""
    names = [comparable_name(session, column.field.name) for column in columns]
    counts = Counter(names)
    clashing = [column for column, name in zip(columns, names, strict=True) if counts[name] > 1]
    if clashing:
        name = clashing[-1].field.name
        raise ColumnError(
            who,
            expected="different names for all columns of the output",
            found=", ".join(f"{column.input}.{column.field.name}" for column in clashing),
            hint=f"Rename before the join, for example "
            f"{clashing[-1].input}.withColumnRenamed({name!r}, {clashing[-1].input + '_' + name!r}).",
            column=name,
            input=clashing[-1].input,
        )
