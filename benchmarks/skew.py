"""Keys with a large part of all rows: Watersmeet with and without `hot_keys`, Spark's join, Spark salted by hand.

    python benchmarks/skew.py [--rows 1000000] [--only "50 %" uniform] [--engines hot off] [--repeats 3] [--cluster]

8 partitions, 10 micro-batches, on 2 cores or, with `--cluster`, on `local-cluster[4,1,1024]`. One key has 10, 30 or
50 % of the left rows; or keys of both inputs follow a Zipf law, where results grow with the square of the rows, so that
there are fewer of them; or keys are uniform, where spreading can only cost. Salting by hand adds a column to the key: a
left row has one of 8 salts, a right row all of them, whatever its key. All answers are checked against Spark's batch
join.

Work is rows that come to a partition, copies included, plus results; it is looked at from the fourth micro-batch on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import harness as h
from pyspark.sql import Column
from pyspark.sql import functions as F

import watersmeet as wm

PARTITIONS, BATCHES, SALTS = 8, 10, 8
COLUMNS = ["k", "a", "b"]
STEADY = 3  # the fourth micro-batch
# What the design asks for: work of the busiest partition and state of the fullest over the mean, copies over all rows
# where one key is hot, and what spreading may cost where none is.
MOST_WORK, MOST_STATE, MOST_COPIED, MOST_COST = 1.3, 1.5, 0.1, 0.02


@dataclass(frozen=True)
class Workload:
    """The keys of both inputs, and how many of the rows asked for make sense."""

    left: Callable[[int], Column]
    right: Callable[[int], Column]
    rows: float = 1.0
    one_key: bool = False


def uniform(seed: int) -> Callable[[int], Column]:
    """Keys that are all alike."""
    return lambda rows: h.seeded("k", seed, rows // 2)


def one_key(share: float) -> Callable[[int], Column]:
    """Uniform keys, of which one has a share of the rows."""
    return lambda rows: F.when(_unit(11) < share, F.lit(7)).otherwise(h.seeded("k", 1, rows // 2)).alias("k")


def zipf(exponent: float, seed: int) -> Callable[[int], Column]:
    """The n-th key has about n ** -exponent of what the first one has: the inverse of the distribution's function."""

    def key(rows: int) -> Column:
        uniform = F.greatest(_unit(seed), F.lit(1e-9))
        if exponent == 1.0:
            return F.pow(F.lit(float(rows)), uniform).cast("long").alias("k")
        return F.least(F.pow(uniform, F.lit(-1 / (exponent - 1))), F.lit(1e9)).cast("long").alias("k")

    return key


def _unit(seed: int) -> Column:
    """A pseudo-random number below 1, a function of the row number."""
    return F.pmod(F.xxhash64("id", F.lit(seed)), F.lit(1 << 30)) / F.lit(float(1 << 30))


WORKLOADS = {
    "10 %": Workload(one_key(0.1), uniform(2), one_key=True),
    "30 %": Workload(one_key(0.3), uniform(2), one_key=True),
    "50 %": Workload(one_key(0.5), uniform(2), one_key=True),
    "zipf 1.0": Workload(zipf(1.0, 3), zipf(1.0, 4), rows=0.1),
    "zipf 1.5": Workload(zipf(1.5, 3), zipf(1.5, 4), rows=0.02),
    "uniform": Workload(uniform(1), uniform(2)),
}


def engine(name: str, left: h.DataFrame, right: h.DataFrame, state: Path) -> h.DataFrame:
    """The join of two streams."""
    if name in ("hot", "off"):
        return wm.progressive_join(
            left, right, on="k", state_dir=state, partitions=PARTITIONS, hot_keys="auto" if name == "hot" else "off"
        )
    if name == "spark":
        return left.join(right, "k")
    salt = F.pmod(F.xxhash64("a"), F.lit(SALTS)).cast("int")
    salts = F.explode(F.sequence(F.lit(0), F.lit(SALTS - 1)))
    return left.withColumn("salt", salt).join(right.withColumn("salt", salts), ["k", "salt"]).drop("salt")


