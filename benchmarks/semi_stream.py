"""A fast stream against a large table: `semi_stream_join` beside Spark's stream-static join.

Both read the same files in the same process, one after the other: a stream with Zipf keys, one file per micro-batch,
and a master table of growing size. Spark's join scans the table in every micro-batch (from parquet, or from its cache);
ours reads the chunks that rows wait for. The floor is a micro-batch that only shuffles the stream. Answers are compared
with a batch join.

    python benchmarks/semi_stream.py                      1, 10 and 50 million master rows
    python benchmarks/semi_stream.py --millions 1         quick
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm

COLUMNS = ["part_id", "sale", "price", "supplier"]
WARM_UP = 4  # micro-batches not counted


def write_stream(folder: Path, keys: int, batches: int, rows: int) -> None:
    """Zipf 1.0: the key of rank r has probability 1 / (r ln keys); ranks are scattered over the key domain."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    for number in range(batches):
        rank = np.minimum((keys + 1) ** rng.random(rows) - 1, keys - 1).astype(np.int64)
        key = (rank * 2_654_435_761 + 12_345) % keys
        sale = np.arange(number * rows, (number + 1) * rows)
        pq.write_table(pa.table({"part_id": key, "sale": sale}), folder / f"{number:05d}.parquet")


def master(session: SparkSession, keys: int) -> DataFrame:
    return session.range(keys).select(
        F.col("id").alias("part_id"), harness.seeded("price", 1, 10_000), harness.seeded("supplier", 2, 1_000_000)
    )


def typical(run: harness.Run) -> float:
    return statistics.median(run.seconds[WARM_UP:])


def measure(session: SparkSession, folder: Path, millions: int, args: argparse.Namespace) -> dict[str, object]:
    keys = millions * 1_000_000
    write_stream(folder / "stream", keys, args.batches, args.rows)
    master(session, keys).write.parquet(str(folder / "parts"))
    parts = session.read.parquet(str(folder / "parts"))
    source = harness.stream(session, folder / "stream", "part_id long, sale long")
    expected = harness.batch_answer(session.read.parquet(str(folder / "stream")).join(parts, "part_id"), COLUMNS)

    started = time.perf_counter()
    wm.prepare_master(parts, "part_id", folder / "master", partitions=args.partitions)
    prepared = time.perf_counter() - started
    runs = {}

    joined = wm.semi_stream_join(
        source,
        folder / "master",
        "part_id",
        state_dir=folder / "state",
        max_delay=args.max_delay,
        memory="64 MB",
        idle="sleep",
    )
    ours = harness.run_to_end("ours", joined, folder, COLUMNS)
    wm.end_input(folder / "state", "stream")
    tail = harness.run_to_end("ours", joined, folder, COLUMNS)
    ours.answer = {name: ours.answer[name] + tail.answer.get(name, 0) for name in ours.answer}
    harness.check(ours, expected)
    runs["ours"] = ours
    counters = [row.counters for row in wm.read_metrics(session, folder / "state").filter("batch >= 4").collect()]

    shuffled = source.repartition(args.partitions, "part_id").withColumns({"price": F.lit(0), "supplier": F.lit(0)})
    runs["floor"] = harness.run_to_end("floor", shuffled, folder, COLUMNS)
    runs["spark"] = harness.run_to_end("spark", source.join(parts, "part_id"), folder, COLUMNS)
    harness.check(runs["spark"], expected)
    kept = parts.cache()
    kept.count()
    runs["spark cached"] = harness.run_to_end("cached", source.join(kept, "part_id"), folder, COLUMNS)
    harness.check(runs["spark cached"], expected)
    kept.unpersist()

    served = [c.get("left.stream.answered", 0) for c in counters]
    delays = {
        name: sum(c.get(name, 0) * rows for c, rows in zip(counters, served, strict=True)) / max(sum(served), 1)
        for name in ("delay_p50", "delay_p95", "delay_p99")
    }
    return {
        "master_rows": keys,
        "prepare_seconds": round(prepared, 1),
        "seconds_per_batch": {name: round(typical(run), 3) for name, run in runs.items()},
        "hit_share": round(statistics.mean(c.get("hit_share", 0) for c in counters), 3),
        "cached_keys": max(c.get("cached_keys", 0) for c in counters),
        "memory_bytes": args.partitions * max(c.get("memory_bytes", 0) for c in counters),
        "chunks_read_per_batch": round(args.partitions * statistics.mean(c.get("chunks_read", 0) for c in counters), 1),
        "delay_max": max(c.get("delay_max", 0) for c in counters),
        **{name: round(value, 2) for name, value in delays.items()},
        "runs": {name: run.as_dict() for name, run in runs.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--rows", type=int, default=50_000, help="stream rows per micro-batch")
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--max-delay", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=2)
    args = parser.parse_args()
    session = wm.local_session(cores=2, partitions=args.partitions, config={"spark.driver.memory": "5g"})
    results = []
    for millions in args.millions:
        with harness.scratch() as folder:
            results.append(measure(session, folder, millions, args))
            harness.console.print(f"{millions} million done")

    def seconds(result: dict[str, object], name: str) -> float:
        table = result["seconds_per_batch"]
        assert isinstance(table, dict)
        return float(table[name])

    harness.table(
        f"Seconds per micro-batch of {args.rows:,} rows (median), max_delay={args.max_delay}",
        [
            "master rows",
            "ours",
            "Spark",
            "Spark cached",
            "floor",
            "Spark / ours",
            "above the floor",
            "hit share",
            "p50 delay",
        ],
        [
            (
                f"{int(str(r['master_rows'])):,}",
                seconds(r, "ours"),
                seconds(r, "spark"),
                seconds(r, "spark cached"),
                seconds(r, "floor"),
                seconds(r, "spark") / seconds(r, "ours"),
                (seconds(r, "spark") - seconds(r, "floor")) / max(seconds(r, "ours") - seconds(r, "floor"), 0.001),
                r["hit_share"],
                r["delay_p50"],
            )
            for r in results
        ],
    )
    growth = seconds(results[-1], "ours") / seconds(results[0], "ours")
    harness.console.print(f"ours grows by {growth:.2f}x from the smallest table to the largest")
    harness.save("semi_stream", {"arguments": vars(args), "growth": round(growth, 3), "results": results})


if __name__ == "__main__":
    main()
