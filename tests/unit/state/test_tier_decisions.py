"""When runs are merged, moved up or left alone, and what is reported about it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from watersmeet.engine.runtime import run_batch
from watersmeet.errors import StateMismatchError
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.buckets import Buckets
from watersmeet.state.directory import StateDir, unseal
from watersmeet.state.identity import register_join
from watersmeet.state.layouts import HashTiers
from watersmeet.state.rows import RowStore
from watersmeet.state.run import subtract_ranges
from watersmeet.state.space import MemorySpace, cut_into_pages
from watersmeet.testing import Arrival, batch_of, make_plan

SCHEMA = pa.schema([("_hash", pa.uint64())])


class Tiers:
    """A store whose runs are merged by tiers."""

    def __init__(self, **limits: int) -> None:
        self.accounts = Accounts(Metrics())
        self.store = RowStore("left", SCHEMA, HashTiers(**limits), MemorySpace(), self.accounts)

    def add(self, rows: int, batch: int = 0) -> int:
        """One batch of rows; returns how many rows were rewritten."""
        self.accounts.arrive("left", rows)
        self.store.add(pa.table({"_hash": pa.array(range(rows), pa.uint64())}, schema=SCHEMA), batch=batch)
        return self.store.settle()

    @property
    def levels(self) -> list[tuple[int, int]]:
        return [(run.rows, run.level) for run in self.store.runs]


def test_a_merge_may_be_as_large_as_the_limits_and_no_larger() -> None:
    for limits in ({"max_rows": 8}, {"max_bytes": 64}):
        exact, beyond = Tiers(fanout=2, **limits), Tiers(fanout=2, **limits)
        assert [exact.add(4), exact.add(4)] == [0, 8]
        assert exact.levels == [(8, 1)]
        assert [beyond.add(4), beyond.add(5)] == [0, 0]
        assert beyond.levels == [(4, 1), (5, 1)]  # moved up as they are: level 0 is free again
        assert beyond.add(1) == 0
        assert beyond.levels == [(4, 1), (5, 1), (1, 0)]


def test_a_cascade_merges_all_levels_in_one_pass() -> None:
    tiers = Tiers(fanout=3)
    rewritten = [tiers.add(1, batch) for batch in range(9)]
    assert rewritten == [0, 0, 3, 0, 0, 3, 0, 0, 9]  # the last nine rows are written once, not twice
    assert tiers.levels == [(9, 2)]
    assert (tiers.store.runs[0].oldest, tiers.store.runs[0].newest) == (0, 8)


def test_a_cascade_stops_below_a_level_that_would_be_too_large() -> None:
    tiers = Tiers(fanout=2, max_rows=7)
    for batch in range(3):
        tiers.add(2, batch)
    assert tiers.levels == [(4, 1), (2, 0)]
    assert tiers.add(2, 3) == 4  # together with the level above it would be eight: that one makes room
    assert tiers.levels == [(4, 2), (4, 1)]


def test_ranges_less_ranges_are_never_empty() -> None:
    assert subtract_ranges([(0, 10)], [(0, 3), (3, 5), (10, 10)]) == ((5, 10),)
    assert subtract_ranges([(0, 10)], [(4, 4)]) in (((0, 10),), ((0, 4), (4, 10)))
    assert subtract_ranges([(0, 2), (5, 5)], [(0, 2)]) == ()


def test_a_bucket_leaves_a_spilled_run_with_all_its_pages() -> None:
    buckets = Buckets(4)
    hashes = sorted((bucket << 62) + i for bucket in range(4) for i in range(5))
    table = pa.table({"_hash": pa.array(hashes, pa.uint64())})
    run = MemorySpace().spill("left", cut_into_pages(table, buckets, 2), oldest=0, newest=0)
    assert buckets.bounds.tolist() == [1 << 62, 2 << 62, 3 << 62]
    for gone in range(4):
        left = run.without_bucket(gone)
        assert left.rows == 15
        found = [value for bucket in range(4) for page in left.read(bucket) for value in page.column(0).to_pylist()]
        assert found == [value for value in hashes if value >> 62 != gone]


def test_state_says_its_format(tmp_path: Path) -> None:
    """Whoever changes what is written changes the number, and this line."""
    directory = StateDir(tmp_path / "not" / "there" / "yet")
    directory.create()
    directory.create("a/b")
    plan = make_plan("symmetric")
    list(run_batch(plan, directory, 0, batch_of(plan, 0, Arrival({"left": [(1, 1, "")]})), attempt="0"))
    body = unseal(directory.read("part-00000/v-000000000000.json"), "manifest")
    assert body["format"] == 2


def test_a_join_that_has_an_option_more_or_less_is_another_one(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    plan = make_plan("symmetric", options={"a": 1, "b": [1, 2]})
    register_join("progressive_join", directory, plan)
    directory.create("part-00000")
    directory.publish("part-00000/v-000000000000.json", b"{}")
    for options, said in [
        ({"a": 1}, r"options.b was \[1, 2\], is None"),
        ({"a": 1, "b": [1, 2], "c": 3}, "options.c was None, is 3"),
        ({"a": 1, "b": [1, 3]}, r"options.b\[1\] was 2, is 3"),
        ({"a": 1, "b": [1]}, r"options.b was \[1, 2\], is \[1\]"),
    ]:
        with pytest.raises(StateMismatchError, match=said):
            register_join("progressive_join", directory, make_plan("symmetric", options=options))
