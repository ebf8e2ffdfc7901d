"""Output columns: those of Spark's own join of the same type, and no two with one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from watersmeet.errors import ColumnError
from watersmeet.join.join_type import JOIN_TYPES, JoinType
from watersmeet.spark.binding import Output
from watersmeet.spark.schema import Source, common_key_types, comparable_name


def typed_sources(sources: Sequence[Source], how: JoinType, needed: Sequence[int] = ()) -> list[Source]:
    """The sources as a join type wants them: rows without a key if they are emitted, of the right input of a semi or
    anti join only the keys and the columns `needed` for the join itself."""
    kept = [replace(source, keep_null_keys=wanted) for source, wanted in zip(sources, how.unmatched, strict=True)]
    if how.exists:
        right = sources[1]
        marked = right.payload[len(right.payload) - right.marked :]
        own = [position for position in right.row_payload if position in needed]
        kept[1] = replace(kept[1], payload=[*own, *marked])
    return kept


def binary_output(
    who: str, left: Source, right: Source, *, shared: bool, how: JoinType = JOIN_TYPES["inner"], nullable: bool = False
) -> list[Output]:
    """The columns of `left.join(right, on, how)`.

    With shared names the keys come first and once: from the left input, of a right join from the right one, of a full
    join from whichever is there. With pairs all columns of both sides are kept. `nullable`: all of them may be null.
    """
    _check_pairs(who, left, right, how)
    absent = (nullable or how.unmatched[1], nullable or how.unmatched[0])  # whether a result may lack a row of a side
    sides = [(left, absent[0]), *([] if how.exists else [(right, absent[1])])]
    columns = _keys(who, left, right, how, nullable=nullable) if shared else []
    for source, lacks in sides:
        positions = source.row_payload if shared else sorted([*source.keys, *source.row_payload])
        columns += [Output(may_be_null(source.fields[i], lacks), source.name, i) for i in positions]
    check_clashes(who, columns, left.frame.sparkSession)
    return columns


def _check_pairs(who: str, left: Source, right: Source, how: JoinType) -> None:
    """A key column that is in two pairs would be in the output twice. (The right one of a semi or anti join is not.)"""
    names = [
        (left.fields[one].name, right.fields[other].name) for one, other in zip(left.keys, right.keys, strict=True)
    ]
    for side, source in enumerate([left] if how.exists else [left, right]):
        for later, position in enumerate(source.keys):
            first = source.keys.index(position)
            if first == later:
                continue
            about = {"option": "on", "column": names[later][side], "input": source.name}
            if left.keys[first] == left.keys[later] and right.keys[first] == right.keys[later]:
                raise ColumnError(
                    who, expected="each key once", found=f"{names[later]} twice in on", hint="Leave one out.", **about
                )
            equal = "<=>" if later in source.nulls_match else "="
            condition = f"left.{_in_text(names[later][0])} {equal} right.{_in_text(names[later][1])}"
            raise ColumnError(
                who,
                expected="each column in one pair of on",
                found=f"{source.name}.{names[later][side]} in two: {names[first]} and {names[later]}",
                hint=f"Join on one of them, and add where={condition!r}.",
                **about,
            )


def _in_text(name: str) -> str:
    """The name of a column in a condition."""
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


def _keys(who: str, left: Source, right: Source, how: JoinType, *, nullable: bool) -> list[Output]:
    if how.unmatched == (True, True):  # Spark takes the first that is not null, and calls that nullable
        kinds = common_key_types(who, [left, right])
        return [
            Output(T.StructField(left.fields[i].name, kind), left.name, i, otherwise=right.name)
            for i, kind in zip(left.keys, kinds, strict=True)
        ]
    source = right if how.unmatched == (False, True) else left
    return [Output(may_be_null(source.fields[i], nullable), source.name, i) for i in source.keys]


def may_be_null(field: T.StructField, lacks: bool) -> T.StructField:
    """A field, nullable if results may lack a row of its input."""
    return T.StructField(field.name, field.dataType, field.nullable or lacks, field.metadata)


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
