"""Rows that time has made useless: stored ones before the horizon, and new ones that come behind it.

A run that lies wholly before the horizon leaves unread, and of the others what is before it is dropped when they are
rewritten. Where unmatched rows are wanted, they must leave in the batch in which the horizon passes them. The horizon
spends many batches inside one run; to look through all of the run in each of them would cost in proportion to the
state. So the batch in which it enters a run puts down the run's unmatched rows in the order of their times, and each
batch takes the next ones from there:

    times of a run      3 9 5 7 4 8      departures   0 4 2 3 1       row 5 has matched
    horizon 5 -> 8                                      ^^^^^         rows 2 and 3 leave, if they are unmatched still
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import xxhash

from watersmeet.columns.arrow import Hashes, Indices, concat, numpy_of
from watersmeet.columns.saturating import Times
from watersmeet.join.join_type import MATCHED
from watersmeet.join.victims import Victims
from watersmeet.plan.metrics import Metrics
from watersmeet.state.parts import Before, Departed, Part, Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon, Mask
from watersmeet.state.run import Run

SCANNED_ROWS = 1 << 16  # a run of so many rows is looked through in less time than its departures are put down
DEPARTURES = "departures"
FLUSH_SHARE = 0.25  # of the budget that a flush by buckets frees at least: runs with marks are rewritten for it


def expire(store: RowStore, horizon: int | None, new: Times, bound: int | None) -> tuple[Mask, list[Departed]]:
    """Move a store's horizon; returns which of the new rows are not behind it, and the runs that left.

    The new rows behind it have left, too.
    """
    gone = [] if horizon is None else store.remove(Before(horizon), "expired")
    useful = np.ones(len(new), np.bool_)
    for reason, mask in behind(store, new, bound).items():
        store.accounts.leave(store.input, reason, int(np.count_nonzero(mask)))
        useful &= ~mask
    return useful, gone


def behind(store: RowStore, new: Times, bound: int | None) -> dict[str, Mask]:
    """New rows behind a store's horizon, by the reason to leave.

    `bound` is the time before which the input's rows counted as late when they came: those leave as late, the others
    as expired, because the other inputs are ahead of them.
    """
    assert isinstance(store.rule, Horizon)
    if store.rule.time is None:
        return {}
    before = new < store.rule.time
    late = before if bound is None else before & (new < bound)
    return {"expired": before} if bound is None else {"late": late, "expired": before & ~late}


def inherit_horizon(store: RowStore, former: Sequence[RowStore]) -> None:
    """The earliest of the horizons of former partitions. What was behind its own has left already."""
    assert isinstance(store.rule, Horizon)
    rules = [one.rule for one in former if isinstance(one.rule, Horizon)]
    times = [rule.time for rule in rules if rule.time is not None]
    store.rule.time = min(times) if len(times) == len(rules) else None
    store.rule.reason = rules[0].reason


def passed(store: RowStore, before: int | None) -> Iterator[Departed]:
    """Unmatched rows of runs that lie partly behind the horizon leave; `before` is where the horizon was."""
    assert isinstance(store.rule, Horizon)
    horizon = store.rule.time
    if horizon is None or horizon == before:
        return
    for run in store.runs:
        if run.time_from is None or run.time_from >= horizon:
            continue
        if run.tier == "spilled":
            yield from _passed_on_disk(store, run, horizon)
            continue
        for part in store.parts([run]):
            rows = _passed(store, part, before, horizon)
            if len(rows):
                yield from store.remove(Rows(part, rows), "expired")


def expiring(store: RowStore, keys: Hashes, before: int | None, horizon: int) -> Iterator[tuple[Part, Indices]]:
    """Rows of some sorted keys that expire when the horizon moves, and not for another reason, in memory and on disk.
    To be asked for before it moves; `before` is where it is."""
    buckets = None if store.buckets is None else np.unique(store.buckets.of(keys)).tolist()
    for run in store.runs:
        if run.time_from is None or run.time_to is None or run.time_from >= horizon:
            continue
        if before is not None and run.time_to < before:
            continue
        for part in store.pages(run, buckets) if run.tier == "spilled" else store.parts([run]):
            rows = _expiring(store, part, keys, before, horizon)
            if len(rows):
                yield part, rows


def _expiring(store: RowStore, part: Part, keys: Hashes, before: int | None, horizon: int) -> Indices:
    """Those of a part. Of a large run, in which the horizon stays, their order is put down once for these keys, which
    seldom change."""
    run = part.run
    leaves = run.time_to is None or run.time_to < horizon
    if leaves or run.tier == "spilled" or run.stored_rows <= SCANNED_ROWS or run.live is not None:
        rows = part.of_keys(keys)
        return rows[part.times[rows] < horizon]
    name = f"{DEPARTURES}-{xxhash.xxh64_hexdigest(keys.tobytes())}"
    rows = _taken(part, store.side(run, name, lambda: _in_order(part, part.of_keys(keys))), before, horizon)
    alive = part.alive(rows)
    return rows if alive is None else rows[alive]


def _passed(store: RowStore, part: Part, before: int | None, horizon: int) -> Indices:
    """Unmatched rows with times from `before` to the horizon."""
    times, run = part.times, part.run
    if run.stored_rows <= SCANNED_ROWS or run.live is not None:  # row numbers are those of one part
        rows = np.flatnonzero(times < horizon if before is None else (times < horizon) & (times >= before))
        return _unmatched(store, part, rows)
    departures = store.side(run, DEPARTURES, lambda: _departures(store, part))
    return _unmatched(store, part, _taken(part, departures, before, horizon))


def _departures(store: RowStore, part: Part) -> pa.Table:
    return _in_order(part, _unmatched(store, part, np.arange(part.table.num_rows)))


def _in_order(part: Part, rows: Indices) -> pa.Table:
    """Rows in the order of their times."""
    rows = rows[np.argsort(part.times[rows], kind="stable")]
    return pa.table({"_row": pa.array(rows.astype(np.uint32))})


def _taken(part: Part, departures: pa.Table, before: int | None, horizon: int) -> Indices:
    """Those of rows in such an order that have times from `before` to the horizon, as they lie."""
    order, times = numpy_of(departures.column(0)), part.times
    low, high = (
        0 if end is None else bisect_left(order, end, key=lambda row: int(times[row])) for end in (before, horizon)
    )
    return np.sort(order[low:high]).astype(np.int64)


def _unmatched(store: RowStore, part: Part, rows: Indices) -> Indices:
    return rows[~part.flag(MATCHED, rows)] if store.flags else rows


def _passed_on_disk(store: RowStore, run: Run, horizon: int) -> Iterator[Departed]:
    """What is unmatched of a run on disk leaves, or comes back to memory until it does: its pages are in the order of
    the hash, so that each further batch would read all of them again."""
    if store.has_side(run, DEPARTURES):
        return
    back: list[pa.Table] = []
    for part in store.pages(run):
        unmatched = _unmatched(store, part, part.undead)
        passed = part.times[unmatched] < horizon
        yield from store.remove(Rows(part, unmatched[passed]), "expired")
        if not passed.all():
            back.append(store.hand_over(part, unmatched[~passed]))
    store.side(run, DEPARTURES, lambda: pa.table({"_row": pa.array([], pa.uint32())}))
    store.add(concat(back, store.schema).combine_chunks(), run.newest, oldest=run.oldest)


def spill_victims(
    stores: Mapping[str, RowStore],
    memory: int,
    victims: Victims,
    ended: Collection[int],
    metrics: Metrics,
    preserved: Collection[str] = (),
) -> None:
    """Move the buckets to disk that a policy names, if the rows in memory are more than the budget. They are probed
    there, so that nothing is owed to them.

    Of `preserved` inputs, runs that the horizon has entered stay: see `spill_soonest`.
    """
    size = sum(store.nbytes for store in stores.values())
    if size <= memory:
        return
    for store in stores.values():
        for run in store.resident:
            if run.order != "hash":  # from before there was a policy
                store.reorder(run)
    sizes = np.stack([store.bucket_bytes() for store in stores.values()])
    chosen = victims.choose(sizes, max(size - memory, round(FLUSH_SHARE * memory)), ended)
    for (name, store), buckets in zip(stores.items(), chosen, strict=True):
        rows = store.spill_buckets(buckets, partial(_departs, store, preserved))
        if rows:
            metrics.count("runs_flushed")
            metrics.count("rows_flushed", rows)
            metrics.event("flush", input=name, rows=rows, buckets=len(buckets))
            metrics.count("rows_rewritten", store.settle())


def _departs(store: RowStore, preserved: Collection[str], run: Run) -> bool:
    """Whether unmatched rows of a run are about to be emitted: the horizon is inside of the time that its slice spans.
    What is left of a slice that came back from disk begins behind the horizon."""
    if store.input not in preserved or not isinstance(store.rule, Horizon) or store.rule.time is None:
        return False
    return run.slot * run.width < store.rule.time or not store.rule.spares(run)


def spill_soonest(
    stores: Mapping[str, RowStore],
    memory: int,
    horizons: Mapping[str, int | None],
    metrics: Metrics,
    preserved: Collection[str] = (),
) -> None:
    """Move runs to disk until the rows in memory are within the budget: those first that expire soonest, as they will
    be probed the fewest times. Rows of an input without a horizon wait for one not yet seen, and are not probed at all.

    Of `preserved` inputs, runs that the horizon has entered go last: their unmatched rows are about to be emitted, and
    would have to be read for that. If these alone are more than the budget, what is left of them is read and spilled
    again in every batch that emits some.
    """

    def life(name: str, run: Run) -> int:
        horizon = horizons[name]
        return -1 if horizon is None else (run.time_to or 0) - horizon

    def departs(name: str, run: Run) -> bool:
        return _departs(stores[name], preserved, run)

    while sum(store.nbytes for store in stores.values()) > memory:
        resident = [(name, run) for name, store in stores.items() for run in store.resident]
        if not resident:
            break
        name, run = min(resident, key=lambda one: (departs(*one), life(*one), one[1].time_from, one[1].rows, one[0]))
        metrics.count("runs_flushed")
        metrics.count("rows_flushed", run.rows)
        stores[name].spill_run(run)
        metrics.count("rows_rewritten", stores[name].settle())
