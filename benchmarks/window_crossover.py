"""Hash or nested loops for the window of a fast input, probed by a slow one: measured winner against predicted winner.

    python benchmarks/window_crossover.py [--batches 30]

The slow input A sends so many rows a batch, the fast input B 1 to 100 times as many, with 5 to 500 distinct keys; B's
window spans several batches. Measured is what window B costs (Eq. 1: probe, insert, invalidate) in processor time,
through the operator's own store and scan, once sorted and once as the rows come; results are not built, because they
cost the same for both. Predicted is what `algorithm="auto"` computes from costs calibrated in the same run, and beside
it Eq. 8. The cost model was made while looking at the first setting; the others were chosen before they were measured.
"""

from __future__ import annotations

import argparse
import gc
from time import process_time
from typing import Any

import harness as h
import matplotlib as mpl
import numpy as np
import pyarrow as pa

from watersmeet.calibration.window import measure
from watersmeet.columns.arrow import hash_keys, hashes_of
from watersmeet.join.expiry import expire
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import TimeSlices
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace
from watersmeet.window.batch_costs import SLICES, KernelCosts, Load, batch_cost
from watersmeet.window.cost_model import Stream, determinant
from watersmeet.window.kernels import Reach, distinct, pairs
from watersmeet.window.scan import Rows, candidates, distinct_keys

mpl.use("Agg")
import matplotlib.pyplot as plt

KEYS = (5, 10, 20, 50, 100, 200, 500)
RATIOS = (1, 2, 5, 10, 20, 50, 100)
SETTINGS = ((100, 10), (300, 4), (40, 25))  # rows a batch of A, batches in B's window
TICK = 1_000_000
CLEAR = 1.15
NEAR = 1.5  # a prediction within this factor of what was measured is a good one
TEXT = pa.array([f"row {i % 1000}" for i in range(max(rate for rate, _ in SETTINGS) * max(RATIOS))])
NOWHERE = Reach(1 << 60, 1 << 60)


def rows(rng: np.random.Generator, count: int, keys: int, batch: int) -> Rows:
    """A batch of one input: key, time, a number and a short text."""
    key = pa.array(rng.integers(0, keys, count))
    begins = batch * TICK + TICK // 3  # a batch seldom begins where a slice of time does
    times = np.sort(rng.integers(begins, begins + TICK, count))
    columns = [pa.array(hash_keys([key])), key, pa.array(times), pa.array(np.arange(count)), TEXT.slice(0, count)]
    return Rows(pa.Table.from_arrays(columns, names=["_hash", "_k0", "_p0", "_p1", "_p2"]), "_p0")


def window_of(schema: pa.Schema, layout: TimeSlices) -> RowStore:
    """The store of window B, as the operator makes it."""
    return RowStore(
        "b",
        schema,
        layout,
        MemorySpace(),
        Accounts(Metrics()),
        time="_p0",
        rule=Horizon("_p0"),
        describe=lambda table: {"keys": distinct(hashes_of(table))},
    )


def measured(setting: tuple[int, int], keys: int, ratio: int, batches: int, *, ordered: bool) -> tuple[float, RowStore]:
    """Nanoseconds per batch that the window takes, and the window at the end."""
    rate, span = setting
    rng = np.random.default_rng(keys * 1000 + ratio)
    layout = TimeSlices(span=span * TICK, share=SLICES, advance=TICK)
    window = window_of(rows(rng, 0, keys, 0).table.schema, layout)
    spent, counted = 0.0, 0
    for number in range(batches + 2 * span):
        probes, new = rows(rng, rate, keys, number), rows(rng, rate * ratio, keys, number)
        _ = probes.ordered, new.times  # paid for either way
        window.accounts.arrive("b", len(new))
        started = process_time()
        for found in candidates(window, 0, 1 << 60, probes.ordered, []):
            for _ in pairs(probes.ordered, found.rows, NOWHERE):
                raise AssertionError("nothing is within reach")
        expire(window, (number + 1 - span) * TICK, new.times, None)
        layout.bound = number * TICK
        if ordered:
            window.add(new.sorted().table, number)
        else:
            window.add(new.table, number, order="arrival")
        window.settle()
        if number >= 2 * span:  # the window is full
            spent, counted = spent + process_time() - started, counted + 1
    assert window.held == window.accounts.held("b")
    return spent / counted * 1e9, window


