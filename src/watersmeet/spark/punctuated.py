"""`punctuated_join`: streams that say what they will not send any more, and a join that keeps only what it needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.errors import ColumnError, KeyTypeError, OptionError
from watersmeet.join.join_type import checked_how
from watersmeet.plan.options import known_names
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.punctuated.promises.constraints import Clustered, Constraint, OneToMany, Ordered
from watersmeet.punctuated.promises.ordering import is_ordered
from watersmeet.punctuated.propagation import COLUMN
from watersmeet.spark.binding import Binding, Output, binary_sources, internal_name
from watersmeet.spark.output import binary_output, check_clashes, typed_sources
from watersmeet.spark.promises import FIELDS, Promised
from watersmeet.spark.schema import (
    Source,
    arrow_type,
    check_streaming,
    common_key_types,
    find_column,
    key_pairs,
    quoted,
)
from watersmeet.spark.storage import StorageOptions, stored_at

WHO = "punctuated_join"
_SEQUENCES = (T.IntegralType, T.FloatType, T.DoubleType, T.DateType, T.TimestampType, T.TimestampNTZType)


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


@known_names
def punctuated_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str | tuple[str, str]],
    state_dir: str | os.PathLike[str],
    *,
    how: str = "inner",
    constraints: Sequence[Constraint | Mapping[str, Any]] = (),
    punctuations: Mapping[str, Punctuations] | None = None,
    purge: Literal["immediate", "batch"] | None = None,
    purge_after: int = 100,
    memory: str | int | None = None,
    goal: Literal["throughput", "memory", "punctuations"] | None = None,
    scheduling: Literal["sequential", "priority", "value"] | None = None,
    quota: int | None = None,
    on_violation: Literal["raise", "drop", "keep"] = "raise",
    propagate: str | None = None,
    buckets: int = 64,
    idle_pages: int = 64,
    partitions: int | None = None,
    storage_options: StorageOptions | None = None,
    cache: int | str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Equi-join of two streams that purges every row which their promises make useless.

    No watermark and no time column are needed, and nothing is lost: a row goes only when it is certain that it can
    never match again.

    Args:
        left: A streaming DataFrame.
        right: Another one.
        on: A column name, a list of names, or pairs of names; the output has the columns of `left.join(right, on,
            how)`.
        state_dir: Where the join's state lives; it belongs to the query and must be kept with its checkpoint.
        how: `"inner"`, `"left"`, `"right"`, `"full"`, `"left_semi"` or `"left_anti"`, in any of PySpark's spellings. An
            unmatched row is emitted once, as soon as it is certain that nothing can match it (the other
            input has promised to send no more rows of its key, or has ended).
        constraints: What is known beforehand: `OneToMany`, `Clustered`, `Ordered`.
        punctuations: Per input ("left", "right") where its punctuations come from: `PunctuationRows`, or a streaming
            DataFrame with a column for every key column of the input (see `patterns`; a plain value, an array of values
            or a pattern; null means anything). A punctuation takes effect at the end of its micro-batch.
        purge: `"immediate"` (the default) purges stored rows in the batch that brings the promise, `"batch"` after
            `purge_after` promises, when memory is short or when no rows come.
        purge_after: See `purge`.
        memory: Budget for all partitions together, such as `"256 MB"`; what does not fit is spilled to disk and joined
            when no rows come, or at the end. Without it everything stays in memory. It may be changed,
            added and taken away at a restart.
        goal: A shorthand that sets `purge` and `scheduling`: `"throughput"`, `"memory"` or `"punctuations"` (the
            earliest propagation).
        scheduling: With `quota`, which rows go first: `"sequential"`, `"priority"` (the one side), `"value"` (rows that
            promises cover).
        quota: How many rows a partition processes per micro-batch; the others wait.
        on_violation: What to do with a row that breaks a promise: `"raise"`, `"drop"` (counted) or `"keep"`.
        propagate: Name of an output column that carries punctuations of the output; null in results.
        buckets: Into how many buckets a partition's rows are spilled; fixed once the query has run.
        idle_pages: How many pages of spilled rows an idle micro-batch may read.
        partitions: Key partitions, by default `spark.sql.shuffle.partitions` if it has been set, else one per core;
            fixed once the query has run.
        storage_options: How to reach a `state_dir` in an object store (`endpoint`, `region`, `access_key_id`,
            `secret_access_key` and so on), where neither Hadoop settings of Spark nor the environment say it.
        cache: Room for state from an object store on the disk of each executor's host, such as `"20 GB"`; by default
            half of what is free.
        cache_dir: Where that is; by default in `spark.local.dir`.

    >>> import watersmeet as wm
    >>> wm.punctuated_join(
    ...     news,
    ...     access,
    ...     on="sno",
    ...     state_dir="state/news",
    ...     constraints=[wm.OneToMany(one="left")],
    ...     punctuations={"right": wm.PunctuationRows("is_end")},
    ... )  # doctest: +SKIP
    """
    kind = checked_how(WHO, how)
    if kind.exists and propagate is not None:
        raise OptionError(
            WHO,
            expected="propagate with how 'inner', 'left', 'right' or 'full'",
            found=f"how={kind.name!r}",
            hint="Leave propagate out: the output of a semi or anti join ends with the left input's punctuations.",
            option="propagate",
        )
    pairs, shared = key_pairs(WHO, on)
    sources = binary_sources(WHO, left, right, pairs, ("left", "right"))
    key_types = common_key_types(WHO, sources)
    given = {"purge": purge, "scheduling": scheduling, "quota": quota, "memory": memory, "goal": goal}
    checked = PunctuatedOptions.checked(
        WHO,
        constraints=constraints,
        purge_after=purge_after,
        on_violation=on_violation,
        propagate=propagate,
        buckets=buckets,
        idle_pages=idle_pages,
        **{name: value for name, value in given.items() if value is not None},
    )
    all_sources = _with_punctuations(sources, punctuations, key_types)
    needed = [
        find_column(WHO, "right", right, constraint.sequence)
        for constraint in checked.constraints
        if not isinstance(constraint, OneToMany) and constraint.input == "right" and constraint.sequence is not None
    ]
    rows = all_sources[:2] = typed_sources(all_sources[:2], kind, needed)
    resolved = tuple(_resolved(constraint, rows, key_types) for constraint in checked.constraints)
    options = checked.model_copy(update={"constraints": resolved})
    # A row that is a punctuation leaves most columns null.
    output = binary_output(WHO, *rows, shared=shared, how=kind, nullable=propagate is not None)
    extra = []
    if propagate is not None:
        field = T.StructField(propagate, _punctuation_type(sources[0], key_types), True)
        check_clashes(WHO, [*output, Output(field, "left", 0)], left.sparkSession)
        extra = [(field, "left", COLUMN)]
    joined = Binding(
        who=WHO,
        operator="punctuated",
        sources=all_sources,
        output=output,
        how=kind,
        options=options,
        state_dir=stored_at(WHO, left, state_dir, storage_options, cache, cache_dir),
        partitions=partitions,
        tick=options.memory is not None or options.purge == "batch" or options.quota is not None,
        extra_output=extra,
    ).frame()
    if propagate is None:
        return joined
    # Only here is it known which partition says a pattern that every partition must say.
    column = quoted(propagate)
    return joined.withColumn(propagate, F.when(column.isNotNull(), column.withField("part", F.spark_partition_id())))


