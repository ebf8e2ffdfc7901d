"""The store of rows against a plain model: every way in, every way out, every move, and the accounts after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.columns.arrow import Indices, concat, data_bytes, hashes_of, merge_by_hash, numpy_of, sort_by_hash
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import FewRuns, HashTiers, Layout, SizeTiers, TimeSlices
from watersmeet.state.parts import All, Before, ByRule, Departed, InBuckets, Part, Rows, Whole
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import ChunksRead, Horizon
from watersmeet.state.run import Run
from watersmeet.state.space import MemorySpace, cut_into_pages

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


class Moving(Pair):
    """With buckets that are moved to disk and back."""

    def remove_in_buckets(self) -> None:
        buckets = sorted({self.random.randrange(4) for _ in range(2)})
        names = {
            name
            for name, row in self.model.items()
            if not row.on_disk and int(BUCKETS.of(np.array([row.hash], np.uint64))[0]) in buckets
        }
        self.leave(self.store.remove(InBuckets(buckets), "ended"), names, "ended")

    def flush(self) -> None:
        """Take some buckets out of memory and write them to disk."""
        taken = self.store.take(sorted({self.random.randrange(4) for _ in range(2)}))
        tables = [(bucket, merge_by_hash(tables)) for bucket, tables in sorted(taken.items()) if tables]
        for _, table in tables:
            self.moved(table, on_disk=True)
        if tables:
            self.store.spill(iter(tables), oldest=0, newest=self.batch)

    def moved(self, table: pa.Table, *, on_disk: bool) -> None:
        """Rows that are moved have the flags of now."""
        names = table["_k0"].to_pylist()
        assert table["_matched"].to_pylist() == [self.model[name].matched for name in names]
        for name in names:
            self.model[name].on_disk = on_disk

    def hand_over(self) -> None:
        parts = [part for part in self.store.parts() if part.living is None or len(part.living)]
        if parts:
            part = self.random.choice(parts)
            living = np.arange(part.table.num_rows) if part.living is None else part.living
            taken = self.store.hand_over(part, living[: self.random.randint(1, len(living))])
            self.moved(taken, on_disk=False)
            self.store.add(taken, self.batch, oldest=part.run.oldest, level=part.run.level)

    def drain(self) -> None:
        drained = self.store.drain()
        assert not self.store.resident
        assert hashes_of(drained).tolist() == sorted(hashes_of(drained).tolist())
        self.moved(drained, on_disk=False)
        self.store.add(drained, self.batch, oldest=0)

    def spill_run(self) -> None:
        run = self.a_run("resident")
        if run is not None:
            for name in self.held_in(run):
                self.model[name].on_disk = True
            self.store.spill_run(run)

    def rewrite(self) -> None:
        """The living rows of a run on disk are written anew, as a join does that merges runs itself."""
        run = self.a_run("spilled")
        if run is not None:
            tables = [part.take(part.living) for part in self.store.pages(run)]
            table = merge_by_hash([SCHEMA.empty_table(), *tables])
            if table.num_rows:
                writer = self.store.writer()
                for bucket, page in cut_into_pages(table, BUCKETS, 3):
                    writer.add(bucket, page)
                self.store.adopt(writer, oldest=run.oldest, newest=run.newest)
            self.store.retire([run])

    def release(self) -> None:
        """A bucket comes back from disk, of all runs or of one."""
        bucket, run = self.random.randrange(4), self.a_run("spilled")
        if run is not None:
            chosen = self.store.spilled if self.random.random() < 0.5 else [run]
            tables = [part.take(part.living) for one in chosen for part in self.store.pages(one, [bucket])]
            assert self.store.disk_rows()[bucket] >= sum(table.num_rows for table in tables)
            self.store.release(bucket, {one.id for one in chosen})
            back = merge_by_hash([SCHEMA.empty_table(), *tables])
            self.moved(back, on_disk=False)
            self.store.add(back, self.batch, oldest=0)

    def compact(self) -> None:
        self.store.compact()


LAYOUTS: dict[str, Callable[[], Layout]] = {
    "tiers": lambda: HashTiers(fanout=2),
    "size": lambda: SizeTiers(smallest=4, fanout=2),
    "few": lambda: FewRuns(most=3),
}


@pytest.mark.parametrize("merges_spilled", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 32))
def test_rows_that_move_between_memory_and_disk(layout: str, merges_spilled: bool, seed: int) -> None:
    def make(accounts: Accounts) -> RowStore:
        return made(LAYOUTS[layout](), accounts, counts_buckets=True, merges_spilled=merges_spilled)

    pair = Moving(seed, make)
    steps = [
        *[pair.add] * 4, pair.remove_rows, pair.remove_whole, pair.remove_all, pair.remove_in_buckets, pair.mark,
        pair.mark, pair.flush, pair.hand_over, pair.drain, pair.spill_run, pair.rewrite, pair.release, pair.compact,
        *[pair.settle] * 3, pair.settle_tight, pair.reload,
    ]  # fmt: skip
    pair.run(steps, 30)


class Timed(Pair):
    """With a horizon. A row behind it is seen by nobody, and held until its run is rewritten or leaves."""

    horizon = -1

    def found(self, *, on_disk: bool) -> dict[int, bool]:
        seen = super().found(on_disk=on_disk)
        assert all(self.model[name].time >= self.horizon for name in seen)
        behind = [name for name, row in self.model.items() if row.time < self.horizon and row.on_disk == on_disk]
        return seen | {name: self.model[name].matched for name in behind}

    def sweep(self, runs: list[Run]) -> None:
        """The rows that time has made useless are gone where a run was rewritten."""
        kept = {run.id for run in self.store.runs}
        there = {name for run in self.store.runs for name in self.held_in(run)}
        swept = [name for name, row in self.model.items() if row.time < self.horizon and name not in there]
        assert not swept or any(run.id not in kept for run in runs)
        for name in swept:
            del self.model[name]

    def before(self) -> None:
        time = self.horizon + self.random.randint(1 if self.horizon < 0 else -1, 3)
        runs = [run for run in self.store.runs if run.time_to is not None and run.time_to < time]
        names = {name for run in runs for name in self.held_in(run)} if time > self.horizon else set()
        reason = self.random.choice(["expired", "shrunk"])
        self.leave(self.store.remove(Before(time), reason), names, reason)
        self.horizon = max(time, self.horizon)
        assert isinstance(self.store.layout, TimeSlices)
        self.store.layout.bound = self.horizon

    def swept_by(self, step: Callable[[], object]) -> None:
        runs = self.store.runs
        step()
        self.sweep(runs)

    def settle(self) -> None:
        self.swept_by(super().settle)

    def settle_tight(self) -> None:
        self.swept_by(super().settle_tight)
        assert not [row for row in self.model.values() if row.time < self.horizon and not row.on_disk]

    def reload(self) -> None:
        self.swept_by(super().reload)
        assert isinstance(self.store.rule, Horizon)
        assert self.store.rule.time == (None if self.horizon < 0 else self.horizon)

    def spill_run(self) -> None:
        run = self.a_run("resident")
        if run is not None:
            for name in self.held_in(run):
                self.model[name].on_disk = self.model[name].time >= self.horizon
            self.swept_by(lambda: self.store.spill_run(run))

    def reorder(self) -> None:
        run = self.a_run("resident")
        if run is not None:
            self.swept_by(lambda: self.store.reorder(run))


@pytest.mark.parametrize("merges_spilled", [False, True])
@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 32))
def test_rows_that_expire(merges_spilled: bool, seed: int) -> None:
    def make(accounts: Accounts) -> RowStore:
        layout = TimeSlices(span=8, share=2, tiers=HashTiers(fanout=2))
        return made(layout, accounts, time="_p0", rule=Horizon("_p0"), merges_spilled=merges_spilled)

    pair = Timed(seed, make, times=6)
    steps = [
        *[pair.add] * 4, pair.remove_rows, pair.remove_whole, pair.remove_all, pair.mark, pair.mark, *[pair.before] * 2,
        pair.spill_run, pair.reorder, *[pair.settle] * 3, pair.settle_tight, pair.reload,
    ]  # fmt: skip
    pair.run(steps, 30)


class Chunked(Pair):
    """With chunks of a master table that are read one after the other."""

    reads = 0

    def read(self) -> None:
        """A chunk is read: the rows that waited for it leave, whatever run they are in."""
        rule, layout = self.store.rule, self.store.layout
        assert isinstance(rule, ChunksRead)
        assert isinstance(layout, FewRuns)
        chunk = self.random.randrange(len(rule.lows))
        answered = [name for name, row in self.model.items() if row.hash // (4 * STEP) == chunk]
        rule.last_read[chunk] = self.reads
        self.reads += 1
        layout.slot = self.reads
        before = self.accounts.left.get("left", {}).get("answered", 0)
        assert self.store.remove(ByRule(len(answered)), "answered") == []
        assert self.accounts.left.get("left", {}).get("answered", 0) == before + len(answered)
        for name in answered:
            del self.model[name]

    def reload(self) -> None:
        rule, layout = self.store.rule, self.store.layout
        super().reload()
        self.store.rule, self.store.layout = rule, layout


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32))
def test_rows_that_wait_for_chunks(seed: int) -> None:
    def make(accounts: Accounts) -> RowStore:
        lows = np.array([0, 4 * STEP, 8 * STEP, 12 * STEP], np.uint64)
        return made(FewRuns(most=3), accounts, rule=ChunksRead(lows))

    pair = Chunked(seed, make)
    steps = [*[pair.add] * 3, *[pair.read] * 2, pair.mark, *[pair.settle] * 2, pair.settle_tight, pair.reload]
    pair.run(steps, 30)


# -- by hand


def rows(hashes: Sequence[int], times: Sequence[int] | None = None) -> pa.Table:
    names = list(range(len(hashes)))
    columns = [list(hashes), names, list(times or names), [False] * len(names)]
    return pa.table(columns, schema=SCHEMA)


def filled(layout: Layout, *tables: pa.Table, **options: Any) -> tuple[RowStore, Accounts]:
    accounts = Accounts(Metrics())
    store = made(layout, accounts, **options)
    for batch, table in enumerate(tables):
        accounts.arrive("left", table.num_rows)
        store.add(table, batch)
    return store, accounts


def test_a_row_leaves_once_whatever_comes_later() -> None:
    store, accounts = filled(HashTiers(), rows([1, 2, 3]))
    (part,) = store.parts()
    assert len(store.remove(Rows(part, np.array([1, 1])), "punctuation")) == 1
    assert store.remove(Rows(part, np.array([1])), "one_to_many") == []
    store.remove(All(), "ended")
    assert accounts.left == {"left": {"punctuation": 1, "ended": 2}}
    assert accounts.held("left") == store.rows == 0


def test_a_reason_must_be_known() -> None:
    store, _ = filled(HashTiers(), rows([1]))
    with pytest.raises(ValueError, match=r"^'bored' is not a reason to leave: null_key, "):
        store.remove(All(), "bored")


def test_what_left_is_not_read_unless_somebody_asks() -> None:
    store, _ = filled(HashTiers(), rows([1, 2]))
    (run,) = store.runs
    object.__setattr__(run, "data", Unreadable(2))
    (gone,) = store.remove(All(), "ended")
    with pytest.raises(AssertionError, match="a run was read"):
        list(gone.pieces())


def test_what_left_is_handed_out_in_pieces_of_bounded_size() -> None:
    store, _ = filled(HashTiers(), rows(range(10)))
    (gone,) = store.remove(All(), "ended")
    assert [piece.tolist() for _, piece in gone.pieces(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_rows_taken_out_and_added_again_keep_their_age_and_level() -> None:
    store, _ = filled(HashTiers(), rows([1]))
    store.add(rows([2, 3]), 7, oldest=2, level=1)
    assert [(run.oldest, run.newest, run.level) for run in store.runs] == [(0, 0, 0), (2, 7, 1)]


def test_a_taken_bucket_is_a_hole_until_too_little_is_left() -> None:
    store, _ = filled(HashTiers(), rows([i * STEP for i in range(16)]), counts_buckets=True)
    (run,) = store.runs
    object.__setattr__(run, "data", Stored(run.table))
    assert [len(tables) for tables in store.take([1]).values()] == [1]
    store.compact()
    assert [(one.id, one.live) for one in store.runs] == [(run.id, ((0, 4), (8, 16)))]
    store.take([2, 3])
    store.compact()
    assert [(one.id, one.live, one.rows) for one in store.runs] == [(run.id + 1, None, 4)]
    assert store.bucket_rows.tolist() == [4, 0, 0, 0]


@dataclass(frozen=True)
class Stored:
    """Rows that have a file: to rewrite them costs something."""

    whole: pa.Table

    @property
    def rows(self) -> int:
        return int(self.whole.num_rows)

    def table(self) -> pa.Table:
        return self.whole

    def page(self, index: int) -> pa.Table:
        return self.whole


def test_a_derived_table_is_made_once_and_goes_with_its_run() -> None:
    store, _ = filled(HashTiers(), rows([1, 2]))
    (run,) = store.runs
    made_for: list[int] = []

    def make() -> pa.Table:
        made_for.append(run.id)
        return pa.table({"_row": [1, 0]})

    assert store.side(run, "order0", make).equals(store.side(run, "order0", make))
    assert made_for == [run.id]
    fresh, _ = filled(HashTiers())
    fresh.restore(store.save())
    assert fresh.side(run, "order0", make)["_row"].to_pylist() == [1, 0]
    assert made_for == [run.id]
    store.remove(Whole(run), "ended")
    assert (store.nbytes, store.save().tables) == (0, {})


def test_a_run_knows_the_times_of_its_rows_and_what_the_join_describes() -> None:
    store, _ = filled(
        HashTiers(fanout=2),
        rows([1, 2], [30, 10]),
        rows([3], [20]),
        time="_p0",
        describe=lambda table: {"keys": table.num_rows},
    )
    assert [(run.time_from, run.time_to, run.keys) for run in store.runs] == [(10, 30, 2), (20, 20, 1)]
    store.settle()
    assert [(run.time_from, run.time_to, run.keys) for run in store.runs] == [(10, 30, 3)]


def test_entries_that_are_no_rows_of_an_input_are_in_no_account() -> None:
    store, accounts = filled(HashTiers(), rows([1, 2]), input="")
    store.remove(All(), "ended")
    assert (store.rows, accounts.left, store.save().input) == (0, {}, "")
