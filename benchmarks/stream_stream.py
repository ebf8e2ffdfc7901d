"""Two streams, 4,000,000 rows, 10 micro-batches: Watersmeet beside Spark's own stream-stream join and an echo.

    python benchmarks/stream_stream.py [--rows 2000000] [--skip-rocksdb]

The echo ships the same rows through the same shuffle and Python without joining anything: a ceiling for any join in
Python workers as Spark has them. Watersmeet's own are spared what PySpark repeats in every task (`spark/worker.py`); a
second echo runs in such workers: what it gives back is what joining costs. All answers are checked against Spark's
batch join. Watersmeet and the echoes are close and finish in seconds, so they take turns: once to warm up, then
`REPEATS` times, of which the median counts. Spark's joins take minutes; each is warmed up by a run that is cut off
after 20 seconds. Their settings are in `harness.SPARK_STORES`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import harness as h
import pyarrow as pa
from pyspark.sql import functions as F

import watersmeet as wm

BATCHES = 10
COLUMNS = ["k", "a", "b"]
REPEATS = 5


def echo(*, spared: bool = False) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that gives back what comes. It is made here so that it travels by value: workers lack this module."""

    def back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if spared:
            from watersmeet.spark.worker import spare_work

            spare_work()
        yield from batches

    return back


def write_inputs(spark: h.SparkSession, folder: Path, rows: int, batches: int = BATCHES) -> None:
    """So many rows per input, with half as many keys, in a file for each micro-batch."""
    for name, value, seed in (("left", "a", 1), ("right", "b", 2)):
        frame = spark.range(rows).select(
            F.col("id").alias("seq"), h.seeded("k", seed, rows // 2), F.col("id").alias(value)
        )
        h.write_input(frame, folder / name, batches, span=rows)


def expected_answer(spark: h.SparkSession, folder: Path) -> dict[str, int]:
    """What Spark's batch join gives."""
    left, right = (spark.read.parquet(str(folder / name)) for name in ("left", "right"))
    return h.batch_answer(left.join(right, "k"), COLUMNS)


def streams(spark: h.SparkSession, folder: Path) -> tuple[h.DataFrame, h.DataFrame]:
    """Both inputs, a file of each in a micro-batch."""
    return h.stream(spark, folder / "left", "k long, a long"), h.stream(spark, folder / "right", "k long, b long")


def main() -> None:
    """Run all engines, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows per input")
    parser.add_argument("--skip-rocksdb", action="store_true")
    parser.add_argument("--only", nargs="*", help="engines to run")
    arguments = parser.parse_args()
    rows = arguments.rows
    spark = wm.local_session("stream_stream", cores=2, partitions=2, config={"spark.driver.memory": "6g"})
    h.announce({"master": spark.sparkContext.master, "partitions": 2, "rows per input": rows, "batches": BATCHES})
    columns = COLUMNS
    with h.scratch() as folder:
        write_inputs(spark, folder, rows)
        expected = expected_answer(spark, folder)

        def measure(
            name: str,
            frame: h.DataFrame,
            answer: dict[str, int] | None,
            shown: list[str],
            turn: int = 0,
            limit: float | None = None,
        ) -> h.Run:
            run = h.run_to_end(f"{name}-{turn}", frame, folder, shown, limit_seconds=limit)
            if answer is not None and limit is None:
                h.check(run, answer)
            h.console.print(f"{name}: {run.rows_per_second:,.0f} rows/s; batches {[round(s, 2) for s in run.seconds]}")
            return run

        wanted = arguments.only or ["watersmeet", "echo", "echo_spared", *h.SPARK_STORES]
        if arguments.skip_rocksdb:
            wanted = [name for name in wanted if "rocksdb" not in name]
        left, right = streams(spark, folder)
        both = left.select("k", F.col("a").alias("v")).unionByName(right.select("k", F.col("b").alias("v")))
        environment = spark.sparkContext.environment
        environment["ECHO"] = "1"  # an environment of its own: workers that Watersmeet has not touched
        echoed = both.repartition(2, "k").mapInArrow(echo(), "k long, v long")
        del environment["ECHO"]
        spared = both.repartition(2, "k").mapInArrow(echo(spared=True), "k long, v long")

        def watersmeet(turn: int) -> h.Run:
            joined = wm.progressive_join(left, right, on="k", state_dir=str(folder / f"state-{turn}"))
            return measure("watersmeet", joined, expected, columns, turn)

        engines = {
            "watersmeet": watersmeet,
            "echo": lambda turn: measure("echo", echoed, None, ["k", "v"], turn),
            "echo_spared": lambda turn: measure("echo_spared", spared, None, ["k", "v"], turn),
        }
        runs = h.in_turns({name: engine for name, engine in engines.items() if name in wanted}, 1, REPEATS)
        runs |= h.spark_rivals(
            spark,
            [name for name in h.SPARK_STORES if name in wanted],
            lambda name, limit: measure(name, left.join(right, "k"), expected, columns, limit=limit),
        )

    ratios = h.compare(f"stream-stream join, {2 * rows:,} rows, {expected['count']:,} results", runs)
    ours = next(iter(runs.values()))
    pairs = {name: run for name, run in runs.items() if name.startswith("echo") and ours.name.startswith("watersmeet")}
    result = {
        **ratios,
        **{f"ratio_vs_{name}": round(h.over_in_pairs(ours, run), 2) for name, run in pairs.items()},
        "flatness": round(h.flatness(ours.seconds), 3),
        "runs": {n: r.as_dict() for n, r in runs.items()},
    }
    h.console.print({key: value for key, value in result.items() if key != "runs"})
    if not arguments.only and arguments.rows == 2_000_000:
        h.save("stream_stream", result)


if __name__ == "__main__":
    main()
