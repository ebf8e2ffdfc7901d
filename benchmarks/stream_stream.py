"""Two streams, 4,000,000 rows, 10 micro-batches: Watersmeet beside Spark's own stream-stream join and an echo.

    python benchmarks/stream_stream.py [--rows 2000000] [--skip-rocksdb]

The echo ships the same rows through the same shuffle and Python without joining anything: a ceiling for any join in
Python workers as Spark has them (Watersmeet's own are spared PySpark's collection after every task). All answers are
checked against Spark's batch join. Watersmeet and the echo are close and finish in seconds, so they take turns: once to
warm up, then `REPEATS` times, of which the median counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import harness as h
import pyarrow as pa
from pyspark.sql import functions as F

import watersmeet as wm

BATCHES = 10
REPEATS = 5


def echo(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give back what comes."""
    yield from batches


def main() -> None:
    """Run all engines, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows per input")
    parser.add_argument("--skip-rocksdb", action="store_true")
    parser.add_argument("--only", nargs="*", help="engines to run")
    arguments = parser.parse_args()
    rows, domain = arguments.rows, arguments.rows // 2
    spark = wm.local_session("stream_stream", cores=2, partitions=2, config={"spark.driver.memory": "6g"})
    columns = ["k", "a", "b"]
    with h.scratch() as folder:
        for name, value, seed in (("left", "a", 1), ("right", "b", 2)):
            frame = spark.range(rows).select(
                F.col("id").alias("seq"), h.seeded("k", seed, domain), F.col("id").alias(value)
            )
            h.write_input(frame, folder / name, BATCHES, span=rows)
        batch = [spark.read.parquet(str(folder / name)) for name in ("left", "right")]
        expected = h.batch_answer(batch[0].join(batch[1], "k"), columns)

        def inputs() -> tuple[h.DataFrame, h.DataFrame]:
            return h.stream(spark, folder / "left", "k long, a long"), h.stream(
                spark, folder / "right", "k long, b long"
            )

        runs: dict[str, h.Run] = {}

        def measure(
            name: str, frame: h.DataFrame, answer: dict[str, int] | None, shown: list[str], turn: int = 0
        ) -> h.Run:
            run = h.run_to_end(f"{name}-{turn}", frame, folder, shown)
            if answer is not None:
                h.check(run, answer)
            h.console.print(f"{name}: {run.steady():,.0f} rows/s steady; batches {[round(s, 2) for s in run.seconds]}")
            return run

        wanted = arguments.only or ["watersmeet", "echo", "spark_default", "spark_rocksdb"]
        if arguments.skip_rocksdb:
            wanted.remove("spark_rocksdb")
        left, right = inputs()
        both = left.select("k", F.col("a").alias("v")).unionByName(right.select("k", F.col("b").alias("v")))
        environment = spark.sparkContext.environment
        environment["ECHO"] = "1"  # an environment of its own: workers that Watersmeet has not touched
        echoed = both.repartition(2, "k").mapInArrow(echo, "k long, v long")
        del environment["ECHO"]
        turns: dict[str, list[h.Run]] = {name: [] for name in ("watersmeet", "echo") if name in wanted}
        for turn in range(REPEATS + 1):
            if "watersmeet" in turns:
                joined = wm.progressive_join(left, right, on="k", state_dir=str(folder / f"state-{turn}"))
                turns["watersmeet"].append(measure("watersmeet", joined, expected, columns, turn))
            if "echo" in turns:
                turns["echo"].append(measure("echo", echoed, None, ["k", "v"], turn))
        for name, some in turns.items():
            runs[name] = sorted(some[1:], key=h.Run.steady)[REPEATS // 2]
            runs[name].extra["steady_of_all_turns"] = [round(run.steady()) for run in some]
        for name, store in (("spark_default", h.DEFAULT_STORE), ("spark_rocksdb", h.ROCKSDB_STORE)):
            if name in wanted:
                spark.conf.set("spark.sql.streaming.stateStore.providerClass", store)
                spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
                runs[name] = measure(name, left.join(right, "k"), expected, columns)

    ours = runs["watersmeet"] if "watersmeet" in runs else next(iter(runs.values()))
    ratios = {
        f"ratio_vs_{name.removeprefix('spark_')}": round(ours.steady() / run.steady(), 2)
        for name, run in runs.items()
        if run is not ours
    }
    h.table(
        f"stream-stream join, {2 * rows:,} rows, {expected['count']:,} results",
        ["engine", "rows/s", "steady rows/s", "ours over it", "first batch s", "last batch s"],
        [
            (name, round(r.rows_per_second), round(r.steady()), ours.steady() / r.steady(), r.seconds[0], r.seconds[-1])
            for name, r in runs.items()
        ],
    )
    result = {
        **ratios,
        "flatness": round(h.flatness(ours.seconds), 3),
        "runs": {n: r.as_dict() for n, r in runs.items()},
    }
    h.console.print({key: value for key, value in result.items() if key != "runs"})
    if not arguments.only and arguments.rows == 2_000_000:
        h.save("stream_stream", result)


if __name__ == "__main__":
    main()
