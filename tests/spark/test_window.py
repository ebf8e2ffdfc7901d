"""`window_join` on real Structured Streaming, beside Spark's batch join with the same predicate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, run

import watersmeet as wm
from watersmeet.errors import ColumnError, NotStreamingError, OptionError
from watersmeet.state.directory import StateDir
from watersmeet.state.history import metrics_history, newest_manifests

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Timed(Feed):
    """The columns k, `name`, `name`_ts."""

    def __init__(self, spark: SparkSession, folder: Path, name: str, kind: str = "timestamp") -> None:
        super().__init__(spark, folder / name, f"k long, {name} long, {name}_ts {kind}")
        self.name = name

    def send(self, rows: Sequence[tuple[int, int, float | None]]) -> None:  # type: ignore[override]
        """Rows of key, value and seconds after the epoch."""
        super().send(
            *(
                {
                    "k": key,
                    self.name: value,
                    f"{self.name}_ts": None if at is None else f"{EPOCH + timedelta(seconds=at):%Y-%m-%dT%H:%M:%S.%f}",
                }
                for key, value, at in rows
            )
        )


def fill(feeds: Sequence[Timed], first: int, count: int) -> None:
    """Batches of 40 rows over ten seconds each, up to four seconds out of order, some on the very edge of a window."""
    for number in range(first, first + count):
        for place, feed in enumerate(feeds):
            feed.send(
                [((i * (place + 3)) % 7, 100 * number + i, 10 * number + (i * 7 % 29) / 2 - 4) for i in range(40)]
            )


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def expected(a: DataFrame, b: DataFrame, left: int, right: int) -> DataFrame:
    apart = F.unix_micros(F.col("b_ts").cast("timestamp")) - F.unix_micros(F.col("a_ts").cast("timestamp"))
    return a.join(b, "k").where(apart.between(-right * 1_000_000, left * 1_000_000))


def counters(state: Path) -> Counter[str]:
    """The counters of all batches and partitions, added up."""
    total: Counter[str] = Counter()
    for manifest in newest_manifests(StateDir(state)):
        for entry in metrics_history(StateDir(state), manifest):
            total.update(entry["counters"])
    return total


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_a_restart_and_another_algorithm_equal_the_batch_join(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    feeds = [Timed(spark, tmp_path, name, kind) for name in "ab"]
    options: dict[str, Any] = {"time": ("a_ts", "b_ts"), "window": ("6 s", "3 s"), "lateness": "20 s"}
    options["state_dir"] = tmp_path / "state"
    a, b = (feed.stream for feed in feeds)
    fill(feeds, 0, 3)
    run(wm.window_join(a, b, "k", algorithm="auto", **options), tmp_path)
    fill(feeds, 3, 3)
    run(wm.window_join(a, b, "k", algorithm="HN", memory="2 kB", **options), tmp_path)

    found = spark.read.parquet(str(tmp_path / "out"))
    answer = expected(feeds[0].batch, feeds[1].batch, 6, 3)
    assert found.columns == answer.columns == ["k", "a", "a_ts", "b", "b_ts"]
    assert rows(found) == rows(answer)
    assert len(rows(found)) > 100
    total = counters(tmp_path / "state")
    assert total["left.left.expired"] > 0
    assert total["rows_flushed"] > 0  # the budget of the second run is smaller than the windows
    assert wm.explain_window_join(tmp_path / "state").choice in ("HH", "HN", "NH", "NN")


def test_the_arrival_clock_joins_what_comes_close_together(spark: SparkSession, tmp_path: Path) -> None:
    feeds = [Timed(spark, tmp_path, name) for name in "ab"]
    a, b = (feed.stream for feed in feeds)
    for number in range(2):
        for feed in feeds:
            feed.send([(key, number, 0.0) for key in range(10)])
    run(wm.window_join(a, b, "k", window="0 s", state_dir=tmp_path / "now"), tmp_path)
    same_batch = spark.read.parquet(str(tmp_path / "out"))
    assert {(row["a"], row["b"]) for row in same_batch.collect()} == {(0, 0), (1, 1)}
    assert same_batch.count() == 20
    (tmp_path / "hour").mkdir()
    run(wm.window_join(a, b, "k", window="1 hour", state_dir=tmp_path / "hour-state"), tmp_path / "hour")
    assert spark.read.parquet(str(tmp_path / "hour" / "out")).count() == 40


def test_late_rows_and_null_times_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    a, b = (Timed(spark, tmp_path, name) for name in "ab")
    a.send([(1, 0, 0.0)])
    b.send([(1, 0, 0.0)])
    a.send([(1, 1, 100.0), (1, 2, None)])
    b.send([(1, 1, 100.0)])
    a.send([(1, 3, 1.0), (1, 4, 94.9)])  # late both: the partner of the first is gone, that of the second is not
    b.send([(2, 2, 101.0)])
    joined = wm.window_join(
        a.stream, b.stream, "k", time=("a_ts", "b_ts"), window="6 s", lateness="5 s", state_dir=tmp_path / "state"
    )
    run(joined, tmp_path)
    total = counters(tmp_path / "state")
    assert (total["late.left"], total["late.right"], total["left.left.null_time"]) == (2, 0, 1)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted((row["a"], row["b"]) for row in found.collect()) == [(0, 0), (1, 1), (4, 1)]


def test_what_is_shed_is_in_the_account(spark: SparkSession, tmp_path: Path) -> None:
    a, b = (Timed(spark, tmp_path, name) for name in "ab")
    for number in range(2):
        for feed in (a, b):
            feed.send([(key, key, float(number)) for key in range(1000)])
    options: dict[str, Any] = {"time": ("a_ts", "b_ts"), "window": "5 s", "state_dir": tmp_path / "state"}
    run(wm.window_join(a.stream, b.stream, "k", on_overload="shed", service_rate=1e-9, **options), tmp_path)
    total = counters(tmp_path / "state")
    # The rate is known from the second batch on, and then no row is within it.
    assert (total["left.left.shed"], total["left.right.shed"]) == (1000, 1000)
    assert total["expected_results_lost"] > 0
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1000


def test_what_cannot_work_is_refused_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    a, b = Timed(spark, tmp_path, "a"), Timed(spark, tmp_path, "b", "timestamp_ntz")
    good: dict[str, Any] = {"on": "k", "window": "5 s", "state_dir": tmp_path / "state"}
    with pytest.raises(NotStreamingError):
        wm.window_join(a.batch, b.stream, **good)
    with pytest.raises(ColumnError, match="both time columns with a time zone or both without"):
        wm.window_join(a.stream, b.stream, time=("a_ts", "b_ts"), **good)
    with pytest.raises(ColumnError, match="of type timestamp"):
        wm.window_join(a.stream, b.stream, time=("a", "b"), **good)
    with pytest.raises(ColumnError, match="one column 'when'"):
        wm.window_join(a.stream, b.stream, time=("when", "b_ts"), **good)
    with pytest.raises(OptionError, match="needs memory"):
        wm.window_join(a.stream, b.stream, on_overload="shrink", **good)
    with pytest.raises(OptionError, match="only with on_overload"):
        wm.window_join(a.stream, b.stream, service_rate=5, **good)
    with pytest.raises(OptionError, match="has run"):
        wm.explain_window_join(tmp_path / "nothing")
    with pytest.raises(OptionError, match="rates"):
        wm.explain_window_join(window="5 s")


def test_explaining_streams_that_are_yet_to_come(capsys: pytest.CaptureFixture[str]) -> None:
    wm.explain_window_join(window="60 s", rates=(10, 100), distinct_keys=(10, 10))
    printed = capsys.readouterr().out
    assert all(f"  {name}  " in printed for name in ("HH", "HN", "NH", "NN"))
    assert "<- chosen" in printed
    assert "ratio of 6.7 (Eq. 7)" in printed
