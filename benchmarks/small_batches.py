"""Small micro-batches: what of the time is Spark's, what is Python's, what is ours.

    python benchmarks/small_batches.py [--rows 1000] [--batches 60] [--turns 2]

Micro-batches of 1,000 rows, half of them from each input, through queries that do one thing more each:

    pass-through      the files of both inputs to the sink
    shuffle           repartitioned by the key
    echo, stock       and through Python workers as PySpark has them
    echo              and through workers that are spared what PySpark repeats in every task, as those of our join
    watersmeet        our join
    watersmeet, ticks our join with a memory budget, which has a source of ticks for its idle work
    spark             Spark's own join, default store

The figure is the median time of a micro-batch (`triggerExecution`) from the 11th on, over all turns but the first;
below it are the medians of the phases in Spark's progress reports, and of load, join and store in our metrics.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import harness as h
from pyspark.sql import functions as F
from stream_stream import COLUMNS, echo, expected_answer, streams, write_inputs

import watersmeet as wm

CORES, FIRST, FULL = 2, 10, 1000
PHASES = ["latestOffset", "queryPlanning", "walCommit", "getBatch", "addBatch", "commitOffsets"]


def phases(
    frame: h.DataFrame, checkpoint: str, columns: list[str], answer: dict[str, int] | None, least: int
) -> list[dict[str, int]]:
    """Milliseconds of each micro-batch with so many rows (not only ticks), by phase; the answer is checked."""
    observed = frame.observe("answer", *h.checksum(columns))
    query = (
        observed.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    found = h.Run(checkpoint)
    for progress in query.recentProgress:
        for name, value in progress["observedMetrics"]["answer"].asDict().items():
            found.answer[name] = found.answer.get(name, 0) + int(value or 0)
    if answer is not None:
        h.check(found, answer)
    return [dict(p["durationMs"]) for p in query.recentProgress if p["numInputRows"] >= least]


def inside(spark: h.SparkSession, state: str) -> dict[str, float]:
    """Milliseconds of load, join and store in a micro-batch: the slower partition counts."""
    rows = wm.read_metrics(spark, state).select("batch", "partition", "timings").collect()
    batches: dict[int, list[dict[str, float]]] = {}
    for row in rows:
        if row["batch"] >= FIRST:
            batches.setdefault(row["batch"], []).append(row["timings"])
    slowest = [max(some, key=lambda timings: sum(timings.values())) for some in batches.values()]
    return {
        phase: round(1000 * statistics.median(one[phase] for one in slowest), 2) for phase in ("load", "join", "store")
    }


def main() -> None:
    """Run all queries in turns, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=FULL, help="rows of a micro-batch")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    spark = wm.local_session("small_batches", cores=CORES, partitions=CORES)
    h.announce({"master": spark.sparkContext.master, "rows a batch": arguments.rows, "batches": arguments.batches})
    with h.scratch() as folder:
        write_inputs(spark, folder, arguments.rows // 2 * arguments.batches, arguments.batches)
        expected = expected_answer(spark, folder)
        left, right = streams(spark, folder)
        both = left.select("k", F.col("a").alias("v")).unionByName(right.select("k", F.col("b").alias("v")))
        environment = spark.sparkContext.environment
        environment["ECHO"] = "1"  # an environment of its own: workers that Watersmeet has not touched
        echoed = both.repartition(CORES, "k").mapInArrow(echo(), "k long, v long")
        del environment["ECHO"]
        spared = both.repartition(CORES, "k").mapInArrow(echo(spared=True), "k long, v long")

        def state(name: str, turn: int) -> str:
            return str(folder / f"state-{name}-{turn}")

        queries: dict[str, Callable[[int], h.DataFrame]] = {
            "pass-through": lambda turn: both,
            "shuffle": lambda turn: both.repartition(CORES, "k"),
            "echo, stock": lambda turn: echoed,
            "echo": lambda turn: spared,
            "watersmeet": lambda turn: wm.join(left, right, on="k", state_dir=state("plain", turn)),
            "watersmeet, ticks": lambda turn: wm.join(
                left, right, on="k", state_dir=state("ticks", turn), memory="64 MB"
            ),
            "spark": lambda turn: left.join(right, "k"),
        }
        found: dict[str, list[dict[str, int]]] = {name: [] for name in queries}
        for turn in range(arguments.turns + 1):
            for name, frame in queries.items():
                joins = name.startswith(("watersmeet", "spark"))
                columns, answer = (COLUMNS, expected) if joins else (["k", "v"], None)
                seen = phases(
                    frame(turn), str(folder / f"checkpoint-{name}-{turn}"), columns, answer, arguments.rows // 2
                )
                if turn:
                    found[name] += seen[FIRST:]
        ours = {
            name: inside(spark, state(short, 1))
            for short, name in (("plain", "watersmeet"), ("ticks", "watersmeet, ticks"))
        }
    medians = {
        name: {phase: statistics.median(one.get(phase, 0) for one in some) for phase in ["triggerExecution", *PHASES]}
        for name, some in found.items()
    }
    whole = {name: phase["triggerExecution"] for name, phase in medians.items()}
    shares = {
        "Spark's: a micro-batch that does nothing": whole["pass-through"],
        "Spark's: the shuffle": whole["shuffle"] - whole["pass-through"],
        "Python's: workers and transfer": whole["echo"] - whole["shuffle"],
        "ours": whole["watersmeet"] - whole["echo"],
        "ours: of which load, join, store": sum(ours["watersmeet"].values()),
        "spared: what stock workers would take more": whole["echo, stock"] - whole["echo"],
        "ours: ticks": whole["watersmeet, ticks"] - whole["watersmeet"],
    }
    h.table(
        f"micro-batches of {arguments.rows:,} rows, median milliseconds",
        ["query", "whole", *PHASES],
        [(name, *(float(value) for value in phase.values())) for name, phase in medians.items()],
    )
    h.table("what of it is whose", ["part", "ms"], [(name, float(ms)) for name, ms in shares.items()])
    if arguments.rows == FULL:
        h.save("small_batches", {"rows": FULL, "median_ms": medians, "shares_ms": shares, "ours_ms": ours})


if __name__ == "__main__":
    main()
