"""Too many rows or too little memory: results per second of every strategy, through the operator, beside the formula.

    python benchmarks/shedding.py [--seconds 300] [--seeds 4]

Figures 8, 9 and 10 of Kang, Naughton and Viglas with their parameters (sigma is one over the number of keys): which
rows to let in at a limited service rate, which window to keep at a limited memory, and both at once. The formulas speak
of mean rates, so a micro-batch must be long enough to bring many rows: what one input does not use of the service rate
in a micro-batch goes to the other. Means over several seeds, with their standard error.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import harness as h
import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import hash_keys
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, advance
from watersmeet.state.space import MemorySpace
from watersmeet.testing.arrivals import make_plan
from watersmeet.window.memory_split import Demand, regulate, slower_first, split
from watersmeet.window.shedding import regulated, share_of_left

ROW_BYTES = 24  # hash, key and time
SECOND = 1_000_000


@dataclass(frozen=True)
class Figure:
    """One experiment: streams, limits, strategies."""

    name: str
    rates: tuple[float, float]
    windows: tuple[float, float]
    keys: int
    tick: float  # seconds between micro-batches
    warm_up: int  # seconds until the windows are full, the longest that a strategy may choose
    limits: dict[str, Any]
    strategies: dict[str, dict[str, str]] = field(default_factory=dict)


FIGURES = [
    Figure(
        "8: service rate 10 of 80 + 20 rows/s, windows 9 s and 1 s", (80, 20), (9, 1), 50, 0.5, 20,
        {"on_overload": "shed", "service_rate": 10.0},
        {
            "proportional to the rates": {"shedding": "rate"},
            "inverse to the rates": {"shedding": "inverse_rate"},
            "proportional to the windows": {"shedding": "window"},
            "inverse to the windows": {"shedding": "inverse_window"},
            "equal (the default)": {"shedding": "equal"},
        },
    ),
    Figure(
        "9: memory for 1,000 rows, 10 and 50 rows/s", (10, 50), (200, 200), 200, 0.5, 150,
        {"on_overload": "shrink", "memory": 1000 * ROW_BYTES},
        {
            "all to the slower": {"memory_split": "left"},
            "all to the faster": {"memory_split": "right"},
            "proportional to the rates": {"memory_split": "rate"},
            "inverse to the rates": {"memory_split": "inverse_rate"},
            "equal": {"memory_split": "equal"},
            "optimal (the default)": {"memory_split": "optimal"},
        },
    ),
    Figure(
        "10: service rate 10 and memory for 100 rows", (20, 20), (400, 400), 100, 1.0, 450,
        {"on_overload": "shrink", "memory": 100 * ROW_BYTES, "service_rate": 10.0},
        {
            "window A, rate A": {"memory_split": "left", "shedding": "left"},
            "window A, rate B": {"memory_split": "left", "shedding": "right"},
            "window B, rate A": {"memory_split": "right", "shedding": "left"},
            "window B, rate B": {"memory_split": "right", "shedding": "right"},
            "equal": {"memory_split": "equal", "shedding": "equal"},
            "optimal (the default)": {"memory_split": "optimal", "shedding": "equal"},
        },
    ),
]  # fmt: skip


def formula(figure: Figure, strategy: dict[str, str]) -> float:
    """Results per second by Eq. 9 (rates and windows as they are limited): sigma (A lambda_b' + B lambda_a')."""
    rates, memory = figure.rates, figure.limits.get("memory")
    splitting, service = strategy.get("memory_split", "optimal"), figure.limits.get("service_rate")
    if service and memory and strategy == {"memory_split": "optimal", "shedding": "equal"}:  # Eq. 14
        left, right = (Demand(rate, length, ROW_BYTES) for rate, length in zip(rates, figure.windows, strict=True))
        best = regulate(left, right, service, memory)
        rates, given = best.rates, best.bytes
    else:
        if service:  # Eq. 10
            rates = regulated(*rates, service, share_of_left(strategy["shedding"], *rates, figure.windows))
        wanted = (rates[0] * figure.windows[0] * ROW_BYTES, rates[1] * figure.windows[1] * ROW_BYTES)
        first = slower_first(*rates)
        given = split(splitting, first, rates, wanted, memory) if memory else wanted  # Eq. 12 and 13
    rows = [part / ROW_BYTES for part in given]
    return (rows[0] * rates[1] + rows[1] * rates[0]) / figure.keys


def results_per_second(
    figure: Figure, strategy: dict[str, str], seconds: int, seed: int
) -> tuple[float, dict[str, float]]:
    """Run the operator over a seeded stream; count results once the windows are full, and read its account."""
    options = {
        "window": [round(length * SECOND) for length in figure.windows],
        "lateness": round(figure.tick * SECOND),
        "time_columns": ["_p0", "_p0"],
    }
    plan = make_plan("window", options=options, tuning={**figure.limits, **strategy}, payload=(pa.int64(),))
    operator, rng = build(plan, MemorySpace()), np.random.default_rng(seed)
    found, account = 0, {}
    for number in range(round((figure.warm_up + seconds) / figure.tick)):
        start = number * figure.tick * SECOND
        rows = {}
        for name, rate in zip(("left", "right"), figure.rates, strict=True):
            count = rng.poisson(rate * figure.tick)
            keys = pa.array(rng.integers(0, figure.keys, count))
            times = pa.array((start + rng.random(count) * figure.tick * SECOND).astype(np.int64))
            rows[name] = pa.Table.from_arrays(
                [pa.array(hash_keys([keys])), keys, times], schema=plan.input(name).schema
            )
        results = sum(table.num_rows for table in advance(operator, Batch(number, round(start) + SECOND, rows)))
        if start >= figure.warm_up * SECOND:
            found += results
            account = dict(operator.metrics.counters)
    return found / seconds, account


def main() -> None:
    """Run all strategies of all figures, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=300, help="seconds of stream time that are counted")
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    saved: dict[str, Any] = {}
    for figure in FIGURES:
        lines = []
        for name, strategy in figure.strategies.items():
            counted = []
            for seed in range(arguments.seeds):
                rate, account = results_per_second(figure, strategy, arguments.seconds, seed)
                counted.append(rate)
            found, error = float(np.mean(counted)), float(np.std(counted, ddof=1) / np.sqrt(len(counted)))
            expected = formula(figure, strategy)
            windows = [account.get(f"effective_window_us.{side}") for side in ("left", "right")]
            effective = " / ".join("-" if length is None else f"{length / SECOND:.1f}" for length in windows)
            lines.append((name, found, error, expected, found / expected, effective))
        h.table(
            f"Fig. {figure.name}: results per second",
            ["strategy", "measured", "standard error", "formula", "ratio", "windows s"],
            lines,
        )
        saved[f"figure_{figure.name.split(':')[0]}"] = {
            name: {"measured": round(found, 3), "standard_error": round(error, 3), "formula": round(expected, 3)}
            for name, found, error, expected, *_ in lines
        }
    h.save("shedding", saved)


if __name__ == "__main__":
    main()
