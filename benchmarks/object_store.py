"""State in an object store: requests, bytes and time per micro-batch, against the same join on a local disk.

    python benchmarks/object_store.py [--only 2 4 phases] [--rows 5000000] [--batches 60] [--delay 0.03]

An S3 server on this machine (moto's) with 30 ms added to every request. Three pieces, each with its own result file:

2, 4      `local-cluster` of so many executors with a cache each, 2 partitions. A progressive join without a budget
          grows its state to 10,000,000 rows, on a local disk and in the store. Then one more micro-batch is run with
          empty caches: a cold restart. Requests and bytes are those that the server has counted. Dollars are reckoned
          with list prices: 5 for a million puts and listings, 0.40 for a million gets.
phases    one partition without Spark, at small and large batches: how long sending takes beside joining, and how much
          of it could go on before the batch is joined, if every file were sent as soon as it is complete.
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
import operators
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.engine.runtime import run_batch
from watersmeet.spark.session import JOIN_SETTINGS
from watersmeet.state import object_dir
from watersmeet.state.directory import StateDir
from watersmeet.state.history import metrics_history, newest_manifests
from watersmeet.storage.access import remember

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.object_store.server import Server, serving

PARTITIONS = 2
# What a request costs, in dollars.
KINDS = {"GET": 0.4e-6, "HEAD": 0.4e-6, "PUT": 5e-6, "POST": 5e-6, "LIST": 5e-6, "DELETE": 0.0}
MARKERS = 1  # requests of the driver per second, for control markers; they are counted apart
COLUMNS = ["k", "a", "b"]
PIECES = {"2": "object_store", "4": "object_store_4", "phases": "object_store_phases"}  # and their result files
PHASES = ("load", "join", "store", "send")
BATCH_ROWS, BATCHES = (1_000, 10_000, 100_000), 20  # of the piece `phases`: rows per input and batch


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
        if (progress := query.lastProgress) is not None and progress["batchId"] not in counts:
            counts[progress["batchId"]] = server.counts()
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
    """What the tasks of each micro-batch asked of the store before they committed, and their seconds by phase, all
    partitions together."""
    directory = StateDir(state)
    found: dict[int, Counter[str]] = {}
    for manifest in newest_manifests(directory):
        for entry in metrics_history(directory, manifest):
            found.setdefault(entry["batch"], Counter()).update({**entry["storage"], **entry["timings"]})
    return found


def main() -> None:
    """Measure the pieces that were asked for; each is printed and saved when it is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=PIECES, default=list(PIECES))
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows per input")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--delay", type=float, default=0.03, help="seconds added to every request")
    given = parser.parse_args()
    for piece in given.only:
        with h.scratch() as folder, serving(seconds=given.delay) as server:
            result = phases(folder, server) if piece == "phases" else on_cluster(int(piece), folder, server, given)
        h.save(PIECES[piece], result)


def on_cluster(executors: int, folder: Path, server: Server, given: argparse.Namespace) -> dict[str, Any]:
    """A piece on a cluster of its own."""
    spark = session(executors, server)
    try:
        return measure(spark, executors, folder, server, given)
    finally:
        application = spark.sparkContext.applicationId
        spark.stop()
        # The caches are in the executors' own directories.
        shutil.rmtree(Path(os.environ["SPARK_HOME"], "work", application), ignore_errors=True)


