"""The window join in process: steady streams, results counted and CPU time measured once the windows are full."""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.arrow import hash_keys
from watersmeet.lab.workloads import steady
from watersmeet.operator import Batch, advance
from watersmeet.operators import build
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
class Measured:
    """What happened after the windows had filled."""

    results_per_second: float
    cpu_seconds: float  # for `seconds` of stream


def run(load: Load, *, warm_up: float, seconds: float, tick: float = 1.0, seed: int = 0, **tuning: Any) -> Measured:
    """Stream `warm_up` seconds to fill the windows, then `seconds` that count, in batches of `tick` seconds."""
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
    cuts = [np.searchsorted(stream.column("_p0").to_numpy(), bounds * SECOND) for stream in streams]
    found, spent = 0, 0.0
    for number, start in enumerate(bounds[:-1]):
        rows = {
            name: stream.slice(cut[number], cut[number + 1] - cut[number])
            for name, stream, cut in zip(NAMES, streams, cuts, strict=True)
        }
        begun = process_time()
        results = sum(t.num_rows for t in advance(operator, Batch(number, round((start + tick) * SECOND), rows)))
        if start >= warm_up:
            spent += process_time() - begun
            found += results
    return Measured(found / seconds, spent)


def _rows(stream: pa.Table) -> pa.Table:
    keys = stream.column("key").combine_chunks()
    return pa.table({"_hash": hash_keys([keys]), "_k0": keys, "_p0": stream.column("time")})
