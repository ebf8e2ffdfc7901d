"""The store of rows against a plain model, in random steps: rows that move, expire, wait for chunks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.state.row_model import BUCKETS, SCHEMA, STEP, Pair, made

from watersmeet.columns.arrow import hashes_of, merge_by_hash
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import FewRuns, HashTiers, Layout, SizeTiers, TimeSlices
from watersmeet.state.parts import Before, ByRule, InBuckets
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import ChunksRead, Horizon
from watersmeet.state.run import Run
from watersmeet.state.space import cut_into_pages


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
