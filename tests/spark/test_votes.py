"""Full joins with a window or a condition whose hot keys are spread: partitions vote, in a second exchange."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.engine.hot_tables import published
from watersmeet.errors import OptionError
from watersmeet.state.directory import StateDir

PARTITIONS, BATCHES = 4, 6
HOT = "campaign/2024-05/europe/returning-customers/#7"  # 46 bytes
LEFT, RIGHT = "k string, n int, a string, at timestamp", "k string, m int, b string, seen timestamp"
WITHIN = {"within": "90 s", "time": ("at", "seen"), "lateness": "5 s"}
ON = "left.n = right.m"


def send(left: Feed, right: Feed, number: int) -> None:
    """Most left rows have one key. Right rows of it match one of them, which lies anywhere, or none."""
    time, base = f"2024-05-17 12:{number:02}:00", 1500 * number
    keys = [HOT if i % 10 < 6 else f"k{i}" for i in range(1500)]
    left.send(*({"k": k, "n": base + i, "a": f"{number}-{i}", "at": time} for i, k in enumerate(keys)))
    hot = [
        {"k": HOT, "m": base + 10 * i + (8 if i % 3 == 0 else 2), "b": f"{number}-h{i}", "seen": time}
        for i in range(40)
    ]
    hot += [hot[1], hot[1], hot[3]]  # equal rows: one that matches, one that does not
    others = [{"k": f"k{i}", "m": base + i + i % 4, "b": f"{number}-{i}", "seen": time} for i in range(6, 1500, 10)]
    right.send(*hot, *others, {"k": None, "m": 1, "b": f"{number}-null", "seen": time})


def batch_answer(left: DataFrame, right: DataFrame, condition: str) -> DataFrame:
    """By Spark's batch join."""
    joined = left.alias("left").join(right.alias("right"), wm_condition(condition), "full")
    return joined.selectExpr("coalesce(left.k, right.k) AS k", "n", "a", "at", "m", "b", "seen")


def wm_condition(condition: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(f"left.k = right.k AND {condition}")


WINDOW = "abs(unix_timestamp(left.at) - unix_timestamp(right.seen)) <= 90"


@pytest.mark.parametrize(
    ("told", "condition"),
    [({**WITHIN, "where": ON}, f"{ON} AND {WINDOW}"), ({"where": ON, "memory": "1 MiB"}, ON)],
    ids=["window", "memory"],
)
def test_copied_rows_that_match_nothing_are_emitted_once(
    spark: SparkSession, tmp_path: Path, told: dict[str, Any], condition: str
) -> None:
    left, right = Feed(spark, tmp_path / "left", LEFT), Feed(spark, tmp_path / "right", RIGHT)
    state = tmp_path / "state"

    def joined() -> DataFrame:
        return wm.join(
            left.stream, right.stream, on="k", how="full", state_dir=state, partitions=PARTITIONS, hot_keys="auto",
            **told,
        )  # fmt: skip

    for number in range(BATCHES):  # a restart after every batch
        send(left, right, number)
        run(joined(), tmp_path)
    [key] = published(StateDir(state), BATCHES).table.keys.values()
    assert (key.split, key.text, len(key.holders) > 1) == ("left", HOT, True)
    assert "all partitions decide together" in str(wm.explain(joined()))
    wm.end_input(state, "left")
    run(joined(), tmp_path)
    send_right = {"k": HOT, "m": 0, "b": "after the end", "seen": f"2024-05-17 12:{BATCHES:02}:00"}
    right.send(send_right)
    run(joined(), tmp_path)
    wm.end_input(state, "right")
    run(joined(), tmp_path)
    answer = rows(batch_answer(left.batch, right.batch, condition))
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.columns == ["k", "n", "a", "at", "m", "b", "seen"]
    assert rows(found) == answer
    counted: Counter[str] = Counter()
    metrics = wm.read_metrics(spark, state)
    for row in metrics.select("counters").collect():
        counted.update({name: int(value) for name, value in row[0].items() if name.split(".")[0] in NAMES})
    assert min(counted["candidates.right"], counted["vetoes.right"], counted["unmatched.right.ended"]) > 0
    assert counted["candidates.left"] == counted["vetoes.left"] == 0
    last = metrics.where(f"batch = {BATCHES - 1}").selectExpr("rows_in['left']").collect()
    assert max(row[0] for row in last) < 1.4 * 1500 / PARTITIONS
    alone = sum(count for row, count in answer.items() if row[1] is None)
    directly = sum(count for name, count in counted.items() if name.startswith("unmatched.right."))
    assert directly < alone < directly + counted["candidates.right"], "some are emitted, and some have matched"


NAMES = ("candidates", "vetoes", "unmatched")


def test_the_output_is_as_without_votes(spark: SparkSession, tmp_path: Path) -> None:
    """Its columns, and what Spark allows after it: no append aggregation, since it has no watermark. And results of
    such a join can be the input of another one."""
    left, right = Feed(spark, tmp_path / "left", LEFT), Feed(spark, tmp_path / "right", RIGHT)
    third = Feed(spark, tmp_path / "third", "k string, c int")

    def joined(state: str, hot_keys: str) -> DataFrame:
        one = left.stream.withWatermark("at", "10 seconds").withColumnRenamed("a", "_vote_by")
        other = right.stream.withWatermark("seen", "10 seconds")
        return wm.join(
            one, other, on="k", how="full", state_dir=tmp_path / state, partitions=2, hot_keys=hot_keys, **WITHIN
        )

    plain, voting = joined("plain", "off"), joined("voting", "auto")
    assert plain.schema == voting.schema
    assert [field.metadata for field in plain.schema] == [field.metadata for field in voting.schema]
    for frame in (plain, voting):
        counts = frame.groupBy("at").count().writeStream.format("noop").outputMode("append")
        with pytest.raises(AnalysisException, match="watermark"):
            counts.option("checkpointLocation", str(tmp_path / "refused")).start()
    chained = wm.join(voting, third.stream, on="k", how="left", state_dir=tmp_path / "chained", partitions=3)
    for number in range(2):
        send(left, right, number)
        third.send({"k": HOT, "c": number}, {"k": "k6", "c": number})
        run(chained, tmp_path)
    for side in ("left", "right"):
        wm.end_input(tmp_path / "voting", side)
    run(chained, tmp_path)
    for side in ("left", "right"):
        wm.end_input(tmp_path / "chained", side)
    run(chained, tmp_path)
    inner = batch_answer(left.batch, right.batch, WINDOW)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(
        inner.join(third.batch, "k", "left").select("k", "n", "a", "at", "m", "b", "seen", "c")
    )


def test_what_still_cannot_be_spread(spark: SparkSession, tmp_path: Path) -> None:
    left, right = Feed(spark, tmp_path / "left", LEFT), Feed(spark, tmp_path / "right", RIGHT)
    for told, found in (
        ({"within": "90 s"}, "times of arrival"),
        ({**WITHIN, "late": "drop"}, "late='drop'"),
        ({**WITHIN, "idle_timeout": "10 s"}, "idle_timeout"),
    ):
        with pytest.raises(OptionError, match=f"how='full' and its other options.*{found}"):
            wm.join(
                left.stream, right.stream, on="k", how="full", state_dir=tmp_path / "state", hot_keys="auto", **told
            )
