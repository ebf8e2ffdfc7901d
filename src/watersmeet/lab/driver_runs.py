"""The multi-way join over the six datasets: CPU time and results over time within a batch, for every driver policy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import hash_keys
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch
from watersmeet.lab import parts
from watersmeet.lab.experiment import Scale
from watersmeet.lab.measuring import order_of_turns, uncollected
from watersmeet.lab.timeline import Timeline, timed_batch
from watersmeet.lab.workloads import DATASETS, DURATION, Floats, stream
from watersmeet.state.space import MemorySpace
from watersmeet.testing import make_plan

INPUTS = ("S1", "S2", "S3")
PERIODS = {"0.1M": 100_000, "1M": 1_000_000}  # time units of a batch
# In the order of the paper's tables.
POLICIES = {
    "Round-robin": "round_robin",
    "Timestamp-based": "timestamp",
    "Consumption rate": "consumption_rate",
    "Initial output size": "output_size",
    "Output rate": "output_rate",
}
BASE = "Timestamp-based"
SLICES = 8
# What a policy must beat if the choice of the driver is what counts: orders that look at nothing, or at the opposite.
FIXED, REVERSED, ONE_SLICE = "control: fixed order", "control: output size reversed", "control: timestamp, one slice"
CONTROLS = {FIXED: ("fixed_order", SLICES), REVERSED: ("reversed_output_size", SLICES), ONE_SLICE: ("timestamp", 1)}
LARGEST = "ours: largest buffer first"
RUNS = {
    **{name: (driver, SLICES) for name, driver in POLICIES.items()},
    **CONTROLS,
    LARGEST: ("largest_buffer", SLICES),
}
FRACTIONS: dict[Scale, float] = {"tiny": 0.002, "small": 0.03, "paper": 1.0}
TURNS: dict[Scale, int] = {"tiny": 1, "small": 2, "paper": 2}
TINY_DURATION = 0.1  # of the run, so that there are few batches
GRID = np.linspace(0, 1.2, 49)
# Which batches a figure is about: all but the first fifth, in which the tables fill up, or a half of those.
PARTS = {"last 80 %": (0.2, 1.0), "first half": (0.2, 0.6), "second half": (0.6, 1.0)}


@dataclass(frozen=True)
class Behaviour:
    """One policy on some batches of a dataset, in units of the time that the timestamp-based policy takes."""

    running_time: float
    curve: list[float]  # share of the results at each point of GRID
    consumed: list[float]  # share of the buffered rows that have driven, at each point of GRID

    @property
    def share_at_half(self) -> float:
        """Results that have come after half the time of the timestamp-based policy."""
        return float(np.interp(0.5, GRID, self.curve))

    @property
    def consumed_at_half(self) -> float:
        """Buffered rows that have driven after half the time of the timestamp-based policy."""
        return float(np.interp(0.5, GRID, self.consumed))

    def time_for(self, share: float) -> float:
        """When that share of the results has come."""
        reached = np.flatnonzero(np.asarray(self.curve) >= share)
        return float(GRID[reached[0]]) if len(reached) else float(GRID[-1])


def batches(streams: list[pa.Table], period: int, until: float) -> list[Batch]:
    """What arrives in each period."""
    bounds = np.arange(0, until + period, period)
    cuts = [np.searchsorted(table.column("_p0").to_numpy(), bounds) for table in streams]
    return [
        Batch(b, rows={n: s.slice(c[b], c[b + 1] - c[b]) for n, s, c in zip(INPUTS, streams, cuts, strict=True)})
        for b in range(len(bounds) - 1)
    ]


def rows_of(table: pa.Table) -> pa.Table:
    """A stream as the operator takes it."""
    keys = table.column("key").combine_chunks()
    return pa.table({"_hash": hash_keys([keys]), "_k0": keys, "_p0": table.column("time")})


def timelines(driver: str, arrived: list[Batch], slices: int = SLICES) -> list[Timeline]:
    """All batches with one policy: what came when, in CPU time."""
    plan = make_plan(
        "mjoin",
        INPUTS,
        {"time": dict.fromkeys(INPUTS, "_p0")},
        payload=(pa.int64(),),
        tuning={"driver": driver, "slices": slices},
    )
    operator = build(plan, MemorySpace())
    return [timed_batch(operator, batch, process_time) for batch in arrived]


def shares_at(timeline: Timeline, seconds: Floats, counts: list[int]) -> Floats:
    """The share of a batch's counts (results, rows) that had come by each of these times; 1 if there are none."""
    if not counts[-1]:
        return np.ones(len(seconds))
    return np.interp(seconds, timeline.seconds, counts) / counts[-1]


@cache
def behaviours(name: str, period: str, scale: Scale) -> dict[str, dict[str, Behaviour]]:
    """Behaviour per part of the run and policy."""
    kept = parts.part(lambda: _measured(name, period, scale), __name__, name, period, scale)
    return {part: {policy: Behaviour(**one) for policy, one in found.items()} for part, found in kept.items()}


def _measured(name: str, period: str, scale: Scale) -> dict[str, dict[str, dict[str, Any]]]:
    streams = [rows_of(stream(DATASETS[name], index, FRACTIONS[scale])) for index in range(len(INPUTS))]
    until = DURATION if scale != "tiny" or period == "1M" else DURATION * TINY_DURATION
    arrived = batches(streams, PERIODS[period], until)
    best: dict[str, list[Timeline]] = {}
    for policy in order_of_turns(list(RUNS), TURNS[scale]):
        with uncollected():
            found = timelines(RUNS[policy][0], arrived, RUNS[policy][1])
        pairs = zip(best.get(policy, found), found, strict=True)
        best[policy] = [min(pair, key=lambda one: one.total) for pair in pairs]
    counts = {policy: [batch.results[-1] for batch in run] for policy, run in best.items()}
    assert all(count == counts[BASE] for count in counts.values()), "the policies disagree"
    chosen = {part: range(round(len(arrived) * low), round(len(arrived) * high)) for part, (low, high) in PARTS.items()}
    return {part: {p: asdict(b) for p, b in _behaviours(best, of).items()} for part, of in chosen.items()}


def _behaviours(runs: dict[str, list[Timeline]], chosen: range) -> dict[str, Behaviour]:
    base = np.array([runs[BASE][b].total for b in chosen])
    weights = np.array([runs[BASE][b].results[-1] for b in chosen], np.float64) + 1e-9
    result = {}
    for policy, run in runs.items():
        shares, consumed = (
            [shares_at(run[b], GRID * unit, getattr(run[b], what)) for b, unit in zip(chosen, base, strict=True)]
            for what in ("results", "drained")
        )
        total = sum(run[b].total for b in chosen)
        curves = (np.average(curve, axis=0, weights=weights).tolist() for curve in (shares, consumed))
        result[policy] = Behaviour(total / float(base.sum()), *curves)
    return result
