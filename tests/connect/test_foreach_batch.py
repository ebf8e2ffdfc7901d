"""`foreachBatch` in Spark Connect: refused with what to do in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.feed import Feed

import watersmeet as wm


def test_it_runs_outside_the_query(spark: SparkSession, tmp_path: Path) -> None:
    left, right = (Feed(spark, tmp_path / name, f"k long, {name} long") for name in ("a", "b"))
    left.send({"k": 1, "a": 2})
    right.send({"k": 1, "b": 3})
    joined = wm.progressive_join(left.stream, right.stream, "k", state_dir=tmp_path / "state")

    def write(frame: DataFrame, _number: int) -> None:
        frame.collect()

    writer = joined.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException) as caught:
        writer.trigger(availableNow=True).start().awaitTermination()
    cause = wm.error(caught.value)
    assert cause is not None
    assert str(cause).startswith("progressive_join: expected to run inside a streaming query, found no micro-batch.")
    assert "In Spark Connect all of them run outside the query: write to a sink there" in str(cause)
