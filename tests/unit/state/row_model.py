"""A store of rows beside a plain model of it: every way in, every way out, and the accounts after each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, concat, data_bytes, hashes_of, numpy_of, sort_by_hash
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.buckets import Buckets
from watersmeet.state.history import held_runs
from watersmeet.state.layouts import Layout
from watersmeet.state.manifest import Manifest, RunEntry
from watersmeet.state.parts import All, Departed, Part, Rows, Whole
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run
from watersmeet.state.space import MemorySpace

BUCKETS = Buckets(4)
SCHEMA = pa.schema([("_hash", pa.uint64()), ("_k0", pa.int64()), ("_p0", pa.int64()), ("_matched", pa.bool_())])
STEP = 1 << 60  # sixteen hashes that are far apart: four in each bucket


@dataclass
class Row:
    """A row of the model. Its key is its name."""

    hash: int
    time: int
    matched: bool = False
    on_disk: bool = False


class Unreadable:
    """Rows that nobody may ask for."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def table(self) -> pa.Table:
        raise AssertionError("a run was read")

    def page(self, index: int) -> pa.Table:
        raise AssertionError("a page was read")


def made(layout: Layout, accounts: Accounts, **options: Any) -> RowStore:
    options = {"flags": ("matched",), "buckets": BUCKETS, **options}
    return RowStore("left", SCHEMA, layout, MemorySpace(), accounts, **options)


