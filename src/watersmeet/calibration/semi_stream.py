"""The costs of the semi-stream joins on this machine.

Reading and looking up are timed by themselves. What a loop and its rows take is timed with the join itself, on a small
table: with few rows a loop, which wait in few runs, with as many as make many runs, and with many, the differences are
what runs and rows take; without a cache and with one, for keys of which some are hot, the difference is what the cache
takes; and with keys of which the table does not have half, what their rows take more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from time import process_time

import numpy as np
import pyarrow as pa

from watersmeet.calibration.kept_costs import nanoseconds
from watersmeet.columns.arrow import hash_keys, sort_by_hash, take
from watersmeet.columns.matching import matches
from watersmeet.join.operator import Batch, advance
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.semistream.cost_model import SHORT, Costs, waiting_runs
from watersmeet.semistream.master_table import Description, Layout, encode_schema
from watersmeet.semistream.master_writer import write_version
from watersmeet.semistream.semi_stream_join import SemiStreamJoin
from watersmeet.state.directory import StateDir
from watersmeet.state.space import MemorySpace

CHUNKS, CHUNK_ROWS, CYCLES = 32, 2000, 3
FEW, SOME, MANY = 64, SHORT + 1, 4 * SHORT  # rows of a loop
SKEW = 1.0
UNMATCHED = 0.5  # the share of rows that find nothing
NO_CACHE = 1e9  # a switching factor with which no key is worth caching
_LAYOUTS: dict[str, Layout] = {"aligned": "hash"}
STREAM = InputSpec("stream", (pa.int64(),), ())
MASTER = InputSpec("master", (pa.int64(),), ())


def semi_stream_costs(policy: str = "aligned", rows: int = 100_000) -> Costs:
    """Time the operations and the join of a policy: takes some seconds."""
    keys = pa.array(np.arange(rows, dtype=np.int64))
    table = sort_by_hash(
        pa.Table.from_arrays([pa.array(hash_keys([keys])), keys, keys, keys], names=["_hash", "_k0", "_p0", "_p1"])
    )
    few = take(table, np.sort(np.random.default_rng(0).permutation(rows)[: rows // 10]))
    with tempfile.TemporaryDirectory() as folder:
        directory = StateDir(folder)
        directory.write_arrow("run.arrow", table.schema, table.to_batches(), None)
        read = _seconds(lambda: _touch(directory), rows)
        look_up = _seconds(lambda: list(matches(few, table)), few.num_rows)
        alike = [measured_loop(f"{folder}/{w}", policy, w, skew=0.0) for w in (FEW, SOME, MANY)]
        skewed, unmatched = [], []
        if policy != "mesh":
            skewed = [measured_loop(f"{folder}/hot-{w}", policy, w, skew=SKEW) for w in (SOME, MANY)]
            unmatched = [measured_loop(f"{folder}/none", policy, SOME, skew=0.0, unmatched=UNMATCHED)]

    def beside(one: Loop, wait: float = 0.0, run: float = 0.0) -> float:
        """The seconds of a loop without its chunk, and without what the rows that wait take."""
        waiting = (1 - one.hit_share) * one.rows
        runs = waiting_runs(waiting, CHUNKS)
        looked_up = 0.0 if policy == "aligned" else runs * min(CHUNK_ROWS, waiting * CHUNKS / runs)
        return one.seconds - CHUNK_ROWS * read - looked_up * look_up - waiting * wait - runs * run

    few, some, many = (beside(one) for one in alike)
    wait = max((many - some) / (MANY - SOME), 0.0)
    more_runs = waiting_runs(SOME, CHUNKS) - waiting_runs(FEW, CHUNKS)
    run = max((some - few - (SOME - FEW) * wait) / more_runs, 0.0)
    loop = max(beside(alike[0], wait, run), 0.0)
    if not skewed:
        return Costs(read, look_up, 0.0, wait, run, loop, 0.0, 0.0)
    left = [beside(one, wait, run) - loop for one in skewed]  # c_C + w_N c_N
    hits = [one.hit_share * one.rows for one in skewed]
    hit = max((left[1] - left[0]) / max(hits[1] - hits[0], 1.0), 0.0)
    cache = max(left[0] - hits[0] * hit, 0.0)
    answered = unmatched[0].hit_share * unmatched[0].rows
    left_by_misses = beside(unmatched[0], wait, run) - loop - answered * hit
    miss = max(left_by_misses, 0.0) / (UNMATCHED * (unmatched[0].rows - answered))
    return Costs(read, look_up, hit, wait, run, loop, cache, miss)


@dataclass(frozen=True)
class Loop:
    """So many rows a loop: seconds of processor time, and the share of the rows that the cache answered."""

    rows: int
    seconds: float
    hit_share: float


def measured_loop(folder: str, policy: str, rows: int, *, skew: float, unmatched: float = 0.0) -> Loop:
    """The mean loop of the last cycle, when as many rows have come as go; nothing is cached if keys are all alike and
    in the table."""
    about = Description("loop", ["k"], [], encode_schema(MASTER.schema), 1, "loop")
    keys, layout = CHUNKS * CHUNK_ROWS, _LAYOUTS.get(policy, "arrival")
    table = _rows(np.random.default_rng(1).permutation(keys), MASTER)
    write_version(f"{folder}/master", about, [table], chunk_rows=CHUNK_ROWS, layout=layout)
    output = (OutputColumn(pa.field("k", pa.int64()), "stream", "_k0"),)
    tuning: dict[str, object] = {"path": f"{folder}/master", "memory": 1 << 30, "max_delay": CHUNKS, "idle_chunks": 0}
    if not skew and not unmatched:
        tuning["switching_factor"] = NO_CACHE
    plan = JoinPlan("semi_stream", (STREAM,), output, {"master": "loop", "policy": policy}, tuning)
    join = SemiStreamJoin(plan, MemorySpace())
    seconds, hits = [], []
    for number in range(CYCLES * CHUNKS):
        draw = np.random.default_rng([2, number]).random(rows)
        ranks = (keys + 1) ** draw - 1 if skew else keys * draw / (1 - unmatched)
        drawn = ranks.astype(np.int64)
        drawn = np.where(drawn < keys, drawn * 7919 % keys, drawn)  # others are beyond the table
        batch = Batch(number, rows={"stream": _rows(drawn, STREAM)})
        started = process_time()
        for _ in advance(join, batch):
            pass
        seconds.append(process_time() - started)
        hits.append(join.metrics.counters.get("hit_share", 0.0))
    return Loop(rows, fmean(seconds[-CHUNKS:]), fmean(hits[-CHUNKS:]))


def _rows(values: np.ndarray[tuple[int], np.dtype[np.int64]], spec: InputSpec) -> pa.Table:
    keys = pa.array(values)
    return sort_by_hash(pa.Table.from_arrays([pa.array(hash_keys([keys])), keys], schema=spec.schema))


def _seconds(action: Callable[[], object], rows: int) -> float:
    """Seconds of processor time per row, the best of three."""
    return nanoseconds(action, repeats=3) / 1e9 / rows


def _touch(directory: StateDir) -> int:
    table = pa.ipc.open_file(directory.open("run.arrow")).read_all()
    return sum(int(column.to_numpy()[::64].sum()) for column in table.columns)
