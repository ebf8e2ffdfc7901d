"""Keys with a large part of all rows: Watersmeet with and without `hot_keys`, Spark's join, Spark salted by hand.

    python benchmarks/skew.py [--only "50 %" uniform] [--engines hot off] [--cluster] [--resume] [--untimed] [--small]

8 partitions, 10 micro-batches, on 2 cores or, with `--cluster`, on `local-cluster[4,1,1024]`. Each engine's figures for
a workload are a piece, the two joins of ours one together. A piece goes into the result file when it is done, beside
what is there; with `--resume` those that are there are left out, so that a run that was stopped goes on. `--untimed`
runs once and leaves speeds out, on a machine that has other work: how evenly work is spread does not depend on it.
`--small` tries all of it with few rows, into a result file of its own.

One key has 10, 30 or 50 % of the left rows; or keys of both inputs follow a Zipf law, where results grow with the
square of the rows, so that there are fewer of them; or keys are uniform, where spreading can only cost: planning, for
the most part, so that it is measured with larger micro-batches, too. Salting by hand
adds a column to the key: a left row has one of 8 salts, a right row all of them, whatever its key. All answers are
checked against Spark's batch join.

Work is rows that come to a partition, copies included, plus results; it is looked at from the fourth micro-batch on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import harness as h
from pyspark.sql import Column
from pyspark.sql import functions as F

import watersmeet as wm

ROWS, SMALL_ROWS, PARTITIONS, BATCHES, SALTS = 1_000_000, 20_000, 8, 10, 8
OURS = ("hot", "off")
PIECES = (OURS, ("spark",), ("salted",))  # engines that are measured together
WARM_UP_SECONDS = 20.0  # of Spark's own joins
# What of a run depends on what else the machine does.
SPEEDS = ("rows_per_second", "steady_rows_per_second", "batch_seconds", "steady_of_all_turns", "counted_turns", "cost")
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
    repeats: int = 3  # turns that count
    cost: bool = False  # whether it is there to see what spreading costs where it has nothing to do
    engines: tuple[str, ...] = (*OURS, "spark", "salted")


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
    "zipf 1.0": Workload(zipf(1.0, 3), zipf(1.0, 4), rows=0.1, repeats=1),
    "zipf 1.5": Workload(zipf(1.5, 3), zipf(1.5, 4), rows=0.02, repeats=1),
    "uniform": Workload(uniform(1), uniform(2), repeats=31, cost=True),
    "uniform, 4 times the rows": Workload(uniform(1), uniform(2), rows=4.0, repeats=9, cost=True, engines=OURS),
}


def engine(name: str, left: h.DataFrame, right: h.DataFrame, state: Path) -> h.DataFrame:
    """The join of two streams."""
    if name in OURS:
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


def measure(
    spark: h.SparkSession, folder: Path, name: str, pieces: Sequence[Sequence[str]], rows: int, *, timed: bool
) -> Iterator[dict[str, h.Run]]:
    """Pieces of one workload, one after the other."""
    workload = WORKLOADS[name]
    rows = max(int(rows * workload.rows), BATCHES)
    place = folder / name.replace(" ", "_")
    for side, value, keys in (("left", "a", workload.left), ("right", "b", workload.right)):
        ids = F.col("id")
        h.write_input(spark.range(rows).select(ids.alias("seq"), keys(rows), ids.alias(value)), place / side, BATCHES)
    batch = [spark.read.parquet(str(place / side)) for side in ("left", "right")]
    expected = h.batch_answer(batch[0].join(batch[1], "k"), COLUMNS)

    def once(kind: str, turn: int | str, limit: float | None = None) -> h.Run:
        left = h.stream(spark, place / "left", "k long, a long")
        right = h.stream(spark, place / "right", "k long, b long")
        state = place / f"state-{kind}-{turn}"
        run = h.run_to_end(f"{kind}-{turn}", engine(kind, left, right, state), place, COLUMNS, limit_seconds=limit)
        if limit is None:
            h.check(run, expected)
            run.extra["results"] = expected["count"]
            run.extra |= spread(spark, state) if kind in OURS else {}
        return run

    for piece in pieces:
        started = monotonic()
        if set(piece) <= set(OURS):
            ours = {kind: (lambda turn, kind=kind: once(kind, turn)) for kind in piece}
            runs = h.in_turns(ours, 1, workload.repeats) if timed else h.in_turns(ours, 0, 1)
        else:
            if timed:
                once(piece[0], "warm-up", WARM_UP_SECONDS)
            runs = {piece[0]: once(piece[0], 0)}
        show(name, 2 * rows, expected["count"], runs)
        if "hot" in runs:
            _judge(name, workload, runs)
        h.console.print(f"{name}, {' and '.join(piece)}: {monotonic() - started:.0f} s", highlight=False)
        yield runs


def show(name: str, rows: int, results: int, runs: dict[str, h.Run]) -> None:
    """Print a piece."""
    h.table(
        f"{name}: {rows:,} rows, {results:,} results, {PARTITIONS} partitions",
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


def _judge(name: str, workload: Workload, runs: dict[str, h.Run]) -> None:
    """Say how far the measures are from what they should be."""
    hot = runs["hot"].extra
    if workload.cost:
        if "off" in runs:
            cost = runs["hot"].extra["cost"] = round(1 - h.over_in_pairs(runs["hot"], runs["off"]), 4)
            h.console.print(f"spreading costs {cost:.1%} of the throughput (at most {MOST_COST:.0%})")
        return
    copied = f", {hot['copied_share']:.1%} of the rows copied (at most {MOST_COPIED:.0%})" if workload.one_key else ""
    h.console.print(
        f"busiest {hot['busiest_over_mean_work']:.2f} of the mean (at most {MOST_WORK}), "
        f"fullest {hot['fullest_over_mean_state']:.2f} (at most {MOST_STATE}){copied}"
    )


def kept(result: str) -> dict[str, Any]:
    """What has been measured, by place, workload and engine."""
    path = h.RESULTS / f"{result}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def keep(result: str, where: str, name: str, runs: dict[str, h.Run], *, timed: bool) -> None:
    """Put runs into the result file, in place of those of the same engines."""
    whole = kept(result)
    there = whole.setdefault(where, {}).setdefault(name, {})
    for kind, run in runs.items():
        found = run.as_dict()
        there[kind] = found if timed else {key: value for key, value in found.items() if key not in SPEEDS}
    h.save(result, whole)


def missing(there: dict[str, Any], engines: Sequence[str], *, timed: bool) -> list[tuple[str, ...]]:
    """The pieces of a workload that have not been measured."""
    pieces = [tuple(kind for kind in piece if kind in engines) for piece in PIECES]
    return [
        piece
        for piece in pieces
        if not all(kind in there and (not timed or SPEEDS[0] in there[kind]) for kind in piece)
    ]


def main() -> None:
    """Run workloads, check, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--engines", nargs="*", default=[*OURS, "spark", "salted"])
    parser.add_argument("--cluster", action="store_true", help="local-cluster[4,1,1024] in place of 2 cores")
    parser.add_argument("--resume", action="store_true", help="leave out what the result file has")
    parser.add_argument("--untimed", action="store_true", help="on a machine that has other work: keep no speeds")
    parser.add_argument("--small", action="store_true", help=f"{SMALL_ROWS:,} rows per input, into skew_small.json")
    arguments = parser.parse_args()
    result, where = "skew_small" if arguments.small else "skew", "cluster" if arguments.cluster else "local"
    timed = not arguments.untimed
    config = {"spark.driver.memory": "4g"}
    if arguments.cluster:
        config["spark.master"] = "local-cluster[4,1,1024]"
    spark = wm.local_session("skew", cores=2, partitions=PARTITIONS, config=config)
    h.use_store(spark, "spark_default")
    for name in arguments.only:
        there = kept(result).get(where, {}).get(name, {}) if arguments.resume else {}
        engines = [kind for kind in arguments.engines if kind in WORKLOADS[name].engines]
        pieces = missing(there, engines, timed=timed)
        rows = SMALL_ROWS if arguments.small else ROWS
        with h.scratch() as folder:
            for runs in measure(spark, folder, name, pieces, rows, timed=timed) if pieces else ():
                keep(result, where, name, runs, timed=timed)


if __name__ == "__main__":
    main()
