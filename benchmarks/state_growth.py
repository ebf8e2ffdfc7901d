"""Twenty million rows of state: does a micro-batch stay as fast as it was?

    python benchmarks/state_growth.py [--rows 10000000] [--keys growing] [--rival-seconds 420]

Two inputs of 10,000,000 rows, key domain 10,000,000, 50 micro-batches of 400,000 rows. Spark's own stream-stream join
(default store) runs beside ours for as long as it is given and as far as it gets; the ratio is printed per micro-batch.
With `--rows 50000000` there are a hundred million rows, in micro-batches of 2,000,000.

Results become more from one micro-batch to the next, because each row finds more stored ones: in the last ten there are
five times as many as in the 5th to 15th. So the growth is also given per row that comes or leaves. With `--keys
growing` there are as many keys as rows have come, each as likely as any other: a row finds one stored row of the other
input, on average, however many are stored. Then nothing but the state grows.
"""

from __future__ import annotations

import argparse
import statistics

import harness as h
from pyspark.sql import functions as F

import watersmeet as wm

BATCHES = 50
WARM_BATCHES = 5
# Result files, by the rows per input and the keys.
SAVED = {
    (10_000_000, "fixed"): "state_growth",
    (50_000_000, "fixed"): "state_growth_100m",
    (50_000_000, "growing"): "state_growth_100m_growing",
}


def key(seed: int, rows: int, keys: str) -> h.Column:
    """Uniform keys: of all there will be, or of as many as rows have come (and those of the first micro-batch)."""
    if keys == "fixed":
        return h.seeded("k", seed, rows)
    return F.pmod(F.xxhash64("id", F.lit(seed)), F.greatest("id", F.lit(rows // BATCHES))).alias("k")


def main() -> None:
    """Run both, check ours, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows per input")
    parser.add_argument("--keys", choices=("fixed", "growing"), default="fixed")
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
            frame = spark.range(rows).select(ids.alias("seq"), key(seed, rows, arguments.keys), ids.alias(value))
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
    per_row = [s / (r + o) for s, r, o in zip(ours.seconds, ours.rows, ours.results, strict=True)]
    h.table(
        f"growing state, {2 * rows:,} rows in {BATCHES} micro-batches, {arguments.keys} keys",
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
    if (rows, arguments.keys) in SAVED:
        h.save(SAVED[rows, arguments.keys], result)


if __name__ == "__main__":
    main()
