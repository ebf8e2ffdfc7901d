"""The six arrival patterns of Valsomatzis and Gounaris, every driver policy: running time and early results.

    python benchmarks/drivers.py [--scale 1.0] [--slices 8]

In process, one partition, as in the paper: three streams on a common key, worked off in batches of 0.1M and 1M time
units. Times are CPU seconds of the last 80 % of the batches over those of `timestamp` (Table 4); early results are the
share of a batch's results that has come after half the time `timestamp` takes for it (Table 5), and, as whole buffers
are worked off so much faster, also after half the policy's own time. The curves (Fig. 6 to 8): results/drivers.png.

Sizes: datasets I to IV have three streams of 10^6 rows, V and VI streams of 10^4, 10^5 (the printed 10^9 contradicts
the printed selectivities) and 10^6. The b-model's orientation is not given; here sides are drawn with a seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

import harness as h
import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.arrow import hash_keys
from watersmeet.multiway.timeline import Timeline, timed_batch
from watersmeet.operator import Batch
from watersmeet.operators import build
from watersmeet.plan import JoinPlan
from watersmeet.state.space import MemorySpace
from watersmeet.testing import make_plan

mpl.use("Agg")
import matplotlib.pyplot as plt

INPUTS = ("S1", "S2", "S3")
DRIVERS = ("timestamp", "round_robin", "consumption_rate", "output_size", "output_rate")
DURATION = 10_000_000  # time units
PERIODS = {"0.1M": 100_000, "1M": 1_000_000}
COMMON_KEYS = 1000
Floats = npt.NDArray[np.float64]
Arrivals = Callable[[int, np.random.Generator], Floats]


def uniform(count: int, rng: np.random.Generator) -> Floats:
    """One row every so many time units."""
    return np.sort(rng.uniform(0, DURATION, count))


def quarters(fast_first: bool) -> Arrivals:
    """One row per 5 and one per 15 time units in turn, a quarter of the input each."""

    def arrivals(count: int, rng: np.random.Generator) -> Floats:
        pattern = np.repeat([5.0, 15.0, 5.0, 15.0] if fast_first else [15.0, 5.0, 15.0, 5.0], -(-count // 4))
        gaps = pattern[:count] * rng.uniform(0.5, 1.5, count)
        times = np.cumsum(gaps)
        return np.asarray(times * (DURATION - 1) / times[-1])

    return arrivals


def sinusoidal(count: int, rng: np.random.Generator) -> Floats:
    """A rate that swings four times over the run."""
    grid = np.linspace(0, DURATION, 10_001)
    rate = 1 + 0.9 * np.sin(8 * np.pi * grid / DURATION)
    share = np.cumsum(rate) / rate.sum()
    return np.asarray(np.sort(np.interp(rng.uniform(share[0], 1, count), share, grid)).clip(0, DURATION - 1))


def b_model(bias: float) -> Arrivals:
    """Bursts: of every stretch's rows, `bias` fall into one half of it, down to stretches of 1/1024 of the run."""

    def arrivals(count: int, rng: np.random.Generator) -> Floats:
        shares = np.ones(1)
        for _ in range(10):
            side = np.where(rng.random(len(shares)) < 0.5, bias, 1 - bias)
            shares = np.stack([shares * side, shares * (1 - side)], axis=1).ravel()
        stretch = rng.choice(len(shares), count, p=shares / shares.sum())
        return np.sort((stretch + rng.random(count)) * (DURATION / len(shares)))

    return arrivals


@dataclass(frozen=True)
class Dataset:
    """Sizes, shares of the rows that have common keys, and arrivals of the three streams."""

    sizes: tuple[int, int, int]
    shares: tuple[float, float, float]
    arrivals: tuple[Arrivals, Arrivals, Arrivals]


ALIKE = ((10**6, 10**6, 10**6), (1e-3, 5e-3, 1.0))
SKEWED = ((10**4, 10**5, 10**6), (0.1, 0.1, 0.1))
DATASETS = {
    "I": Dataset(*ALIKE, (uniform, uniform, quarters(True))),
    "II": Dataset(*ALIKE, (uniform, quarters(False), quarters(True))),
    "III": Dataset(*ALIKE, (uniform, quarters(False), sinusoidal)),
    "IV": Dataset(*ALIKE, (uniform, uniform, b_model(0.2))),
    "V": Dataset(*SKEWED, (uniform, uniform, b_model(0.8))),
    "VI": Dataset(*SKEWED, (uniform, uniform, b_model(0.2))),
}