def _resolved(constraint: Constraint, sources: Sequence[Source], key_types: Sequence[T.DataType]) -> Constraint:
    """The constraint with internal column names."""
    if isinstance(constraint, OneToMany):
        return constraint
    source = next(source for source in sources if source.name == constraint.input)
    if constraint.sequence is not None:
        constraint = replace(constraint, sequence=_sequence(constraint.sequence, source))
    if isinstance(constraint, Clustered):
        return constraint
    return replace(constraint, key=f"_k{_ordered_key(constraint, source, key_types)}")


def _sequence(name: str, source: Source) -> str:
    position = find_column(WHO, source.name, source.frame, name)
    kind = source.fields[position].dataType
    if not isinstance(kind, _SEQUENCES):
        raise OptionError(
            WHO,
            expected="a sequence column that is a number, a date or a timestamp",
            found=f"{source.name}.{name}: {kind.simpleString()}",
            hint="Name a column by which the rows of a micro-batch can be put in order.",
            option="constraints",
            column=name,
            input=source.name,
        )
    return internal_name(source, position)


def _ordered_key(constraint: Ordered, source: Source, key_types: Sequence[T.DataType]) -> int:
    names = [source.fields[position].name for position in source.keys]
    if constraint.key is None and len(names) > 1:
        raise OptionError(
            WHO,
            expected="Ordered(..., key=...) to name the key column that is in order",
            found=f"no key, and the key columns {', '.join(names)}",
            hint=f"For example Ordered({source.name!r}, key={names[0]!r}).",
            option="constraints",
            input=source.name,
        )
    index = 0
    if constraint.key is not None:
        position = find_column(WHO, source.name, source.frame, constraint.key)
        if position not in source.keys:
            raise ColumnError(
                WHO,
                expected=f"Ordered(key=...) to name a key column: {', '.join(names)}",
                found=repr(constraint.key),
                hint="Name one of the columns in on.",
                option="constraints",
                column=constraint.key,
                input=source.name,
            )
        index = source.keys.index(position)
    if not is_ordered(arrow_type(key_types[index])):
        raise KeyTypeError(
            WHO,
            expected="Ordered on a key of numbers, decimals of up to 18 digits, booleans, times, strings or binary",
            found=f"{source.name}.{names[index]}: {key_types[index].simpleString()}",
            hint="Cast the key, or leave the constraint out.",
            option="constraints",
            column=names[index],
            input=source.name,
        )
    return index


