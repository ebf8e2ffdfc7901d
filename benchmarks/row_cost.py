"""Where a row's time goes: core nanoseconds per input row, by step, of the join of `stream_stream.py`.

    python benchmarks/row_cost.py [--rows 2000000] [--turns 3]

What Spark's own path costs is the difference of queries that do one step more each, on the same files and in turns:

    read          both inputs, from the files to the sink
    shuffle       and repartitioned by the key
    to Python     and sent to Python workers, which keep nothing
    back          and all rows sent back (the echo)

The workers are spared what PySpark repeats in every task, as those of the join are (`spark/worker.py`).
What the join costs is measured inside one process, without Spark, on batches of the same size (`run_batch`), by a
profile of the functions that do each step. Core nanoseconds are seconds times the cores in use, over the input rows.
The sum of the steps is compared with the whole join on Spark.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
from collections.abc import Iterator
from time import process_time
from typing import Any

import harness as h
import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from stream_stream import BATCHES, echo, streams, write_inputs

import watersmeet as wm
from watersmeet.columns.arrow import HASH, hash_keys
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch
from watersmeet.state.directory import StateDir
from watersmeet.testing import make_plan

CORES, FULL = 2, 2_000_000
# Functions that do a step, by the end of their file's name; their times include what they call, and do not overlap.
STEPS = {
    "load": [("engine/inheritance.py", "bring_up")],
    "sort": [("join/prologue.py", "admit")],
    "probe": [("columns/matching.py", "matches")],
    "gather": [("join/emitter.py", "rows")],
    "store": [("state/rows.py", "add"), ("state/rows.py", "settle"), ("state/store.py", "commit")],
}
ORDER = ["read", "shuffle", "to Python", *STEPS, "other", "back"]


def swallow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read what comes, and give one row back."""
    from watersmeet.spark.worker import spare_work

    spare_work()
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"k": [rows], "v": [rows]})


def spark_steps(rows: int, turns: int) -> tuple[dict[str, float], float]:
    """Core nanoseconds per row of Spark's steps, and of the whole join."""
    spark = wm.local_session("row_cost", cores=CORES, partitions=CORES, config={"spark.driver.memory": "6g"})
    h.announce({"master": spark.sparkContext.master, "partitions": CORES, "rows per input": rows})
    with h.scratch() as folder:
        write_inputs(spark, folder, rows)
        left, right = streams(spark, folder)
        both = left.select("k", F.col("a").alias("v")).unionByName(right.select("k", F.col("b").alias("v")))
        schema = "k long, v long"
        shuffled = both.repartition(CORES, "k")
        frames = {
            "read": both,
            "shuffle": shuffled,
            "to Python": shuffled.mapInArrow(swallow, schema),
            "back": shuffled.mapInArrow(echo(spared=True), schema),
        }

        def join(turn: int) -> h.Run:
            joined = wm.join(left, right, on="k", state_dir=str(folder / f"state-{turn}"))
            return h.run_to_end(f"join-{turn}", joined, folder, ["k", "a", "b"])

        engines: dict[str, Any] = {
            name: lambda turn, n=name, f=frame: h.run_to_end(f"{n}-{turn}", f, folder, ["k", "v"])
            for name, frame in frames.items()
        }
        runs = h.in_turns({**engines, "join": join}, 1, turns)
    whole = {name: CORES * 1e9 / run.steady() for name, run in runs.items()}
    names = list(frames)
    steps = {name: whole[name] - (whole[names[place - 1]] if place else 0) for place, name in enumerate(names)}
    return steps, whole["join"]


def batch_of(number: int, rows: int, keys: int) -> Batch:
    """A batch of one partition: so many rows per input, as they come from Spark."""
    rng = np.random.default_rng(number)
    tables = {}
    for name in ("left", "right"):
        key = pa.array(rng.integers(0, keys, rows), pa.int64())
        columns = [pa.array(hash_keys([key]), pa.uint64()), key, pa.array(np.arange(rows) + number * rows)]
        tables[name] = pa.Table.from_arrays(columns, names=[HASH, "_k0", "_p0"])
    return Batch(number, (number + 1) * 1_000_000, tables, {}, frozenset())


def join_steps(rows: int) -> dict[str, float]:
    """Core nanoseconds per row of the steps of the join, from the 4th batch on."""
    plan = make_plan("symmetric", ("left", "right"), {}, payload=(pa.int64(),))
    per_batch = rows // BATCHES // CORES
    totals: dict[str, list[float]] = {name: [] for name in [*STEPS, "other"]}
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as folder:
        for number in range(BATCHES):
            batch = batch_of(number, per_batch, rows // 2 // CORES)
            profile = cProfile.Profile(process_time)
            profile.enable()
            for _ in run_batch(plan, StateDir(folder), 0, batch):
                pass
            profile.disable()
            stats: Any = pstats.Stats(profile)
            whole = stats.total_tt
            found = {
                step: sum(
                    times[3]
                    for (file, _, function), times in stats.stats.items()
                    if any(file.endswith(end) and function == name for end, name in functions)
                )
                for step, functions in STEPS.items()
            }
            if number >= 3:
                for step, seconds in found.items():
                    totals[step].append(seconds)
                totals["other"].append(whole - sum(found.values()))
    return {step: statistics.median(some) * 1e9 / (2 * per_batch) for step, some in totals.items()}


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=FULL, help="rows per input")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    inside = join_steps(arguments.rows)
    outside, whole = spark_steps(arguments.rows, arguments.turns)
    steps = {name: round((outside | inside)[name]) for name in ORDER}
    h.table(
        f"core nanoseconds per input row, {2 * arguments.rows:,} rows, {CORES} cores",
        ["step", "ns", "share"],
        [*((name, ns, ns / sum(steps.values())) for name, ns in steps.items())],
    )
    h.console.print(f"sum {sum(steps.values())} ns, the join on Spark {whole:.0f} ns")
    if arguments.rows == FULL:
        h.save("row_cost", {"cores": CORES, "steps_ns": steps, "sum_ns": sum(steps.values()), "join_ns": round(whole)})


if __name__ == "__main__":
    main()
