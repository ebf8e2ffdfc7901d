"""When waiting pays: the aligned policy with different `max_delay`, the table in the page cache and not.

In process, one partition. "Cold" drops the chunk files from the page cache before every batch, so every chunk comes
from the disk; an object store is reckoned from the number of chunks read and their size. `max_delay=1` answers every
miss at once.

    python benchmarks/semi_stream_delay.py [--millions 10]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import harness
import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import hash_keys, sort_by_hash
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.semistream.master_table import Description, encode_schema
from watersmeet.semistream.master_writer import write_version
from watersmeet.state.directory import StateDir
from watersmeet.state.store import PartitionStore

STREAM = InputSpec("stream", (pa.int64(),), (pa.int64(),))
MASTER = InputSpec("master", (pa.int64(),), (pa.int64(), pa.int64()))
LATENCY, BANDWIDTH = 0.03, 100e6  # of the object store that is reckoned: seconds per request, bytes per second


def write_master(path: Path, rows: int) -> None:
    keys = pa.array(np.arange(rows))
    columns = [pa.array(hash_keys([keys])), keys, keys, keys]
    table = pa.Table.from_arrays(columns, schema=MASTER.schema)
    about = Description("in-process", ["k"], ["a", "b"], encode_schema(MASTER.schema), 1, "in-process")
    write_version(str(path), about, [table], chunk_rows=100_000)


def drop_from_page_cache(path: Path) -> None:
    for file in path.rglob("*.arrow"):
        handle = os.open(file, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def run(folder: Path, name: str, keys: int, rows: int, max_delay: int, batches: int, cold: bool) -> dict[str, float]:
    """Medians over the batches after the first cycle."""
    output = (
        OutputColumn(pa.field("sale", pa.int64()), "stream", "_p0"),
        OutputColumn(pa.field("a", pa.int64()), "master", "_p0"),
        OutputColumn(pa.field("b", pa.int64()), "master", "_p1"),
    )
    tuning = {"path": f"{folder}/master", "memory": 64_000_000, "max_delay": max_delay}
    plan = JoinPlan("semi_stream", (STREAM,), output, {"master": "in-process"}, tuning)
    state = StateDir(folder / name)
    state.create()
    rng = np.random.default_rng(3)
    wall, cpu = [], []
    for number in range(batches):
        rank = np.minimum((keys + 1) ** rng.random(rows) - 1, keys - 1).astype(np.int64)
        drawn = pa.array((rank * 2_654_435_761) % keys)
        columns = [pa.array(hash_keys([drawn])), drawn, pa.array(np.arange(rows))]
        table = sort_by_hash(pa.Table.from_arrays(columns, schema=STREAM.schema))
        if cold:
            drop_from_page_cache(folder / "master")
        started, used = time.perf_counter(), time.process_time()
        for _ in run_batch(plan, state, 0, Batch(number, rows={"stream": table})):
            pass
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    history = PartitionStore(state, 0).manifest(batches - 1).history
    counters = [entry["counters"] for entry in history if entry["batch"] >= batches // 2]
    chunks = statistics.median(counter.get("chunks_read", 0) for counter in counters)
    chunk_bytes = 100_000 * 32
    return {
        "wall_ms": 1000 * statistics.median(wall[batches // 2 :]),
        "cpu_ms": 1000 * statistics.median(cpu[batches // 2 :]),
        "chunks_read": chunks,
        "object_store_seconds": chunks * (LATENCY + chunk_bytes / BANDWIDTH),
        "hit_share": statistics.mean(counter["hit_share"] for counter in counters),
        "memory_mb": max(counter["memory_bytes"] for counter in counters) / 1e6,
        "delay_p50": statistics.median(counter["delay_p50"] for counter in counters),
        "delay_p95": statistics.median(counter["delay_p95"] for counter in counters),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=int, default=10)
    parser.add_argument("--rows", type=int, default=25_000, help="stream rows per batch")
    args = parser.parse_args()
    keys = args.millions * 1_000_000
    results = {}
    with harness.scratch() as folder:
        write_master(folder / "master", keys)
        for max_delay in (1, 3, 10, 30):
            for cold in (False, True):
                name = f"{max_delay}-{'cold' if cold else 'hot'}"
                results[name] = run(folder, name, keys, args.rows, max_delay, max(2 * max_delay, 12), cold)
    rows = []
    for max_delay in (1, 3, 10, 30):
        hot, cold = results[f"{max_delay}-hot"], results[f"{max_delay}-cold"]
        rows.append(
            (
                str(max_delay), hot["cpu_ms"], cold["wall_ms"], cold["object_store_seconds"], hot["chunks_read"],
                hot["hit_share"], hot["memory_mb"], hot["delay_p50"], hot["delay_p95"],
            )
        )  # fmt: skip
    harness.table(
        f"One partition, {args.millions} million master rows, {args.rows:,} rows per batch",
        [
            "max_delay", "in memory: CPU ms", "from disk: ms", "object store: s", "chunks read", "hit share", "MB held",
            "p50 delay", "p95 delay",
        ],
        rows,
    )  # fmt: skip
    harness.save("semi_stream_delay", {"arguments": vars(args), "results": results})


if __name__ == "__main__":
    main()
