"""The life of a query: restarts, repeated batches, ends, sinks and triggers, always against Spark's batch join."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.errors import OptionError, StateDirError
from watersmeet.spark.plans import is_classic
from watersmeet.spark.session import default_partitions
from watersmeet.state.directory import StateDir
from watersmeet.state.history import newest_manifests


class Streams:
    """Two inputs as folders of parquet files, and the join over them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.written = 0

    def arrive(self, rows: int = 200, keys: int = 50, sides: str = "lr") -> None:
        """One more file on each side."""
        for side in sides:
            self.written += 1
            frame = self.spark.range(self.written * 1000, self.written * 1000 + rows, numPartitions=1).select(
                (F.xxhash64("id") % keys).alias("k"),
                F.col("id").alias(side),
                F.timestamp_seconds(F.col("id") % 600 + self.written * 600).alias(f"{side}_time"),
            )
            frame.write.mode("append").parquet(str(self.folder / side))

    def read(self, side: str) -> DataFrame:
        schema = f"k long, {side} long, {side}_time timestamp"
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.folder / side))

    def joined(self, **options: Any) -> DataFrame:
        return wm.progressive_join(self.read("l"), self.read("r"), "k", state_dir=self.state, **options)

    def start(self, joined: DataFrame | None = None, **trigger: Any) -> StreamingQuery:
        """A query into the parquet sink."""
        writer = (self.joined() if joined is None else joined).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.checkpoint)).option("path", str(self.folder / "out"))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self) -> None:
        self.start().awaitTermination()

    def answer(self) -> Counter[Any]:
        left, right = (self.spark.read.parquet(str(self.folder / side)) for side in "lr")
        return Counter(left.join(right, "k").collect())

    def output(self) -> Counter[Any]:
        return Counter(self.spark.read.parquet(str(self.folder / "out")).collect())

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"


@pytest.fixture
def other_session(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    """A session with settings of its own."""
    if is_classic(spark):
        return spark.newSession()
    from tests.connect.server import new_session

    return new_session(request.getfixturevalue("server"))


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path)


def root_of(error: pytest.ExceptionInfo[StreamingQueryException]) -> str:
    return str(error.value).replace("\n", " ")


def test_restarts_repeated_batches_and_ends(streams: Streams) -> None:
    streams.arrive()
    streams.arrive()
    streams.run()  # batches 0 and 1
    assert streams.output() == streams.answer()
    streams.arrive()
    streams.run()  # batch 2, by a new query from the checkpoint
    answer = streams.answer()
    assert streams.output() == answer
    assert answer.total() > 1000

    # Spark dies before the sink and the checkpoint have committed batch 2: it is repeated.
    before = {m.partition: m for m in newest_manifests(StateDir(streams.state))}
    for log in (streams.checkpoint / "commits", streams.folder / "out" / "_spark_metadata"):
        (log / "2").unlink()
        (log / ".2.crc").unlink(missing_ok=True)
    streams.run()
    assert streams.output() == answer
    after = {m.partition: m for m in newest_manifests(StateDir(streams.state))}
    assert {p: (m.version, m.digest, m.repeats) for p, m in before.items()} == {
        p: (m.version, m.digest, m.repeats) for p, m in after.items()
    }
    assert {p: m.run_id for p, m in before.items()} != {p: m.run_id for p, m in after.items()}

    check_what_is_shown(streams, batches=3, results=answer.total())

    # The left ends with its last row: what the right holds is let go.
    streams.arrive(sides="l")
    wm.end_input(streams.state, "left")
    wm.end_input(streams.state, "left")
    streams.run()
    held = wm.read_state(streams.spark, streams.state).groupBy("input").agg(F.sum("rows")).collect()
    assert held == [("left", 800)]
    streams.arrive(sides="r")
    wm.end_input(streams.state, "right")
    streams.run()
    assert streams.output() == streams.answer()
    assert wm.read_state(streams.spark, streams.state).count() == 0
    assert all(m.finished for m in newest_manifests(StateDir(streams.state)))

    streams.arrive(sides="l")
    with pytest.raises(StreamingQueryException) as error:
        streams.run()
    assert (
        "EndedInputError: progressive_join, input 'left': expected no rows after its end in batch 3, found "
        in root_of(error)
    )
    assert "Call end_input only when the source is complete; this batch is not committed." in root_of(error)


