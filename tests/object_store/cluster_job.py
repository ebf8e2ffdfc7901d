"""Five joins at once on `local-cluster`: two executors, each with a cache of its own, state and master table in S3.

    python -m tests.object_store.cluster_job FOLDER ENDPOINT

The folder holds the inputs `a`, `b` and `c`, one file per micro-batch, and gets a checkpoint and the results of every
family. After the first batches one executor is killed. When all is read the inputs are ended and the tail is emitted.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import watersmeet as wm
from tests.object_store.server import Server

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.host": "localhost",
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",  # one file per micro-batch, with ticks too
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "8",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}
SCHEMA = "k long, {0} long, {0}_time timestamp"
INPUTS = {
    "progressive": ("left", "right"),
    "window": ("left", "right"),
    "multiway": ("a", "b", "c"),
    "punctuated": ("left", "right"),
    "semi_stream": ("stream",),
}
# Each executor has a working directory of its own, and what is below it is its own.
CACHE = "cache"


def state_of(family: str) -> str:
    """Where a family's state is: one spelling for the half of them, another for the rest."""
    return f"{'s3' if len(family) % 2 else 's3a'}://lake/state/{family}"


def build(family: str, session: SparkSession, folder: Path, server: Server) -> DataFrame:
    """The join; budgets are small, so that rows are spilled and merged."""
    a, b, c = (
        session.readStream.schema(SCHEMA.format(name)).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        for name in "abc"
    )
    state = state_of(family)
    if family == "progressive":
        return wm.progressive_join(
            a, b, "k", state_dir=state, memory="16 KB", page_rows=32, buckets=3, idle_pages=8, cache_dir=CACHE
        )
    if family == "window":  # the only one that is told how to reach the store; the others find it out
        return wm.window_join(
            a, b, "k", state_dir=state, window="60 s", time=("a_time", "b_time"), lateness="1 h", memory="16 KB",
            storage_options=server.options, cache="100 MB", cache_dir=CACHE,
        )  # fmt: skip
    if family == "multiway":
        return wm.multiway_join({"a": a, "b": b, "c": c}, "k", state_dir=state, cache_dir=CACHE)
    if family == "punctuated":
        return wm.punctuated_join(a, b, "k", state_dir=state, memory="16 KB", buckets=4, cache_dir=CACHE)
    master = "s3://lake/master"
    wm.prepare_master(session.read.parquet(str(folder / "b")), on="k", path=master, chunk_rows=50)
    return wm.semi_stream_join(a, master, "k", state_dir=state, memory="16 KB", max_delay=3, cache_dir=CACHE)


def start(family: str, joined: DataFrame, folder: Path) -> StreamingQuery:
    """All there is to read, into a sink of files."""
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint" / family))
    return writer.option("path", str(folder / "out" / family)).trigger(availableNow=True).start()


def started(family: str, joined: DataFrame, folder: Path) -> StreamingQuery:
    """The same, when its first batch is done: Spark gives the process of a source ten seconds to start, which is little
    if five of them start at once on a busy machine."""
    query = start(family, joined, folder)
    while query.isActive and not query.recentProgress:
        time.sleep(0.1)
    if query.exception() is not None:
        query.awaitTermination()
    return query


def kill_an_executor() -> int:
    """Kill one of the two."""
    while True:
        for process in psutil.Process().children(recursive=True):
            try:
                if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                    process.kill()
                    return int(process.pid)
            except psutil.Error:
                continue  # it has just ended


def main(folder: Path, endpoint: str) -> None:
    """Run until nothing is left to read, and once more after the end of all inputs."""
    server = Server(endpoint)
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    (folder / "events").mkdir()
    hadoop = {f"spark.hadoop.{name}": value for name, value in server.hadoop.items()}
    for name, value in {**SETTINGS, **hadoop, "spark.eventLog.dir": str(folder / "events")}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    joins = {family: build(family, session, folder, server) for family in INPUTS}
    queries = [started(family, joined, folder) for family, joined in joins.items()]
    print("killed", kill_an_executor())
    for joined in joins.values():
        joined.explain(True)
    for query in queries:
        query.awaitTermination()
    for family, names in INPUTS.items():
        for name in names:
            wm.end_input(state_of(family), name)
    for query in [started(family, joined, folder) for family, joined in joins.items()]:
        query.awaitTermination()
    for family in INPUTS:
        wm.read_metrics(session, state_of(family)).show(3, truncate=False)
    application = session.sparkContext.applicationId
    session.stop()
    shutil.rmtree(Path(os.environ["SPARK_HOME"], "work", application), ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