def _with_punctuations(sources: list[Source], punctuations: Any, key_types: Sequence[T.DataType]) -> list[Source]:
    """The sources with their punctuations: marked in the rows, or as sources of their own."""
    by_name = {source.name: source for source in sources}
    own = []
    if not isinstance(punctuations, Mapping | None):
        raise OptionError(
            WHO,
            expected="punctuations = a dict from input to where its punctuations come from",
            found=repr(punctuations),
            hint="Write for example {'right': PunctuationRows('is_end')}.",
            option="punctuations",
        )
    for name, given in (punctuations or {}).items():
        if name not in by_name:
            raise OptionError(
                WHO,
                expected="punctuations for the inputs 'left' and 'right'",
                found=repr(name),
                hint="Name the input, not the DataFrame.",
                option="punctuations",
            )
        if isinstance(given, PunctuationRows):
            by_name[name] = _marked(by_name[name], given.column, key_types)
        elif isinstance(given, DataFrame):
            own.append(_separate(by_name[name], given, key_types))
        else:
            raise OptionError(
                WHO,
                expected="punctuations to be PunctuationRows(column) or a streaming DataFrame",
                found=f"{type(given).__name__} for {name!r}",
                hint="Mark the punctuations in the input's rows, or send them as a stream of their own.",
                option="punctuations",
            )
    return [by_name["left"], by_name["right"], *own]


def _marked(source: Source, name: str, key_types: Sequence[T.DataType]) -> Source:
    position = find_column(WHO, source.name, source.frame, name)
    kind = source.fields[position].dataType
    payload = [i for i in source.payload if i != position]
    if isinstance(kind, T.BooleanType) and position not in source.keys:
        return replace(source, payload=payload, marker=position)
    if not (
        isinstance(kind, T.StructType) and len(kind) == len(key_types) + 2 and kind.names[-2:] == ["part", "parts"]
    ):
        raise ColumnError(
            WHO,
            expected="PunctuationRows to name a boolean column, or one that propagate= has written",
            found=f"{source.name}.{name}: {kind.simpleString()}",
            hint="Add a column that is true in punctuations and false in rows.",
            option="punctuations",
            column=name,
            input=source.name,
        )
    column = quoted(source.fields[position].name)
    ends = []
    for field, key_type in zip(kind.fields, key_types, strict=False):
        promised = Promised(WHO, f"{source.name}.{field.name}", key_type)
        # Of a single value only the row itself tells; no range of a type without an order is ever propagated.
        ends += promised.pattern(column.getField(field.name), _pattern_type(field.name, field.dataType))[1]
    ends += [column.getField("part"), column.getField("parts")]
    width = len(source.fields)
    extended = source.frame.select(
        "*", column.isNotNull().alias(f"_marker{width}"), *(end.alias(f"_end{i}") for i, end in enumerate(ends))
    )
    extra = list(range(width + 1, width + 1 + len(ends)))
    return replace(source, frame=extended, payload=payload + extra, marker=width, marked=len(extra))


