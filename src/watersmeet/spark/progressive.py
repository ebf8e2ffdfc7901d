"""`progressive_join`: two streams in, results from the first micro-batch on."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyspark.sql import DataFrame

from watersmeet.options import Options
from watersmeet.spark.binding import Binding, binary_sources
from watersmeet.spark.output import binary_output
from watersmeet.spark.schema import key_pairs


def progressive_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str | tuple[str, str]],
    state_dir: str | os.PathLike[str],
    *,
    partitions: int | None = None,
) -> DataFrame:
    """Inner equi-join of two streaming DataFrames, every pair exactly once, as soon as both its rows are there.

    `on` is a column name, a list of names, or pairs of names `("left_name", "right_name")`; the output has the columns
    that `left.join(right, on)` has. The join's state lives in `state_dir`, which belongs to the query and must be kept
    with its checkpoint. `partitions` defaults to `spark.sql.shuffle.partitions` and is fixed once the query has run.

    >>> import watersmeet as wm
    >>> joined = wm.progressive_join(orders, payments, on="order_id", state_dir="state/orders")  # doctest: +SKIP
    >>> joined.writeStream.format("parquet").option("checkpointLocation", "checkpoints/orders")  # doctest: +SKIP
    """
    who = "progressive_join"
    pairs, shared = key_pairs(who, on)
    sources = binary_sources(who, left, right, pairs, ("left", "right"))
    return Binding(
        who=who,
        operator="symmetric",
        sources=sources,
        output=binary_output(who, *sources, shared=shared),
        options=Options(),
        state_dir=os.fspath(state_dir),
        partitions=partitions,
    ).frame()
