"""One life of a pipeline on `local-cluster`: all there is to read, into the parquet sink, from the checkpoint on.

    python job.py FAMILY HOW FOLDER

The folder holds the inputs `a`, `b` and `c`, one file per micro-batch, and gets `state`, `checkpoint` and `out`.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import watersmeet as wm

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.host": "localhost",
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",  # one file per micro-batch, with ticks too
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "20",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.05",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1ms",
}
SCHEMA = "k long, {0} long, {0}_time timestamp"


def build(family: str, how: str, session: SparkSession, folder: Path) -> DataFrame:
    """The join; budgets are small, so that rows are spilled and merged all the time."""
    a, b, c = (
        session.readStream.schema(SCHEMA.format(name)).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        for name in "abc"
    )
    state = folder / "state"
    if family == "progressive":
        return wm.progressive_join(
            a, b, "k", how=how, state_dir=state, memory="16 KB", page_rows=32, buckets=3, idle_pages=8
        )
    if family == "window":
        # No row comes late. A short lateness lets unmatched rows leave all along, a long one has more rows to spill.
        lateness, times = "1 h" if how == "inner" else "30 s", ("a_time", "b_time")
        return wm.window_join(
            a, b, "k", how=how, state_dir=state, window="60 s", time=times, lateness=lateness, memory="16 KB"
        )
    if family == "multiway":
        return wm.multiway_join({"a": a, "b": b, "c": c}, "k", state_dir=state)
    if family == "punctuated":
        return wm.punctuated_join(a, b, "k", how=how, state_dir=state, memory="16 KB", buckets=4)
    master = folder / "master"
    if not list(master.glob("v-*.json")):
        wm.prepare_master(session.read.parquet(str(folder / "b")), on="k", path=master, chunk_rows=50)
    return wm.semi_stream_join(a, master, "k", how=how, state_dir=state, memory="16 KB", max_delay=3)


def main() -> None:
    """Run until nothing is left to read."""
    family, how, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    writer = build(family, how, session, folder).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "out"))
    writer.trigger(availableNow=True).start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    main()