def spread(spark: h.SparkSession, state: Path) -> dict[str, float]:
    """How evenly the partitions of one of our joins worked, and how many rows were copied."""
    copied = " + ".join(f"coalesce(counters['rows_copied.{side}'], 0)" for side in ("left", "right"))
    came = "rows_in['left'] + rows_in['right']"
    held = "counters['held_rows.left'] + counters['held_rows.right']"
    by_partition = wm.read_metrics(spark, state).selectExpr(
        "batch", f"{came} AS came", f"{copied} AS copied", f"{came} + {copied} + rows_out AS work", f"{held} AS held"
    )
    whole = by_partition.groupBy("batch").agg(
        *(F.sum(name).alias(name) for name in ("came", "copied")),
        (F.max("work") / F.mean("work")).alias("work"),
        (F.max("held") / F.mean("held")).alias("held"),
    )
    rows = [row for row in whole.orderBy("batch").collect() if row["came"]]
    return {
        "busiest_over_mean_work": max(row["work"] for row in rows[STEADY:]),
        "fullest_over_mean_state": max(row["held"] for row in rows[STEADY:]),
        "copied_share": sum(row["copied"] for row in rows) / sum(row["came"] for row in rows),
    }


def measure(spark: h.SparkSession, folder: Path, name: str, engines: list[str], rows: int, repeats: int) -> dict:
    """All engines on one workload."""
    workload = WORKLOADS[name]
    rows = max(int(rows * workload.rows), BATCHES)
    place = folder / name.replace(" ", "_")
    for side, value, keys in (("left", "a", workload.left), ("right", "b", workload.right)):
        ids = F.col("id")
        h.write_input(spark.range(rows).select(ids.alias("seq"), keys(rows), ids.alias(value)), place / side, BATCHES)
    batch = [spark.read.parquet(str(place / side)) for side in ("left", "right")]
    expected = h.batch_answer(batch[0].join(batch[1], "k"), COLUMNS)

    def once(kind: str, turn: int) -> h.Run:
        left = h.stream(spark, place / "left", "k long, a long")
        right = h.stream(spark, place / "right", "k long, b long")
        state = place / f"state-{kind}-{turn}"
        run = h.run_to_end(f"{kind}-{turn}", engine(kind, left, right, state), place, COLUMNS)
        h.check(run, expected)
        if kind in ("hot", "off"):
            run.extra |= spread(spark, state)
        return run

    ours = {kind: (lambda turn, kind=kind: once(kind, turn)) for kind in engines if kind in ("hot", "off")}
    runs = h.in_turns(ours, 1, repeats)
    runs |= {kind: once(kind, 0) for kind in engines if kind not in ours}
    h.table(
        f"{name}: {2 * rows:,} rows, {expected['count']:,} results, {PARTITIONS} partitions",
        ["engine", "rows/s", "steady rows/s", "busiest/mean work", "fullest/mean state", "copied share"],
        [
            (
                kind,
                round(run.rows_per_second),
                round(run.steady(STEADY)),
                *(run.extra.get(key, "") for key in ("busiest_over_mean_work", "fullest_over_mean_state")),
                run.extra.get("copied_share", ""),
            )
            for kind, run in runs.items()
        ],
    )
    if "hot" in runs:
        _judge(name, workload, runs)
    return {kind: run.as_dict() for kind, run in runs.items()}


def _judge(name: str, workload: Workload, runs: dict[str, h.Run]) -> None:
    """Say how far the measures are from what they should be."""
    hot = runs["hot"].extra
    if name == "uniform":
        if "off" in runs:
            cost = 1 - runs["hot"].steady(STEADY) / runs["off"].steady(STEADY)
            h.console.print(f"spreading costs {cost:.1%} of the throughput (at most {MOST_COST:.0%})")
        return
    copied = f", {hot['copied_share']:.1%} of the rows copied (at most {MOST_COPIED:.0%})" if workload.one_key else ""
    h.console.print(
        f"busiest {hot['busiest_over_mean_work']:.2f} of the mean (at most {MOST_WORK}), "
        f"fullest {hot['fullest_over_mean_state']:.2f} (at most {MOST_STATE}){copied}"
    )


def main() -> None:
    """Run all workloads, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows per input")
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--engines", nargs="*", default=["hot", "off", "spark", "salted"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cluster", action="store_true", help="local-cluster[4,1,1024] in place of 2 cores")
    arguments = parser.parse_args()
    config = {"spark.driver.memory": "4g"}
    if arguments.cluster:
        config["spark.master"] = "local-cluster[4,1,1024]"
    spark = wm.local_session("skew", cores=2, partitions=PARTITIONS, config=config)
    h.use_store(spark, "spark_default")
    with h.scratch() as folder:
        found = {
            name: measure(spark, folder, name, arguments.engines, arguments.rows, arguments.repeats)
            for name in arguments.only
        }
    if arguments.rows == 1_000_000 and arguments.only == list(WORKLOADS):
        h.save("skew_cluster" if arguments.cluster else "skew", found)


if __name__ == "__main__":
    main()
