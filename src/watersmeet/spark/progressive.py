"""`progressive_join`: two streams in, results from the first micro-batch on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from pyspark.sql import DataFrame

from watersmeet.join.flush_policies import Flush
from watersmeet.join.join_type import checked_how
from watersmeet.plan.options import HotKeys, Options, known_names
from watersmeet.progressive.options import UNLIMITED, ProgressiveOptions
from watersmeet.spark.binding import Binding, binary_sources
from watersmeet.spark.conditions import condition_columns, condition_of, where_of
from watersmeet.spark.output import binary_output, typed_sources
from watersmeet.spark.schema import key_pairs
from watersmeet.spark.storage import StorageOptions, stored_at
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import recorded_operator
from watersmeet.state.space import PAGE_ROWS

WHO = "progressive_join"


@known_names
def progressive_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str | tuple[str, str]],
    how: str = "inner",
    *,
    state_dir: str | os.PathLike[str],
    nulls_match: bool | Sequence[str] = False,
    where: str | None = None,
    memory: str | int | None = None,
    policy: Literal["rpj", "xjoin", "xjoin-fresh", "hmj"] = "rpj",
    flush: Flush | None = None,
    idle_after: str | timedelta = "1 s",
    buckets: int = 20,
    page_rows: int = PAGE_ROWS,
    flush_share: float = 0.05,
    idle_pages: int = 256,
    fan_in: int = 8,
    combine_runs: int = 8,
    decay: float = 0.5,
    rate_unit: str | timedelta = "1 s",
    random_page_cost: float = 10.0,
    sequential_page_cost: float = 1.0,
    distinct_keys: int | None = None,
    hot_keys: HotKeys = "off",
    partitions: int | None = None,
    storage_options: StorageOptions | None = None,
    cache: int | str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Equi-join of two streaming DataFrames, every result exactly once.

    Without `memory` every pair is reported as soon as both its rows are there. With it, rows beyond the budget go to
    disk; what they are owed is reported while the inputs are silent, and the rest when both inputs have ended
    (`end_input`).

    Args:
        left: A streaming DataFrame.
        right: A streaming DataFrame.
        on: A column name, a list of names, or pairs of names `("left_name", "right_name")`; the output has the columns
            that `left.join(right, on, how)` has.
        how: `"inner"`, `"left"`, `"right"`, `"full"`, `"left_semi"` or `"left_anti"`, in any of PySpark's spellings. An
            unmatched row is emitted once, as soon as it is certain that nothing can match it (here: when the
            other input has ended, see `end_input`).
        state_dir: Where the join's state lives; it belongs to the query and must be kept with its checkpoint.
        nulls_match: Whether a null in the key matches a null, as with Spark's `<=>`: for all key columns, or for those
            that are named. By default a null matches nothing.
        where: A SQL condition on pairs of rows with equal keys that must hold for a match, such as `"left.price <=
            right.limit"`. The inputs are called `left` and `right`, or by their aliases (see docs/conditions.md).
        memory: Budget for the rows kept in memory, such as `"256 MB"`, shared by the partitions. None: no limit. It may
            be changed, added and taken away at a restart.
        policy: What leaves memory and what idle time is used for: `"rpj"` (rate-based, the default), `"xjoin"` as
            published, `"xjoin-fresh"` or `"hmj"`. Never changes the answer.
        flush: Which rows leave memory first: `"optimal"`, `"long-run"` (optimal without short runs on disk),
            `"classes"` (optimal, but the largest of buckets that are about equally likely to be probed), `"largest"`,
            `"smallest"`, `"all"`, or for `"hmj"` `"adaptive"` (its default), `"all"`, `"largest"`, `"smallest"`.
        idle_after: How long both inputs must be silent before idle batches work on what is on disk.
        buckets: Into how many buckets the keys of a partition are divided; fixed once the query has run.
        page_rows: Rows in a page, the unit in which spilled rows are written and read.
        flush_share: A flush frees at least this share of the budget.
        idle_pages: Pages that an idle micro-batch may read and write in each partition; 0: idle time is not used.
        fan_in: Runs of each input that one merging operation combines.
        combine_runs: Spilled runs of similar size that become one while rows come; 0: only idle tasks merge runs.
        decay: What the arrivals of a time unit weigh one unit later, for estimates of the arrival rates.
        rate_unit: The time unit of `decay`.
        random_page_cost: What reading a page costs that does not follow the last one, in any unit.
        sequential_page_cost: What reading the next page costs, in the same unit.
        distinct_keys: How many different keys there are, for estimates of results; None to estimate it.
        hot_keys: `"auto"` spreads the rows of a key with a large part of the work over several partitions (see
            docs/hot-keys.md), `"off"` does not; fixed once the query has run.
        partitions: Key partitions, by default `spark.sql.shuffle.partitions` if it has been set, else one per core;
            fixed once the query has run.
        storage_options: How to reach a `state_dir` in an object store (`endpoint`, `region`, `access_key_id`,
            `secret_access_key` and so on), where neither Hadoop settings of Spark nor the environment say it.
        cache: Room for state from an object store on the disk of each executor's host, such as `"20 GB"`; by default
            half of what is free.
        cache_dir: Where that is; by default in `spark.local.dir`.

    >>> import watersmeet as wm
    >>> joined = wm.progressive_join(
    ...     orders, payments, on="order_id", state_dir="state/orders", memory="256 MB"
    ... )  # doctest: +SKIP
    >>> joined.writeStream.format("parquet").option("checkpointLocation", "checkpoints/orders")  # doctest: +SKIP
    """
    state_dir = stored_at(WHO, left, state_dir, storage_options, cache, cache_dir)
    options = ProgressiveOptions.checked(
        WHO,
        {"under_budget": began_under_budget(state_dir)},
        memory=memory,
        policy=policy,
        flush=flush,
        idle_after=idle_after,
        buckets=buckets,
        page_rows=page_rows,
        flush_share=flush_share,
        idle_pages=idle_pages,
        fan_in=fan_in,
        combine_runs=combine_runs,
        decay=decay,
        rate_unit=rate_unit,
        random_page_cost=random_page_cost,
        sequential_page_cost=sequential_page_cost,
        distinct_keys=distinct_keys,
        hot_keys=hot_keys,
    )
    return join(left, right, on, state_dir, options, partitions, how, nulls_match, where)


def began_under_budget(state_dir: str) -> bool:
    """Whether the state was begun with a budget."""
    return recorded_operator(StateDir(state_dir)) not in (None, UNLIMITED)


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str | tuple[str, str]],
    state_dir: str,
    options: ProgressiveOptions,
    partitions: int | None = None,
    how: str = "inner",
    nulls_match: bool | Sequence[str] = False,
    where: str | None = None,
) -> DataFrame:
    """The join with any options there are, those for experiments included."""
    operator, kind = options.operator, checked_how(WHO, how)
    pairs, shared = key_pairs(WHO, on)
    sources = binary_sources(WHO, left, right, pairs, ("left", "right"), nulls_match)
    condition = where_of(WHO, where, sources)
    sources = typed_sources(sources, kind, needed=condition_columns(condition))
    return Binding(
        who=WHO,
        operator=operator,
        sources=sources,
        output=binary_output(WHO, *sources, shared=shared, how=kind),
        how=kind,
        condition=condition_of(condition),
        options=Options() if operator == UNLIMITED else options,
        state_dir=state_dir,
        partitions=partitions,
        succeeds=UNLIMITED,
        tick=operator != UNLIMITED,
        clock=operator != UNLIMITED,
        hot_keys=options.hot_keys,
    ).frame()
