"""Dividing rows by reference: a partition takes up the runs of a former one, and rows that are not its own are dead.

    run of partition 0 of 2     a b c d e f g h         one file, immutable
    taken up by 0 of 4          a . c d . . g .         the same file, and a bitmap: an eighth of a byte per row
    taken up by 2 of 4          . b . . e f . h

Whoever finds a row minds whether it is dead, and so does all that goes through rows (merging, spilling, leaving). Rows
of other partitions do not count as a reason to rewrite a run (`Run.foreign`): they are left behind when it is merged
for some other reason, so no batch pays for the division. After several divisions a partition may have one file in
several runs, each with rows of another origin: no row is alive in two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from watersmeet.columns.arrow import Hashes, hashes_of
from watersmeet.columns.partitions import Mask, Partition
from watersmeet.state.parts import DEAD
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.run import InMemory, Run

Facts = Callable[[Run], dict[str, Any]]  # what is to change of what is known of a run


def unchanged(_run: Run) -> dict[str, Any]:
    """Nothing."""
    return {}


def inherit(
    store: RowStore,
    other: RowStore,
    heir: Partition,
    origin: Partition,
    facts: Facts = unchanged,
    wanted: Callable[[Run], bool] = lambda _: True,
) -> dict[int, int]:
    """Take up the rows of a former partition's store that now belong here; returns the new numbers of its runs.

    `facts` change what is known of a run on the way; `wanted` says which. Rows that a horizon has passed have
    no future: they leave here, whatever the horizon of the heir will be.
    """
    numbers = {}
    for run in filter(wanted, other.runs):
        hashes, mine, expired = _divided(other, run, heir, origin)
        if isinstance(run.data, InMemory):  # there is no file to share
            if (number := _copy(store, other, run, mine, facts(run))) is not None:
                numbers[run.id] = number
            continue
        inside = _inside(run)
        dead = np.zeros(len(hashes), np.bool_)
        dead[other.marks[DEAD].rows(run)] = True
        alive = inside & mine & ~dead & ~expired
        store.accounts.leave(store.input, _reason(other), int(np.count_nonzero(inside & mine & ~dead & expired)))
        if not alive.any():
            continue
        taken = _without_empty_buckets(run, alive)
        inside = _inside(taken)
        foreign = int(np.count_nonzero(inside & ~mine))
        share = (taken.rows - foreign) / max(run.own, 1)
        known: dict[str, Any] = {
            "nbytes": int(run.nbytes * share),
            "keys": max(int(run.keys * share), 1),
            "foreign": foreign,
            **facts(run),
        }
        taken = replace(taken, **known)
        flagged = {}
        for flag in store.flags:
            rows = other.marks[flag].rows(run)
            flagged[flag] = rows[alive[rows]]
        numbers[run.id] = store.enter(taken, hashes, np.flatnonzero(inside & ~alive), flagged, other.sides(run))
    for marks in store.marks.values():
        marks.settle({run.id: run for run in store.runs})
    return numbers


def _divided(other: RowStore, run: Run, heir: Partition, origin: Partition) -> tuple[Hashes, Mask, Mask]:
    """The hashes of a run's rows, and which of them belong to the heir, and which have expired."""
    hashes = np.zeros(run.stored_rows, np.uint64)
    expired = np.zeros(run.stored_rows, np.bool_)
    rule = other.rule if isinstance(other.rule, Horizon) and not other.rule.spares(run) else None
    for part in other.parts([run]) if run.tier == "resident" else other.pages(run):
        stretch = slice(part.base, part.base + part.table.num_rows)
        hashes[stretch] = part.hashes
        if rule is not None:
            expired[stretch] = ~rule.alive(run, part.table)
    return hashes, heir.owns(hashes) & origin.owns(hashes), expired


def _copy(store: RowStore, other: RowStore, run: Run, mine: Mask, facts: dict[str, Any]) -> int | None:
    """Store the rows that belong to the heir; returns the number of their run, if they are on disk."""
    parts = other.parts([run]) if run.tier == "resident" else other.pages(run)
    tables = []
    for part in parts:
        living = np.arange(part.table.num_rows) if part.living is None else part.living
        tables.append(part.take(living[mine[part.base + living]]))
    if run.tier == "resident":
        for rows in tables:
            store.add(rows, run.newest, oldest=run.oldest, order=run.order, level=run.level)
        return None
    buckets = store.buckets
    assert buckets is not None
    pages = [(int(buckets.of(hashes_of(rows)[:1])[0]), rows) for rows in tables if rows.num_rows]
    kept = {name: getattr(run, name) for name in ("level", "slot", "width", "time_from", "time_to", "keys")} | facts
    return store.spill(iter(pages), oldest=run.oldest, newest=run.newest, **kept).id if pages else None


def _reason(other: RowStore) -> str:
    return other.rule.reason if other.rule is not None else "expired"


def _inside(run: Run) -> Mask:
    """The rows of the file that the run still has."""
    inside = np.full(run.stored_rows, run.live is None)
    for start, stop in run.live or ():
        inside[start:stop] = True
    return inside


def _without_empty_buckets(run: Run, alive: Mask) -> Run:
    """A run on disk less the buckets of which nothing is wanted, so that nobody waits for them."""
    empty = [
        (place.start, place.start + place.rows)
        for place in run.places.values()
        if not alive[place.start : place.start + place.rows].any()
    ]
    return run.without(empty) if empty else run
