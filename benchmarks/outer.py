"""Join types: what outer and semi joins cost beside an inner join and Spark's, and when unmatched rows appear.

    python benchmarks/outer.py [--rows 2000000] [--only progressive window delay]

progressive: the inputs of `stream_stream.py`; `inner`, `left`, `full` and `left_semi` in turns. Steady rows/s of each
over those of `inner`, the median of the pairs, and the bytes that `wm.read_state` lists after the last row.

window: the inputs of `window_join.py`; `left`, `inner` and `left_semi` in turns, and Spark's left outer join with both
state stores, in turns too. The rows that still wait after the last file are emitted in a second, short run which is not
part of the speed: ours after `wm.end_input`, Spark's after a row far ahead of all others on both inputs. All answers
are checked against Spark's batch join.

delay: a tenth of those rows with fixed triggers: every `PACE` seconds one file of each input, and a micro-batch. An
unmatched left row is due in the first micro-batch after which the right input's newest time less the lateness is beyond
the row's window: that proves that no match can come. The delay in batches counts from the micro-batch in which the row
is due to the one that emits it. The delay in seconds is from the moment at which the files of the due micro-batch were
put in place, half an interval before its trigger, to the end of the micro-batch that emits the row.

With the right input silent for ten files (it comes back then, the rows between do not exist) a row is due when it would
have been had the files come; only rows due in the silence count. Ours has an `idle_timeout` of two intervals, Spark
waits. Pairs are checked exactly; unmatched rows for being unmatched, emitted once, all there that count, and, without a
silence, none before it is due.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import harness as h
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import stream_stream
import window_join
from pyspark.sql import functions as F
from window_join import BATCHES, LATENESS, NEAR, WINDOW

import watersmeet as wm

PARTS = ["progressive", "window", "delay"]
PACE = 2  # seconds
SILENCE = range(8, 18)  # files of the right input that never come
SIDES = ("left", "right")


# -- speed and state


def columns_of(how: str) -> list[str]:
    """The columns whose sums are checked."""
    return ["k", "a"] if how == "left_semi" else ["k", "a", "b"]


def batch_inputs(spark: h.SparkSession, folder: Path) -> list[h.DataFrame]:
    """All rows of both inputs."""
    return [spark.read.parquet(str(folder / name)) for name in SIDES]


def add_rest(run: h.Run, rest: h.Run) -> None:
    """What a second run has emitted belongs to the answer, not to the speed."""
    run.answer = {key: value + rest.answer.get(key, 0) for key, value in run.answer.items()}
    run.extra["rest_seconds"] = round(sum(rest.seconds), 3)
    run.extra["rest_results"] = rest.answer["count"]


def run_ours(
    spark: h.SparkSession,
    folder: Path,
    name: str,
    how: str,
    join: Callable[[Path], h.DataFrame],
    answer: dict[str, int],
) -> h.Run:
    """One run of a type to the end of both inputs, its answer checked; with what it held before the end."""
    state = folder / f"state-{name}"
    frame = join(state)
    run = h.run_to_end(name, frame, folder, columns_of(how))
    held = wm.read_state(spark, state).agg(F.sum("rows"), F.sum("bytes")).first()
    run.extra["held_rows"], run.extra["held_bytes"] = (int(value or 0) for value in held)
    if how in ("left", "full"):
        for side in SIDES:
            wm.end_input(state, side)
        add_rest(run, h.run_to_end(name, frame, folder, columns_of(how)))
    h.check(run, answer)
    h.console.print(f"{name}: {run.steady():,.0f} rows/s steady; {[round(s, 2) for s in run.seconds]}")
    return run


def compare_types(title: str, runs: dict[str, h.Run]) -> dict[str, float]:
    """Print a table; returns the speed and the bytes of each type over those of the inner join."""
    inner = runs["inner"]
    ratios = {}
    for how, run in runs.items():
        if run is not inner:
            ratios[f"{how}_speed_of_inner"] = round(h.over_in_pairs(run, inner), 3)
            ratios[f"{how}_bytes_of_inner"] = round(run.extra["held_bytes"] / inner.extra["held_bytes"], 3)
    h.table(
        title,
        ["type", "steady rows/s", "of inner", "rows held", "MB held", "of inner", "the rest: s", "results"],
        [
            (
                how, round(run.steady()), h.over_in_pairs(run, inner), run.extra["held_rows"],
                run.extra["held_bytes"] / 1e6, run.extra["held_bytes"] / inner.extra["held_bytes"],
                run.extra.get("rest_seconds", ""), run.answer["count"],
            )
            for how, run in runs.items()
        ],
    )  # fmt: skip
    return ratios


def progressive(spark: h.SparkSession, folder: Path, rows: int) -> dict[str, Any]:
    """Types of the progressive join in turns."""
    stream_stream.write_inputs(spark, folder, rows)
    batch, (left, right) = batch_inputs(spark, folder), stream_stream.streams(spark, folder)

    def engine(how: str) -> Callable[[int], h.Run]:
        expected = h.batch_answer(batch[0].join(batch[1], "k", how), columns_of(how))

        def joined(state: Path) -> h.DataFrame:
            return wm.progressive_join(left, right, on="k", how=how, state_dir=str(state))

        return lambda turn: run_ours(spark, folder, f"{how}-{turn}", how, joined, expected)

    runs = h.in_turns({how: engine(how) for how in ("inner", "left", "full", "left_semi")}, 1, stream_stream.REPEATS)
    ratios = compare_types(f"progressive join, {2 * rows:,} rows", runs)
    return {**ratios, "runs": {how: run.as_dict() for how, run in runs.items()}}


@contextmanager
def rows_far_ahead(folder: Path) -> Iterator[None]:
    """A last file with one row in both inputs, which match nothing, an hour after all others."""
    files = []
    for key, value, moment, side in (("k", "a", "l_ts", "left"), ("rk", "b", "r_ts", "right")):
        at = pa.array([1_700_003_600_000_000], pa.timestamp("us", "UTC"))
        row = pa.table({key: [-1 if side == "left" else -2], value: [0], moment: at})
        files.append(folder / side / "99999.parquet")
        pq.write_table(row, files[-1])
    try:
        yield
    finally:
        for file in files:
            file.unlink()


def window(spark: h.SparkSession, folder: Path, rows: int) -> dict[str, Any]:
    """Types of the window join in turns, and Spark's left outer join."""
    window_join.write_inputs(spark, folder, rows)
    batch, (left, right) = batch_inputs(spark, folder), window_join.streams(spark, folder)

    def expected(how: str) -> dict[str, int]:
        return h.batch_answer(batch[0].join(batch[1], F.expr(NEAR), how), columns_of(how))

    def engine(how: str) -> Callable[[int], h.Run]:
        answer = expected(how)

        def joined(state: Path) -> h.DataFrame:
            return window_join.watersmeet(left, right, state, how=how)

        return lambda turn: run_ours(spark, folder, f"{how}-{turn}", how, joined, answer)

    types = {how: engine(how) for how in ("left", "inner", "left_semi")}
    runs = h.in_turns(types, window_join.WARM_UPS, window_join.TURNS)
    ratios = compare_types(f"window join, {2 * rows:,} rows", runs)
    rivals = {"left": runs["left"]}
    answer = expected("left")
    for turn, name in enumerate(["spark_default", *h.SPARK_STORES]):  # the first one twice, to warm up
        h.use_store(spark, name)
        frame = window_join.sparks(left, right, "left_outer")
        rivals[name] = h.run_to_end(f"{name}-{turn}", frame, folder, columns_of("left"))
        with rows_far_ahead(folder):
            add_rest(rivals[name], h.run_to_end(f"{name}-{turn}", frame, folder, columns_of("left")))
        h.check(rivals[name], answer)
        h.console.print(f"{name}: {rivals[name].steady():,.0f} rows/s steady")
    ratios |= h.compare(f"window join, left, {2 * rows:,} rows, {answer['count']:,} results", rivals)
    return {**ratios, "runs": {name: run.as_dict() for name, run in (runs | rivals).items()}}


