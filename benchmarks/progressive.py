"""A progressive join with a quarter of the memory its state would take, beside the same join without a limit.

    python benchmarks/progressive.py [--rows 2000000] [--policies rpj xjoin hmj]

The workload is that of `stream_stream.py`: 4,000,000 rows in 10 micro-batches, key domain 1,000,000. The inputs are
then declared complete, and one more micro-batch cleans up. Answers are checked against Spark's batch join.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import harness as h
from pyspark.sql import functions as F

import watersmeet as wm

BATCHES = 10
COLUMNS = ["k", "a", "b"]
# What the design asks for: arrival throughput over the unlimited join's, whole time over the unlimited join's.
LEAST_THROUGHPUT, MOST_TIME = 0.6, 2.5


def joined(spark: h.SparkSession, folder: Path, name: str, **options: object) -> h.DataFrame:
    """The join of both inputs, with its state in a folder of its own."""
    left = h.stream(spark, folder / "left", "k long, a long")
    right = h.stream(spark, folder / "right", "k long, b long")
    return wm.progressive_join(left, right, on="k", state_dir=str(folder / f"state-{name}"), **options)


def measure(spark: h.SparkSession, folder: Path, name: str, **options: object) -> tuple[h.Run, h.Run]:
    """All files, then the end of both inputs: what the arrival stage and the clean-up took."""
    arrival = h.run_to_end(name, joined(spark, folder, name, **options), folder, COLUMNS)
    for side in ("left", "right"):
        wm.end_input(folder / f"state-{name}", side)
    return arrival, h.run_to_end(name, joined(spark, folder, name, **options), folder, COLUMNS)


def main() -> None:
    """Run all policies, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows per input")
    parser.add_argument("--policies", nargs="*", default=["rpj", "xjoin", "hmj"])
    arguments = parser.parse_args()
    rows, domain = arguments.rows, arguments.rows // 2
    spark = wm.local_session("progressive", cores=2, partitions=2, config={"spark.driver.memory": "6g"})
    with h.scratch() as folder:
        for name, value, seed in (("left", "a", 1), ("right", "b", 2)):
            ids = F.col("id")
            frame = spark.range(rows).select(ids.alias("seq"), h.seeded("k", seed, domain), ids.alias(value))
            h.write_input(frame, folder / name, BATCHES, span=rows)
        batch = [spark.read.parquet(str(folder / name)) for name in ("left", "right")]
        expected = h.batch_answer(batch[0].join(batch[1], "k"), COLUMNS)

        h.run_to_end("warm", joined(spark, folder, "warm"), folder, COLUMNS)
        state = wm.read_state(spark, folder / "state-warm").agg(F.sum("bytes")).first()[0]
        memory = int(state) // 4
        measured: dict[str, tuple[h.Run, h.Run]] = {}
        for name in ["unlimited", *arguments.policies]:
            options = {} if name == "unlimited" else {"memory": memory, "policy": name}
            arrival, clean_up = measured[name] = measure(spark, folder, name, **options)
            both = h.Run(name, answer={k: arrival.answer[k] + clean_up.answer.get(k, 0) for k in expected})
            h.check(both, expected)

    base = sum(measured["unlimited"][0].seconds) + sum(measured["unlimited"][1].seconds)
    shown, saved = [], {}
    for name, (arrival, clean_up) in measured.items():
        whole = sum(arrival.seconds) + sum(clean_up.seconds)
        throughput = arrival.rows_per_second / measured["unlimited"][0].rows_per_second
        share = arrival.answer["count"] / expected["count"]
        shown.append(
            (name, round(arrival.rows_per_second), throughput, share, sum(clean_up.seconds), whole, whole / base)
        )
        saved[name] = {
            "arrival_throughput_over_unlimited": round(throughput, 3),
            "total_time_over_unlimited": round(whole / base, 3),
            "share_of_results_before_clean_up": round(share, 3),
            "arrival": arrival.as_dict(),
            "clean_up": clean_up.as_dict(),
        }
    h.table(
        f"progressive join, {2 * rows:,} rows, budget {memory / 1e6:.0f} MB of {state / 1e6:.0f} MB of state",
        ["policy", "arrival rows/s", "of unlimited", "results by then", "clean-up s", "total s", "of unlimited"],
        shown,
    )
    ours = saved.get("rpj", {})
    if ours:
        h.console.print(
            f"arrival throughput {ours['arrival_throughput_over_unlimited']:.0%} of unlimited "
            f"(at least {LEAST_THROUGHPUT:.0%}), total time {ours['total_time_over_unlimited']:.2f} times "
            f"(at most {MOST_TIME})"
        )
    if arguments.rows == 2_000_000:
        h.save("progressive", {"memory": memory, "state": int(state), "runs": saved})


if __name__ == "__main__":
    main()