@pytest.mark.parametrize("name", ["orders[eu]{1}", r"a*b?c\d, {e,f} [!g] 50%"])
@pytest.mark.every_session
def test_the_end_of_an_input_in_a_folder_whose_name_looks_like_a_pattern(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Spark takes the paths that it reads for patterns."""
    left, right = Feed(spark, tmp_path / "l", "k long, a long"), Feed(spark, tmp_path / "r", "k long, b long")
    left.send({"k": 1, "a": 1}, {"k": 2, "a": 2})
    right.send({"k": 1, "b": 1})

    def joined() -> DataFrame:
        return wm.progressive_join(left.stream, right.stream, "k", "left", state_dir=tmp_path / name, partitions=1)

    run(joined(), tmp_path)
    result = spark.read.schema(joined().schema).parquet(str(tmp_path / "out"))
    assert rows(result) == {(1, 1, 1): 1}
    wm.end_input(tmp_path / name, "right")
    run(joined(), tmp_path)
    result = spark.read.schema(joined().schema).parquet(str(tmp_path / "out"))
    assert rows(result) == {(1, 1, 1): 1, (2, 2, None): 1}


def check_what_is_shown(streams: Streams, batches: int, results: int) -> None:
    """What read_state and read_metrics say after some batches of 200 rows a side."""
    state = wm.read_state(streams.spark, streams.state)
    assert [(f.name, f.dataType.simpleString()) for f in state.schema] == [
        ("partition", "int"), ("input", "string"), ("bucket", "int"), ("tier", "string"), ("runs", "bigint"),
        ("rows", "bigint"), ("bytes", "bigint"), ("oldest_batch", "bigint"), ("newest_batch", "bigint"),
        ("version", "bigint"),
    ]  # fmt: skip
    rows = state.collect()
    assert {(row.partition, row.input, row.tier) for row in rows} == {
        (p, side, "resident") for p in (0, 1) for side in ("left", "right")
    }
    assert sum(row.rows for row in rows) == 2 * 200 * batches
    assert {(row.oldest_batch, row.newest_batch, row.version) for row in rows} == {(0, batches - 1, batches - 1)}
    assert all(row.bytes > 16 * row.rows for row in rows)

    metrics = wm.read_metrics(streams.spark, streams.state)
    found = metrics.collect()
    assert [(row.batch, row.partition) for row in found] == [(b, p) for b in range(batches) for p in (0, 1)]
    assert sum(row.rows_out for row in found) == results
    assert sum(sum(row.rows_in.values()) for row in found) == 2 * 200 * batches
    assert {*found[0].rows_in} == {"left", "right"}
    assert all(row.counters.get("runs_probed", 0) > 0 for row in found if row.batch)
    assert all(row.timings["join"] > 0 and row.repeats == 0 for row in found)
    assert all(row.resident_bytes > 0 and row.spilled_bytes == 0 and row.events == [] for row in found)
    times = [row.time / 1e6 for row in found]
    assert time.time() - 3600 < times[0] <= times[-1] <= time.time()  # of this run, although the join has no clock


def test_nothing_to_show(spark: SparkSession, tmp_path: Path) -> None:
    for read in (wm.read_state, wm.read_metrics):
        with pytest.raises(StateDirError, match=r"expected the state directory of a join, found no join\.json"):
            read(spark, tmp_path / "none")


@pytest.mark.classic("foreachBatch runs outside the query there")
def test_batches_without_data_and_two_actions_on_one_batch(streams: Streams) -> None:
    """Downstream of the join a windowed count, which runs no-data batches; each batch is used twice."""
    streams.arrive(rows=100)
    counts = (
        streams.joined()
        .withWatermark("l_time", "1 minute")
        .groupBy(F.window("l_time", "5 minutes"))
        .agg(F.count("*").alias("n"))
        .select("window.start", "n")
    )
    uses = streams.folder / "uses"  # in Connect the function runs on the server
    uses.mkdir()

    def use(frame: DataFrame, number: int) -> None:
        emitted = [(row.start.timestamp(), row.n) for row in frame.collect()]
        (uses / f"{number:03d}.json").write_text(json.dumps([number, emitted, frame.count()]))

    writer = counts.writeStream.foreachBatch(use).option("checkpointLocation", str(streams.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    streams.arrive(rows=100)
    writer.trigger(availableNow=True).start().awaitTermination()
    left, right = (streams.spark.read.parquet(str(streams.folder / side)) for side in "lr")
    answer = left.join(right, "k").groupBy(F.window("l_time", "5 minutes")).agg(F.count("*").alias("n"))
    wanted = {row.start.timestamp(): row.n for row in answer.select("window.start", "n").collect()}
    seen = [json.loads(file.read_text()) for file in sorted(uses.iterdir())]
    emitted = [row for _, rows, _ in seen for row in rows]
    assert emitted
    assert all(wanted[start] == n for start, n in emitted)
    assert all(len(rows) == count for _, rows, count in seen)
    # A no-data batch is a version of its own, in every partition.
    last = seen[-1][0]
    assert last >= 2
    assert [m.version for m in newest_manifests(StateDir(streams.state))] == [last, last]
    assert {m.repeats for m in newest_manifests(StateDir(streams.state))} == {0}


def test_a_query_that_goes_on_and_other_sinks(streams: Streams) -> None:
    streams.arrive()
    query = streams.start(processingTime="0 seconds")
    try:
        streams.arrive()
        query.processAllAvailable()
        streams.arrive()
        query.processAllAvailable()
        assert streams.output() == streams.answer()
    finally:
        query.stop()
    streams.arrive()
    streams.start(once=True).awaitTermination()
    assert streams.output() == streams.answer()

    noop = wm.progressive_join(streams.read("l"), streams.read("r"), "k", state_dir=streams.folder / "noop")
    noop.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    metrics = wm.read_metrics(streams.spark, streams.folder / "noop")
    assert metrics.agg(F.sum("rows_out")).first()[0] == streams.answer().total()


def test_state_in_another_place_relative_to_the_driver(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    streams.arrive(rows=10)
    joined = wm.progressive_join(streams.read("l"), streams.read("r"), "k", state_dir="relative")
    monkeypatch.chdir("/")  # the workers' folder is their own affair
    streams.start(joined).awaitTermination()
    assert streams.output() == streams.answer()
    assert (tmp_path / "relative" / "part-00000").is_dir()


def test_a_session_that_would_read_everything_in_one_batch_is_pointed_out(
    other_session: SparkSession, tmp_path: Path
) -> None:
    session = other_session
    session.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "false")
    left, right = (session.readStream.schema("k long").parquet(_folder(tmp_path / side)) for side in ("left", "right"))
    with pytest.warns(UserWarning, match=r"triggerAvailableNowWrapper\.enabled"):
        wm.progressive_join(left, right, on="k", state_dir=tmp_path / "state", memory="1 MB")


def _folder(path: Path) -> str:
    path.mkdir()
    return str(path)


def test_partitions_are_the_cores_unless_the_session_says_otherwise(other_session: SparkSession) -> None:
    session = other_session
    session.conf.set("spark.sql.shuffle.partitions", "7")
    assert default_partitions("join", session) == 7
    session.conf.set("spark.sql.shuffle.partitions", "200")  # Spark's own default, but said
    assert default_partitions("join", session) == 200
    session.conf.set("spark.sql.shuffle.partitions", str(10**9))
    with pytest.raises(OptionError, match=r"found 1000000000 \(spark.sql.shuffle.partitions\). Give partitions, or "):
        default_partitions("join", session)
    session.conf.unset("spark.sql.shuffle.partitions")
    assert session.conf.get("spark.sql.shuffle.partitions") == "200"
    assert default_partitions("join", session) == 2