# -- delay


def feed(query: Any, source: Path, inbox: Path, silence: range) -> list[float]:
    """Put one file of each input in place per interval, in its middle, as soon as the first is taken; returns when."""
    handed = []
    for number, file in enumerate(sorted(path.name for path in (source / "left").iterdir())):
        time.sleep(PACE - (time.time() - PACE / 2) % PACE)
        for side in SIDES:
            if side == "left" or number not in silence:
                (inbox / side / file).hardlink_to(source / side / file)
        handed.append(time.time())
        if not number:
            wait_for(query, inbox, 1)
    return handed


def wait_for(query: Any, inbox: Path, files: int) -> None:
    """Until the query has taken so many files of the left input."""
    while len(takers(query.recentProgress, inbox / "left")) < files:
        if not query.isActive:
            raise SystemExit(f"{inbox.name} failed: {query.exception()}")
        time.sleep(PACE / 10)


def takers(progress: list[dict[str, Any]], folder: Path) -> list[int]:
    """The micro-batches that took a file of this folder, in the order of the files."""
    return [
        p["batchId"]
        for p in progress
        for source in p["sources"]
        if source["description"].endswith(f"{folder}]") and source["numInputRows"]
    ]


def ended_at(progress: dict[str, Any]) -> float:
    """When a micro-batch was finished."""
    begun = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return float(begun + progress["durationMs"]["triggerExecution"] / 1000)


