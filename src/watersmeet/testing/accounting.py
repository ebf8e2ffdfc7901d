"""The laws of accounting: what an operator says it holds is what lies in its stores, counted again row by row.

    every row        rows that came = rows held + rows that left, by reason
    every run        rows, bytes, pages, marks, buckets, times and hashes are what a recount finds
    the budget       rows in memory, with their marks and orders, take no more than allowed
    an ended input   rows that only waited for it leave in the batch of its end
    saving           is pure: nothing leaves, and nothing is different afterwards

All of it holds after every batch, for every operator. Shares no code with the stores but for reading their rows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from watersmeet.columns.arrow import data_bytes, hashes_of, times_of
from watersmeet.join.operator import Operator, OperatorState, saved
from watersmeet.state.manifest import digest_of
from watersmeet.state.parts import DEAD, Part
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.run import Run
from watersmeet.testing.arrivals import Script

Contents = Counter[tuple[Any, ...]]


def came(script: Script, batches: int, name: str) -> int:
    """Rows of an input in the first so many batches of a script."""
    return sum(len(arrival.rows.get(name, ())) for arrival in script[:batches])


def check(operator: Operator, script: Script, batches: int) -> None:
    """All laws, after so many batches of a script."""
    check_rows(operator, {spec.name: came(script, batches, spec.name) for spec in operator.plan.inputs})
    for store in operator.row_stores():
        check_store(store)
    check_budget(operator)
    check_ended(operator)
    check_save(operator)
    if operator.finished:
        check_finished(operator)


def check_rows(operator: Operator, came: dict[str, int]) -> None:
    """Rows that came are held or have left for a reason."""
    stores = list(operator.row_stores())
    for name, rows in came.items():
        accounts = operator.accounts
        assert accounts.came.get(name, 0) == rows, f"{name}: {accounts.came.get(name, 0)} of {rows} rows came"
        held = sum(store.held for store in stores if store.input == name)
        left = accounts.left.get(name, {})
        assert rows == held + sum(left.values()), f"{name}: {rows} rows came, {held} are held, {left} have left"


def check_store(store: RowStore) -> None:
    """What a store says of its runs, counted again."""
    living = {run.id: [_living(part) for part in parts_of(store, run)] for run in store.runs}
    for run in store.runs:
        _check_run(store, run)
        marked = sum(len(rows) for rows in _marked(store, run).values())
        assert store.alive(run) == run.rows - marked, f"{run.id}: {store.alive(run)} alive, {marked} marked"
    for flag, marks in store.marks.items():
        gone = set(marks.save()[1]) - {str(run.id) for run in store.runs}
        assert not gone, f"{store.name}: marks ({flag}) of runs that are gone: {gone}"
    alive = sum(len(rows) for parts in living.values() for rows in parts)
    if store.rule is None or not isinstance(store.rule, Horizon):
        assert store.held == alive, f"{store.name}: {store.held} held, {alive} alive"
    else:  # a row behind the horizon is held until its run is rewritten
        assert store.held >= alive, f"{store.name}: {store.held} held, {alive} alive"
    if store.counts_buckets and store.buckets is not None:
        counts = np.zeros(store.buckets.count, np.int64)
        for run in store.resident:
            for part, rows in zip(parts_of(store, run), living[run.id], strict=True):
                counts += np.bincount(store.buckets.of(hashes_of(part.table)[rows]), minlength=len(counts))
        assert counts.tolist() == store.bucket_rows.tolist(), f"{store.name}: rows per bucket"


def _check_run(store: RowStore, run: Run) -> None:
    """Rows, bytes, pages, order and times."""
    who = f"{store.name}, run {run.id}"
    assert run.label == store.name, who
    parts = list(parts_of(store, run))
    assert run.rows == sum(part.table.num_rows for part in parts) > 0, f"{who}: rows"
    hashes = np.concatenate([hashes_of(part.table) for part in parts])
    if run.order == "hash":
        assert np.all(hashes[1:] >= hashes[:-1]), f"{who}: order"
    if run.tier == "resident":
        assert run.nbytes == sum(data_bytes(part.table) for part in parts), f"{who}: bytes"
    else:
        assert sum(share.rows for share in run.shares) == run.stored_rows, f"{who}: shares"
        assert sum(place.rows for place in run.places.values()) == run.rows, f"{who}: places"
        assert store.buckets is not None
        for part in parts:
            found = np.unique(store.buckets.of(hashes_of(part.table)))
            assert len(found) == 1, f"{who}: a page of the buckets {found}"
            place = run.places[int(found[0])]
            assert place.start <= part.base < place.start + place.rows, f"{who}: pages"
    if run.live is None:
        assert run.hash_sum == int(hashes.sum(dtype=np.uint64)), f"{who}: sum of hashes"
    if store.time is not None:
        times = np.concatenate([times_of(part.table, store.time) for part in parts])
        assert run.time_from is not None, who
        assert run.time_to is not None, who
        assert run.time_from <= times.min(), f"{who}: times"
        assert times.max() <= run.time_to, f"{who}: times"


def _marked(store: RowStore, run: Run) -> dict[int, np.ndarray[Any, Any]]:
    """The dead rows of each part of a run, by the number of its first row; checks the counts of all flags."""
    found: dict[int, np.ndarray[Any, Any]] = {}
    for flag, marks in store.marks.items():
        rows, total, seen = marks.rows(run), 0, 0
        assert marks.count(run) == len(rows), f"{store.name}, run {run.id}: {flag} counts"
        for part in parts_of(store, run):
            inside = rows[(rows >= part.base) & (rows < part.base + part.table.num_rows)] - part.base
            seen += len(inside)
            total += int(hashes_of(part.table)[inside].sum(dtype=np.uint64))
            if flag == DEAD:
                found[part.base] = inside
        assert seen == len(rows), f"{store.name}, run {run.id}: {flag} marks outside the live ranges"
        if len(rows):
            assert marks.save()[1][str(run.id)] == [seen, total % (1 << 64)], f"{store.name}, run {run.id}: {flag} sums"
    return found


def parts_of(store: RowStore, run: Run) -> list[Part]:
    """All that is there of a run, in memory or on disk."""
    return list(store.parts([run]) if run.tier == "resident" else store.pages(run))


def _living(part: Part) -> np.ndarray[Any, Any]:
    return np.arange(part.table.num_rows) if part.living is None else part.living


def contents(store: RowStore) -> Contents:
    """The living rows of a store, with their flags as they are now."""
    found: Contents = Counter()
    for run in store.runs:
        for part in parts_of(store, run):
            columns = [[repr(value) for value in column.to_pylist()] for column in part.take(part.living).columns]
            found.update(zip(*columns, strict=True))
    return found


def check_budget(operator: Operator) -> None:
    """Rows in memory, their marks and orders are within the budget of the plan."""
    tuning = operator.plan.tuning
    state = saved(operator)
    if tuning.get("memory_rows") is not None:
        rows = sum(store.resident_rows for store in operator.row_stores())
        assert rows <= tuning["memory_rows"], f"{rows} rows in memory"
    elif tuning.get("memory") is not None:
        assert resident_bytes(state) <= tuning["memory"], f"{resident_bytes(state)} bytes in memory"


def resident_bytes(state: OperatorState) -> int:
    """What the stores have in memory."""
    beside = sum(table.nbytes for store in state.stores for table in store.tables.values())
    return beside + sum(run.nbytes for run in state.runs if run.tier == "resident")


def check_ended(operator: Operator) -> None:
    """Once all other inputs have ended, an input's rows are held only for rows of theirs that are on disk or wait."""
    names = [spec.name for spec in operator.plan.inputs]
    stores = list(operator.row_stores())
    for name in names:
        others = [store for store in stores if store.input != name and store.input in names]
        if len(names) == 1 or not all(store.input in operator.ended for store in others):
            continue
        if any(store.rows for store in others if store.name != store.input):
            continue  # rows of an ended input have not been processed: a quota holds them back
        for store in stores:
            if store.name != name:
                continue  # of another input, or itself not processed
            owed = [other for other in others if other.spilled]
            if not owed:
                assert store.resident_rows == 0, f"{store.name}: {store.resident_rows} rows are held for nothing"
            elif store.counts_buckets:
                idle = np.flatnonzero(np.sum([other.disk_rows() for other in owed], axis=0) == 0)
                held = int(store.bucket_rows[idle].sum())
                assert held == 0, f"{store.name}: {held} rows are held for nothing"


def check_save(operator: Operator) -> None:
    """Saving twice gives the same, and changes neither accounts nor metrics."""
    accounts, metrics = operator.accounts.save(), operator.metrics.as_dict()
    held = [store.held for store in operator.row_stores()]
    first = saved(operator)
    second = saved(operator)
    assert digest_of(first, metrics) == digest_of(second, metrics), "a second save differs"
    assert operator.accounts.save() == accounts, "rows left when the state was saved"
    assert operator.metrics.as_dict() == metrics, "something was counted when the state was saved"
    assert [store.held for store in operator.row_stores()] == held, "rows went when the state was saved"


def check_finished(operator: Operator) -> None:
    """Nothing is left."""
    state = saved(operator)
    assert not any(store.held for store in operator.row_stores())
    assert not state.runs, f"{len(state.runs)} runs after the end"
    assert not state.side_tables, f"{len(state.side_tables)} tables after the end"
