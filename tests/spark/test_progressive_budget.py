"""`progressive_join` under a memory budget on real Structured Streaming, beside Spark's batch join."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import watersmeet as wm
from watersmeet.errors import OptionError

SCHEMAS = {"left": "k long, a string", "right": "k long, b string"}


class Feeds:
    """Two streams of JSON files; a `send` is what one micro-batch reads."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.sent = spark, folder, 0
        for name in SCHEMAS:
            (folder / name).mkdir()

    def send(self, rows: int = 200) -> None:
        for name, value in (("left", "a"), ("right", "b")):
            lines = [json.dumps({"k": (i * 7 + self.sent) % 60, value: f"{value}{self.sent}-{i}"}) for i in range(rows)]
            (self.folder / name / f"{self.sent:03d}.json").write_text("\n".join(lines))
        self.sent += 1

    def streams(self) -> list[DataFrame]:
        reader = self.spark.readStream.option("maxFilesPerTrigger", 1)
        return [reader.schema(schema).json(str(self.folder / name)) for name, schema in SCHEMAS.items()]

    def answer(self) -> Counter[tuple[Any, ...]]:
        left, right = (self.spark.read.schema(s).json(str(self.folder / n)) for n, s in SCHEMAS.items())
        return rows(left.join(right, "k"))


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


@pytest.fixture
def feeds(spark: SparkSession, tmp_path: Path) -> Feeds:
    return Feeds(spark, tmp_path)


@pytest.fixture
def started() -> Iterator[list[StreamingQuery]]:
    queries: list[StreamingQuery] = []
    yield queries
    for query in queries:
        query.stop()


def writer(joined: DataFrame, folder: Path) -> Any:
    return (
        joined.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


def until(done: Callable[[], bool], query: StreamingQuery, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.2)


def manifests(folder: Path) -> list[dict[str, Any]]:
    """The newest manifest of each partition."""
    parts = sorted((folder / "state").glob("part-*"))
    return [json.loads(sorted(part.glob("v-*.json"))[-1].read_text().splitlines()[1]) for part in parts]


def history(folder: Path) -> list[dict[str, Any]]:
    return [entry for manifest in manifests(folder) for entry in manifest["history"]]


def test_stalls_a_restart_and_the_end(
    spark: SparkSession, tmp_path: Path, feeds: Feeds, started: list[StreamingQuery]
) -> None:
    """Rows, a restart with another budget, silence, the end: the answer is the batch join's, and nothing is left."""

    def join(memory: str, idle_pages: int) -> DataFrame:
        left, right = feeds.streams()
        return wm.progressive_join(
            left, right, on="k", state_dir=tmp_path / "state", memory=memory, idle_after="500 ms",
            buckets=4, page_rows=16, idle_pages=idle_pages,
        )  # fmt: skip

    feeds.send()
    feeds.send()
    writer(join("8 kB", idle_pages=0), tmp_path).trigger(availableNow=True).start().awaitTermination()
    assert all(entry["resident_bytes"] <= 4_000 for entry in history(tmp_path))
    before = sum(rows(spark.read.parquet(str(tmp_path / "out"))).values())
    assert before < sum(feeds.answer().values())

    feeds.send()
    query = writer(join("5 kB", idle_pages=8), tmp_path).start()
    started.append(query)

    def worked() -> bool:
        events = [event for entry in history(tmp_path) for event in entry["events"]]
        return any(event["kind"] in ("md_task", "dd_task") and event["results"] for event in events)

    until(worked, query)  # silence: idle batches find what memory has lost
    for name in SCHEMAS:
        wm.end_input(tmp_path / "state", name)
    until(lambda: all(manifest["finished"] for manifest in manifests(tmp_path)), query)
    # With ticks there is always more to come, so wait for the sink's batch and not for the end of all data.
    last = max(manifests(tmp_path)[0]["ended"].values())
    until(lambda: (query.lastProgress or {"batchId": -1})["batchId"] >= last, query)
    query.stop()

    assert rows(spark.read.parquet(str(tmp_path / "out"))) == feeds.answer()
    for manifest in manifests(tmp_path):
        assert (manifest["runs"], manifest["values"]) == ([], {})


def test_a_row_after_the_end_is_an_error(spark: SparkSession, tmp_path: Path, feeds: Feeds) -> None:
    left, right = feeds.streams()
    joined = wm.progressive_join(left, right, on="k", state_dir=tmp_path / "state", memory="1 MB")
    feeds.send(20)
    wm.end_input(tmp_path / "state", "left")
    writer(joined, tmp_path).trigger(availableNow=True).start().awaitTermination()
    feeds.send(20)
    with pytest.raises(Exception, match="input 'left': expected no rows after its end in batch 0"):
        writer(joined, tmp_path).trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"memory": "300 kB"}, "a page of 8192 rows"),
        ({"memory": "1 kB"}, "memory of at least"),
        ({"policy": "grace"}, "policy"),
        ({"memory": "1 MB", "buckets": 0}, "buckets"),
        ({"memory": "1 MB", "decay": 2}, "decay"),
    ],
)
def test_bad_parameters_are_found_when_the_join_is_built(
    feeds: Feeds, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    left, right = feeds.streams()
    with pytest.raises(OptionError, match=said):
        wm.progressive_join(left, right, on="k", state_dir=tmp_path / "state", **wrong)
