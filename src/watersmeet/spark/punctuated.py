"""`punctuated_join`: streams that say what they will not send any more, and a join that keeps only what it needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.errors import ColumnError, OptionError
from watersmeet.join.flush_policies import Flush
from watersmeet.join.join_type import checked_how
from watersmeet.join.victims import Policy
from watersmeet.plan.options import HotKeys, known_names
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.punctuated.promises.constraints import Constraint
from watersmeet.punctuated.propagation import COLUMN
from watersmeet.spark.binding import Binding, Output, binary_sources
from watersmeet.spark.conditions import condition_columns, condition_of, where_of
from watersmeet.spark.key_facts import KeyFacts, Punctuations
from watersmeet.spark.output import binary_output, typed_sources
from watersmeet.spark.promises import FIELDS
from watersmeet.spark.schema import (
    Source,
    common_key_types,
    comparable_name,
    key_pairs,
    quoted,
)
from watersmeet.spark.storage import StorageOptions, stored_at

WHO = "punctuated_join"


@known_names
def punctuated_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str | tuple[str, str]],
    how: str = "inner",
    *,
    state_dir: str | os.PathLike[str],
    nulls_match: bool | Sequence[str] = False,
    where: str | None = None,
    constraints: Sequence[Constraint | Mapping[str, Any]] = (),
    punctuations: Mapping[str, Punctuations] | None = None,
    purge: Literal["immediate", "batch"] | None = None,
    purge_after: int = 100,
    memory: str | int | None = None,
    policy: Literal["largest"] | Policy = "largest",
    flush: Flush | None = None,
    goal: Literal["throughput", "memory", "punctuations"] | None = None,
    scheduling: Literal["sequential", "priority", "value", "priority_value"] | None = None,
    quota: int | None = None,
    on_violation: Literal["raise", "drop", "keep"] = "raise",
    propagate: str | None = None,
    buckets: int = 64,
    idle_pages: int = 64,
    hot_keys: HotKeys = "off",
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
        how: `"inner"`, `"left"`, `"right"`, `"full"`, `"left_semi"` or `"left_anti"`, in any of PySpark's spellings. An
            unmatched row is emitted once, as soon as it is certain that nothing can match it (the other
            input has promised to send no more rows of its key, or has ended).
        state_dir: Where the join's state lives; it belongs to the query and must be kept with its checkpoint.
        nulls_match: Whether a null in the key matches a null, as with Spark's `<=>`: for all key columns, or for those
            that are named. By default a null matches nothing.
        where: A SQL condition on pairs of rows with equal keys that must hold for a match, such as `"left.price <=
            right.limit"`. The inputs are called `left` and `right`, or by their aliases (see docs/conditions.md).
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
        policy: Which rows are spilled first, both inputs' together: `"largest"` (the largest buckets of both, the
            default), `"rpj"` (where fewest arrivals are expected), `"xjoin"` (the largest buckets of an input) or
            `"hmj"` (large and balanced ones). Never changes the answer.
        flush: How the policy chooses: `"optimal"`, `"long-run"`, `"classes"`, `"largest"`, `"smallest"`, `"all"` or
            `"adaptive"`.
        goal: A shorthand that sets `purge` and `scheduling`: `"throughput"`, `"memory"` or `"punctuations"` (the
            earliest propagation).
        scheduling: With `quota`, which rows go first: `"sequential"`, `"priority"` (the one side), `"value"` (rows that
            promises cover) or `"priority_value"` (both).
        quota: How many rows a partition processes per micro-batch; the others wait.
        on_violation: What to do with a row that breaks a promise: `"raise"`, `"drop"` (counted) or `"keep"`.
        propagate: Name of an output column that carries punctuations of the output; null in results.
        buckets: Into how many buckets a partition's rows are spilled; fixed once the query has run.
        idle_pages: How many pages of spilled rows an idle micro-batch may read.
        hot_keys: `"auto"` spreads the rows of a key with a large part of the work over several partitions (see
            docs/hot-keys.md), `"off"` does not; fixed once the query has run. Not with `propagate`.
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
    sources = binary_sources(WHO, left, right, pairs, ("left", "right"), nulls_match)
    key_types = common_key_types(WHO, sources)
    given = {"purge": purge, "scheduling": scheduling, "quota": quota, "memory": memory, "goal": goal}
    checked = PunctuatedOptions.checked(
        WHO,
        constraints=constraints,
        purge_after=purge_after,
        on_violation=on_violation,
        propagate=propagate,
        policy=policy,
        flush=flush,
        buckets=buckets,
        idle_pages=idle_pages,
        hot_keys=hot_keys,
        **{name: value for name, value in given.items() if value is not None},
    )
    facts = KeyFacts(WHO, checked.constraints, key_types)
    if propagate is not None:
        facts.check_nulls_match(sources[0], "propagate")
    all_sources = facts.with_punctuations(sources, punctuations)
    condition = where_of(WHO, where, all_sources)
    needed = [*facts.sequences(sources[1]), *condition_columns(condition)]
    rows = all_sources[:2] = typed_sources(all_sources[:2], kind, needed)
    options = checked.model_copy(update={"constraints": facts.resolved(rows)})
    # A row that is a punctuation leaves most columns null.
    output = binary_output(WHO, *rows, shared=shared, how=kind, nullable=propagate is not None)
    extra = []
    if propagate is not None:
        field = T.StructField(propagate, _punctuation_type(sources[0], key_types), True)
        _check_new(propagate, output, left.sparkSession)
        extra = [(field, "left", COLUMN)]
    joined = Binding(
        who=WHO,
        operator="punctuated",
        sources=all_sources,
        output=output,
        how=kind,
        condition=condition_of(condition),
        options=options,
        state_dir=stored_at(WHO, left, state_dir, storage_options, cache, cache_dir),
        partitions=partitions,
        hot_keys=options.hot_keys,
        tick=options.memory is not None or options.purge == "batch" or options.quota is not None,
        clock=options.policy != "largest",
        extra_output=extra,
    ).frame()
    if propagate is None:
        return joined
    # Only here is it known which partition emits a pattern that every partition must emit.
    column = quoted(propagate)
    return joined.withColumn(propagate, F.when(column.isNotNull(), column.withField("part", F.spark_partition_id())))


def _check_new(name: str, output: Sequence[Output], session: SparkSession) -> None:
    """The column of punctuations has a name of its own."""
    taken = [column.field.name for column in output]
    if comparable_name(session, name) in [comparable_name(session, one) for one in taken]:
        raise ColumnError(
            WHO,
            expected="propagate = a name that no column of the output has",
            found=f"propagate={name!r} and the columns {', '.join(taken)}",
            hint="Choose another name.",
            option="propagate",
            column=name,
        )


def _punctuation_type(source: Source, key_types: Sequence[T.DataType]) -> T.StructType:
    """The type of the column that carries the output's punctuations."""
    fields = []
    for position, kind in zip(source.keys, key_types, strict=True):
        types = (kind, kind, T.BooleanType(), T.BooleanType())
        inner = T.StructType([T.StructField(name, end) for name, end in zip(FIELDS, types, strict=True)])
        fields.append(T.StructField(source.fields[position].name, inner))
    return T.StructType([*fields, T.StructField("part", T.IntegerType()), T.StructField("parts", T.IntegerType())])
