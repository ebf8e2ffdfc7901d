"""State in an object store: requests, bytes and time per micro-batch, against the same join on a local disk.

    python benchmarks/object_store.py [--rows 5000000] [--batches 60] [--executors 2] [--delay 0.03]

An S3 server on this machine (moto's) with 30 ms added to every request, `local-cluster` with a cache for each executor,
2 partitions. A progressive join without a budget grows its state to 10,000,000 rows. Then one more micro-batch is run
with empty caches: a cold restart. Dollars are reckoned with list prices: 5 for a million puts and listings, 0.40 for a
million gets.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import harness as h
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.spark.session import JOIN_SETTINGS
from watersmeet.state.directory import StateDir
from watersmeet.state.history import metrics_history, newest_manifests

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.object_store.server import Server, serving

PARTITIONS = 2
# What a request costs, in dollars.
KINDS = {"GET": 0.4e-6, "HEAD": 0.4e-6, "PUT": 5e-6, "POST": 5e-6, "LIST": 5e-6, "DELETE": 0.0}
MARKERS = 1  # requests of the driver per second, for control markers; they are counted apart
COLUMNS = ["k", "a", "b"]


def session(executors: int, server: Server) -> SparkSession:
    """A cluster of so many executors on this machine."""
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        **JOIN_SETTINGS,
        "spark.executor.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "localhost",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        **{f"spark.hadoop.{name}": value for name, value in server.hadoop.items()},
    }
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,2048]").appName("object_store")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def joined(spark: SparkSession, folder: Path, state: str, **places: str) -> DataFrame:
    """The join, with its state at a place."""
    left, right = (
        h.stream(spark, folder / name, f"k long, {value} long") for name, value in (("left", "a"), ("right", "b"))
    )
    return wm.progressive_join(left, right, on="k", state_dir=state, **places)


def counted(frame: DataFrame, folder: Path, server: Server) -> tuple[h.Run, dict[int, Counter[str]]]:
    """Run to the end; the server's counts after every micro-batch."""
    counts: dict[int, Counter[str]] = {}
    observed = frame.observe("answer", *h.checksum(COLUMNS)).writeStream.format("noop")
    query = observed.option("checkpointLocation", str(folder / "checkpoint-s3")).trigger(availableNow=True).start()
    while query.isActive:
        if (progress := query.lastProgress) is not None:
            counts.setdefault(progress["batchId"], server.counts())
        time.sleep(0.02)
    query.awaitTermination()
    run = h.Run("s3")
    for progress in query.recentProgress:
        run.seconds.append(progress["durationMs"]["triggerExecution"] / 1000)
        run.rows.append(int(progress["numInputRows"]))
        for key, value in progress["observedMetrics"]["answer"].asDict().items():
            run.answer[key] = run.answer.get(key, 0) + int(value or 0)
    return run, counts


def traffic(state: str) -> dict[int, Counter[str]]:
    """What the tasks of each micro-batch asked of the store before they committed, all partitions together."""
    directory = StateDir(state)
    found: dict[int, Counter[str]] = {}
    for manifest in newest_manifests(directory):
        for entry in metrics_history(directory, manifest):
            found.setdefault(entry["batch"], Counter()).update(entry["storage"])
            found[entry["batch"]]["load"] += entry["timings"]["load"]
    return found


