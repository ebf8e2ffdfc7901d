"""Two streams of timed rows, windows of a tenth of the data: Watersmeet beside Spark's own join with the same bounds.

    python benchmarks/window_join.py [--rows 2000000] [--only watersmeet spark_default]

2,000,000 rows per input over 1,000 seconds of event time, up to 5 seconds out of order, in 20 micro-batches; windows of
100 seconds on both sides, 10 seconds of lateness (Spark: the watermark's delay). All answers are checked against
Spark's batch join. Watersmeet's runs are short: the first `WARM_UPS` are for the JVM, which still compiles, and of the
next `TURNS` the median counts. Spark's take four times as long and more, and are warmed up by a run that is cut off
after 20 seconds. Their settings are in `harness.SPARK_STORES`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import harness as h
from pyspark.sql import functions as F

import watersmeet as wm

BATCHES, SECONDS, WINDOW, LATENESS, DISORDER = 20, 1000, 100, 10, 5
WARM_UPS, TURNS = 4, 3
NEAR = f"rk = k AND r_ts BETWEEN l_ts - INTERVAL {WINDOW} SECONDS AND l_ts + INTERVAL {WINDOW} SECONDS"


def write_inputs(spark: h.SparkSession, folder: Path, rows: int) -> None:
    """So many rows per input, with a tenth as many keys, in a file for each micro-batch."""
    for name, key, value, time, seed in (("left", "k", "a", "l_ts", 1), ("right", "rk", "b", "r_ts", 2)):
        moment = F.col("id") * (SECONDS * 1_000_000 // rows) - h.seeded("x", seed + 10, DISORDER * 1_000_000)
        frame = spark.range(rows).select(
            F.col("id").alias("seq"),
            h.seeded(key, seed, rows // 10),
            F.col("id").alias(value),
            F.timestamp_micros(moment + F.lit(1_700_000_000_000_000)).alias(time),
        )
        h.write_input(frame, folder / name, BATCHES, span=rows)


def streams(spark: h.SparkSession, folder: Path) -> tuple[h.DataFrame, h.DataFrame]:
    """Both inputs, a file of each in a micro-batch."""
    left = h.stream(spark, folder / "left", "k long, a long, l_ts timestamp")
    return left, h.stream(spark, folder / "right", "rk long, b long, r_ts timestamp")


def watersmeet(left: h.DataFrame, right: h.DataFrame, state: Path, **more: Any) -> h.DataFrame:
    """Watersmeet's join."""
    return wm.window_join(
        left,
        right,
        on=[("k", "rk")],
        time=("l_ts", "r_ts"),
        window=f"{WINDOW} s",
        lateness=f"{LATENESS} s",
        state_dir=str(state),
        **more,
    )


def sparks(left: h.DataFrame, right: h.DataFrame, how: str = "inner") -> h.DataFrame:
    """Spark's own join."""
    delay = f"{LATENESS} seconds"
    return left.withWatermark("l_ts", delay).join(right.withWatermark("r_ts", delay), F.expr(NEAR), how)


def main() -> None:
    """Run all engines, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows per input")
    parser.add_argument("--only", nargs="*", help="engines to run")
    arguments = parser.parse_args()
    rows, columns = arguments.rows, ["k", "a", "b"]
    wanted = arguments.only or ["watersmeet", *h.SPARK_STORES]
    spark = wm.local_session("window_join", cores=2, partitions=2, config={"spark.driver.memory": "6g"})
    h.announce({"master": spark.sparkContext.master, "partitions": 2, "rows per input": rows, "batches": BATCHES})
    with h.scratch() as folder:
        write_inputs(spark, folder, rows)
        left_batch, right_batch = (spark.read.parquet(str(folder / name)) for name in ("left", "right"))
        expected = h.batch_answer(left_batch.join(right_batch, F.expr(NEAR)), columns)
        left, right = streams(spark, folder)

        def measure(name: str, frame: h.DataFrame, turn: int = 0, limit: float | None = None) -> h.Run:
            run = h.run_to_end(f"{name}-{turn}", frame, folder, columns, limit_seconds=limit)
            if limit is None:
                h.check(run, expected)
            h.console.print(f"{name}: {run.rows_per_second:,.0f} rows/s; {[round(s, 2) for s in run.seconds]}")
            return run

        def ours(turn: int) -> h.Run:
            return measure("watersmeet", watersmeet(left, right, folder / f"state-{turn}"), turn)

        runs = h.in_turns({"watersmeet": ours} if "watersmeet" in wanted else {}, WARM_UPS, TURNS)
        runs |= h.spark_rivals(
            spark,
            [name for name in h.SPARK_STORES if name in wanted],
            lambda name, limit: measure(name, sparks(left, right), limit=limit),
        )

    title = f"window join, {2 * rows:,} rows, windows of {WINDOW / SECONDS:.0%}, {expected['count']:,} results"
    ratios = h.compare(title, runs)
    h.console.print(ratios)
    if not arguments.only and rows == 2_000_000:
        result = {**ratios, "flatness": round(h.flatness(next(iter(runs.values())).seconds), 3)}
        h.save("window_join", {**result, "runs": {name: run.as_dict() for name, run in runs.items()}})


if __name__ == "__main__":
    main()
