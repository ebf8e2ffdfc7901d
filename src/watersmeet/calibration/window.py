"""The costs of the window kernels on this machine, measured on rows like those of a stream.

A row has a 64-bit key, a time, a number and a short text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from watersmeet.calibration.kept_costs import calibrate, load, nanoseconds, per_row
from watersmeet.columns.arrow import hash_keys, hashes_of, merge_order, take, times_of
from watersmeet.join.expiry import expire
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import TimeSlices
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace
from watersmeet.window.batch_costs import SLICES, KernelCosts
from watersmeet.window.kernels import NARROW, SAMPLE, Ordered, Reach, distinct, order, pairs
from watersmeet.window.scan import ROW_BITS, ROW_MASK, Rows, by_part, candidates

FAMILY = "window"
STORED = 64  # batches that are stored to see what one of them takes
RUNS = 8  # runs more in a window, to see what one of them takes
STEP = 1000  # microseconds from one row to the next
SCANNED = 1000  # keys
PROBED = 128  # keys of these runs, and of the rows that probe them
_TIME = "_p0"
_EVER, _NEVER = Reach(-(1 << 60), 1 << 60), Reach(1 << 60, 1 << 60)


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
    index, missed = per_row(_arrange), per_row(partial(_scan, hit=False))
    scan_call, scan_run = _per_run(sorted=False)
    arrange_call = nanoseconds(_arrange(16), repeats=50)
    # Windows of so many batches: each batch begins half a slice, or two.
    long, short = 2 * SLICES, SLICES // 2
    stored, cut, ordered, both = (
        nanoseconds(_store(STORED, batches, sorted=kept), repeats=3) / STORED
        for kept in (False, True)
        for batches in (long, short)
    )
    narrow, near = _narrow()
    slice_call = max(cut - stored, 0.0) / 1.5
    return {
        "arrange": index,
        "index": index,
        "merge": per_row(_merge),
        "append": per_row(_append),
        "cut": per_row(_cut),
        "filter": missed,
        "order": 2 * max(per_row(partial(_scan, hit=True)) - missed, 0.0),
        "probe": per_row(_probe),
        "split": per_row(_split),
        "call": _per_run(sorted=True)[1],
        "scan_call": scan_call,
        "scan_run": scan_run,
        "arrange_call": arrange_call,
        "merge_call": max(ordered - stored + both - cut - 2 * arrange_call, 0.0) / 2.5,
        "narrow": narrow,
        "near": near,
        "count": nanoseconds(_count, repeats=30) / SAMPLE,
        "store_call": max(stored - slice_call / 2, 0.0),
        "slice_call": slice_call,
    }


def _rows(count: int, *, seed: int = 0, keys: int = 1 << 62) -> pa.Table:
    rng = np.random.default_rng(seed)
    drawn = pa.array(rng.integers(0, keys, count))
    times = np.arange(seed * count, (seed + 1) * count) * STEP  # a later batch has later times
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


def _cut(count: int) -> Callable[[], object]:
    table, slices = _rows(count), 2
    layout = TimeSlices(span=SLICES * (-(-count // slices) * STEP), share=SLICES)
    return lambda: list(layout.split(table, times_of(table, _TIME)))


_UNSORTED = np.random.default_rng(0).integers(0, SAMPLE // 4, SAMPLE).astype(np.uint64)


def _count() -> object:
    return distinct(_UNSORTED)


def _scan(count: int, *, hit: bool) -> Callable[[], object]:
    """Four runs as they came are scanned for keys that half of the rows have, or none."""
    window = _window(_rows(0).schema, TimeSlices(span=1 << 40, share=SLICES))
    for number in range(4):
        window.accounts.arrive(window.input, count // 4)
        window.add(_rows(count // 4, seed=number, keys=2 * SCANNED), number, order="arrival")
    keys = np.arange(SCANNED) if hit else np.random.default_rng(1).integers(2 * SCANNED, 1 << 62, SCANNED)
    probes = order(hash_keys([pa.array(keys)]), np.arange(SCANNED))
    return lambda: list(candidates(window, 0, 1 << 60, probes, []))


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


def _store(count: int, batches: int, *, sorted: bool) -> Callable[[], object]:
    """Batches of a few rows go through a window of some of them. No slice of time begins where a batch does."""
    tables = [_rows(16, seed=number) for number in range(count)]
    length = int(times_of(tables[1], _TIME)[0] - times_of(tables[0], _TIME)[0])
    at = tables[0].schema.get_field_index(_TIME)
    shifted = [pa.array(times_of(table, _TIME) + length // 3) for table in tables]
    tables = [table.set_column(at, _TIME, times) for table, times in zip(tables, shifted, strict=True)]

    def work() -> object:
        layout = TimeSlices(span=batches * length, share=SLICES, advance=length)
        window = _window(tables[0].schema, layout)
        for number, table in enumerate(tables):
            window.accounts.arrive(window.input, table.num_rows)
            expire(window, (number - batches) * length, times_of(table, _TIME), None)
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


def _narrow() -> tuple[float, float]:
    """Nanoseconds to find those of a time among the many rows of some keys: whatever the number of rows that are looked
    up, and for each of them. Probes of a run with few keys take so much longer than those of one with many."""

    def narrowing(rows: int) -> float:
        def work(keys: int) -> Callable[[], object]:
            probes, window = (_ordered(_rows(rows, seed=seed, keys=keys)) for seed in (0, 1))
            return lambda: list(pairs(probes, window, _NEVER))

        few, many = (nanoseconds(work(keys), repeats=50) for keys in (rows // (4 * NARROW), rows))
        return max(few - many, 0.0)

    small, large = narrowing(PROBED), narrowing(16 * PROBED)
    near = max(large - small, 0.0) / (15 * PROBED)
    return max(small - PROBED * near, 0.0), near


def _probe_runs(runs: int, *, sorted: bool) -> Callable[[], object]:
    # In each of the runs some keys are found: one without any is left at once, and tells nothing.
    tables = [_rows(2 * PROBED, seed=number, keys=PROBED) for number in range(runs)]
    probes = _ordered(_rows(PROBED, keys=PROBED))
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
