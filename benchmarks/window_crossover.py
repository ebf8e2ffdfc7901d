"""Hash or nested loops for the window of a fast input, probed by a slow one: measured winner against predicted winner.

    python benchmarks/window_crossover.py [--batches 60]

The slow input A sends 100 rows a batch, the fast input B 1 to 100 times as many, with 5 to 500 distinct keys; B's
window spans 10 batches. Measured is what window B costs (Eq. 1: probe,
insert, invalidate) in processor time, through the operator's own `StoredWindow`, once sorted and once as the rows come;
results are not built, because they cost the same for both. Predicted is what `algorithm="auto"` computes from costs
calibrated in the same run, and beside it Eq. 8.
"""

from __future__ import annotations

import argparse
import gc
from time import process_time

import harness as h
import numpy as np
import pyarrow as pa

from watersmeet.arrow import hash_keys
from watersmeet.state.space import MemorySpace
from watersmeet.window.batch_costs import KernelCosts, Load, hash_cost, loop_cost
from watersmeet.window.cost_model import Stream, determinant
from watersmeet.window.kernels import Reach, pairs
from watersmeet.window.measured_costs import measure
from watersmeet.window.stored_window import Rows, StoredWindow

KEYS = (5, 10, 20, 50, 100, 200, 500)
RATIOS = (1, 2, 5, 10, 20, 50, 100)
RATE, SPAN, TICK = 100, 10, 1_000_000  # rows a batch of A, batches in B's window
CLEAR = 1.15
TEXT = pa.array([f"row {i % 1000}" for i in range(RATE * max(RATIOS))])
NOWHERE = Reach(1 << 60, 1 << 60)


def rows(rng: np.random.Generator, count: int, keys: int, batch: int) -> Rows:
    """A batch of one input: key, time, a number and a short text."""
    key = pa.array(rng.integers(0, keys, count))
    times = np.sort(rng.integers(batch * TICK, (batch + 1) * TICK, count))
    columns = [pa.array(hash_keys([key])), key, pa.array(times), pa.array(np.arange(count)), TEXT.slice(0, count)]
    return Rows(pa.Table.from_arrays(columns, names=["_hash", "_k0", "_p0", "_p1", "_p2"]), "_p0")


def measured(keys: int, ratio: int, batches: int, *, ordered: bool) -> tuple[float, StoredWindow]:
    """Nanoseconds per batch that the window takes, and the window at the end."""
    rng = np.random.default_rng(keys * 1000 + ratio)
    window = StoredWindow("b", "_p0", SPAN * TICK, MemorySpace())
    spent, counted = 0.0, 0
    for number in range(batches + 2 * SPAN):
        probes, new = rows(rng, RATE, keys, number), rows(rng, RATE * ratio, keys, number)
        _ = probes.ordered, new.times  # paid for either way
        started = process_time()
        for met in window.meet(0, 1 << 60, probes.ordered):
            for _ in pairs(probes.ordered, met.rows, NOWHERE):
                raise AssertionError("nothing is within reach")
        window.expire((number + 1 - SPAN) * TICK)
        window.compact()
        window.add(new, number, ordered=ordered, advance=TICK)
        window.close(number * TICK)
        if number >= 2 * SPAN:  # the window is full
            spent, counted = spent + process_time() - started, counted + 1
    return spent / counted * 1e9, window


def main() -> None:
    """Measure every cell, print the map, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=60)
    batches = parser.parse_args().batches
    costs = KernelCosts(**measure())
    h.console.print({name: round(cost, 1) for name, cost in costs.model_dump().items()})
    gc.disable()
    cells, shown = [], []
    for keys in KEYS:
        line: list[str] = []
        for ratio in RATIOS:
            times = {}
            for name, ordered in (("hash", True), ("loop", False)):
                times[name], window = min(
                    (measured(keys, ratio, batches, ordered=ordered) for _ in range(2)), key=lambda one: one[0]
                )
            load = Load(RATE * ratio, RATE, window.rows, window.keys, len(window.runs))
            predicted = {"hash": hash_cost(load, costs), "loop": loop_cost(load, costs)}
            winner, guess = min(times, key=times.__getitem__), min(predicted, key=predicted.__getitem__)
            paper = determinant(Stream(RATE, SPAN, keys), Stream(RATE * ratio, SPAN, keys))
            clear = max(times.values()) / min(times.values())
            cells.append(
                {
                    "keys": keys, "ratio": ratio, "measured_us": {k: round(v / 1e3, 1) for k, v in times.items()},
                    "predicted_us": {k: round(v / 1e3, 1) for k, v in predicted.items()},
                    "winner": winner, "predicted": guess, "eq_8": paper, "factor": round(clear, 3),
                }
            )  # fmt: skip
            mark = "·" if clear <= CLEAR else "✓" if winner == guess else "✗"
            line.append(f"{winner[0].upper() if winner == 'hash' else 'N'}{clear:5.2f} {mark}")
        shown.append((keys, *line))
    decided = [cell for cell in cells if cell["factor"] > CLEAR]
    agree = sum(cell["winner"] == cell["predicted"] for cell in decided) / max(len(decided), 1)
    paper_agree = sum(cell["winner"] == cell["eq_8"] for cell in decided) / max(len(decided), 1)
    h.table(
        "measured winner (H hash, N nested loops), by what factor, and whether it was predicted (· closer than 15 %)",
        ["distinct keys", *(f"rate x{ratio}" for ratio in RATIOS)],
        shown,
    )
    h.console.print(
        f"{len(decided)} of {len(cells)} cells differ by more than 15 %; "
        f"the prediction agrees in {agree:.0%}, Eq. 8 in {paper_agree:.0%}"
    )
    by_winner = {name: sum(cell["winner"] == name for cell in decided) for name in ("hash", "loop")}
    h.save(
        "window_crossover",
        {
            "agreement": round(agree, 3), "eq_8_agreement": round(paper_agree, 3), "decided_cells": len(decided),
            "won_by": by_winner, "costs_ns": costs.model_dump(), "cells": cells,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
