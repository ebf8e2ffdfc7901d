"""The costs of the window kernels on this machine, measured on rows like those of a stream.

A row has a 64-bit key, a time, a number and a short text.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from watersmeet.calibration.kept_costs import calibrate, load, nanoseconds, per_row
from watersmeet.columns.arrow import hash_keys, hashes_of, merge_order, take, times_of
from watersmeet.columns.matching import KeyFilter
from watersmeet.window.batch_costs import KernelCosts
from watersmeet.window.kernels import Ordered, Reach, order, pairs
from watersmeet.window.scan import ROW_BITS, ROW_MASK, Rows, by_part

FAMILY = "window"
_TIME = "_p0"
_EVER = Reach(-(1 << 60), 1 << 60)


def window_costs(path: str | os.PathLike[str] | None = None) -> KernelCosts:
    """The costs kept for this machine; measured now if there are none, and kept if there is a place to."""
    known = load(FAMILY, path)
    if known is not None and set(known) == set(KernelCosts.model_fields):
        return KernelCosts(**known)
    try:
        return KernelCosts(**calibrate({FAMILY: measure}, path)[FAMILY])
    except OSError:
        return KernelCosts(**measure())


def measure() -> dict[str, float]:
    """Measure every kernel; takes about a second."""
    index = per_row(_arrange)
    return {
        "arrange": index,
        "index": index,
        "merge": per_row(_merge),
        "append": per_row(_append),
        "filter": per_row(_filter),
        "order": per_row(_order),
        "probe": per_row(_probe),
        "split": per_row(_split),
        "call": nanoseconds(_call(), repeats=50),
        "scan_call": nanoseconds(_scan_call(), repeats=50),
        "arrange_call": nanoseconds(_arrange(64), repeats=50),
    }


def _rows(count: int, *, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    keys = pa.array(rng.integers(0, 1 << 62, count))
    times = np.arange(seed * count, (seed + 1) * count) * 1000  # a later batch has later times
    columns = [pa.array(hash_keys([keys])), keys, pa.array(times), pa.array(np.arange(count))]
    text = pa.array(np.char.add("row ", rng.integers(0, 1000, count).astype(str)))
    return pa.Table.from_arrays([*columns, text], names=["_hash", "_k0", _TIME, "_p1", "_p2"])


def _ordered(table: pa.Table) -> Ordered:
    ordered = order(hashes_of(table), times_of(table, _TIME))
    return Ordered(ordered.hashes, ordered.times)


def _arrange(count: int) -> Callable[[], object]:
    table = _rows(count)
    return lambda: Rows(table, _TIME).sorted()


def _merge(count: int) -> Callable[[], object]:
    parts = [Rows(_rows(count // 4, seed=seed), _TIME).sorted().table for seed in range(4)]

    def work() -> object:
        table = pa.concat_tables(parts).combine_chunks()
        return take(table, merge_order(hashes_of(table), times_of(table, _TIME)))

    return work


def _append(count: int) -> Callable[[], object]:
    parts = [_rows(count // 4, seed=seed) for seed in range(4)]
    return lambda: pa.concat_tables(parts).combine_chunks()


def _filter(count: int) -> Callable[[], object]:
    table, wanted = _rows(count // 4), np.sort(hashes_of(_rows(1_000, seed=1)))

    def work() -> object:
        among = KeyFilter(wanted)
        return [among.among(hashes_of(table)) for _ in range(4)]

    return work


def _order(count: int) -> Callable[[], object]:
    hashes, times = hashes_of(_rows(count)), np.arange(count)

    def work() -> object:
        found = np.arange(count)
        return order(hashes[found], times[found])

    return work


def _probe(count: int) -> Callable[[], object]:
    window = _ordered(_rows(200_000))
    probes = _ordered(_rows(count))
    return lambda: list(pairs(probes, window, _EVER))


def _split(count: int) -> Callable[[], object]:
    rng, runs = np.random.default_rng(0), 8
    numbers = rng.integers(0, runs, count) << ROW_BITS | rng.integers(0, count, count)
    return lambda: [numbers[which] & ROW_MASK for which in by_part(numbers, runs)]


def _call() -> Callable[[], object]:
    window, probes = _rows(64), _ordered(_rows(32))
    ordered = _ordered(window)
    return lambda: list(pairs(probes, Ordered(ordered.hashes, times_of(window, _TIME)), _EVER))


def _scan_call() -> Callable[[], object]:
    window, probes = _rows(64), _ordered(_rows(32))
    hashes = hashes_of(window)

    def work() -> object:
        found = KeyFilter(probes.hashes).among(hashes)
        return list(pairs(probes, order(hashes[found], times_of(window, _TIME)[found]), _EVER))

    return work
