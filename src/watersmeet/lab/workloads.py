"""The papers' workloads, seeded: arrival times, keys and inputs as Arrow tables.

The same data can be streamed through Spark: `write` puts a workload into Parquet files in order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rng = np.random.Generator


def write(table: pa.Table, folder: Path, files: int) -> list[Path]:
    """Rows in order of arrival, cut into Parquet files of equal length for a Spark source."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(files):
        low, high = (table.num_rows * part // files for part in (number, number + 1))
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(table.slice(low, high - low), path)
        paths.append(path)
    return paths


# -- RPJ: two relations, 20 partitions, harmony or reverse ----------

PARTITIONS = 20
Pattern = Literal["harmony", "reverse"]
Network = Literal["reliable", "unreliable"]


def partition_shares(pattern: Pattern) -> tuple[Floats, Floats]:
    """P(j | R_1) and P(j | R_2): 1 % to 9 %, rising; for `reverse` the second falls (j and 21 - j)."""
    first: Floats = np.linspace(0.01, 0.09, PARTITIONS)
    return first, first if pattern == "harmony" else first[::-1]


def zipf_gaps(count: int, rng: Rng, exponent: float = 1.07, longest: int = 30) -> Ints:
    """Milliseconds between arrivals: 1 to `longest`, skewed towards 1. The exponent gives a mean of about 7."""
    weights = 1.0 / np.arange(1, longest + 1) ** exponent
    return rng.choice(np.arange(1, longest + 1), count, p=weights / weights.sum()).astype(np.int64)


def suspension_share(after: int = 25, exponent: float = 1.07, longest: int = 30) -> float:
    """The share of the gaps of `zipf_gaps` that are longer than `after` milliseconds."""
    weights = 1.0 / np.arange(1, longest + 1) ** exponent
    return float(weights[after:].sum() / weights.sum())


@lru_cache(maxsize=1)
def _gaps(count: int, seed: int) -> Ints:
    """The paper's gaps, from a stream of random numbers of their own."""
    return zipf_gaps(count, np.random.default_rng([seed, 1]))


def relations(
    rows: int, pattern: Pattern, ratio: float, network: Network, *, domain: int, seed: int = 0, stands_for: int = 1
) -> pa.Table:
    """Rows of R_1 (input 0) and R_2 (input 1) in order of arrival: `time` in microseconds, `input`, `key`.

    A key belongs to partition key mod 20; within its partition it is uniform. On an unreliable network a row may stand
    for several of the paper's: it comes with the last of them, and all times are divided by their number.
    """
    rng = np.random.default_rng(seed)
    inputs = (rng.random(rows) >= ratio / (1 + ratio)).astype(np.int8)
    partitions = np.empty(rows, np.int64)
    for index, shares in enumerate(partition_shares(pattern)):
        mine = inputs == index
        partitions[mine] = rng.choice(PARTITIONS, int(mine.sum()), p=shares / shares.sum())
    keys = partitions + PARTITIONS * rng.integers(0, domain // PARTITIONS, rows)
    if network == "reliable":
        times = np.arange(rows, dtype=np.int64) * 1000
    else:
        ends = np.cumsum(_gaps(rows * stands_for, seed)) * 1000
        times = np.concatenate([[0], ends[stands_for - 1 : -1 : stands_for]]) // stands_for
    return pa.table({"time": times, "input": inputs, "key": keys})


def suspensions(rows: int, *, seed: int = 0, stands_for: int = 1, after: int = 25, every: int = 1) -> pa.Table:
    """When the unreliable network of `relations` is silent: `begin` and `end` in microseconds.

    Silence counts from `after` milliseconds without a row on. Only one suspension in `every` is taken.
    """
    gaps = _gaps(rows * stands_for, seed)
    ends = np.cumsum(gaps)
    long = np.flatnonzero(gaps > after)[::every]
    begin, end = ((column[long] * 1000) // stands_for for column in (ends - gaps + after, ends))
    return pa.table({"begin": begin, "end": end})


# -- driver selection: three streams, six arrival patterns ----------

DURATION = 10_000_000  # time units
COMMON_KEYS = 1000
Arrivals = Callable[[int, Rng], Floats]


def uniform(count: int, rng: Rng) -> Floats:
    """A constant average rate."""
    return np.sort(rng.uniform(0, DURATION, count))


def alternating(first: float, second: float) -> Arrivals:
    """One row per so many time units, the two rates in turn, a quarter of the input each."""

    def arrivals(count: int, rng: Rng) -> Floats:
        pattern = np.repeat([first, second, first, second], -(-count // 4))[:count]
        times = np.cumsum(pattern * rng.uniform(0.5, 1.5, count))
        return np.asarray(times * (DURATION - 1) / times[-1])

    return arrivals


def sinusoidal(count: int, rng: Rng) -> Floats:
    """A rate that swings four times over the run, between 0.1 and 1.9 of its mean."""
    grid = np.linspace(0, DURATION, 10_001)
    rate = 1 + 0.9 * np.sin(8 * np.pi * grid / DURATION)
    share = np.cumsum(rate) / rate.sum()
    return np.asarray(np.sort(np.interp(rng.uniform(share[0], 1, count), share, grid)).clip(0, DURATION - 1))


def b_model(bias: float, levels: int = 10) -> Arrivals:
    """Bursts: of all rows `bias` fall into the first half of the time, and of every stretch's rows into one half of it,
    again and again, which of them drawn by chance. (The paper: with 20 %-80 % the initial part is sparse.)"""

    def arrivals(count: int, rng: Rng) -> Floats:
        shares = np.array([bias, 1 - bias])
        for _ in range(levels - 1):
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


# |S2| of V and VI is 10^5: the printed 10^9 contradicts the printed selectivities.
_ALIKE = ((10**6, 10**6, 10**6), (1e-3, 5e-3, 1.0))
_SKEWED = ((10**4, 10**5, 10**6), (0.1, 0.1, 0.1))
DATASETS: dict[str, Dataset] = {
    "I": Dataset(*_ALIKE, (uniform, uniform, alternating(5, 15))),
    "II": Dataset(*_ALIKE, (uniform, alternating(15, 5), alternating(5, 15))),
    "III": Dataset(*_ALIKE, (uniform, alternating(15, 5), sinusoidal)),
    "IV": Dataset(*_ALIKE, (uniform, uniform, b_model(0.2))),
    "V": Dataset(*_SKEWED, (uniform, uniform, b_model(0.8))),
    "VI": Dataset(*_SKEWED, (uniform, uniform, b_model(0.2))),
}


def stream(dataset: Dataset, index: int, scale: float, seed: int = 7) -> pa.Table:
    """One stream of a dataset in order of arrival: `time`, `key`. Keys are shared by all streams, or private."""
    rng = np.random.default_rng([seed, index])
    count = round(dataset.sizes[index] * scale)
    common = np.arange(round(count * dataset.shares[index])) % max(1, round(COMMON_KEYS * scale))
    private = np.arange(count - len(common)) + (index + 1) * 10**9
    keys = rng.permutation(np.concatenate([common, private]))
    return pa.table({"time": dataset.arrivals[index](count, rng).astype(np.int64), "key": keys})


# -- window joins: steady streams with uniform keys ----------


def steady(rate: float, seconds: float, keys: int, seed: int, *, start: float = 0.0) -> pa.Table:
    """Rows at random moments, `rate` a second on average, with uniform keys: `time` in microseconds, `key`."""
    rng = np.random.default_rng(seed)
    count = round(rate * seconds)
    times = np.sort(rng.uniform(start, start + seconds, count)) * 1e6
    return pa.table({"time": times.astype(np.int64), "key": rng.integers(0, keys, count)})


# -- punctuations: news and access records ----------

Order = Literal["ordered", "random"]


@dataclass(frozen=True)
class News:
    """News items, their access records, and the punctuations among them.

    `records` are in order of arrival; after `punctuated_after[i]` of them, the i-th item has dropped out of the ten
    latest and no more records of it come.
    """

    items: pa.Table
    records: pa.Table
    punctuated_after: Ints


def news(items: int, records_per_item: int, order: Order, seed: int = 3, *, latest: int = 10) -> News:
    """Records go to the `latest` newest items, in random order; `ordered` or `random` is the order of the items."""
    rng = np.random.default_rng(seed)
    steps = np.repeat(np.arange(items), records_per_item)
    # While item s is the oldest of the latest ten, records go to s .. s + 9: each item gets about as many as any other.
    keys = np.minimum(steps + rng.integers(0, latest, len(steps)), items - 1)
    numbers = np.arange(items) if order == "ordered" else rng.permutation(items)
    return News(
        pa.table({"key": numbers}),
        pa.table({"key": keys}),
        (np.arange(items) + 1) * records_per_item,
    )


# -- semi-stream joins: a master table and a skewed stream ----------


def zipf_keys(rng: Rng, skew: float, domain: int, rows: int) -> Ints:
    """Keys whose ranks follow Zipf's law with that exponent (0 is uniform), scattered over the domain."""
    draw = rng.random(rows)
    rank = (domain + 1) ** draw - 1 if skew == 1.0 else domain * draw ** (1 / (1 - skew))
    scattered: Ints = (np.minimum(rank, domain - 1).astype(np.int64) * 2_654_435_761 + 99) % domain
    return scattered


def master_keys(rows: int, seed: int = 1) -> Ints:
    """Join values of a master table, drawn with repetition: some occur often, some never."""
    return np.random.default_rng(seed).integers(0, rows, rows)


LONGITUDES = 36_001


def weather_keys(rows: int, seed: int, *, stations: int = 2000, ships: float = 0.2, places: int = 0) -> Ints:
    """Longitudes in hundredths of a degree: reports of land stations at fixed places, and of ships anywhere.

    Made up: the cloud reports that were used in the paper cannot be had. It keeps their shape: 36,001 values, the same
    ones hot in both tables (stations report every few hours), many rows on each side of a value. `places` is the seed
    of where the stations are.
    """
    longitude = np.random.default_rng(places).integers(0, LONGITUDES, stations)
    weight = 1 / np.arange(1, stations + 1) ** 0.8
    rng = np.random.default_rng(seed)
    at_station = longitude[rng.choice(stations, rows, p=weight / weight.sum())]
    return np.where(rng.random(rows) < ships, rng.integers(0, LONGITUDES, rows), at_station)