def measure(
    spark: SparkSession, executors: int, folder: Path, server: Server, given: argparse.Namespace
) -> dict[str, Any]:
    """Everything that is printed and saved of a cluster."""
    for name, value, seed in (("left", "a", 1), ("right", "b", 2)):
        ids = F.col("id")
        frame = spark.range(given.rows).select(ids.alias("seq"), h.seeded("k", seed, given.rows), ids.alias(value))
        h.write_input(frame, folder / name, given.batches, span=given.rows)
    batch = [spark.read.parquet(str(folder / name)) for name in ("left", "right")]
    expected = h.batch_answer(batch[0].join(batch[1], "k"), COLUMNS)

    # The JVM still compiles at first, for whoever comes first.
    h.run_to_end("warm-up", joined(spark, folder, str(folder / "warm-up")), folder, COLUMNS, limit_seconds=20)
    local = h.run_to_end("local", joined(spark, folder, str(folder / "state")), folder, COLUMNS)
    h.check(local, expected)
    state = f"s3a://lake/state-{uuid.uuid4().hex[:8]}"
    remote, counts = counted(joined(spark, folder, state, cache_dir="cache-warm"), folder, server)
    h.check(remote, expected)
    asked = traffic(state)

    last = max(counts)
    kinds = per_batch(counts, last - 30, last)
    each = {kind: kinds[kind] / PARTITIONS for kind in KINDS}
    requests = sum(each.values())
    third = last // 3
    first, final = (per_batch(counts, *ends)["bytes_out"] for ends in ((0, third), (last - third, last)))
    needed = sum(entry["cache_hits"] + entry["cache_misses"] for entry in asked.values())
    hit_share = sum(entry["cache_hits"] for entry in asked.values()) / max(needed, 1)
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
    rate = megabytes / max(again["load"] / PARTITIONS, 1e-9)

    h.table(
        f"{2 * given.rows:,} rows of state, {given.batches} micro-batches, {executors} executors, "
        f"{1000 * given.delay:.0f} ms per request",
        ["measure", "found", "wanted"],
        [
            ("requests per partition and batch, last 30", requests, "5" if executors == 2 else ""),
            *((f"  {kind}", value, "") for kind, value in each.items() if value),
            ("bytes fetched per batch, last third over first third", final / max(first, 1), "1.2"),
            ("MB fetched per host and batch, first third", first / executors / 1e6, ""),
            ("MB fetched per host and batch, last third", final / executors / 1e6, ""),
            ("share of files found in the caches", hit_share, ""),
            ("seconds of a batch, median, local", statistics.median(local.seconds[5:]), ""),
            ("seconds of a batch above local, median", above, "0.35"),
            *((f"  seconds of a task, mean: {name}", seconds, "") for name, seconds in of_tasks(asked).items()),
            ("cold restart: seconds until the first batch is done", restart, ""),
            ("cold restart: MB fetched", megabytes, ""),
            ("cold restart: MB per second while loading", rate, ""),
            ("dollars per day, batches of 1 s, 8 partitions", dollars, ""),
        ],
    )
    return {
        "rows": 2 * given.rows,
        "executors": executors,
        "delay": given.delay,
        "requests_per_partition_and_batch": each,
        "bytes_fetched": [asked[number]["bytes_fetched"] for number in sorted(asked)],
        "bytes_fetched_over_thirds": final / max(first, 1),
        "hit_share": hit_share,
        "seconds_above_local": above,
        "seconds_of_tasks": of_tasks(asked),
        "cold_restart": {
            "seconds": restart,
            "bytes": again["bytes_fetched"],
            "megabytes_per_second": rate,
            "batch_seconds": cold.seconds,
        },
        "dollars_per_day": dollars,
        "local": local.as_dict(),
        "s3": remote.as_dict(),
    }


def per_batch(counts: dict[int, Counter[str]], start: int, end: int) -> Counter[str]:
    """The server's counts per micro-batch between two of them."""
    start, end = (min(counts, key=lambda number: abs(number - wanted)) for wanted in (start, end))
    return Counter({kind: n / (end - start) for kind, n in (counts[end] - counts[start]).items()})  # type: ignore[misc]


def of_tasks(asked: dict[int, Counter[str]]) -> dict[str, float]:
    """How long a task of the last third is at each of its phases."""
    late = [asked[number] for number in sorted(asked)[-(len(asked) // 3) :]]
    return {phase: statistics.mean(entry[phase] for entry in late) / PARTITIONS for phase in PHASES}


def phases(folder: Path, server: Server) -> dict[str, Any]:
    """How long the phases of a batch take, and how much of the sending could be hidden behind the rest."""
    complete: list[float] = []  # when the files of the batch were

    class Watched(object_dir.PackRoom):
        def add(self, *file: Any) -> str:
            complete.append(time.perf_counter())
            return super().add(*file)

        def seal(self) -> None:
            complete.append(time.perf_counter())
            super().seal()

    found = []
    object_dir.PackRoom = Watched  # type: ignore[misc]
    for name, rows in ((name, rows) for name in ("symmetric", "rpj") for rows in BATCH_ROWS):
        work, state = operators.WORKLOADS[name], f"s3a://lake/{name}-{rows}"
        remember(state, options=server.options, cache_dir=str(folder / "cache"))
        plan, hidden, total = work.plan(rows, BATCHES, str(folder)), [], []
        for batch in work.batches(plan, rows, BATCHES):
            complete.clear()
            began = time.perf_counter()
            for _ in run_batch(plan, StateDir(state), 0, batch):
                pass
            total.append(time.perf_counter() - began)
            hidden.append(complete[-1] - complete[0] if complete else 0.0)
        asked = traffic(state)
        mean = {phase: statistics.mean(entry[phase] for entry in asked.values()) for phase in PHASES}
        most = [min(window, asked[number]["send"]) for number, window in enumerate(hidden)]
        found.append(
            {
                "operator": name,
                "rows": rows,
                **mean,
                "batch": statistics.mean(total),
                "megabytes": statistics.mean(entry["bytes_sent"] for entry in asked.values()) / 1e6,
                "hidden at most": statistics.mean(most),
            }
        )
    h.table(
        f"seconds of a batch by phase, {BATCHES} batches, one partition; what sending files early could hide at most",
        list(found[0]),
        [list(one.values()) for one in found],
    )
    return {"batches": BATCHES, "phases": found}


if __name__ == "__main__":
    main()
