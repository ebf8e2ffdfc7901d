"""How a join scales with cores and partitions: a model of a micro-batch, fitted in one process, checked on a cluster.

    python benchmarks/scaling.py [--rows 500000] [--batches 12] [--resume]

The model is `watersmeet.chooser.scaling` (docs/scaling.md). What the driver does for a task is measured by jobs whose
tasks do nothing: with two cores nobody can tell it from what a task does on its core. The other costs are fitted, by
least squares that allow no negative cost, to runs on `local[1]`, `local[2]` and `local-cluster[2,1,1024]` with batches
of two sizes and several numbers of partitions. Then it is compared with runs on `local-cluster[4,1,1024]`. Executors of
a cluster are processes of their own; they share the cores of this machine, so no more of them count. Every setting runs
in its own process, which joins the same rows before it is measured, until its JVMs have compiled what they run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from itertools import count
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any

import harness as h
import numpy as np
import pyspark
from stream_stream import COLUMNS, expected_answer, streams, write_inputs

import watersmeet as wm
from watersmeet.chooser.scaling import BatchCosts
from watersmeet.spark.session import JOIN_SETTINGS

SMALL, LARGE = "local-cluster[2,1,1024]", "local-cluster[4,1,1024]"
FITTED = [("local[1]", 1), ("local[1]", 4), ("local[2]", 2), ("local[2]", 4), ("local[2]", 8), (SMALL, 2), (SMALL, 4)]
CHECKED = [(LARGE, 4), (LARGE, 8)]
TERMS = tuple(one.name for one in fields(BatchCosts))
FEW_TASKS = 100
NONE_KNOWN: Mapping[str, float] = MappingProxyType({})
FIRST, FULL = 4, 500_000
WARM_UP_SECONDS = 20.0  # for each executor
RESULT = h.RESULTS / "scaling.json"


def cores_of(master: str) -> int:
    """How many tasks run at once, on the cores that there are."""
    numbers = [int(number) for number in re.findall(r"\d+", master)]
    asked = numbers[0] * numbers[1] if master.startswith("local-cluster") else numbers[0]
    return min(asked, os.cpu_count() or asked)


def executors_of(master: str) -> int:
    """How many processes run tasks."""
    return int(re.findall(r"\d+", master)[0]) if master.startswith("local-cluster") else 1


def setting(one: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """What the model is told of a measured setting."""
    return one["rows"], one["partitions"], cores_of(one["master"]), executors_of(one["master"])


def terms(rows: int, partitions: int, cores: int, executors: int = 1) -> list[float]:
    """What the costs are multiplied with."""
    parts = BatchCosts(*[1.0] * len(TERMS)).parts(rows, partitions, cores, executors=executors)
    return [parts[name] for name in TERMS]


def fit(
    samples: list[tuple[list[float], float]], known: Mapping[str, float] = MappingProxyType({})
) -> dict[str, float]:
    """The costs that fit best relative to the times beside those that are known, none of them negative (a term that
    would be is left out)."""
    scale = np.array([1 / seconds for _, seconds in samples])
    wanted = np.array([some for some, _ in samples]) * scale[:, None]
    left = 1 - wanted @ np.array([known.get(name, 0.0) for name in TERMS])
    kept = [place for place, name in enumerate(TERMS) if name not in known]
    while True:
        found, *_ = np.linalg.lstsq(wanted[:, kept], left, rcond=None)
        if (found >= 0).all():
            break
        del kept[int(found.argmin())]
    costs = {**dict.fromkeys(TERMS, 0.0), **known}
    costs.update({TERMS[place]: float(cost) for place, cost in zip(kept, found, strict=True)})
    return costs


def predicted(costs: dict[str, float], rows: int, partitions: int, cores: int, executors: int = 1) -> float:
    """Seconds of a micro-batch by the model."""
    return BatchCosts(**costs).seconds(rows, partitions, cores, executors=executors)


def session(master: str, partitions: int) -> h.SparkSession:
    """A session on one of the masters; executors of `local-cluster` are processes of their own."""
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.sql.shuffle.partitions": str(partitions),
        **JOIN_SETTINGS,
        "spark.driver.memory": "2g",
        "spark.executor.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "localhost",
    }
    builder = h.SparkSession.builder.master(master).appName("scaling")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def measure(master: str, partitions: int, rows: int, batches: int) -> float:
    """The median seconds of a micro-batch, from the 5th on."""
    spark = session(master, partitions)
    with h.scratch() as folder:
        write_inputs(spark, folder, rows // 2 * batches, batches)
        expected = expected_answer(spark, folder)

        def once(turn: int) -> h.Run:
            state = str(folder / f"state-{turn}")
            joined = wm.join(*streams(spark, folder), on="k", state_dir=state, partitions=partitions)
            run = h.run_to_end(f"scaling-{turn}", joined, folder, COLUMNS)
            h.check(run, expected)
            return run

        turns, started = count(), monotonic()
        while monotonic() - started < WARM_UP_SECONDS * executors_of(master):
            once(next(turns))
        return statistics.median(once(next(turns)).seconds[FIRST:])


def task_seconds() -> float:
    """What a task that does nothing takes: by how much a job with many of them is longer than one with few."""
    spark = session("local[2]", 2)

    def job(tasks: int) -> float:
        started = monotonic()
        spark.range(0, tasks, 1, tasks).write.format("noop").mode("append").save()
        return monotonic() - started

    few, many = FEW_TASKS, 5 * FEW_TASKS
    for _ in range(10):
        job(many)
    return statistics.median((job(many) - job(few)) / (many - few) for _ in range(15))


def in_process(master: str, partitions: int, rows: int, batches: int) -> float:
    """`measure` in a process of its own."""
    return _apart("--one", master, str(partitions), str(rows), str(batches))


def _apart(*arguments: str) -> float:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    """Measure, fit, compare, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=FULL, help="rows of a large micro-batch; a small one has a tenth")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--resume", action="store_true", help="leave out settings that the result file has")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--task", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps({"seconds": task_seconds()}))
        return
    if arguments.one:
        master, *numbers = arguments.one
        print(json.dumps({"seconds": measure(master, *(int(number) for number in numbers))}))
        return
    h.announce({"rows": arguments.rows, "batches": arguments.batches})
    known: dict[tuple[str, int, int], float] = {}
    if arguments.resume and RESULT.exists():
        written = json.loads(RESULT.read_text())["settings"]
        known = {(one["master"], one["partitions"], one["rows"]): one["seconds"] for one in written}
    found: list[dict[str, Any]] = []
    for master, partitions in [*FITTED, *CHECKED]:
        for rows in (arguments.rows // 10, arguments.rows):
            seconds = known.get((master, partitions, rows)) or in_process(master, partitions, rows, arguments.batches)
            one = {"master": master, "partitions": partitions, "rows": rows, "seconds": round(seconds, 4)}
            found.append({**one, "fitted": (master, partitions) in FITTED})
            h.console.print(f"{master}, {partitions} partitions, {rows:,} rows: {seconds:.3f} s", highlight=False)
    samples = [(terms(*setting(one)), one["seconds"]) for one in found if one["fitted"]]
    costs = fit(samples, {"task": _apart("--task")})
    for one in found:
        one["model"] = round(predicted(costs, *setting(one)), 4)
        one["model_over_measured"] = round(one["model"] / one["seconds"], 3)
    h.table(
        "seconds of a micro-batch",
        ["master", "partitions", "rows", "measured", "model", "model over measured"],
        [(o["master"], o["partitions"], o["rows"], o["seconds"], o["model"], o["model_over_measured"]) for o in found],
    )
    h.console.print({name: f"{cost * 1e3:.4g} ms" for name, cost in costs.items()})
    if arguments.rows == FULL:
        h.save("scaling", {"costs": costs, "settings": found})


if __name__ == "__main__":
    main()