def cell(setting: tuple[int, int], keys: int, ratio: int, batches: int, costs: KernelCosts) -> dict[str, Any]:
    """Both structures, measured and predicted."""
    rate, span = setting
    times = {}
    for name, ordered in (("hash", True), ("loop", False)):
        times[name], window = min(
            (measured(setting, keys, ratio, batches, ordered=ordered) for _ in range(2)), key=lambda one: one[0]
        )
    load = Load(rate * ratio, rate, window.rows, distinct_keys(window), len(window.runs))
    unmatched = costs.model_copy(update={"split": 0.0})  # nothing is within reach, so that there is nothing to hand out
    predicted = {"hash": batch_cost("H", load, unmatched), "loop": batch_cost("N", load, unmatched)}
    return {
        "keys": keys,
        "ratio": ratio,
        "measured_us": {name: round(cost / 1e3, 1) for name, cost in times.items()},
        "predicted_us": {name: round(cost / 1e3, 1) for name, cost in predicted.items()},
        "winner": min(times, key=times.__getitem__),
        "predicted": min(predicted, key=predicted.__getitem__),
        "eq_8": determinant(Stream(rate, span, keys), Stream(rate * ratio, span, keys)),
        "factor": round(max(times.values()) / min(times.values()), 3),
    }


def shown(cell: dict[str, Any]) -> str:
    """Winner, factor, and whether it was predicted."""
    mark = "·" if cell["factor"] <= CLEAR else "✓" if cell["winner"] == cell["predicted"] else "✗"
    return f"{'H' if cell['winner'] == 'hash' else 'N'}{cell['factor']:5.2f} {mark}"


def agreement(cells: list[dict[str, Any]], prediction: str) -> float:
    """The share of cells whose winner a prediction names."""
    return sum(cell["winner"] == cell[prediction] for cell in cells) / max(len(cells), 1)


def main() -> None:
    """Measure every cell, print the maps, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=30)
    batches = parser.parse_args().batches
    costs = KernelCosts(**measure())
    h.console.print({name: round(cost, 1) for name, cost in costs.model_dump().items()})
    gc.disable()
    found = []
    for setting in SETTINGS:
        cells = [cell(setting, keys, ratio, batches, costs) for keys in KEYS for ratio in RATIOS]
        lines = [[shown(one) for one in cells if one["keys"] == keys] for keys in KEYS]
        h.table(
            f"{setting[0]} rows a batch probe a window of {setting[1]} batches: measured winner (H hash, N nested "
            "loops), by what factor, and whether it was predicted (· closer than 15 %)",
            ["distinct keys", *(f"rate x{ratio}" for ratio in RATIOS)],
            [(keys, *line) for keys, line in zip(KEYS, lines, strict=True)],
        )
        decided = [one for one in cells if one["factor"] > CLEAR]
        summary = {
            "rate": setting[0],
            "span": setting[1],
            "agreement": round(agreement(decided, "predicted"), 3),
            "eq_8_agreement": round(agreement(decided, "eq_8"), 3),
            "decided_cells": len(decided),
            "won_by": {name: sum(one["winner"] == name for one in decided) for name in ("hash", "loop")},
        }
        h.console.print(summary)
        for name in ("hash", "loop"):
            off = np.array([one["predicted_us"][name] / one["measured_us"][name] for one in cells])
            near = float(np.mean((off <= NEAR) & (off >= 1 / NEAR)))
            summary[f"predicted_over_measured_{name}"] = [
                round(float(v), 3) for v in (off.min(), np.median(off), off.max())
            ]
            summary[f"near_{name}"] = near
            h.console.print(
                f"{name}: predicted over measured {off.min():.2f} to {off.max():.2f}, within {NEAR} in {near:.0%}"
            )
        found.append({**summary, "cells": cells})
    plot(found)
    h.save("window_crossover", {"costs_ns": costs.model_dump(), "settings": found})


def plot(found: list[dict[str, Any]]) -> None:
    """A heat map per setting: how much cheaper hash is than nested loops; crosses where the prediction is wrong."""
    figure, axes = plt.subplots(1, len(found), figsize=(5 * len(found), 4), sharey=True, layout="constrained")
    for axis, one in zip(axes, found, strict=True):
        advantage = [np.log2(cell["measured_us"]["loop"] / cell["measured_us"]["hash"]) for cell in one["cells"]]
        grid = np.array(advantage).reshape(len(KEYS), len(RATIOS))
        image = axis.imshow(grid, cmap="RdBu", vmin=-2, vmax=2, origin="lower", aspect="auto")
        for at, cell in enumerate(one["cells"]):
            if cell["factor"] > CLEAR and cell["winner"] != cell["predicted"]:
                axis.text(at % len(RATIOS), at // len(RATIOS), "x", ha="center", va="center", fontsize=14)
        axis.set(title=f"{one['rate']} probes a batch, window of {one['span']}", xlabel="rate ratio")
        axis.set_xticks(range(len(RATIOS)), RATIOS)
        axis.set_yticks(range(len(KEYS)), KEYS)
    axes[0].set_ylabel("distinct keys")
    figure.colorbar(image, ax=axes, label="log2 (cost of nested loops / cost of hash)")
    h.RESULTS.mkdir(exist_ok=True)
    figure.savefig(h.RESULTS / "window_crossover.png", dpi=90)


if __name__ == "__main__":
    main()
