"""A stream against a table, small to large: `wm.join` beside Spark's stream-static join.

All read the same files in the same process: a stream with Zipf keys, one file per micro-batch, and a table of growing
size. They take turns, and the median of the turns counts; before the first figure every engine has run on the smallest
table, which warms the JVM up. Answers are compared with a batch join.

ours              `wm.join` with the table as a DataFrame, as it chooses: broadcast if the table is small
semi-stream       the same with `operator="semi-stream"` and `max_delay`
spark             Spark's join as it is: it scans the table in every micro-batch
spark cached      the same with the table in Spark's cache
spark broadcast   the same with a broadcast hint: Spark at its best while the table is small
floor             a micro-batch that only shuffles the stream

    python benchmarks/semi_stream.py                                        10,000 to 50 million rows of the table
    python benchmarks/semi_stream.py --tables 10000 1000000                 quick
    python benchmarks/semi_stream.py --tables 100000 300000 --rows 500000   where the choice changes: nothing is saved
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm

TABLES = [10_000, 100_000, 1_000_000, 10_000_000, 50_000_000]
ROWS = 50_000
COLUMNS = ["part_id", "sale", "price", "supplier"]
WARM_UP = 4  # micro-batches not counted
LIMIT = 150.0  # seconds for a run of one of Spark's joins
MOST_BROADCAST = 10_000_000  # rows of a table that Spark is asked to broadcast in every micro-batch


def write_stream(folder: Path, keys: int, batches: int, rows: int) -> None:
    """Zipf 1.0: the key of rank r has probability 1 / (r ln keys); ranks are scattered over the key domain."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    for number in range(batches):
        rank = np.minimum((keys + 1) ** rng.random(rows) - 1, keys - 1).astype(np.int64)
        key = (rank * 2_654_435_761 + 12_345) % keys
        sale = np.arange(number * rows, (number + 1) * rows)
        pq.write_table(pa.table({"part_id": key, "sale": sale}), folder / f"{number:05d}.parquet")


def master(session: SparkSession, keys: int, wide: int = 0) -> DataFrame:
    """The table: three numbers, and if it is to be wide, columns of 32 characters."""
    texts = [F.md5(F.concat_ws("-", "id", F.lit(n))).alias(f"text_{n}") for n in range(wide)]
    numbers = [harness.seeded("price", 1, 10_000), harness.seeded("supplier", 2, 1_000_000)]
    return session.range(keys).select(F.col("id").alias("part_id"), *numbers, *texts)


def typical(run: harness.Run) -> float:
    return statistics.median(run.seconds[WARM_UP:] or run.seconds)


class Table:
    """One size of the table, and the engines that join a stream with it."""

    def __init__(self, session: SparkSession, folder: Path, keys: int, args: argparse.Namespace) -> None:
        self.session, self.folder, self.keys, self.args = session, folder, keys, args
        self.runs = 0
        self.chosen = ""  # by `wm.join`
        self.counters: list[dict[str, float]] = []  # of the semi-stream join's newest run
        write_stream(folder / "stream", keys, args.batches, args.rows)
        master(session, keys, args.wide).write.parquet(str(folder / "parts"))
        self.parts = session.read.parquet(str(folder / "parts"))
        self.source = harness.stream(session, folder / "stream", "part_id long, sale long")
        stream = session.read.parquet(str(folder / "stream"))
        self.expected = harness.batch_answer(self.with_texts(stream.join(self.parts, "part_id")), COLUMNS)
        started = time.perf_counter()
        wm.prepare_master(self.parts, "part_id", folder / "master", partitions=args.partitions)
        self.prepared = time.perf_counter() - started

    def engines(self) -> dict[str, Callable[[], harness.Run]]:
        """What takes turns."""
        every = {
            "ours": self.ours,
            "semi-stream": self.semi_stream,
            "spark": lambda: self.spark("spark", self.parts),
            "spark cached": lambda: self.cached("spark cached"),
            "spark broadcast": lambda: self.cached("spark broadcast", hint="broadcast"),
            "floor": self.floor,
        }
        return {name: run for name, run in every.items() if name != "spark broadcast" or self.keys <= MOST_BROADCAST}

    def with_texts(self, joined: DataFrame) -> DataFrame:
        """The texts of a wide table count into the answer, so that they must be carried."""
        lengths = [F.length(f"text_{n}") for n in range(self.args.wide)]
        return joined.withColumn("price", sum(lengths, F.col("price")))

    def run(self, name: str, joined: DataFrame, limit: float | None = None, *, check: bool = True) -> harness.Run:
        self.runs += 1
        run = harness.run_to_end(
            f"{name}-{self.runs}", self.with_texts(joined), self.folder, COLUMNS, limit_seconds=limit
        )
        if check and run.extra["finished"]:
            harness.check(run, self.expected)
        return run

    def state(self) -> Path:
        return self.folder / f"state-{self.runs}"

    def ours(self) -> harness.Run:
        """As `wm.join` chooses. A table that it does not broadcast was prepared by its first run: the others use it."""
        state, prepared = self.state(), self.folder / "chosen"
        if self.chosen == "semi-stream":
            joined = wm.join(self.source, wm.master(prepared), "part_id", state_dir=state, idle="sleep")
        else:
            joined = wm.join(self.source, self.parts, "part_id", state_dir=state)
            self.chosen = wm.explain(joined).story.family
            if self.chosen == "semi-stream":
                (state / "master").rename(prepared)
                return self.ours_again()
        return self.finished("ours", joined, state)

    def ours_again(self) -> harness.Run:
        """With the table in its new place."""
        self.runs += 1
        return self.ours()

    def semi_stream(self) -> harness.Run:
        state, options = self.state(), {"max_delay": self.args.max_delay, "memory": "64 MB", "idle": "sleep"}
        table = wm.master(self.folder / "master")
        joined = wm.join(
            self.source, table, "part_id", state_dir=state, operator="semi-stream", policy="aligned", **options
        )
        run = self.finished("semi-stream", joined, state)
        metrics = wm.read_metrics(self.session, state).filter(f"batch >= {WARM_UP}")
        self.counters = [row.counters for row in metrics.collect()]
        return run

    def finished(self, name: str, joined: DataFrame, state: Path) -> harness.Run:
        """A run of one of our joins to its end, when all rows that waited have been joined."""
        run = self.run(name, joined, check=False)
        if wm.explain(state).story.family == "semi-stream":
            wm.end_input(state, "stream")
            tail = harness.run_to_end(f"{name}-{self.runs}", self.with_texts(joined), self.folder, COLUMNS)
            run.answer = {key: run.answer[key] + tail.answer.get(key, 0) for key in run.answer}
        harness.check(run, self.expected)
        return run

    def spark(self, name: str, table: DataFrame) -> harness.Run:
        return self.run(name, self.source.join(table, "part_id"), LIMIT)

    def cached(self, name: str, hint: str | None = None) -> harness.Run:
        """With the table in the cache, under a plan of its own: the engine without it has the other one."""
        kept = self.parts.where(F.lit(name) == F.lit(name)).cache()
        kept.count()
        try:
            return self.spark(name, kept if hint is None else kept.hint(hint))
        finally:
            kept.unpersist(blocking=True)

    def floor(self) -> harness.Run:
        names = ["price", "supplier", *(f"text_{n}" for n in range(self.args.wide))]
        nothing = {name: F.lit(0) if name in COLUMNS else F.lit("") for name in names}
        shuffled = self.source.repartition(self.args.partitions, "part_id").withColumns(nothing)
        return self.run("floor", shuffled, check=False)


