"""Joins of Spark's own test suite of stream-stream joins, written here (docs/which-join.md has the whole list; the
others are those of test_join_types, test_intervals, test_where and test_nulls_match).

Each is run in micro-batches and compared with Spark's batch join of the same rows, after both inputs have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, rows, run

import watersmeet as wm

SCHEMA = "key int, time timestamp"


@dataclass(frozen=True)
class Join:
    """A join as Spark's suite writes it (`condition`), and as it is written here; batches are (key, second)."""

    name: str
    condition: str
    how: str
    on: Any
    options: dict[str, Any] = field(default_factory=dict)
    left: tuple[list[tuple[int | None, int]], ...] = ([(1, 5), (3, 5)], [(1, 7), (1, 30), (8, 34)])
    right: tuple[list[tuple[int | None, int]], ...] = ([(1, 10), (2, 5), (1, 11)], [(0, 30), (8, 39)])


WINDOWS = {"on": [("leftKey", "rightKey"), ("leftWindow", "rightWindow")]}
SAME_WINDOW = "leftKey = rightKey and leftWindow = rightWindow"
IN_A_WINDOW = {"within": "10 s", "time": ("leftTime", "rightTime"), "lateness": "10 s"}
KEY = [("leftKey", "rightKey")]
NULLS = ([(1, 1), (None, 2), (1, 3), (None, 4)], [(1, 21)])

JOINS = [
    Join(
        "a range with one end", "leftKey = rightKey and leftTime < rightTime - interval 5 seconds", "inner", KEY,
        {"within": wm.between("5 s", None), "time": ("leftTime", "rightTime"),
         "where": "left.leftTime < right.rightTime - interval 5 seconds"},
    ),
    Join(
        "a range with two ends",
        "leftKey = rightKey and rightTime - leftTime between interval -5 seconds and interval 10 seconds",
        "full", KEY, {"within": ("-5 s", "10 s"), "time": ("leftTime", "rightTime")},
    ),
    Join(
        "windows, and a condition on the left rows", f"{SAME_WINDOW} and leftValue > 4", "left",
        options={**IN_A_WINDOW, "where": "left.leftValue > 4"}, **WINDOWS,
    ),
    Join(
        "windows and null-safe keys", "leftKey <=> rightKey and leftWindow = rightWindow", "left",
        options={**IN_A_WINDOW, "nulls_match": ["leftKey"]}, left=NULLS, right=NULLS, **WINDOWS,
    ),
]  # fmt: skip


def prepared(frame: DataFrame, side: str) -> DataFrame:
    frame = frame.select(F.col("key").alias(f"{side}Key"), F.col("time").alias(f"{side}Time"))
    return frame.selectExpr("*", f"{side}Key * 2 as {side}Value").withColumn(
        f"{side}Window", F.window(f"{side}Time", "10 seconds")["start"]
    )


@pytest.mark.parametrize("join", JOINS, ids=lambda join: join.name)
@pytest.mark.filterwarnings("ignore:window_join. nothing bounds")
def test_the_answer_is_that_of_spark(spark: SparkSession, tmp_path: Path, join: Join) -> None:
    feeds = {side: Feed(spark, tmp_path / side, SCHEMA) for side in ("left", "right")}
    for side, batches in (("left", join.left), ("right", join.right)):
        for batch in batches:
            begin = datetime(2026, 1, 1, tzinfo=UTC)
            feeds[side].send(*({"key": key, "time": begin + timedelta(seconds=at)} for key, at in batch))

    def build() -> DataFrame:
        left, right = (prepared(feed.stream, side) for side, feed in feeds.items())
        return wm.join(left, right, join.on, join.how, state_dir=tmp_path / "state", partitions=2, **join.options)

    joined = build()
    run(joined, tmp_path)
    for side in feeds:
        wm.end_input(tmp_path / "state", side)
    run(build(), tmp_path)
    found = spark.read.schema(joined.schema).parquet(str(tmp_path / "out"))
    left, right = (prepared(feed.batch, side) for side, feed in feeds.items())
    wanted = left.alias("left").join(right.alias("right"), F.expr(join.condition), join.how)
    assert rows(found) == rows(wanted)
    assert rows(found), "a comparison with nothing"


def fed(spark: SparkSession, folder: Path) -> Feed:
    feed = Feed(spark, folder, SCHEMA)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for batch in ([(1, 5), (2, 6), (1, 7), (None, 8)], [(1, 30), (3, 31), (2, 32)]):
        feed.send(*({"key": key, "time": begin + timedelta(seconds=at)} for key, at in batch))
    return feed


@pytest.mark.parametrize("how", ["full", "left_semi"])
def test_a_stream_joined_with_itself(spark: SparkSession, tmp_path: Path, how: str) -> None:
    """SPARK-26187: a row that has matched is not emitted again as one that has not."""
    feed = fed(spark, tmp_path / "feed")
    condition = "left.leftValue < 4 and right.rightTime >= left.leftTime"

    def build() -> DataFrame:
        frame = feed.stream
        return wm.join(
            prepared(frame, "left"), prepared(frame, "right"), KEY, how, state_dir=tmp_path / "state", where=condition
        )  # fmt: skip

    run(build(), tmp_path)
    for side in ("left", "right"):
        wm.end_input(tmp_path / "state", side)
    run(build(), tmp_path)
    found = spark.read.schema(build().schema).parquet(str(tmp_path / "out"))
    left, right = prepared(feed.batch, "left").alias("left"), prepared(feed.batch, "right").alias("right")
    wanted = left.join(right, F.expr(f"leftKey = rightKey and {condition}"), how)
    assert rows(found) == rows(wanted)
    assert rows(found)


def test_the_union_of_a_join_with_another_stream(spark: SparkSession, tmp_path: Path) -> None:
    """SPARK-29438: the other stream's partitions come first, and the join's are not those of its state."""
    feed, other = fed(spark, tmp_path / "feed"), fed(spark, tmp_path / "other")
    left, right = prepared(feed.stream, "left"), prepared(feed.stream, "right")
    joined = wm.join(left, right, KEY, "inner", state_dir=tmp_path / "state", partitions=2)
    columns = ["leftKey", "leftTime", "rightTime"]
    more = prepared(other.stream, "left").select("leftKey", "leftTime", F.col("leftTime").alias("rightTime"))
    run(more.union(joined.select(*columns).repartition(3)), tmp_path)
    found = spark.read.schema(more.schema).parquet(str(tmp_path / "out"))
    pairs = prepared(feed.batch, "left").join(prepared(feed.batch, "right"), F.expr("leftKey = rightKey"))
    also = prepared(other.batch, "left").select("leftKey", "leftTime", F.col("leftTime").alias("rightTime"))
    assert rows(found) == rows(also.union(pairs.select(*columns)))