def paced_run(
    frame: h.DataFrame, source: Path, inbox: Path, silence: range
) -> tuple[list[float], list[dict[str, Any]]]:
    """Run until all files are taken and two intervals more; returns when they were put in place, and the progress."""

    def write(batch: h.DataFrame, number: int) -> None:
        batch.select("k", "a", "b").write.mode("overwrite").parquet(str(inbox / "out" / str(number)))

    query = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(inbox / "checkpoint"))
        .trigger(processingTime=f"{PACE} seconds")
        .start()
    )
    try:
        handed = feed(query, source, inbox, silence)
        wait_for(query, inbox, BATCHES)
        time.sleep(2.5 * PACE)
        return handed, [p for p in query.recentProgress if "addBatch" in p["durationMs"]]
    finally:
        query.stop()


def horizons(source: Path) -> Any:
    """After each file of the right input: left rows before this time (in microseconds) are due."""
    files = [pq.read_table(file, columns=["r_ts"])["r_ts"] for file in sorted((source / "right").iterdir())]
    newest = [pc.max(times.cast(pa.timestamp("us", "UTC"))).value for times in files]
    return np.maximum.accumulate(newest) - (LATENESS + WINDOW) * 1_000_000


def fail(name: str, what: str) -> None:
    """Stop the benchmark."""
    h.console.print(f"[red]{name} gave a wrong answer[/red]: {what}")
    sys.exit(1)


