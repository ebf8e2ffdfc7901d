"""The six arrival patterns of Valsomatzis and Gounaris, every driver policy: running time and early results.

    python benchmarks/drivers.py [--scale 1.0] [--slices 8]

In process, one partition, as in the paper: three streams on a common key, worked off in batches of 0.1M and 1M time
units. Times are CPU seconds of the last 80 % of the batches over those of `timestamp` (Table 4); early results are the
share of a batch's results that has come after half the time `timestamp` takes for it (Table 5), and, as whole buffers
are worked off so much faster, also after half the policy's own time. The curves (Fig. 6 to 8): results/drivers.png.

Sizes: datasets I to IV have three streams of 10^6 rows, V and VI streams of 10^4, 10^5 (the printed 10^9 contradicts
the printed selectivities) and 10^6. The b-model's orientation is not given; here sides are drawn with a seed. The
generators are the lab's (`watersmeet.lab.workloads`).
"""

from __future__ import annotations

import argparse
from typing import Any

import harness as h
import matplotlib as mpl
import numpy as np
import pyarrow as pa

from watersmeet.lab.driver_runs import PERIODS, batches, rows_of, timelines
from watersmeet.lab.timeline import Timeline
from watersmeet.lab.workloads import DATASETS, DURATION, stream

mpl.use("Agg")
import matplotlib.pyplot as plt

DRIVERS = ("timestamp", "round_robin", "consumption_rate", "output_size", "output_rate")


def measure(streams: list[pa.Table], period: int, slices: int, repeats: int) -> dict[str, Any]:
    """Every policy on one dataset: running time, share at half time, and the mean curve."""
    arrived = batches(streams, period, DURATION)
    first = len(arrived) // 5  # the tables fill up during the first fifth
    runs: dict[str, list[list[Timeline]]] = {driver: [] for driver in DRIVERS}
    for _ in range(repeats):  # in turn, so that a busy spell of the machine hits all policies alike
        for driver in DRIVERS:
            runs[driver].append(timelines(driver, arrived, slices)[first:])
    counts = {driver: sum(t.results[-1] for t in every[0]) for driver, every in runs.items()}
    if len(set(counts.values())) != 1:
        raise SystemExit(f"the policies disagree: {counts}")
    base = np.median([[t.total for t in every] for every in runs["timestamp"]], axis=0)
    grid = np.linspace(0, 1.2, 49)
    result: dict[str, Any] = {"results": counts["timestamp"], "cpu_seconds_timestamp": round(float(base.sum()), 3)}
    for driver, every in runs.items():
        total = np.median([sum(t.total for t in one) for one in every])
        weights = np.array([t.results[-1] for t in every[0]], np.float64)
        curves = [[[t.share_at(g * b) for g in grid] for t, b in zip(ts, base, strict=True)] for ts in every]
        curve = np.average(np.mean(curves, axis=0), axis=0, weights=weights)
        early = np.mean([[t.share_at(0.5 * t.total) for t in one] for one in every], axis=0)
        result[driver] = {
            "running_time": round(float(total / base.sum()), 3),
            "share_at_half": round(float(np.interp(0.5, grid, curve)), 3),
            "share_at_own_half": round(float(np.average(early, weights=weights)), 3),
            "curve": [round(float(y), 3) for y in curve],
        }
    return result


def plot(found: dict[str, dict[str, Any]]) -> None:
    """Share of results over time, one panel per dataset and period."""
    figure, axes = plt.subplots(
        len(PERIODS), len(DATASETS), figsize=(16, 5), sharex=True, sharey=True, layout="constrained"
    )
    for row, period in enumerate(PERIODS):
        for column, name in enumerate(DATASETS):
            axis = axes[row][column]
            for driver in DRIVERS:
                curve = found[name][period][driver]["curve"]
                axis.plot(np.linspace(0, 1.2, len(curve)), curve, label=driver)
            axis.set_title(f"dataset {name}, batch {period}", fontsize=9)
    axes[0][0].legend(fontsize=7)
    figure.supxlabel("time over that of timestamp")
    figure.supylabel("share of the batch's results")
    h.RESULTS.mkdir(exist_ok=True)
    figure.savefig(h.RESULTS / "drivers.png", dpi=90)


def main() -> None:
    """Run all datasets, print both tables, draw the curves, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="of the streams' sizes")
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for name, dataset in DATASETS.items():
        streams = [rows_of(stream(dataset, index, arguments.scale)) for index in range(3)]
        found[name] = {
            period: measure(streams, units, arguments.slices, arguments.repeats) for period, units in PERIODS.items()
        }
        h.console.print(f"dataset {name} done")
    averages: dict[str, Any] = {}
    for key, title in (
        ("running_time", "running time over that of timestamp"),
        ("share_at_half", "share of a batch's results after half the time of timestamp"),
        ("share_at_own_half", "share of a batch's results after half the policy's own time"),
    ):
        columns = [(driver, period) for driver in DRIVERS for period in PERIODS]
        means = {c: float(np.mean([found[name][c[1]][c[0]][key] for name in DATASETS])) for c in columns}
        averages[key] = {f"{driver} {period}": round(mean, 3) for (driver, period), mean in means.items()}
        shown = columns[2:] if key == "running_time" else columns
        header = ["dataset", *(f"{driver} {period}" for driver, period in shown)]
        rows = [[name, *(found[name][period][driver][key] for driver, period in shown)] for name in DATASETS]
        h.table(title, header, [*rows, ["average", *(means[c] for c in shown)]])
    if arguments.scale == 1.0:
        plot(found)
        h.save(
            "drivers", {"scale": arguments.scale, "slices": arguments.slices, "average": averages, "datasets": found}
        )


if __name__ == "__main__":
    main()
