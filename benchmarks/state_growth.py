"""Twenty million rows of state: does a micro-batch stay as fast as it was?

    python benchmarks/state_growth.py [--rows 10000000] [--rival-seconds 420]

Two inputs of 10,000,000 rows, key domain 10,000,000, 50 micro-batches of 400,000 rows. Spark's own stream-stream join
(default store) runs beside ours for as long as it is given and as far as it gets; the ratio is printed per micro-batch.
With `--rows 50000000` there are a hundred million rows, in micro-batches of 2,000,000.

Results become more from one micro-batch to the next, because each row finds more stored ones: in the last ten there are
five times as many as in the 5th to 15th. So the growth is also given per row that comes or leaves.
"""

from __future__ import annotations

import argparse
import statistics

import harness as h
from pyspark.sql import functions as F

import watersmeet as wm

BATCHES = 50
WARM_BATCHES = 5
SAVED = {10_000_000: "state_growth", 50_000_000: "state_growth_100m"}  # result files, by the rows per input


def main() -> None:
    """Run both, check ours, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows per input")
    parser.add_argument("--rival-seconds", type=float, default=420)
    arguments = parser.parse_args()
    rows = arguments.rows
    config = {"spark.driver.memory": "8g", "spark.sql.streaming.numRecentProgressUpdates": "200"}
    spark = wm.local_session("state_growth", cores=2, partitions=2, config=config)
    columns = ["k", "a", "b"]
    with h.scratch() as folder:
        names = (("left", "a", 1), ("right", "b", 2))
        for name, value, seed in names:
            ids = F.col("id")
            frame = spark.range(rows).select(ids.alias("seq"), h.seeded("k", seed, rows), ids.alias(value))
            h.write_input(frame, folder / name, BATCHES, span=rows)
            few = rows // BATCHES * WARM_BATCHES
            h.write_input(frame.where(ids < few), folder / f"warm-{name}", WARM_BATCHES, span=few)
        batch = [spark.read.parquet(str(folder / name)) for name in ("left", "right")]
        expected = h.batch_answer(batch[0].join(batch[1], "k"), columns)
        for kind in ("warm-", ""):  # the first seconds of a JVM and of its workers say nothing about the state
            left, right = (
                h.stream(spark, folder / f"{kind}{name}", f"k long, {value} long") for name, value, _ in names
            )
            joined = wm.progressive_join(left, right, on="k", state_dir=str(folder / f"{kind}state"))
            ours = h.run_to_end(f"{kind}watersmeet", joined, folder, columns)
        h.check(ours, expected)
        rival = h.run_to_end(
            "spark_default", left.join(right, "k"), folder, columns, limit_seconds=arguments.rival_seconds
        )
    median = statistics.median(ours.seconds)
    early, late = statistics.median(ours.seconds[4:15]), statistics.median(ours.seconds[-10:])
    results = [ours.answer["count"] * (2 * n + 1) / BATCHES**2 for n in range(BATCHES)]  # n² of all pairs after n
    per_row = [s / (r + o) for s, r, o in zip(ours.seconds, ours.rows, results, strict=True)]
    h.table(
        f"growing state, {2 * rows:,} rows in {BATCHES} micro-batches",
        ["batch", "watersmeet s", "spark s", "spark over ours"],
        [
            (
                str(number),
                seconds,
                rival.seconds[number] if number < len(rival.seconds) else "not reached",
                rival.seconds[number] / seconds if number < len(rival.seconds) else "",
            )
            for number, seconds in enumerate(ours.seconds)
            if number % 5 == 0 or number == len(rival.seconds) - 1
        ],
    )
    result = {
        "growth": round(late / early, 3),  # median of the last ten micro-batches over that of the 5th to 15th
        "growth_per_row": round(statistics.median(per_row[-10:]) / statistics.median(per_row[4:15]), 3),
        "worst_over_median": round(max(ours.seconds) / median, 3),
        "spark_over_ours_per_batch": [round(s / o, 2) for s, o in zip(rival.seconds, ours.seconds, strict=False)],
        "runs": {run.name: run.as_dict() for run in (ours, rival)},
    }
    h.console.print({key: value for key, value in result.items() if key != "runs"})
    if rows in SAVED:
        h.save(SAVED[rows], result)


if __name__ == "__main__":
    main()
