"""News and access records: a join whose streams say what they will not send any more, beside joins that keep it all.

    python benchmarks/punctuations.py [--records 5000000] [--skip-spark] [--limit 900]

The workload is that of the paper's experiments: ten news items are current at a time, every access record names one of
them, and when an item is rolled out of the ten a punctuation says so in the stream of access records. In the ordered
pattern news items arrive in the order in which they become current; in the random pattern they arrive in random order,
so that many records wait for their item. Measured on Spark, all on the same files: the metadata-aware join, the plain
progressive join (which keeps everything), the XJoin policy under a memory budget, and Spark's own inner join without a
watermark. All answers are checked against Spark's batch join; rows held over time: results/punctuations.png.

The other two parts run operators without Spark and count CPU seconds. One is the same workload, state on disk included:
the metadata-aware join beside the plain join and XJoin. The other has a punctuation in every batch and purges after
every 1, 10, 100 and 1000 punctuations, as the paper's Fig. 11 does for 1 and 100.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import harness as h
import matplotlib
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.columns.arrow import hash_keys, sort_by_hash
from watersmeet.engine.registry import build
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch, advance
from watersmeet.plan import JoinPlan
from watersmeet.plan.options import parse_size
from watersmeet.state.directory import StateDir
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import make_plan

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BATCHES = 20
FILES = 2  # of access records in a micro-batch, so that both cores read
CURRENT = 10  # news items that are current at a time
RECORDS_PER_ITEM = 50
COLUMNS = ["sno", "title", "ip"]
XJOIN_MEMORY = "64 MB"
WARM_UPS, TURNS = 6, 9
LABELS = {
    "punctuated": "punctuated_join",
    "progressive": "progressive_join, keeps everything",
    "xjoin": f"XJoin, {XJOIN_MEMORY}",
    "spark": "Spark's own, no watermark",
}
WIDTHS = {"punctuated": 1.5, "progressive": 5.0, "xjoin": 3.0, "spark": 1.0}
ONE_TO_MANY = {"constraints": [{"kind": "one_to_many", "one": "left"}]}


def write_workload(spark: SparkSession, folder: Path, records: int, pattern: str) -> None:
    """News items and access records with punctuations, in files for every micro-batch."""
    items = records // RECORDS_PER_ITEM
    order = F.col("id") if pattern == "ordered" else F.xxhash64("id", F.lit(3))
    news = spark.range(items).select(order.alias("seq"), F.col("id").alias("sno"), (F.col("id") * 7).alias("title"))
    h.write_input(news, folder / f"{pattern}-news", BATCHES, span=items if pattern == "ordered" else None)
    # Record i is written when item i / RECORDS_PER_ITEM is the newest; it is about one of the ten newest.
    newest = F.floor(F.col("id") / RECORDS_PER_ITEM)
    about = F.greatest(newest - h.seeded("age", 5, CURRENT), F.lit(0))
    access = spark.range(records).select(
        F.col("id").cast("double").alias("seq"),
        about.alias("sno"),
        F.col("id").alias("ip"),
        F.lit(False).alias("is_end"),
    )
    # Item s leaves the ten when item s + 10 becomes the newest: its punctuation stands before that item's records.
    ends = spark.range(items - CURRENT).select(
        ((F.col("id") + CURRENT) * RECORDS_PER_ITEM - 0.5).alias("seq"),
        F.col("id").alias("sno"),
        F.lit(None).cast("long").alias("ip"),
        F.lit(True).alias("is_end"),
    )
    h.write_input(access.unionByName(ends), folder / f"{pattern}-access", BATCHES * FILES, span=records)


def on_spark(spark: SparkSession, records: int, limit: float, only: list[str] | None) -> dict[str, Any]:
    """All engines on both arrival patterns."""
    result: dict[str, Any] = {}
    with h.scratch() as folder:
        for pattern in ("ordered", "random"):
            write_workload(spark, folder, records, pattern)
            result[pattern] = _pattern(spark, folder, pattern, limit, only)
    return result


def _pattern(spark: SparkSession, folder: Path, pattern: str, limit: float, only: list[str] | None) -> dict[str, Any]:
    news_files, access_files = folder / f"{pattern}-news", folder / f"{pattern}-access"
    data = spark.read.parquet(str(access_files)).where("not is_end").drop("is_end")
    expected = h.batch_answer(spark.read.parquet(str(news_files)).join(data, "sno"), COLUMNS)
    news = h.stream(spark, news_files, "sno long, title long")
    access = h.stream(spark, access_files, "sno long, ip long, is_end boolean", FILES)
    plain = access.where("not is_end").drop("is_end")

    def punctuated(state: Path) -> DataFrame:
        return wm.punctuated_join(
            news,
            access,
            on="sno",
            state_dir=state,
            constraints=[wm.OneToMany(one="left")],
            punctuations={"right": wm.PunctuationRows("is_end")},
        )

    engines = {
        "punctuated": punctuated,
        "progressive": lambda state: wm.progressive_join(news, plain, on="sno", state_dir=state),
        "xjoin": lambda state: wm.progressive_join(
            news, plain, on="sno", state_dir=state, policy="xjoin", memory=XJOIN_MEMORY
        ),
        "spark": lambda state: news.join(plain, "sno"),
    }
    turns: dict[str, list[h.Run]] = {name: [] for name in engines if not only or name in only}
    # The first two are close to each other: they take turns, and before that the JVM compiles the code of both. For the
    # first runs that takes as much processor time as the joins do, which would drown what is measured.
    close = ("punctuated", "progressive")
    for turn, name in enumerate(close * WARM_UPS):
        h.run_to_end(f"{pattern}-warm-{turn}", engines[name](folder / f"{pattern}-warm-{turn}"), folder, COLUMNS)
    order = [*(close * TURNS), "xjoin", "spark"]
    for turn, name in enumerate(name for name in order if name in turns):
        state = folder / f"{pattern}-state-{turn}"
        run = h.run_to_end(f"{pattern}-{turn}", engines[name](state), folder, COLUMNS, limit_seconds=limit)
        if name != "spark":
            _state_sizes(spark, state, run)
        # What XJoin has spilled it owes until its inputs end: its answer is a part of the whole.
        if run.extra["finished"] and name != "xjoin":
            h.check(run, expected)
        turns[name].append(run)
        held = run.extra["state_rows"][-1]
        h.console.print(f"{pattern}, {name}: {run.rows_per_second:,.0f} rows/s, {held:,} rows held at the end")
    runs = {name: sorted(some, key=lambda run: run.rows_per_second)[len(some) // 2] for name, some in turns.items()}
    for name, some in turns.items():
        runs[name].extra["rows_per_second_of_all_turns"] = [round(run.rows_per_second) for run in some]
    ratios = _ratios(turns) if {"punctuated", "progressive"} <= set(turns) else {}
    h.console.print({pattern: ratios})
    return {"expected": expected, **ratios, "engines": {name: run.as_dict() for name, run in runs.items()}}


def _ratios(turns: dict[str, list[h.Run]]) -> dict[str, float]:
    """Throughput over that of the plain join: in all, and from the batch on at which that holds a million rows.

    The median time of every batch over all turns counts, so that a pause of the machine does not.
    """
    plain = turns["progressive"][0]
    large = int(np.argmax(np.array(plain.extra["state_rows"]) > 1_000_000))
    seconds = {name: np.median([run.seconds for run in some], axis=0) for name, some in turns.items() if len(some) > 1}
    return {
        "ratio_vs_progressive": round(float(seconds["progressive"].sum() / seconds["punctuated"].sum()), 3),
        "ratio_past_a_million_rows": round(
            float(seconds["progressive"][large:].sum() / seconds["punctuated"][large:].sum()), 3
        ),
    }


def _state_sizes(spark: SparkSession, state: Path, run: h.Run) -> None:
    """Rows and bytes held after every micro-batch, all partitions together."""
    metrics = wm.read_metrics(spark, state)
    sizes = metrics.groupBy("batch").agg(F.sum("state_rows").alias("rows"), F.sum("resident_bytes").alias("bytes"))
    collected = sizes.orderBy("batch").collect()
    run.extra["state_rows"] = [int(row["rows"]) for row in collected]
    run.extra["resident_bytes"] = [int(row["bytes"]) for row in collected]


def alone(records: int, turns: int = 5) -> dict[str, Any]:
    """CPU seconds and rows held of the operators without Spark, every version of the state written to disk.

    All take turns, once to warm up and then `turns` times, of which the median counts.
    """
    result: dict[str, Any] = {}
    for pattern in ("ordered", "random"):
        work = _batches(BATCHES, records // RECORDS_PER_ITEM // BATCHES, shuffled=pattern == "random")
        runs = {
            "punctuated": make_plan("punctuated", options=ONE_TO_MANY, payload=(pa.int64(),)),
            "plain": make_plan("symmetric", payload=(pa.int64(),)),
            "xjoin": make_plan(
                "xjoin", options={"policy": "xjoin", "memory": parse_size(XJOIN_MEMORY)}, payload=(pa.int64(),)
            ),
        }
        measured: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
        for _ in range(turns + 1):
            for name, plan in runs.items():
                measured[name].append(_alone(plan, work, ends=name == "punctuated"))
        result[pattern] = {name: _median(some[1:]) for name, some in measured.items()}
        answers = {run["results"] for run in result[pattern].values()}
        assert len(answers) == 1, f"the answers differ: {answers}"
    return result


def _alone(plan: JoinPlan, work: list[Batch], *, ends: bool) -> dict[str, Any]:
    seconds, held, peak_bytes, out = [], [], 0, 0
    with h.scratch() as folder:
        directory = StateDir(folder)
        for batch in work:
            last = batch.number == len(work) - 1
            ended = frozenset({"left", "right"}) if last else frozenset()
            said = batch.punctuations if ends else {}
            started = process_time()
            for table in run_batch(plan, directory, 0, replace(batch, punctuations=said, ended=ended)):
                out += table.num_rows
            seconds.append(process_time() - started)
            entry = PartitionStore(directory, 0).manifest(batch.number).history[-1]
            held.append(int(entry["state_rows"]))
            peak_bytes = max(peak_bytes, int(entry["resident_bytes"]))
    return {
        "cpu_seconds": round(sum(seconds), 2),
        "cpu_seconds_last_5_before_the_end": round(sum(seconds[-6:-1]), 2),
        "state_rows": held[:-1],  # in the last batch the inputs end
        "most_resident_bytes": peak_bytes,
        "results": out,
    }


def purge_every(batches: int, items_per_batch: int, turns: int = 3) -> dict[str, Any]:
    """CPU seconds of the operator alone when it purges after every so many punctuations; random arrival.

    All take turns, once to warm up and then `turns` times, of which the median counts.
    """
    work = _batches(batches, items_per_batch, shuffled=True)
    runs: dict[str, list[dict[str, Any]]] = {str(after): [] for after in (1, 10, 100, 1000)}
    for _ in range(turns + 1):
        for after, measured in runs.items():
            tuning = {"purge": "immediate"} if after == "1" else {"purge": "batch", "purge_after": int(after)}
            measured.append(
                _purging(make_plan("punctuated", options=ONE_TO_MANY, tuning=tuning, payload=(pa.int64(),)), work)
            )
    result = {after: _median(measured[1:]) for after, measured in runs.items()}
    assert len({run["results"] for run in result.values()}) == 1, "purging must not change the answer"
    return result


def _median(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """The run that took the middle of the CPU seconds."""
    return sorted(measured, key=lambda run: float(run["cpu_seconds"]))[len(measured) // 2]


def _purging(plan: JoinPlan, work: list[Batch]) -> dict[str, Any]:
    join = build(plan, MemorySpace())
    out, peak, started = 0, 0, process_time()
    for batch in work:
        out += sum(table.num_rows for table in advance(join, batch))
        held = join.metrics.counters
        peak = max(peak, int(held["held_rows.left"] + held["held_rows.right"]))
        join.save()
    return {"cpu_seconds": round(process_time() - started, 2), "results": out, "peak_rows": peak}


def _batches(batches: int, items: int, *, shuffled: bool) -> list[Batch]:
    rng = np.random.default_rng(7)
    arrival = rng.permutation(batches * items) if shuffled else np.arange(batches * items)
    work = []
    for number in range(batches):
        newest = np.repeat(np.arange(number * items, (number + 1) * items), RECORDS_PER_ITEM)
        about = np.maximum(newest - rng.integers(0, CURRENT, len(newest)), 0)
        ended = np.arange(number * items - CURRENT, (number + 1) * items - CURRENT)
        rows = {"left": _table(arrival[number * items : (number + 1) * items]), "right": _table(about)}
        said = _table(ended[ended >= 0]).select(["_hash", "_k0"])
        work.append(Batch(number, rows=rows, punctuations={"right": said}))
    return work


def _table(keys: np.ndarray[Any, Any]) -> pa.Table:
    column = pa.array(keys, pa.int64())
    columns = [pa.array(hash_keys([column])), column, pa.array(np.arange(len(keys)))]
    return sort_by_hash(pa.Table.from_arrays(columns, names=["_hash", "_k0", "_p0"]))


def plot(patterns: dict[str, Any]) -> None:
    """Rows held after every micro-batch."""
    figure, axes = plt.subplots(1, len(patterns), figsize=(5 * len(patterns), 3.6), sharey=True, layout="constrained")
    for axis, (pattern, measured) in zip(axes, patterns.items(), strict=True):
        for name, run in measured["engines"].items():
            held = np.array(run["state_rows"])
            # Some lie upon each other: what is drawn first is drawn broadest.
            axis.plot(np.arange(1, len(held) + 1), held, label=LABELS[name], linewidth=WIDTHS[name])
        axis.set(title=f"{pattern} arrival", xlabel="micro-batch", yscale="log", ylim=(1, None))
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("rows held")
    axes[-1].legend(fontsize="small")
    figure.savefig(h.RESULTS / "punctuations.png", dpi=90)
    plt.close(figure)


def report(result: dict[str, Any]) -> None:
    """Print the tables."""
    for pattern, measured in result.get("spark", {}).items():
        rows = [
            (
                name,
                run["rows_per_second"],
                run["steady_rows_per_second"] or 0,
                max(run["state_rows"]),
                run["state_rows"][-1],
                "yes" if run["finished"] else "no",
            )
            for name, run in measured["engines"].items()
        ]
        header = ["engine", "rows/s", "rows/s, batch 4 on", "most rows held", "rows held at the end", "finished"]
        h.table(f"News and access records, {pattern} arrival", header, rows)
    for pattern, measured in result["alone"].items():
        rows = [
            (
                name,
                run["cpu_seconds"],
                run["cpu_seconds_last_5_before_the_end"],
                max(run["state_rows"]),
                run["most_resident_bytes"],
            )
            for name, run in measured.items()
        ]
        header = ["operator", "CPU s", "CPU s, last 5 batches", "most rows held", "most resident bytes"]
        h.table(f"Operators without Spark, {pattern} arrival", header, rows)
    rows = [(after, run["cpu_seconds"], run["peak_rows"]) for after, run in result["purge_after"].items()]
    h.table("Purging after every so many punctuations (operator alone)", ["after", "CPU s", "most rows held"], rows)


def main() -> None:
    """Run, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=5_000_000, help="access records")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which an engine is stopped")
    parser.add_argument("--only", nargs="*", help="engines to run")
    parser.add_argument("--skip-spark", action="store_true", help="only the operators by themselves")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"records": arguments.records}
    if not arguments.skip_spark:
        spark = wm.local_session("punctuations", cores=2, partitions=2, config={"spark.driver.memory": "6g"})
        result["spark"] = on_spark(spark, arguments.records, arguments.limit, arguments.only)
    result["alone"] = alone(arguments.records)
    result["purge_after"] = purge_every(batches=1500, items_per_batch=1)
    report(result)
    if not arguments.only:
        if "spark" in result:
            plot(result["spark"])
        h.save("punctuations_operators" if arguments.skip_spark else "punctuations", result)


if __name__ == "__main__":
    main()