def measure_delay(
    spark: h.SparkSession, join: Callable[[Path], h.DataFrame], source: Path, inbox: Path, silence: range
) -> dict[str, Any]:
    """One paced run, its answer checked: how long after they were due unmatched rows appear."""
    for side in SIDES:
        (inbox / side).mkdir(parents=True)
    handed, progress = paced_run(join(inbox), source, inbox, silence)
    out = spark.read.parquet(*(str(inbox / "out" / str(p["batchId"])) for p in progress))
    left, right = batch_inputs(spark, inbox)
    pairs = [h.batch_answer(f, ["k", "a", "b"]) for f in (out.where("b IS NOT NULL"), left.join(right, F.expr(NEAR)))]
    if pairs[0] != pairs[1]:
        fail(inbox.name, f"pairs {pairs[0]}, expected {pairs[1]}")
    number = F.regexp_extract(F.input_file_name(), "/out/([0-9]+)/", 1).cast("long").alias("batch")
    emitted = out.where("b IS NULL").select("a", number).orderBy("a").toArrow()
    lone = left.join(right, F.expr(NEAR), "left_anti").select("a", F.unix_micros("l_ts").alias("at"))
    lone = lone.orderBy("a").toArrow()
    file = np.searchsorted(horizons(source), lone["at"].to_numpy(), side="right")  # the one that makes a row due
    rows, place = emitted["a"].to_numpy(), np.searchsorted(lone["a"].to_numpy(), emitted["a"].to_numpy())
    if len(np.unique(rows)) < len(rows) or not set(rows.tolist()) <= set(lone["a"].to_pylist()):
        fail(inbox.name, "rows that match, or the same row twice, among the unmatched ones")
    counted = silence or range(BATCHES - 2)
    missing = np.setdiff1d(np.flatnonzero(np.isin(file, counted)), place)
    if len(missing):
        fail(inbox.name, f"{len(missing)} unmatched rows were due and are not there")
    fed = [number for number in range(BATCHES) if number not in silence]
    taken = np.array(takers(progress, inbox / "left"))
    taken[fed] = np.maximum(taken[fed], takers(progress, inbox / "right"))
    which = np.isin(file[place], counted)
    due, batch = file[place][which], emitted["batch"].to_numpy()[which]
    ends = {p["batchId"]: ended_at(p) for p in progress}
    batches = batch - taken[due]
    seconds = np.array([ends[number] for number in batch.tolist()]) - np.array(handed)[due]
    if not silence and batches.min() < 0:
        fail(inbox.name, "unmatched rows before they were due")
    busy = [p["durationMs"]["triggerExecution"] / 1000 for p in progress if p["numInputRows"]]
    return {
        "rows": len(batches),
        **{f"p{q}_batches": int(np.percentile(batches, q, method="higher")) for q in (50, 99)},
        **{f"p{q}_seconds": round(float(np.percentile(seconds, q)), 2) for q in (50, 99)},
        "median_batch_seconds": round(float(np.median(busy)), 2),
    }


def delay(spark: h.SparkSession, folder: Path, rows: int) -> dict[str, Any]:
    """Both engines, without and with a silent input."""
    source = folder / "source"
    window_join.write_inputs(spark, source, rows // 10)
    h.use_store(spark, "spark_default")
    idle = {"idle_timeout": f"{2 * PACE} s"}
    result: dict[str, Any] = {}
    for name, silence, more in (("steady", range(0), {}), ("silent", SILENCE, idle)):

        def ours(inbox: Path, more: dict[str, str] = more) -> h.DataFrame:
            return window_join.watersmeet(*window_join.streams(spark, inbox), inbox / "state", how="left", **more)

        def sparks(inbox: Path) -> h.DataFrame:
            return window_join.sparks(*window_join.streams(spark, inbox), "left_outer")

        for engine, join in (("watersmeet", ours), ("spark", sparks)):
            inbox = folder / f"{name}-{engine}"
            result[inbox.name] = measure_delay(spark, join, source, inbox, silence)
    h.table(
        f"delay of unmatched rows, a batch every {PACE} s",
        ["inputs, engine", "rows", "p50 batches", "p99 batches", "p50 s", "p99 s", "batch s"],
        [(name, *values.values()) for name, values in result.items()],
    )
    return result


def main() -> None:
    """Run the parts, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows per input")
    parser.add_argument("--only", nargs="*", choices=PARTS, help="parts to run")
    arguments = parser.parse_args()
    spark = wm.local_session("outer", cores=2, partitions=2, config={"spark.driver.memory": "6g"})
    result = {}
    for part, run in {"progressive": progressive, "window": window, "delay": delay}.items():
        if part in (arguments.only or PARTS):
            with h.scratch() as folder:
                result[part] = run(spark, folder, arguments.rows)
            h.console.print({part: {key: value for key, value in result[part].items() if key != "runs"}})
    if arguments.rows == 2_000_000:
        kept = h.RESULTS / "outer.json"
        h.save("outer", {**(json.loads(kept.read_text()) if kept.exists() else {}), **result})


if __name__ == "__main__":
    main()