def stream(dataset: Dataset, index: int, scale: float, seed: int) -> pa.Table:
    """The rows of one stream in order of arrival: key, time, and a number."""
    rng = np.random.default_rng([seed, index])
    count = round(dataset.sizes[index] * scale)
    common = np.arange(round(count * dataset.shares[index])) % max(1, round(COMMON_KEYS * scale))
    private = np.arange(count - len(common)) + (index + 1) * 10**9
    keys = pa.array(rng.permutation(np.concatenate([common, private])))
    times = pa.array(dataset.arrivals[index](count, rng).astype(np.int64))
    return pa.table({"_hash": hash_keys([keys]), "_k0": keys, "_p0": times, "_p1": np.arange(count)})


def batches(streams: list[pa.Table], period: int) -> list[Batch]:
    """What arrives in each period."""
    bounds = np.arange(0, DURATION + period, period)
    cuts = [np.searchsorted(s.column("_p0").to_numpy(), bounds) for s in streams]
    return [
        Batch(b, rows={n: s.slice(c[b], c[b + 1] - c[b]) for n, s, c in zip(INPUTS, streams, cuts, strict=True)})
        for b in range(len(bounds) - 1)
    ]


def plan_for(driver: str, slices: int) -> JoinPlan:
    """Three inputs with a time and a number as payload."""
    options = {"time": dict.fromkeys(INPUTS, "_p0")}
    tuning = {"driver": driver, "slices": slices}
    return make_plan("mjoin", INPUTS, options, payload=(pa.int64(), pa.int64()), tuning=tuning)


def run(driver: str, slices: int, arrived: list[Batch]) -> list[Timeline]:
    """All batches with one policy."""
    operator = build(plan_for(driver, slices), MemorySpace())
    return [timed_batch(operator, batch, process_time) for batch in arrived]


def measure(streams: list[pa.Table], period: int, slices: int, repeats: int) -> dict[str, Any]:
    """Every policy on one dataset: running time, share at half time, and the mean curve."""
    arrived = batches(streams, period)
    first = len(arrived) // 5  # the tables fill up during the first fifth
    runs: dict[str, list[list[Timeline]]] = {driver: [] for driver in DRIVERS}
    for _ in range(repeats):  # in turn, so that a busy spell of the machine hits all policies alike
        for driver in DRIVERS:
            runs[driver].append(run(driver, slices, arrived)[first:])
    counts = {driver: sum(t.results[-1] for t in every[0]) for driver, every in runs.items()}
    if len(set(counts.values())) != 1:
        raise SystemExit(f"the policies disagree: {counts}")
    base = np.median([[t.total for t in timelines] for timelines in runs["timestamp"]], axis=0)
    grid = np.linspace(0, 1.2, 49)
    result: dict[str, Any] = {"results": counts["timestamp"], "cpu_seconds_timestamp": round(float(base.sum()), 3)}
    for driver, every in runs.items():
        total = np.median([sum(t.total for t in timelines) for timelines in every])
        weights = np.array([t.results[-1] for t in every[0]], np.float64)
        curves = [[[t.share_at(g * b) for g in grid] for t, b in zip(ts, base, strict=True)] for ts in every]
        curve = np.average(np.mean(curves, axis=0), axis=0, weights=weights)
        early = np.mean([[t.share_at(0.5 * t.total) for t in timelines] for timelines in every], axis=0)
        result[driver] = {
            "running_time": round(float(total / base.sum()), 3),
            "share_at_half": round(float(np.interp(0.5, grid, curve)), 3),
            "share_at_own_half": round(float(np.average(early, weights=weights)), 3),
            "curve": [round(float(y), 3) for y in curve],
        }
    return result


def plot(found: dict[str, dict[str, Any]]) -> None:
    """Share of results over time, one panel per dataset and period."""
    figure, axes = plt.subplots(len(PERIODS), len(DATASETS), figsize=(18, 6), sharex=True, sharey=True)
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
    figure.tight_layout()
    h.RESULTS.mkdir(exist_ok=True)
    figure.savefig(h.RESULTS / "drivers.png", dpi=110)


def main() -> None:
    """Run all datasets, print both tables, draw the curves, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="of the streams' sizes")
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for name, dataset in DATASETS.items():
        streams = [stream(dataset, index, arguments.scale, seed=7) for index in range(3)]
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
