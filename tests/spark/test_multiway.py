"""`multiway_join` on real Structured Streaming, beside Spark's batch joins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.errors import ColumnError, NotStreamingError, OptionError

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Tuples(Feed):
    """Rows are sent as tuples in the order of the schema."""

    def send(self, rows: Sequence[tuple[Any, ...]]) -> None:  # type: ignore[override]
        names = [column.split()[0] for column in self.schema.split(", ")]
        super().send(*(dict(zip(names, row, strict=True)) for row in rows))


@pytest.fixture
def feeds(spark: SparkSession, tmp_path: Path) -> list[Tuples]:
    return [Tuples(spark, tmp_path / name, f"k long, {name} string") for name in "abcd"]


def fill(feeds: Sequence[Tuples], first: int, count: int) -> None:
    for number in range(first, first + count):
        for place, feed in enumerate(feeds):
            feed.send([((i * (place + 3) + number) % 11, f"{number}-{i}") for i in range(15)])


def test_four_streams_with_a_restart_equal_the_batch_join(
    spark: SparkSession, tmp_path: Path, feeds: list[Tuples]
) -> None:
    streams, state = [feed.stream for feed in feeds], tmp_path / "state"
    fill(feeds, 0, 2)
    run(wm.multiway_join(streams, on="k", state_dir=state), tmp_path)
    fill(feeds, 2, 2)  # the query goes on from its checkpoint, with another driver
    run(wm.multiway_join(streams, on="k", state_dir=state, driver="timestamp"), tmp_path)

    a, b, c, d = (feed.batch for feed in feeds)
    expected = a.join(b, "k").join(c, "k").join(d, "k")
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.columns == expected.columns == ["k", "a", "b", "c", "d"]
    assert rows(found) == rows(expected)
    assert rows(found)


def test_named_inputs_with_keys_of_their_own_and_common_columns(spark: SparkSession, tmp_path: Path) -> None:
    clicks = Tuples(spark, tmp_path / "clicks", "user int, page string, note string")
    buys = Tuples(spark, tmp_path / "buys", "buyer long, note string, price double")
    views = Tuples(spark, tmp_path / "views", "uid long, note string")
    clicks.send([(1, "home", "x"), (2, "cart", None), (None, "lost", "y")])
    buys.send([(1, "first", 10), (1, "second", 20), (3, "none", 30)])
    views.send([(1, "seen"), (2, "seen")])
    joined = wm.multiway_join(
        {"clicks": clicks.stream, "buys": buys.stream, "views": views.stream},
        on={"clicks": "user", "buys": "buyer", "views": "uid"},
        state_dir=tmp_path / "state",
    )
    assert joined.columns == ["user", "page", "clicks_note", "buyer", "buys_note", "price", "uid", "views_note"]
    run(joined, tmp_path)
    a, b, c = clicks.batch, buys.batch, views.batch
    expected = a.join(b, a.user == b.buyer).join(c, c.uid == a.user)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert [f.dataType for f in found.schema] == [f.dataType for f in expected.schema]
    assert rows(found) == rows(expected)
    assert len(rows(found)) == 2


def test_a_window_bounds_answer_and_state(spark: SparkSession, tmp_path: Path) -> None:
    feeds = [Tuples(spark, tmp_path / name, f"k long, at timestamp, {name} long") for name in "abc"]
    for number in range(8):
        for place, feed in enumerate(feeds):
            moment = EPOCH + timedelta(minutes=5 * number)
            feed.send([(i % 3, moment + timedelta(seconds=97 * (i + place)), 100 * number + i) for i in range(8)])
    joined = wm.multiway_join(
        [feed.stream for feed in feeds],
        on="k",
        names=["a", "b", "c"],
        time="at",
        window="10 min",
        lateness="15 min",
        state_dir=tmp_path / "state",
    )
    assert joined.columns == ["k", "a_at", "a", "b_at", "b", "c_at", "c"]
    run(joined, tmp_path)
    a, b, c = (f.batch.withColumnRenamed("at", f"{name}_at") for f, name in zip(feeds, "abc", strict=True))
    times = ("a_at", "b_at", "c_at")
    near = F.greatest(*times) <= F.least(*times) + F.expr("interval 10 minutes")
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(a.join(b, "k").join(c, "k").where(near))
    held = _rows_held(tmp_path / "state")
    assert 0 < held < 3 * 8 * 8 * 0.9


def budgeted(spark: SparkSession, folder: Path, feeds: Sequence[Tuples], **options: Any) -> DataFrame:
    streams = [feed.stream for feed in feeds]
    return wm.multiway_join(streams, on="k", state_dir=folder / "state", buckets=4, **options)


def test_a_budget_with_a_restart_silence_and_the_end_equal_the_batch_join(
    spark: SparkSession, tmp_path: Path, feeds: list[Tuples]
) -> None:
    small = {"memory": "2 kB", "page_rows": 16}
    feeds = feeds[:3]
    fill(feeds, 0, 6)
    run(budgeted(spark, tmp_path, feeds, **small, idle_pages=0), tmp_path)

    def expected() -> DataFrame:
        a, b, c = (feed.batch for feed in feeds)
        return a.join(b, "k").join(c, "k")

    assert wm.read_state(spark, tmp_path / "state").where("tier = 'spilled'").count()
    before = spark.read.parquet(str(tmp_path / "out")).count()
    assert before < expected().count()

    # The query goes on from its checkpoint, with another budget; then nothing comes for a while.
    fill(feeds, 6, 2)
    joined = budgeted(spark, tmp_path, feeds, memory="3 kB", page_rows=16)
    writer = joined.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wanted = expected().count()
        until(lambda: spark.read.parquet(str(tmp_path / "out")).count() >= wanted, query)
    finally:
        query.stop()
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(expected())

    fill(feeds, 8, 2)  # and to the end, without silence
    run(budgeted(spark, tmp_path, feeds, **small, idle_pages=0), tmp_path)
    for name in ("input_1", "input_2", "input_3"):
        wm.end_input(tmp_path / "state", name)
    run(budgeted(spark, tmp_path, feeds, **small, idle_pages=0), tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(expected())
    assert not wm.read_state(spark, tmp_path / "state").count()
    metrics = wm.read_metrics(spark, tmp_path / "state").collect()
    resident = [sum(v for name, v in m.counters.items() if name.startswith("resident_bytes")) for m in metrics]
    assert max(resident) <= 1_500  # half of the budget in each of two partitions
    assert sum(m.counters.get("rows_flushed", 0) for m in metrics) > 100


def test_a_budget_under_a_window_holds_nothing_back(spark: SparkSession, tmp_path: Path) -> None:
    feeds = [Tuples(spark, tmp_path / name, f"k long, at timestamp, {name} string") for name in "abc"]
    for number in range(6):
        for feed in feeds:
            moment = EPOCH + timedelta(minutes=number)
            feed.send([(i % 5, moment + timedelta(seconds=i), f"{number}-{i}") for i in range(30)])
    joined = wm.multiway_join(
        {name: feed.stream for name, feed in zip("abc", feeds, strict=True)},
        on="k", time="at", window="2 min", lateness="0 s", memory="3 kB", page_rows=16, state_dir=tmp_path / "state",
    )  # fmt: skip
    assert "spark.watermarkDelayMs" in joined.schema["a_at"].metadata
    run(joined, tmp_path)
    a, b, c = (f.batch.withColumnRenamed("at", f"{name}_at") for f, name in zip(feeds, "abc", strict=True))
    times = ("a_at", "b_at", "c_at")
    near = F.greatest(*times) <= F.least(*times) + F.expr("interval 2 minutes")
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(a.join(b, "k").join(c, "k").where(near))
    metrics = wm.read_metrics(spark, tmp_path / "state").collect()
    assert sum(m.counters.get("pages_read", 0) for m in metrics)


def until(done: Callable[[], bool], query: StreamingQuery, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.5)


def _rows_held(state_dir: Path) -> int:
    from watersmeet.state.directory import StateDir
    from watersmeet.state.store import PartitionStore

    stores = [PartitionStore(StateDir(state_dir), partition) for partition in range(2)]
    return sum(run.rows for store in stores for run in store.manifest(store.versions()[-1]).runs)


def test_what_cannot_be_joined_is_refused_before_anything_starts(
    spark: SparkSession, tmp_path: Path, feeds: list[Tuples]
) -> None:
    a, b = feeds[0].stream, feeds[1].stream
    state = tmp_path / "state"
    for wrong, kind, message in (
        (lambda: wm.multiway_join([a], on="k", state_dir=state), OptionError, "2 to 16 inputs"),
        (lambda: wm.multiway_join([a, b] * 9, on="k", state_dir=state), OptionError, "2 to 16 inputs"),
        (lambda: wm.multiway_join([a, spark.range(3)], on="k", state_dir=state), NotStreamingError, "input_2"),
        (lambda: wm.multiway_join([a, a], on="k", state_dir=state), ColumnError, r"Give names="),
        (lambda: wm.multiway_join([a, b], on="key", state_dir=state), ColumnError, "'key' in input 'input_1'"),
        (lambda: wm.multiway_join([a, b], on=[], state_dir=state), OptionError, "at least one"),
        (lambda: wm.multiway_join([a, b], on={"x": "k", "y": "k"}, state_dir=state), OptionError, "input_1, input_2"),
        (lambda: wm.multiway_join([a, b], on="k", names=["x"], state_dir=state), OptionError, "2 different names"),
        (lambda: wm.multiway_join([a, b], on="k", window="1 s", state_dir=state), OptionError, "give time="),
        (lambda: wm.multiway_join([a, b], on="k", time="k", state_dir=state), ColumnError, "timestamp_ntz or date"),
        (lambda: wm.multiway_join([a, b], on="k", driver="best", state_dir=state), OptionError, "driver"),  # type: ignore[arg-type]
        (lambda: wm.multiway_join([a, b], on="k", idle_pages=9, state_dir=state), OptionError, "idle_pages=9, which"),
    ):
        with pytest.raises(kind, match=message):
            wrong()
    assert not state.exists()


def test_a_budget_that_holds_no_page_is_refused(tmp_path: Path, feeds: list[Tuples]) -> None:
    streams = [feed.stream for feed in feeds]
    said = "memory of at least 320 KiB: a page of 8192 rows of at least 20 bytes in each of 2 partitions, found 300000"
    with pytest.raises(OptionError, match=said):
        wm.multiway_join(streams, on="k", memory="300 kB", partitions=2, state_dir=tmp_path / "state")