class Pair:
    """A store and the model of it."""

    def __init__(self, seed: int, make: Callable[[Accounts], RowStore], *, times: int = 1) -> None:
        self.random, self.make, self.times = Random(seed), make, times
        self.accounts = Accounts(Metrics())
        self.store = make(self.accounts)
        self.model: dict[int, Row] = {}
        self.came: dict[int, int] = {}  # in which batch
        self.batch = self.names = 0

    # -- helpers

    def table(self, names: Sequence[int]) -> pa.Table:
        rows = [self.model[name] for name in names]
        columns = [[row.hash for row in rows], list(names), [row.time for row in rows], [row.matched for row in rows]]
        return sort_by_hash(pa.table(columns, schema=SCHEMA))

    def some(self, count: int) -> Indices:
        """Some numbers below `count`, in any order, some of them twice."""
        chosen = [self.random.randrange(count) for _ in range(self.random.randint(1, max(1, count)))]
        return np.array(chosen, np.int64)

    def parts(self) -> list[Part]:
        store = self.store
        return [*store.parts(), *(page for run in store.spilled for page in store.pages(run))]

    def a_part(self) -> Part | None:
        return self.random.choice(self.parts()) if self.store.runs else None

    def a_run(self, tier: str | None = None) -> Run | None:
        runs = [run for run in self.store.runs if tier is None or run.tier == tier]
        return self.random.choice(runs) if runs else None

    def leave(self, gone: list[Departed], names: set[int], reason: str) -> None:
        """What is handed out is what the model says, with the flags that the rows had, in pieces."""
        found: dict[int, bool] = {}
        for departed in gone:
            assert (departed.input, departed.reason) == ("left", reason)
            for part, rows in departed.pieces(most=3):
                assert 0 < len(rows) <= 3
                taken = part.take(rows)
                assert part.flag("matched", rows).tolist() == taken["_matched"].to_pylist()
                handed = dict(zip(taken["_k0"].to_pylist(), taken["_matched"].to_pylist(), strict=True))
                assert not handed.keys() & found.keys()
                found |= handed
        assert found == {name: self.model[name].matched for name in names}
        for name in names:
            del self.model[name]

    # -- steps

    def add(self) -> None:
        names = list(range(self.names, self.names + self.random.randint(0, 8)))
        self.names += len(names)
        self.came |= dict.fromkeys(names, self.batch)
        for name in names:
            time = self.batch + self.random.randrange(self.times)
            self.model[name] = Row(self.random.randrange(16) * STEP, time, self.random.random() < 0.2)
        self.accounts.arrive("left", len(names))
        self.store.add(self.table(names), self.batch)
        self.batch += 1

    def remove_rows(self) -> None:
        part = self.a_part()
        if part is not None:
            rows = self.some(part.table.num_rows)
            names = set(numpy_of(part.table["_k0"])[rows].tolist()) & self.held_of(part)
            self.leave(self.store.remove(Rows(part, rows), "one_to_many"), names, "one_to_many")

    def remove_whole(self) -> None:
        run = self.a_run()
        if run is not None:
            held = self.held_in(run)
            self.leave(self.store.remove(Whole(run), "punctuation"), held, "punctuation")

    def remove_all(self) -> None:
        if self.random.random() < 0.2:
            held = {name for run in self.store.runs for name in self.held_in(run)}
            self.leave(self.store.remove(All(), "ended"), held, "ended")
            assert not self.model
            assert not self.store.runs

    def held_in(self, run: Run) -> set[int]:
        parts = self.store.parts([run]) if run.tier == "resident" else self.store.pages(run)
        return {name for part in parts for name in self.held_of(part)}

    def held_of(self, part: Part) -> set[int]:
        """The rows of a part that have not left one by one; they may be behind a horizon."""
        dead = self.store.marks["dead"].test(part.run, np.arange(part.table.num_rows) + part.base)
        return set(numpy_of(part.table["_k0"])[~dead].tolist()) & self.model.keys()

    def mark(self) -> None:
        part = self.a_part()
        if part is not None and part.table.num_rows:
            rows = self.some(part.table.num_rows)
            alive = part.alive(rows)
            rows = rows if alive is None else rows[alive]
            names = numpy_of(part.table["_k0"])
            new = {int(names[row]) for row in rows if not self.model[int(names[row])].matched}
            assert set(names[self.store.mark(part, "matched", rows)].tolist()) == new
            for name in new:
                self.model[name].matched = True

    def settle(self) -> None:
        self.store.settle()

    def settle_tight(self) -> None:
        self.store.settle(tight=True)
        assert not any(
            part.living is not None and len(part.living) < part.table.num_rows for part in self.store.parts()
        )

    def reload(self) -> None:
        """Save changes nothing; a store that takes it up reads nothing and goes on as if nothing had happened."""
        self.store.settle()
        runs, held = self.store.runs, self.accounts.save()
        state, again = self.store.save(), self.store.save()
        assert (state.runs, state.values, state.rows) == (again.runs, again.values, again.rows) == (runs, *_of(state))
        assert self.accounts.save() == held
        unread = [replace(run, data=Unreadable(run.stored_rows)) for run in state.runs]
        tables = {name: replace(table, data=Unreadable(table.rows)) for name, table in state.tables.items()}
        accounts = Accounts(Metrics())
        accounts.restore(held)
        blind = self.make(accounts)
        blind.restore(replace(state, runs=unread, tables=tables))
        assert (blind.rows, blind.resident_rows, blind.nbytes) == (
            state.rows,
            self.store.resident_rows,
            self.store.nbytes,
        )
        fresh = self.make(accounts)
        fresh.restore(state)
        self.store, self.accounts = fresh, accounts

    def check(self) -> None:
        """The store and the accounts equal the model."""
        for on_disk in (False, True):
            expected = {name: row.matched for name, row in self.model.items() if row.on_disk == on_disk}
            assert self.found(on_disk=on_disk) == expected
        disk = sum(row.on_disk for row in self.model.values())
        store = self.store
        assert (store.rows, store.held) == (len(self.model), len(self.model))
        assert (store.resident_rows, store.spilled_rows) == (len(self.model) - disk, disk)
        assert self.accounts.held("left") == len(self.model)
        for part in self.parts():
            came = [self.came[name] for name in part.table["_k0"].to_pylist()]
            assert part.run.oldest <= min(came) <= max(came) <= part.run.newest
        self.check_bytes()
        self.check_from_outside(disk)

    def check_from_outside(self, disk: int) -> None:
        """Who has but the manifest counts the same."""
        saved = self.store.save()
        runs = [RunEntry.of(run, "", 0, "", "") for run in saved.runs]
        stores = [{"name": saved.name, "input": saved.input, "rows": saved.rows, "values": saved.values}]
        held = {"resident": 0, "spilled": 0}
        for _, run, alive in held_runs(Manifest(0, 0, "q", "", runs=runs, stores=stores)):
            assert 0 <= alive <= run.rows
            held[run.tier] += alive
        assert held == {"resident": len(self.model) - disk, "spilled": disk}

    def check_bytes(self) -> None:
        store, saved = self.store, self.store.save()
        resident = sum(data_bytes(part.table) for part in store.parts())
        assert store.nbytes >= resident + sum(table.nbytes for table in saved.tables.values())
        assert sum(run.nbytes for run in store.resident) == resident
        assert store.spilled_bytes == sum(run.nbytes for run in store.spilled)
        if store.counts_buckets:
            tables = [part.take(part.living) for part in store.parts()]
            counts = BUCKETS.counts(np.sort(hashes_of(concat(tables, SCHEMA))))
            assert store.bucket_rows.tolist() == counts.tolist()

    def found(self, *, on_disk: bool) -> dict[int, bool]:
        rows: list[tuple[int, bool]] = []
        for part in self.parts():
            if (part.run.tier == "spilled") == on_disk:
                table = part.take(part.living)
                rows += zip(table["_k0"].to_pylist(), table["_matched"].to_pylist(), strict=True)
        assert len(rows) == len(dict(rows)), "a row is stored twice"
        return dict(rows)

    def run(self, steps: Sequence[Callable[[], None]], count: int) -> None:
        for _ in range(count):
            self.random.choice(steps)()
            self.check()


def _of(state: Any) -> tuple[dict[str, Any], int]:
    return state.values, state.rows
