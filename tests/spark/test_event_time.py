"""Aggregations after a join, beside the same aggregation after Spark's own: no row may be late for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed

import watersmeet as wm
from watersmeet.spark.event_time import DELAY

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
STEP, APART, BATCHES = 200, 540, 7  # seconds of a micro-batch and from an impression to its click
Counts = dict[datetime, int]


def stamp(seconds: float) -> str:
    return f"{EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S.%f}"


class Ads:
    """Impressions, and nine minutes later the click on each. A last pair, far ahead, closes all windows before it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.queries = spark, folder, 0
        self.answers: dict[str, Counts] = {}
        self.shown = Feed(spark, folder / "shown", "k long, shown_at timestamp")
        self.clicked = Feed(spark, folder / "clicked", "k long, clicked_at timestamp")
        for number in range(BATCHES):
            times = range(number * STEP, (number + 1) * STEP, 10)
            self.shown.send(*({"k": at, "shown_at": stamp(at)} for at in times))
            self.clicked.send(*({"k": at - APART, "clicked_at": stamp(at)} for at in times))

    def close(self) -> None:
        """The last pair."""
        self.shown.send({"k": -1, "shown_at": stamp(100_000)})
        self.clicked.send({"k": -1, "clicked_at": stamp(100_000)})

    def inputs(
        self, shown: str | None = "30 seconds", clicked: str | None = "30 seconds"
    ) -> tuple[DataFrame, DataFrame]:
        """The streams, with watermarks of these delays."""
        left, right = self.shown.stream, self.clicked.stream
        return (
            left if shown is None else left.withWatermark("shown_at", shown),
            right if clicked is None else right.withWatermark("clicked_at", clicked),
        )

    def state(self) -> Path:
        """A new one."""
        self.queries += 1
        return self.folder / f"state-{self.queries}"

    def counts(self, joined: DataFrame, time: str = "shown_at", *, go_on: bool = False) -> Counts:
        """The counts per five minutes, in append mode; nothing may have been dropped on the way."""
        self.queries += not go_on
        out, name = self.folder / f"out-{self.queries}", F.col("window.start").alias("start")
        query = (
            joined.groupBy(F.window(time, "5 minutes"))
            .count()
            .select(name, "count")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / f"checkpoint-{self.queries}"))
            .option("path", str(out))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        dropped = [op["numRowsDroppedByWatermark"] for p in query.recentProgress for op in p["stateOperators"]]
        assert dropped
        assert sum(dropped) == 0
        return dict(self.spark.read.parquet(str(out)).collect())  # type: ignore[arg-type]

    def answer(self, time: str = "shown_at") -> Counts:
        """The same after Spark's own join."""
        if time not in self.answers:
            left, right = self.inputs()
            near = "k = id and clicked_at between shown_at and shown_at + interval 10 minutes"
            self.answers[time] = self.counts(left.join(right.withColumnRenamed("k", "id"), F.expr(near)), time)
        return self.answers[time]


