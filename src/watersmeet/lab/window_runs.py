"""The window join in process: steady streams, results counted and CPU time measured once the windows are full."""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import hash_keys
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, advance
from watersmeet.lab.workloads import steady
from watersmeet.state.space import MemorySpace
from watersmeet.testing import make_plan

SECOND = 1_000_000
NAMES = ("left", "right")
ROW_BYTES = 24  # hash, key and time


@dataclass(frozen=True)
class Load:
    """Two steady streams A and B: rows per second, window lengths in seconds, different keys."""

    rates: tuple[float, float]
    windows: tuple[float, float]
    keys: int


@dataclass(frozen=True)
class BatchSeen:
    """A batch that went through the operator."""

    end: float  # seconds of stream time
    rows: tuple[int, int]
    held: tuple[float, float]  # rows of each stream within its window when the batch ends
    results: int
    cpu_seconds: float


def batches_of(
    load: Load,
    *,
    warm_up: float,
    seconds: float,
    tick: float = 1.0,
    filling: float | None = None,
    seed: int = 0,
    **tuning: Any,
) -> list[BatchSeen]:
    """Stream `warm_up` seconds to fill the windows, then `seconds` more, in batches of `tick` seconds.

    Where only results count, and none are shed, the windows may fill in batches of `filling` seconds, all but the last.
    """
    options = {
        "window": [round(length * SECOND) for length in load.windows],
        "lateness": round(tick * SECOND),
        "time_columns": ["_p0", "_p0"],
    }
    plan = make_plan("window", options=options, tuning=tuning, payload=(pa.int64(),))
    operator = build(plan, MemorySpace())
    streams = [
        _rows(steady(rate, warm_up + seconds, load.keys, seed=2 * seed + side)) for side, rate in enumerate(load.rates)
    ]
    bounds = np.arange(0, warm_up + seconds + tick / 2, tick)
    if filling is not None:
        bounds = np.concatenate([np.arange(0, warm_up - tick, filling), bounds[bounds > warm_up - 1.5 * tick]])
    times = [stream.column("_p0").to_numpy() for stream in streams]
    cuts = [np.searchsorted(column, bounds * SECOND) for column in times]
    seen = []
    for number, end in enumerate(bounds[1:]):
        counts = [int(cut[number + 1] - cut[number]) for cut in cuts]
        rows = {
            name: stream.slice(cut[number], count)
            for name, stream, cut, count in zip(NAMES, streams, cuts, counts, strict=True)
        }
        begun = process_time()
        results = sum(t.num_rows for t in advance(operator, Batch(number, round(end * SECOND), rows)))
        spent = process_time() - begun
        gone = [int(np.searchsorted(c, (end - w) * SECOND)) for c, w in zip(times, load.windows, strict=True)]
        held = (float(cuts[0][number + 1] - gone[0]), float(cuts[1][number + 1] - gone[1]))
        seen.append(BatchSeen(float(end), (counts[0], counts[1]), held, results, spent))
    return seen


def results_per_second(load: Load, *, warm_up: float, seconds: float, **settings: Any) -> float:
    """Results in the `seconds` after the windows have filled."""
    found = batches_of(load, warm_up=warm_up, seconds=seconds, **settings)
    return sum(batch.results for batch in found if batch.end > warm_up) / seconds


def _rows(stream: pa.Table) -> pa.Table:
    keys = stream.column("key").combine_chunks()
    return pa.table({"_hash": hash_keys([keys]), "_k0": keys, "_p0": stream.column("time")})
