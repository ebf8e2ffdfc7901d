"""The laws of accounting: what an operator says it holds is what lies in its stores, counted again row by row.

    every row        rows that came = rows held + rows that left, by reason
    every run        rows, bytes, pages, marks, buckets, times and hashes are what a recount finds
    the budget       rows in memory, with their marks and orders, take no more than allowed
    an ended input   rows that only waited for it leave in the batch of its end
    saving           is pure: nothing leaves, and nothing is different afterwards
    join types       rows that came = rows that have matched + rows emitted unmatched + rows held that have not matched;
                     a row emitted as unmatched never matches, before or after (`Emitted`)

All of it holds after every batch, for every operator. Shares no code with the stores but for reading their rows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from watersmeet.columns.arrow import data_bytes, hashes_of, times_of
from watersmeet.join.binary import BinaryJoin
from watersmeet.join.join_type import MATCHED
from watersmeet.join.operator import Operator, OperatorState, saved
from watersmeet.plan import JoinPlan
from watersmeet.state.manifest import digest_of
from watersmeet.state.parts import DEAD, Part
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.run import Run
from watersmeet.testing.arrivals import Arrival, Row, Script

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


class Emitted:
    """What a join of two inputs has emitted, and the laws of its type. A row is told by its payload."""

    def __init__(self, plan: JoinPlan) -> None:
        self.how, (self.left, self.right) = plan.how, (spec.name for spec in plan.inputs)
        keys = self._keys = len(plan.inputs[0].keys)
        middle = keys + len(plan.inputs[0].payload)
        self._places = {self.left: slice(keys, middle)}
        if self.how not in ("left_semi", "left_anti"):
            self._places[self.right] = slice(middle, middle + len(plan.inputs[1].payload))
        self.preserved = {"left": {self.left}, "right": {self.right}, "full": {self.left, self.right}}.get(
            self.how, {self.left} if self.how == "left_anti" else set()
        )
        self.came: dict[str, Counter[Row]] = {name: Counter() for name in (self.left, self.right)}
        self.matched: dict[str, set[Row]] = {name: set() for name in self.came}
        self.alone: dict[str, Counter[Row]] = {name: Counter() for name in self.came}

    def check(self, operator: BinaryJoin, arrival: Arrival, output: Counter[Row]) -> None:
        """The laws, after a batch and its output."""
        for name, rows in arrival.rows.items():
            self.came[name].update(tuple(row[self._keys :]) for row in rows)
        alone = self._note(output)
        counters = operator.metrics.counters
        for name in self.came:
            proofs = {key: int(count) for key, count in counters.items() if key.startswith(f"unmatched.{name}.")}
            assert sum(proofs.values()) == alone[name], f"{name}: {alone[name]} emitted as unmatched, counted {proofs}"
            for key, count in proofs.items():
                left = counters.get(key.replace("unmatched.", "left.", 1), 0)
                assert count <= left, f"{key}: {count} emitted, {left} left"
            again = self.matched[name] & set(self.alone[name])
            assert not again, f"{name}: emitted as unmatched and as matched: {again}"
            assert self.alone[name] <= self.came[name], f"{name}: emitted more than once"
        if self.how in ("left_semi", "left_anti"):
            self._check_once(operator)
        for name in self.preserved - ({self.left} if self.how == "left_anti" else set()):
            self._check_preserved(operator, name)

    def _note(self, output: Counter[Row]) -> Counter[str]:
        """Sort the rows of a batch into pairs and single rows; returns how many single ones there are of each input."""
        alone: Counter[str] = Counter()
        for row, count in output.items():
            found = {name: row[place] for name, place in self._places.items() if row[place.start] is not None}
            single = len(found) == 1 and self.how != "left_semi"
            for name, payload in found.items():
                if single:
                    alone[name] += count
                    self.alone[name][payload] += count
                else:
                    self.matched[name].add(payload)
        return alone

    def _check_preserved(self, operator: BinaryJoin, name: str) -> None:
        """Rows that came have matched, were emitted as unmatched, or are held and have not matched."""
        matched = sum(count for payload, count in self.came[name].items() if payload in self.matched[name])
        unmatched, waiting = self.alone[name].total(), _held(operator, name, matched=False)
        dropped = sum(operator.accounts.left.get(name, {}).get(reason, 0) for reason in _dropped(operator))
        came = self.came[name].total()
        assert came == matched + unmatched + waiting + dropped, (
            f"{name}: {came} rows came, {matched} have matched, {unmatched} were emitted as unmatched, "
            f"{waiting} are held and have not matched"
        )

    def _check_once(self, operator: BinaryJoin) -> None:
        """A left row of a semi or anti join leaves because it has matched, or because it never will."""
        left = dict(operator.accounts.left.get(self.left, {}))
        gone = left.pop("matched", 0)
        if self.how == "left_anti":
            for reason in _dropped(operator):
                left.pop(reason, 0)
            assert self.alone[self.left].total() == sum(left.values()), f"{self.left}: unmatched rows, and {left}"
            return
        emitted = sum(count for payload, count in self.came[self.left].items() if payload in self.matched[self.left])
        marked = _held(operator, self.left, matched=True)  # on disk: they leave when they are read
        assert emitted == gone + marked, f"{self.left}: {emitted} emitted, {gone} left, {marked} marked"


def _dropped(operator: BinaryJoin) -> list[str]:
    """The reasons for which rows leave before they are joined, and are not emitted."""
    return ["violation", *(["late"] if operator.prologue.drop_late else [])]


def _held(operator: Operator, name: str, *, matched: bool) -> int:
    """The living rows of an input that have matched, or have not."""
    found = 0
    for store in operator.row_stores():
        for run in store.runs if store.input == name else ():
            for part in parts_of(store, run):
                rows = _living(part)
                flags = part.flag(MATCHED, rows) if MATCHED in store.flags else np.zeros(len(rows), np.bool_)
                found += int(np.count_nonzero(flags == matched))
    return found


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
        nbytes = sum(data_bytes(part.table) for part in parts)  # shared with others, as a share of the rows
        assert run.nbytes <= nbytes if run.foreign else run.nbytes == nbytes, f"{who}: bytes"
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
        # Buckets of a run on disk may be released with the marks in them.
        assert seen == len(rows) or run.tier == "spilled", f"{store.name}, run {run.id}: {flag} marks outside"
        if len(rows) == seen > 0:
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
        if name in operator.plan.options.get("optional", ()) and name not in operator.ended:
            continue  # what it has decides which combinations lack it
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
