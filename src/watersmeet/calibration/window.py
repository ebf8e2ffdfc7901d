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
from watersmeet.join.expiry import expire
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import TimeSlices
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace
from watersmeet.window.batch_costs import SLICES, KernelCosts
from watersmeet.window.kernels import Ordered, Reach, distinct, order, pairs
from watersmeet.window.scan import ROW_BITS, ROW_MASK, Rows, by_part, candidates

FAMILY = "window"
STORED = 64  # batches that are stored to see what one of them takes
RUNS = 8  # runs more in a window, to see what one of them takes
PROBED = 32  # keys of these runs, and of the rows that probe them
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
    scan_call, scan_run = _per_run(sorted=False)
    arrange_call = nanoseconds(_arrange(16), repeats=50)
    stored, ordered = (nanoseconds(_store(STORED, sorted=order), repeats=3) / STORED for order in (False, True))
    return {
        "arrange": index,
        "index": index,
        "merge": per_row(_merge),
        "append": per_row(_append),
        "filter": per_row(_filter),
        "order": per_row(_order),
        "probe": per_row(_probe),
        "split": per_row(_split),
        "call": _per_run(sorted=True)[1],
        "scan_call": scan_call,
        "scan_run": scan_run,
        "arrange_call": arrange_call,
        "merge_call": max(ordered - stored - arrange_call, 0.0),
        "store_call": stored,
    }


def _rows(count: int, *, seed: int = 0, keys: int = 1 << 62) -> pa.Table:
    rng = np.random.default_rng(seed)
    drawn = pa.array(rng.integers(0, keys, count))
    times = np.arange(seed * count, (seed + 1) * count) * 1000  # a later batch has later times
    columns = [pa.array(hash_keys([drawn])), drawn, pa.array(times), pa.array(np.arange(count))]
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


def _window(schema: pa.Schema, layout: TimeSlices) -> RowStore:
    """A window as the join makes it."""
    accounts, rule = Accounts(Metrics()), Horizon(_TIME)
    return RowStore(
        "window",
        schema,
        layout,
        MemorySpace(),
        accounts,
        time=_TIME,
        rule=rule,
        describe=lambda table: {"keys": distinct(hashes_of(table))},
    )


def _store(count: int, *, sorted: bool) -> Callable[[], object]:
    """Batches of a few rows go through a window of sixteen of them."""
    tables = [_rows(16, seed=number) for number in range(count)]
    length = int(times_of(tables[1], _TIME)[0] - times_of(tables[0], _TIME)[0])

    def work() -> object:
        layout = TimeSlices(span=16 * length, share=SLICES, advance=length)
        window = _window(tables[0].schema, layout)
        for number, table in enumerate(tables):
            window.accounts.arrive(window.input, table.num_rows)
            expire(window, (number - 16) * length, times_of(table, _TIME), None)
            layout.bound = (number - 1) * length
            if sorted:
                window.add(Rows(table, _TIME).sorted().table, number)
            else:
                window.add(table, number, order="arrival")
            window.settle()
        return window

    return work


def _per_run(*, sorted: bool) -> tuple[float, float]:
    """Nanoseconds to probe a window of small runs: whatever their number, and for each of them."""
    one, many = (nanoseconds(_probe_runs(runs, sorted=sorted), repeats=30) for runs in (1, 1 + RUNS))
    per_run = max(many - one, 0.0) / RUNS
    return max(one - per_run, 0.0), per_run


def _probe_runs(runs: int, *, sorted: bool) -> Callable[[], object]:
    # In each of the runs some keys are found: one without any is left at once, and tells nothing.
    tables = [_rows(64, seed=number, keys=PROBED) for number in range(runs)]
    probes = _ordered(_rows(32, keys=PROBED))
    window = _window(tables[0].schema, TimeSlices(span=1 << 40, share=SLICES))
    for number, table in enumerate(tables):
        window.accounts.arrive(window.input, table.num_rows)
        window.add(
            Rows(table, _TIME).sorted().table if sorted else table, number, order="hash" if sorted else "arrival"
        )

    def work() -> object:
        found = candidates(window, 0, 1 << 60, probes, [])
        return [pair for one in found for pair in pairs(probes, one.rows, _EVER)]

    return work
