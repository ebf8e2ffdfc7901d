"""Dividing a state anew: 2 to 16 to 4 partitions, at several sizes, and what the next batch costs.

    python benchmarks/rescale.py [--rows 10000000] [--batch-rows 400000]

Runs in this process, on one core: a progressive join without a budget and one with a quarter of what it holds, `rows`
rows of both inputs together, keys that hardly repeat. Each change is measured as `watersmeet rescale` does it, then a
batch of 10,000 rows in the new division, and the one after it. The rows held are counted before and after.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import harness as h
import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import HASH
from watersmeet.columns.partitions import Partition
from watersmeet.columns.spark_hash import hash_of_long
from watersmeet.engine.rescale import rescale
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch
from watersmeet.plan import JoinPlan
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.description import Description, record_inputs, recorded_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.history import newest_manifests
from watersmeet.state.identity import register_join
from watersmeet.testing.arrivals import make_plan

CHANGES = (16, 4)
PROBE_ROWS = 10_000


def batch_of(plan: JoinPlan, number: int, rows: int, seed: int) -> Batch:
    """Random rows of both inputs."""
    rng = np.random.default_rng([seed, number])
    tables = {}
    for spec in plan.inputs:
        keys = rng.integers(0, 1 << 40, rows // 2)
        columns = [pa.array(hash_of_long(keys)), pa.array(keys), pa.array(rng.integers(0, 1 << 40, rows // 2))]
        tables[spec.name] = pa.Table.from_arrays(columns, schema=spec.schema)
    return Batch(number, number * 1_000_000, tables)


def run(plan: JoinPlan, directory: StateDir, batch: Batch) -> tuple[float, int]:
    """Seconds of a batch over all partitions, one after the other, and its results."""
    seconds, results = 0.0, 0
    for number in range(plan.partitions):
        mine = Partition(number, plan.partitions)
        rows = {
            name: table.filter(pa.array(mine.owns(table.column(HASH).to_numpy()))).combine_chunks()
            for name, table in batch.rows.items()
        }
        started = time.perf_counter()
        results += sum(t.num_rows for t in run_batch(plan, directory, number, replace(batch, rows=rows)))
        seconds += time.perf_counter() - started
    return seconds, results


def held(directory: StateDir) -> int:
    """Rows of both inputs."""
    return sum(store["rows"] for one in newest_manifests(directory) for store in one.stores if store["input"])


def bytes_in(folder: Path, pattern: str) -> int:
    """Bytes of the files of a division."""
    return sum(file.stat().st_size for file in folder.glob(pattern))


def measure(name: str, options: ProgressiveOptions, rows: int, batch_rows: int) -> list[dict[str, object]]:
    """One state, divided twice."""
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning(), payload=(pa.int64(),))
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="watersmeet-rescale-") as home:
        folder = Path(home)
        directory = StateDir(folder)
        plan = register_join("rescale", directory, replace(plan, partitions=2))
        record_inputs(directory, Description.plain(plan))
        batches = rows // batch_rows
        for number in range(batches):
            run(plan, directory, batch_of(plan, number, batch_rows, seed=1))
        number, before = batches, held(directory)
        last, _ = run(plan, directory, batch_of(plan, number, PROBE_ROWS, seed=2))
        before += PROBE_ROWS
        stored = bytes_in(folder, "part-*/run-*")
        for partitions in CHANGES:
            started = time.perf_counter()
            done = rescale(directory, partitions)
            seconds = time.perf_counter() - started
            assert held(directory) == before == done.rows, (held(directory), before, done)
            plan = recorded_inputs(directory).plan
            written = bytes_in(folder, f"part-*.{plan.division}/*")
            costs = []
            for _ in range(2):
                number += 1
                cost, _ = run(plan, directory, batch_of(plan, number, PROBE_ROWS, seed=2))
                before += PROBE_ROWS
                costs.append(cost)
            found.append(
                {
                    "join": name, "rows": before - 2 * PROBE_ROWS, "from": done.before, "to": partitions,
                    "seconds": round(seconds, 3), "bytes_written": written, "bytes_of_state": stored,
                    "batch_before": round(last, 3), "first_batch": round(costs[0], 3), "next_batch": round(costs[1], 3),
                }
            )  # fmt: skip
            last = costs[1]
    return found


def main() -> None:
    """All sizes up to the one asked for, so that growth can be seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batch-rows", type=int, default=400_000)
    arguments = parser.parse_args()
    found = []
    for rows in sorted({arguments.rows // 10, arguments.rows // 3, arguments.rows}):
        for name, options in (
            ("unlimited", ProgressiveOptions()),
            ("budget", ProgressiveOptions(memory=max(rows * 24 // 4, 1 << 20))),
        ):
            for line in measure(name, options, rows, min(arguments.batch_rows, rows)):
                print(json.dumps(line), flush=True)
                found.append(line)
    h.save("rescale", {"arguments": vars(arguments), "changes": found})


if __name__ == "__main__":
    main()