def measure(table: Table, rounds: int) -> dict[str, Any]:
    """The engines in turns."""
    turns: dict[str, list[harness.Run]] = {}
    for _ in range(rounds):
        for name, engine in table.engines().items():
            turns.setdefault(name, []).append(engine())
    seconds = {name: [round(typical(run), 3) for run in some] for name, some in turns.items()}
    counters, partitions = table.counters, table.args.partitions
    served = [c.get("left.stream.answered", 0) for c in counters]
    delays = {
        name: sum(c.get(name, 0) * rows for c, rows in zip(counters, served, strict=True)) / max(sum(served), 1)
        for name in ("delay_p50", "delay_p95", "delay_p99")
    }
    medians = {name: round(statistics.median(some), 3) for name, some in seconds.items()}
    best = min(value for name, value in medians.items() if name.startswith("spark"))
    return {
        "master_rows": table.keys,
        "chosen": table.chosen,
        "prepare_seconds": round(table.prepared, 1),
        "seconds_per_batch": medians,
        "seconds_of_all_turns": seconds,
        "best_of_spark_over_ours": round(best / medians["ours"], 2),
        "hit_share": round(statistics.mean(c.get("hit_share", 0) for c in counters), 3),
        "cached_keys": max(c.get("cached_keys", 0) for c in counters),
        "memory_bytes": partitions * max(c.get("memory_bytes", 0) for c in counters),
        "chunks_read_per_batch": round(partitions * statistics.mean(c.get("chunks_read", 0) for c in counters), 1),
        "delay_max": max(c.get("delay_max", 0) for c in counters),
        **{name: round(value, 2) for name, value in delays.items()},
        "runs": {name: some[len(some) // 2].as_dict() for name, some in turns.items()},
    }


def show(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """One line for each size."""
    names = ["ours", "semi-stream", "spark", "spark cached", "spark broadcast", "floor"]
    harness.table(
        f"Seconds per micro-batch of {args.rows:,} rows (median), semi-stream with max_delay={args.max_delay}",
        ["master rows", "chosen", *names, "best of Spark / ours", "hit share", "p50 delay"],
        [
            (
                f"{one['master_rows']:,}",
                one["chosen"],
                *(one["seconds_per_batch"].get(name, "-") for name in names),
                one["best_of_spark_over_ours"],
                one["hit_share"],
                one["delay_p50"],
            )
            for one in results
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, nargs="+", default=TABLES, help="rows of the table")
    parser.add_argument("--rows", type=int, default=ROWS, help="stream rows per micro-batch")
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-delay", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--wide", type=int, default=0, help="text columns of the table, of 32 characters each")
    args = parser.parse_args()
    session = wm.local_session(cores=2, partitions=args.partitions, config={"spark.driver.memory": "5g"})
    with harness.scratch() as folder:
        measure(Table(session, folder, min(args.tables), args), 1)
        harness.console.print("warmed up")
    results = []
    for keys in args.tables:
        with harness.scratch() as folder:
            results.append(measure(Table(session, folder, keys, args), args.rounds))
            harness.console.print(f"{keys:,} rows done: {results[-1]['seconds_per_batch']}", highlight=False)
    show(results, args)
    seconds = [one["seconds_per_batch"]["semi-stream"] for one in results]
    growth = seconds[-1] / seconds[0]
    harness.console.print(f"the semi-stream join grows by {growth:.2f}x from the smallest table to the largest")
    if (args.tables, args.rows, args.wide) == (TABLES, ROWS, 0):
        worst = min(one["best_of_spark_over_ours"] for one in results)
        ratios = {"best_of_spark_over_ours": worst, "growth": round(growth, 3)}
        harness.save("semi_stream", {"arguments": vars(args), **ratios, "results": results})


if __name__ == "__main__":
    main()
