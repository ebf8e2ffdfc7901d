"""Intervals that need not contain zero, and late rows that are dropped, beside Spark's own joins."""

from __future__ import annotations

import warnings
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, diagonal, rows, run

import watersmeet as wm
from watersmeet.errors import OptionError
from watersmeet.spark.event_time import DELAY
from watersmeet.window.interval import Between

START = datetime(2026, 1, 1)
TYPES = ["inner", "left", "right", "full", "left_semi", "left_anti"]
INTERVALS = {
    "after": (wm.between("2 s", "5 s"), "seen between at + interval 2 seconds and at + interval 5 seconds"),
    "before": (
        wm.between("-5 s", timedelta(seconds=-1)),
        "seen between at - interval 5 seconds and at - interval 1 second",
    ),
    "open": (wm.between("3 s", None), "seen >= at + interval 3 seconds"),
}


class Streams:
    """Two inputs in three files each, some rows out of order and some without a time."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        self.left = Feed(spark, folder / "l", "k long, a long, at timestamp")
        self.right = Feed(spark, folder / "r", "k long, b long, seen timestamp")
        for part in range(3):
            self.left.send(*({"k": i % 5, "a": 100 * part + i, "at": self._time(part, i)} for i in range(30)))
            self.right.send(*({"k": i % 7, "b": 100 * part + i, "seen": self._time(part, i)} for i in range(25)))

    @staticmethod
    def _time(part: int, i: int) -> datetime | None:
        return None if i == 17 else START + timedelta(seconds=10 * part + (i * 7 % 23) / 2)

    def joined(self, **options: Any) -> DataFrame:
        chosen: dict[str, Any] = {"time": ("at", "seen"), "lateness": "20 s", "state_dir": self.folder / "state"}
        return wm.window_join(self.left.stream, self.right.stream, "k", **{**chosen, **options})

    def finished(self, spark: SparkSession, **options: Any) -> DataFrame:
        """All that there is, in two runs, the second of which learns that the inputs have ended."""
        joined = self.joined(**options)
        run(joined, self.folder)
        for name in ("left", "right"):
            wm.end_input(self.folder / "state", name)
        run(self.joined(**options), self.folder)
        return spark.read.schema(joined.schema).parquet(str(self.folder / "out"))


@pytest.mark.filterwarnings("ignore:window_join. nothing bounds:UserWarning")
@pytest.mark.parametrize(("how", "name"), diagonal(TYPES, list(INTERVALS)))
def test_the_answer_of_the_batch_join(spark: SparkSession, tmp_path: Path, name: str, how: str) -> None:
    interval, condition = INTERVALS[name]
    streams = Streams(spark, tmp_path)
    found = streams.finished(spark, window=interval, how=how)
    right = streams.right.batch.withColumnRenamed("k", "n")
    joined = streams.left.batch.join(right, F.expr(f"k = n and {condition}"), how)
    if how not in ("left_semi", "left_anti"):
        key = {"right": F.col("n"), "full": F.coalesce("k", "n")}.get(how, F.col("k"))
        joined = joined.select(key.alias("k"), "a", "at", "b", "seen")
    assert rows(found) == rows(joined)
    assert len(rows(found)) > 10


def test_an_open_interval_warns_and_has_no_watermark(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    with pytest.warns(UserWarning, match="nothing bounds the state of input 'left'.*'right' has ended"):
        joined = streams.joined(window=wm.between("0 s", None))
    assert not any(DELAY in field.metadata for field in joined.schema)
    past = wm.between(None, "0 s")
    with pytest.warns(UserWarning, match="nothing bounds the state of input 'right'") as caught:
        streams.joined(window=past, state_dir=tmp_path / "other")
    inputs, options = (streams.left.stream, streams.right.stream), {"within": past, "time": ("at", "seen")}
    with pytest.warns(UserWarning, match="nothing bounds the state of input 'right'") as by_the_door:
        wm.join(*inputs, on="k", state_dir=tmp_path / "door", **options)
    assert [one.filename for one in (*caught, *by_the_door)] == [__file__] * 2, "where the program calls"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streams.joined(window=wm.between("1 s", "2 s"), state_dir=tmp_path / "closed")
        for number, promise in enumerate([wm.Ordered("right"), wm.Clustered("right")]):
            streams.joined(window=wm.between("0 s", None), constraints=[promise], state_dir=tmp_path / f"said-{number}")


def test_the_delay_is_that_of_the_oldest_partner(spark: SparkSession, tmp_path: Path) -> None:
    """Of an interval that begins after zero the right rows bring nothing older than themselves by more than its end,
    and the left rows nothing older than themselves."""
    streams = Streams(spark, tmp_path)
    for number, (interval, at, seen) in enumerate(
        [(wm.between("5 min", "10 min"), 20_001, 620_001), (wm.between("-10 min", "-5 min"), 620_001, 20_001)]
    ):
        joined = streams.joined(window=interval, state_dir=tmp_path / f"state-{number}")
        delays = {field.name: field.metadata[DELAY] for field in joined.schema if DELAY in field.metadata}
        assert delays == {"at": at, "seen": seen}


def test_aggregations_after_an_interval_that_begins_after_zero(spark: SparkSession, tmp_path: Path) -> None:
    """In append mode, beside the same after Spark's own join: nothing may be dropped."""
    left = Feed(spark, tmp_path / "l", "k long, at timestamp")
    right = Feed(spark, tmp_path / "r", "n long, seen timestamp")
    for part in range(6):
        times = range(part * 200, part * 200 + 200, 10)
        left.send(*({"k": at, "at": START + timedelta(seconds=at)} for at in times))
        right.send(*({"n": at - 540, "seen": START + timedelta(seconds=at)} for at in times))
    left.send({"k": -1, "at": START + timedelta(days=1)})
    right.send({"n": -1, "seen": START + timedelta(days=1)})

    def counts(joined: DataFrame, name: str) -> dict[datetime, int]:
        query = (
            joined.groupBy(F.window("at", "5 minutes"))
            .count()
            .select("window.start", "count")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
            .option("path", str(tmp_path / f"out-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert sum(op["numRowsDroppedByWatermark"] for p in query.recentProgress for op in p["stateOperators"]) == 0
        return dict(spark.read.parquet(str(tmp_path / f"out-{name}")).collect())  # type: ignore[arg-type]

    a, b = (feed.stream for feed in (left, right))
    near = "k = n and seen between at + interval 5 minutes and at + interval 10 minutes"
    own = a.withWatermark("at", "30 seconds").join(b.withWatermark("seen", "30 seconds"), F.expr(near))
    options: dict[str, Any] = {"time": ("at", "seen"), "lateness": "30 s", "state_dir": tmp_path / "state"}
    ours = wm.window_join(a, b, [("k", "n")], window=wm.between("5 min", "10 min"), **options)
    found = counts(ours, "ours")
    assert found == counts(own, "spark")
    assert sum(found.values()) > 50


@pytest.mark.parametrize("how", ["inner", "full", "left_anti"])
def test_late_rows_are_dropped(spark: SparkSession, tmp_path: Path, how: str) -> None:
    """They are in no row of the output, not even among the unmatched."""
    left, right = (
        Feed(spark, tmp_path / "l", "k long, a long, at timestamp"),
        Feed(spark, tmp_path / "r", "k long, b long, seen timestamp"),
    )

    def at(seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)

    left.send({"k": 1, "a": 0, "at": at(0)})
    right.send({"k": 1, "b": 0, "seen": at(0)})
    left.send({"k": 1, "a": 1, "at": at(100)})
    right.send({"k": 1, "b": 1, "seen": at(100)})
    left.send({"k": 1, "a": 2, "at": at(94.9)}, {"k": 1, "a": 3, "at": at(95)})  # the first one is late
    right.send({"k": 2, "b": 2, "seen": at(101)})
    options: dict[str, Any] = {"time": ("at", "seen"), "window": "6 s", "lateness": "5 s"}
    options |= {"late": "drop", "how": how, "partitions": 1, "state_dir": tmp_path / "state"}
    joined = wm.window_join(left.stream, right.stream, "k", **options)
    with pytest.raises(OptionError, match="late='drop', which has none"):
        wm.window_join(left.stream, right.stream, "k", late="drop", window="6 s", state_dir=tmp_path / "none")
    run(joined, tmp_path)
    for name in ("left", "right"):
        wm.end_input(tmp_path / "state", name)
    run(wm.window_join(left.stream, right.stream, "k", **options), tmp_path)
    output = spark.read.schema(joined.schema).parquet(str(tmp_path / "out")).drop("k", "at", "seen")
    on_time = {(0, 0): 1, (1, 1): 1, (3, 1): 1}
    assert rows(output) == {"inner": on_time, "left_anti": {}, "full": {**on_time, (None, 2): 1}}[how]
    counted = wm.read_metrics(spark, tmp_path / "state").agg(
        F.sum(F.col("counters")["late.left"]), F.sum(F.col("counters")["left.left.late"])
    )
    assert tuple(counted.first()) == (1, 1)  # type: ignore[arg-type]


def test_wrong_intervals_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    for wrong, why in (
        (("10 min", "5 min"), "ends before it begins"),
        ((None, None), "open at both ends"),
        (("soon", "5 min"), "is not a duration"),
        ((5, "5 min"), "is not a duration"),
        (("0 s", "20000 days"), None),
    ):
        if why is None:
            assert isinstance(wm.between(*wrong), Between)  # type: ignore[arg-type]
            continue
        with pytest.raises(OptionError, match=why):
            wm.between(*wrong)  # type: ignore[arg-type]
    streams = Streams(spark, tmp_path)
    for window in ((None, "5 s"), (timedelta(seconds=-1), "5 s")):
        with pytest.raises(OptionError, match=r"the left window must be between 0.*wm.between"):
            streams.joined(window=window)
    with pytest.raises(OptionError, match="need an interval with two ends"):
        streams.joined(window=wm.between("0 s", None), on_overload="shrink", memory="1 MB")
    assert wm.explain_window_join(
        window=wm.between("5 min", "10 min"), rates=(10, 100), distinct_keys=(10, 10)
    ).left.rows == pytest.approx(6000)
