"""Kafka: topics joined with topics, over restarts and outages of the broker, and results sent to a topic."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import watersmeet as wm
from tests.connectors.broker import Broker
from tests.connectors.streams import Topic, equal, forget_newest_commit, joined, numbers, run, was_repeated

# How long a broker is gone: more than one trigger, less than the clients' patience.
OUTAGE_SECONDS = 8.0


def test_json_and_avro_topics_over_restarts(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    left = Topic(spark, broker, "json", "x")
    right = Topic(spark, broker, "avro", "y", avro=True)

    def read() -> None:
        frame = joined(left.stream(maxOffsetsPerTrigger="120"), right.stream(maxOffsetsPerTrigger="120"), tmp_path)
        run(frame.writeStream.format("parquet").option("path", str(tmp_path / "out")), tmp_path)

    for first in (0, 200):
        left.send(numbers(spark, "x", first, 200))
        right.send(numbers(spark, "y", first, 200, keys=40))
        read()
    repeated = forget_newest_commit(tmp_path)
    read()
    assert was_repeated(tmp_path, repeated)
    assert repeated > 2  # several micro-batches in each life
    assert equal(spark.read.parquet(str(tmp_path / "out")), left.batch.join(right.batch, "k"))


def test_a_broker_that_goes_away_and_comes_back(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    left, right = Topic(spark, broker, "away-left", "x"), Topic(spark, broker, "away-right", "y")
    # Clients that give up after 20 seconds and one attempt more; by themselves they wait for a minute, three times.
    impatient = {
        "kafka.request.timeout.ms": "10000",
        "kafka.default.api.timeout.ms": "20000",
        "fetchOffset.numRetries": "1",
    }

    def send(first: int) -> None:
        left.send(numbers(spark, "x", first, 100))
        right.send(numbers(spark, "y", first, 100))

    def start(options: dict[str, str]) -> StreamingQuery:
        frame = joined(left.stream(**options), right.stream(**options), tmp_path)
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(processingTime="500 milliseconds").start()

    send(0)
    query = start({})
    query.processAllAvailable()
    broker.kill()
    time.sleep(OUTAGE_SECONDS)
    broker.start()
    assert query.isActive  # a short outage is waited for
    send(100)
    query.processAllAvailable()
    query.stop()

    query = start(impatient)
    query.processAllAvailable()
    broker.kill()
    try:
        with pytest.raises(StreamingQueryException, match=r"(?i)timeout|timed out"):  # a long one ends the query
            query.awaitTermination(240)
    finally:
        broker.start()
    send(200)
    query = start({})  # and the next start goes on
    query.processAllAvailable()
    query.stop()
    assert equal(spark.read.parquet(str(tmp_path / "out")), left.batch.join(right.batch, "k"))


def test_results_in_a_topic_may_be_repeated_and_their_key_tells(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """At least once: a repeated batch is sent again. The rows' own ids are the key, by which a reader drops repeats."""
    left, right = Topic(spark, broker, "send-left", "x"), Topic(spark, broker, "send-right", "y")
    left.send(numbers(spark, "x", 0, 150))
    right.send(numbers(spark, "y", 0, 150))
    results = {"kafka.bootstrap.servers": broker.address}

    def send() -> None:
        frame = joined(left.stream(maxOffsetsPerTrigger="100"), right.stream(maxOffsetsPerTrigger="100"), tmp_path)
        keyed = frame.select(
            F.concat_ws("/", "x", "y").alias("key"), F.to_json(F.struct(*frame.columns)).alias("value")
        )
        run(keyed.writeStream.format("kafka").options(**results, topic="sent"), tmp_path)

    send()
    repeated = forget_newest_commit(tmp_path)
    send()
    assert was_repeated(tmp_path, repeated)

    expected = left.batch.join(right.batch, "k")
    sent = spark.read.format("kafka").options(**results, subscribe="sent").load()
    assert sent.count() > expected.count()  # the repeats are there
    stream = spark.readStream.format("kafka").options(**results, subscribe="sent", startingOffsets="earliest").load()
    once = stream.withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["key"])
    rows = once.select(F.from_json(F.col("value").cast("string"), "k long, x long, y long").alias("row"))
    reader = tmp_path / "reader"
    run(rows.select("row.*").writeStream.format("parquet").option("path", str(reader / "out")), reader)
    assert equal(spark.read.parquet(str(reader / "out")), expected)


def test_a_stream_of_a_topic_and_a_table_with_a_window(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """A window join by Kafka's own timestamps: the broker's clock is the rows' time."""
    left, right = Topic(spark, broker, "window-left", "x"), Topic(spark, broker, "window-right", "y")
    left.send(numbers(spark, "x", 0, 100))
    right.send(numbers(spark, "y", 0, 100))
    kafka = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": broker.address, "startingOffsets": "earliest"}
    )

    def rows(topic: Topic) -> object:
        value = F.from_json(F.col("value").cast("string"), f"k long, {topic.column} long").alias("row")
        return (
            kafka.option("subscribe", topic.name).load().select(value, F.col("timestamp").alias(f"{topic.column}_at"))
        )

    left_rows = rows(left).select("row.*", "x_at")  # type: ignore[attr-defined]
    right_rows = rows(right).select("row.*", "y_at")  # type: ignore[attr-defined]
    frame = wm.window_join(
        left_rows, right_rows, on="k", time=("x_at", "y_at"), window="1 hour", lateness="1 hour",
        state_dir=tmp_path / "state",
    )  # fmt: skip
    run(frame.writeStream.format("parquet").option("path", str(tmp_path / "out")), tmp_path)
    assert equal(spark.read.parquet(str(tmp_path / "out")), left.batch.join(right.batch, "k"))
