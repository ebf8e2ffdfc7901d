"""Three, four and five streams on one key: one n-ary operator beside Spark's cascade of binary joins.

    python benchmarks/multiway.py [--rows 1000000] [--only 4] [--skip-rocksdb]

Every input has the same number of rows, read in 10 micro-batches. "low" joins inputs with one row per key on average,
"fan-out 3" inputs with three. All answers are checked against Spark's batch join. State is what is stored after the
last micro-batch: for Spark the state operators' own figures in the query progress (rows and bytes of the current
version, in all its stages), for Watersmeet the rows and bytes in its manifests. CPU seconds are those of the JVM and
its Python workers together: they say less about a machine's other work than the time of day does.
"""

from __future__ import annotations

import argparse
from functools import reduce
from pathlib import Path
from typing import Any

import harness as h
import psutil
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.state.directory import StateDir
from watersmeet.state.store import PartitionStore

BATCHES, PARTITIONS = 10, 2
# How many inputs, rows per key, Spark's stores to run beside
CASES = {
    "3-way low": (3, 1, ("default", "rocksdb", "rocksdb_tuned")),
    "4-way low": (4, 1, ("default",)),
    "5-way low": (5, 1, ("default",)),
    "3-way fan-out 3": (3, 3, ("default",)),
}


def our_state(folder: Path) -> dict[str, int]:
    """Rows and bytes in the newest version of every partition, and the bytes of its files on disk."""
    directory = StateDir(folder)
    stores = [PartitionStore(directory, partition) for partition in range(PARTITIONS)]
    runs = [(store, run) for store in stores for run in store.manifest(store.versions()[-1]).runs]
    return {
        "rows": sum(run.rows for _, run in runs),
        "bytes": sum(run.nbytes for _, run in runs),
        "disk": sum(run.length for _, run in runs),
    }


def spark_state(operators: list[dict[str, Any]]) -> dict[str, int]:
    """The same out of the progress of Spark's stateful operators, one per stage of the cascade."""
    current = "stateOnCurrentVersionSizeBytes"
    return {
        "rows": sum(operator["numRowsTotal"] for operator in operators),  # 0 where Spark was told not to count them
        "bytes": sum(operator["customMetrics"].get(current, operator["memoryUsedBytes"]) for operator in operators),
        "memory": sum(operator["memoryUsedBytes"] for operator in operators),
    }


def cpu_seconds() -> float:
    """Of all processes that this one has started, those that are gone included."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


def run_case(spark: h.SparkSession, name: str, rows: int, stores: tuple[str, ...]) -> dict[str, Any]:
    """One case with all its engines."""
    ways, per_key, _ = CASES[name]
    names = [f"v{i}" for i in range(ways)]
    columns = ["k", *names]
    runs: dict[str, h.Run] = {}
    with h.scratch() as folder:
        for number, value in enumerate(names):
            key = h.seeded("k", number + 1, rows // per_key)
            frame = spark.range(rows).select(F.col("id").alias("seq"), key, F.col("id").alias(value))
            h.write_input(frame, folder / value, BATCHES)
        tables = [spark.read.parquet(str(folder / value)) for value in names]
        expected = h.batch_answer(reduce(lambda left, right: left.join(right, "k"), tables), columns)
        streams = [h.stream(spark, folder / value, f"k long, {value} long") for value in names]

        def measure(engine: str, frame: h.DataFrame, limit: float | None = None) -> h.Run:
            before = cpu_seconds()
            run = h.run_to_end(engine, frame, folder, columns, limit_seconds=limit)
            run.extra["cpu_seconds"] = round(cpu_seconds() - before, 1)
            if limit is None:
                h.check(run, expected)
            h.console.print(f"{name} {engine}: {run.rows_per_second:,.0f} rows/s, {[round(s, 2) for s in run.seconds]}")
            return run

        for turn in range(2):  # the first to warm up, as Spark's joins are
            state = folder / f"state-{turn}"
            joined = wm.multiway_join(streams, on="k", state_dir=state)
            runs["watersmeet"] = measure("watersmeet" if turn else "watersmeet-warm-up", joined)
        runs["watersmeet"].extra["state"] = our_state(state)
        cascade = reduce(lambda left, right: left.join(right, "k"), streams)
        rivals = h.spark_rivals(
            spark, [f"spark_{store}" for store in stores], lambda engine, limit: measure(engine, cascade, limit)
        )
        for rival in rivals.values():
            rival.extra["state"] = spark_state(rival.extra["state"])
        runs |= rivals
    ours = runs["watersmeet"]
    ratios = {}
    for store in stores:
        rival = runs[f"spark_{store}"]
        ratios[f"ratio_vs_{store}"] = round(ours.steady() / rival.steady(), 2)
        ratios[f"cpu_ratio_vs_{store}"] = round(rival.extra["cpu_seconds"] / ours.extra["cpu_seconds"], 2)
        ratios[f"state_share_of_{store}"] = round(ours.extra["state"]["bytes"] / rival.extra["state"]["bytes"], 3)
    h.table(
        f"{name}: {ways * rows:,} rows, {expected['count']:,} results",
        ["engine", "rows/s", "steady rows/s", "ours over it", "CPU s", "state rows", "state bytes", "last batch s"],
        [
            (
                engine,
                round(run.rows_per_second),
                round(run.steady()),
                ours.steady() / run.steady(),
                run.extra["cpu_seconds"],
                run.extra["state"]["rows"],
                run.extra["state"]["bytes"],
                run.seconds[-1],
            )
            for engine, run in runs.items()
        ],
    )
    return {**ratios, "runs": {engine: run.as_dict() for engine, run in runs.items()}}


def main() -> None:
    """Run all cases, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows per input")
    parser.add_argument("--only", nargs="*", help="cases to run, by the beginning of their names", default=[""])
    parser.add_argument("--skip-rocksdb", action="store_true")
    arguments = parser.parse_args()
    config = {"spark.driver.memory": "8g"}
    spark = wm.local_session("multiway", cores=2, partitions=PARTITIONS, config=config)
    h.announce({"master": spark.sparkContext.master, "partitions": PARTITIONS, "rows per input": arguments.rows})
    result: dict[str, Any] = {}
    for name, (_, _, stores) in CASES.items():
        if any(name.startswith(start) for start in arguments.only):
            chosen = tuple(store for store in stores if not (arguments.skip_rocksdb and "rocksdb" in store))
            result[name] = run_case(spark, name, arguments.rows, chosen)
    summary = {name: {k: v for k, v in case.items() if k != "runs"} for name, case in result.items()}
    h.console.print(summary)
    if arguments.rows == 1_000_000 and arguments.only == [""] and not arguments.skip_rocksdb:
        h.save("multiway", result)


if __name__ == "__main__":
    main()