def main() -> None:
    """Run both, check both, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows per input")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument("--delay", type=float, default=0.03, help="seconds added to every request")
    given = parser.parse_args()
    with h.scratch() as folder, serving(seconds=given.delay) as server:
        spark = session(given.executors, server)
        try:
            result = measure(spark, folder, server, given)
        finally:
            application = spark.sparkContext.applicationId
            spark.stop()
            # The caches are in the executors' own directories.
            shutil.rmtree(Path(os.environ["SPARK_HOME"], "work", application), ignore_errors=True)
    h.save("object_store" if given.executors == 2 else f"object_store_{given.executors}", result)


def measure(spark: SparkSession, folder: Path, server: Server, given: argparse.Namespace) -> dict[str, Any]:
    """Everything that is printed and saved."""
    for name, value, seed in (("left", "a", 1), ("right", "b", 2)):
        ids = F.col("id")
        frame = spark.range(given.rows).select(ids.alias("seq"), h.seeded("k", seed, given.rows), ids.alias(value))
        h.write_input(frame, folder / name, given.batches, span=given.rows)
    batch = [spark.read.parquet(str(folder / name)) for name in ("left", "right")]
    expected = h.batch_answer(batch[0].join(batch[1], "k"), COLUMNS)

    local = h.run_to_end("local", joined(spark, folder, str(folder / "state")), folder, COLUMNS)
    h.check(local, expected)
    state = f"s3a://lake/state-{uuid.uuid4().hex[:8]}"
    remote, counts = counted(joined(spark, folder, state, cache_dir="cache-warm"), folder, server)
    h.check(remote, expected)
    asked = traffic(state)

    last = sorted(counts)[-1]
    start = max(min(counts), last - 30)
    kinds = counts[last] - counts[start]
    each = {kind: kinds[kind] / (last - start) / PARTITIONS for kind in KINDS}
    requests = sum(each.values())
    third = len(asked) // 3
    fetched = [asked[number]["bytes_fetched"] for number in sorted(asked)]
    first, final = statistics.mean(fetched[1 : third + 1]), statistics.mean(fetched[-third:])
    opened = sum(entry["cache_hits"] + entry["cache_misses"] for entry in asked.values())
    hit_share = sum(entry["cache_hits"] for entry in asked.values()) / max(opened, 1)
    above = statistics.median(remote.seconds[5:]) - statistics.median(local.seconds[5:])
    dollars = 8 * 86_400 * sum(KINDS[kind] * value for kind, value in each.items())
    dollars += 86_400 * MARKERS * KINDS["GET"]

    for name in ("left", "right"):
        shutil.copy(folder / name / "00000.parquet", folder / name / "99999.parquet")
    began = time.perf_counter()
    cold, _ = counted(joined(spark, folder, state, cache_dir="cache-cold"), folder, server)
    restart = time.perf_counter() - began
    again = traffic(state)[max(asked) + 1]
    megabytes = again["bytes_fetched"] / 1e6

    h.table(
        f"{2 * given.rows:,} rows of state, {given.batches} micro-batches, {given.executors} executors, "
        f"{1000 * given.delay:.0f} ms per request",
        ["measure", "found", "wanted"],
        [
            ("requests per partition and batch, last 30", requests, "5"),
            *((f"  {kind}", value, "") for kind, value in each.items() if value),
            ("bytes fetched per batch, last third over first third", final / max(first, 1), "1.2"),
            ("kilobytes fetched per batch, last third", final / 1000, ""),
            ("share of files found in the caches", hit_share, ""),
            ("seconds of a batch, median, local", statistics.median(local.seconds[5:]), ""),
            ("seconds of a batch above local, median", above, "0.35"),
            ("cold restart: seconds until the first batch is done", restart, ""),
            ("cold restart: MB fetched", megabytes, ""),
            ("cold restart: MB per second while loading", megabytes / max(again["load"] / PARTITIONS, 1e-9), ""),
            ("dollars per day, batches of 1 s, 8 partitions", dollars, ""),
        ],
    )
    return {
        "rows": 2 * given.rows,
        "executors": given.executors,
        "delay": given.delay,
        "requests_per_partition_and_batch": each,
        "bytes_fetched": fetched,
        "hit_share": hit_share,
        "seconds_above_local": above,
        "cold_restart": {"seconds": restart, "bytes": again["bytes_fetched"], "batch_seconds": cold.seconds},
        "dollars_per_day": dollars,
        "local": local.as_dict(),
        "s3": remote.as_dict(),
    }


if __name__ == "__main__":
    main()