def _separate(source: Source, frame: DataFrame, key_types: Sequence[T.DataType]) -> Source:
    """A stream of punctuations in the layout of the operator."""
    check_streaming(WHO, f"punctuations of {source.name}", frame, option="punctuations")
    values, ends = [], []
    for position, key_type in zip(source.keys, key_types, strict=True):
        name = source.fields[position].name
        at = find_column(WHO, f"punctuations of {source.name}", frame, name)
        kind, column = frame.schema.fields[at].dataType, quoted(frame.columns[at])
        promised = Promised(WHO, f"{source.name}.{name}", key_type)
        if isinstance(kind, T.ArrayType):  # a set of values is as many punctuations
            others = [quoted(c) for i, c in enumerate(frame.columns) if i != at]
            frame = frame.select(*others, F.explode(promised.set(column, kind)).alias(frame.columns[at]))
            kind = kind.elementType
        if isinstance(kind, T.StructType):
            value, of_range = promised.pattern(column, _ordered_pattern_type(source, name, kind, key_type))
            values.append(value)
            ends += of_range
        else:
            values.append(promised.value(column, kind))
            ends += [F.lit(None).cast(key_type)] * 2 + [F.lit(None).cast("boolean")] * 2
    columns = [*values, *ends]
    made = frame.select(*(column.alias(f"c{i}") for i, column in enumerate(columns)))
    count = len(values)
    return Source(source.name, made, list(range(count)), list(range(count, len(columns))), kind="punctuations")


def _pattern_type(name: str, kind: T.DataType) -> T.StructType:
    if not isinstance(kind, T.StructType) or kind.names != list(FIELDS):
        raise ColumnError(
            WHO,
            expected=f"a pattern for {name!r}: a value, an array of values, or a struct of {', '.join(FIELDS)}",
            found=kind.simpleString(),
            hint="Build it with watersmeet.patterns.",
            option="punctuations",
            column=name,
        )
    return kind


def _ordered_pattern_type(source: Source, name: str, kind: T.DataType, key_type: T.DataType) -> T.StructType:
    """The type of a pattern on a key that has an order."""
    kind = _pattern_type(name, kind)
    is_range = not isinstance(kind["low"].dataType, T.NullType) or not isinstance(kind["high"].dataType, T.NullType)
    if is_range and not is_ordered(arrow_type(key_type)):
        raise KeyTypeError(
            WHO,
            expected=f"single values as punctuations of {source.name}.{name}",
            found=f"patterns on a key of type {key_type.simpleString()}, which has no order here",
            hint="Send the values themselves, or cast the key.",
            option="punctuations",
            column=name,
            input=source.name,
        )
    return kind


def _punctuation_type(source: Source, key_types: Sequence[T.DataType]) -> T.StructType:
    """The type of the column that carries the output's punctuations."""
    fields = []
    for position, kind in zip(source.keys, key_types, strict=True):
        types = (kind, kind, T.BooleanType(), T.BooleanType())
        inner = T.StructType([T.StructField(name, end) for name, end in zip(FIELDS, types, strict=True)])
        fields.append(T.StructField(source.fields[position].name, inner))
    return T.StructType([*fields, T.StructField("part", T.IntegerType()), T.StructField("parts", T.IntegerType())])