@pytest.fixture(scope="module")
def ads(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ads:
    ads = Ads(spark, tmp_path_factory.mktemp("ads"))
    ads.close()
    return ads


def attributed(ads: Ads, left: DataFrame, right: DataFrame) -> DataFrame:
    return wm.window_join(
        left,
        right,
        "k",
        state_dir=ads.state(),
        time=("shown_at", "clicked_at"),
        window=("10 min", "0 s"),
        lateness="30 s",
    )


def test_a_window_join_is_counted_like_sparks_own(ads: Ads) -> None:
    answer = ads.answer()
    assert [answer[start] for start in sorted(answer)] == [30, 30, 26]
    assert ads.counts(attributed(ads, *ads.inputs())) == answer


@pytest.mark.parametrize(("shown", "clicked"), [(None, None), ("30 seconds", None), ("2 hours", "1 second")])
def test_watermarks_are_declared_where_there_is_none_and_long_ones_stay(
    ads: Ads, shown: str | None, clicked: str | None
) -> None:
    assert ads.counts(attributed(ads, *ads.inputs(shown, clicked)), "clicked_at") == ads.answer("clicked_at")


def test_a_deduplicated_input_keeps_its_watermark(ads: Ads) -> None:
    left, right = ads.inputs()
    joined = attributed(ads, left.dropDuplicatesWithinWatermark(["k"]), right)
    assert ads.counts(joined) == ads.answer()


def test_a_multiway_join_is_counted_like_sparks_own(ads: Ads) -> None:
    left, right = ads.inputs()
    joined = wm.multiway_join(
        [left, right], "k", state_dir=ads.state(), time=["shown_at", "clicked_at"], window="10 min", lateness="30 s"
    )
    assert ads.counts(joined) == ads.answer()


def test_joins_one_after_the_other_add_their_delays(ads: Ads) -> None:
    """The second join emits an impression with its second click: nine minutes after the first one."""
    left, right = ads.inputs()
    again = right.select((F.col("k") - APART).alias("k"), F.col("clicked_at").alias("again_at"))
    joined = wm.window_join(
        attributed(ads, left, right),
        again,
        "k",
        state_dir=ads.folder / "second",
        time=("clicked_at", "again_at"),
        window=("10 min", "0 s"),
        lateness="30 s",
    )
    counts = ads.counts(joined, "clicked_at")
    assert sum(counts.values()) == (BATCHES * STEP - 2 * APART) / 10
    assert len(counts) > 1


UNBOUNDED: dict[str, Callable[[Ads, DataFrame, DataFrame], DataFrame]] = {
    "progressive": lambda ads, left, right: wm.progressive_join(left, right, "k", state_dir=ads.state()),
    "punctuated": lambda ads, left, right: wm.punctuated_join(
        left, right, "k", state_dir=ads.state(), constraints=[wm.OneToMany(one="left")]
    ),
    "multiway": lambda ads, left, right: wm.multiway_join([left, right], "k", state_dir=ads.state()),
    "arrival clock": lambda ads, left, right: wm.window_join(left, right, "k", state_dir=ads.state(), window="1 hour"),
    "semi-stream": lambda ads, left, _: wm.semi_stream_join(
        left, ads.clicked.batch, "k", state_dir=ads.state(), max_delay=3
    ),
}


@pytest.mark.parametrize("family", UNBOUNDED)
def test_without_a_bound_the_user_declares_the_watermark_of_the_output(ads: Ads, family: str) -> None:
    joined = UNBOUNDED[family](ads, *ads.inputs())
    with pytest.raises(AnalysisException, match="without watermark"):
        ads.counts(joined)
    assert ads.counts(joined.withWatermark("shown_at", "1 hour")) == ads.answer()


def test_pairs_that_come_off_the_disk_at_the_end_are_not_late(ads: Ads, spark: SparkSession, tmp_path: Path) -> None:
    own = Ads(spark, tmp_path)
    left, right = own.inputs()
    joined = wm.progressive_join(left, right, "k", state_dir=tmp_path / "state", memory="2 KB", page_rows=10)
    watermarked = joined.withWatermark("shown_at", "1 hour")
    assert own.counts(watermarked) == {}
    own.close()
    for name in ("left", "right"):
        wm.end_input(tmp_path / "state", name)
    counts = own.counts(watermarked, go_on=True)
    assert wm.read_metrics(spark, tmp_path / "state").agg(F.sum("counters.rows_flushed")).first()[0] > 100
    assert counts == ads.answer()


def test_a_semi_stream_join_that_answers_at_once_keeps_the_watermark(ads: Ads) -> None:
    left, _ = ads.inputs()
    assert (
        ads.counts(wm.semi_stream_join(left, ads.clicked.batch, "k", state_dir=ads.state(), max_delay=1))
        == ads.answer()
    )


def watermarks(frame: DataFrame) -> tuple[dict[str, int], dict[str, str]]:
    """The delays that the columns of a DataFrame say they have, in milliseconds, and the watermarks of its plan."""
    said = {field.name: field.metadata[DELAY] for field in frame.schema if DELAY in field.metadata}
    with redirect_stdout(StringIO()) as printed:
        frame.explain(extended=True)
    plan = printed.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
    return said, dict(re.findall(r"EventTimeWatermark [-\w]+, (\w+)#\d+\S*: timestamp, (.+)", plan))


def test_each_input_gets_the_delay_of_the_other_window(ads: Ads) -> None:
    left, right = ads.inputs()
    columns = {"shown_at": 30_001, "clicked_at": 630_001}
    both = {"shown_at": "30.001 seconds", "clicked_at": "10 minutes 30.001 seconds"}
    assert watermarks(attributed(ads, left, right)) == (columns, both)
    # The same stream on both sides, with a delay of its own on each.
    twice = left.select("k", F.col("shown_at").alias("clicked_at"))
    said, _ = watermarks(attributed(ads, left, twice))
    assert said == columns
    # Of a watermark on another column nothing is known after the join.
    other = ads.shown.stream.withColumn("other", F.col("shown_at")).withWatermark("other", "1 second")
    said, plan = watermarks(attributed(ads, other, right))
    assert said == columns
    assert "other" not in plan
    # It stays for a deduplication, and the output has none.
    for held in (other.dropDuplicatesWithinWatermark(["k"]), other.dropDuplicates(["k", "other"])):
        assert watermarks(attributed(ads, held, right)) == ({}, {"other": "1 seconds"})


def test_an_input_that_spark_has_held_back_gives_no_watermark(ads: Ads) -> None:
    left, right = ads.inputs()
    minutes = F.window("shown_at", "1 minute")
    counted = left.groupBy("k", minutes).count().select("k", F.window_time("window").alias("shown_at"))
    near = left.join(right.withColumnRenamed("k", "id"), F.expr("k = id and shown_at = clicked_at")).drop(
        "id", "clicked_at"
    )
    for held in (counted, near):
        said, plan = watermarks(attributed(ads, held, right))
        assert said == {}
        assert plan["shown_at"] == "30 seconds"
    with pytest.raises(AnalysisException, match="without watermark"):
        ads.counts(attributed(ads, counted, right))
