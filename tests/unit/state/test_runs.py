"""Buckets, runs and pages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.columns.arrow import hashes_of
from watersmeet.state.buckets import Buckets
from watersmeet.state.run import Run, hash_sum, resident_run, subtract_ranges
from watersmeet.state.space import MemorySpace, cut_into_pages

hash_lists = st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**32 - 1, 2**32, 2**63, 2**64 - 1]), max_size=50)


def table_of(hashes: list[int]) -> pa.Table:
    ordered = sorted(hashes)
    return pa.table({"_hash": pa.array(ordered, pa.uint64()), "_k0": pa.array([h % 7 for h in ordered])})


def run_of(hashes: list[int], batch: int = 0) -> Run:
    return resident_run("left", table_of(hashes), oldest=batch, newest=batch)


@given(hash_lists, st.integers(1, 1000) | st.sampled_from([2**20, 3, 7]))
def test_buckets_are_contiguous_and_agree_with_their_bounds(values: list[int], count: int) -> None:
    buckets = Buckets(count)
    hashes = np.array(sorted(values), np.uint64)
    of = buckets.of(hashes)
    assert ((of >= 0) & (of < count)).all()
    assert (np.diff(of) >= 0).all()
    offsets = buckets.offsets(hashes)
    assert len(offsets) == count + 1
    for bucket in set(of.tolist()):
        assert (of[offsets[bucket] : offsets[bucket + 1]] == bucket).all()
    counted = Counter(of.tolist())
    assert {b: int(n) for b, n in enumerate(buckets.counts(hashes)) if n} == dict(counted)


def test_the_extremes_of_the_hash_are_in_the_first_and_last_bucket() -> None:
    for count in (1, 2, 5, 1024):
        assert Buckets(count).of(np.array([0, 2**64 - 1], np.uint64)).tolist() == [0, count - 1]


@given(hash_lists, st.integers(1, 9), st.integers(1, 6))
def test_pages_hold_all_rows_each_within_one_bucket(values: list[int], count: int, page_rows: int) -> None:
    buckets, table = Buckets(count), table_of(values)
    pages = list(cut_into_pages(table, buckets, page_rows))
    for bucket, page in pages:
        assert 0 < page.num_rows <= page_rows
        assert set(buckets.of(hashes_of(page)).tolist()) == {bucket}
    assert [b for b, _ in pages] == sorted(b for b, _ in pages)
    assert [h for _, page in pages for h in hashes_of(page).tolist()] == sorted(values)


@given(hash_lists.filter(bool), st.integers(1, 9), st.integers(1, 6))
def test_a_spilled_run_is_read_bucket_by_bucket(values: list[int], count: int, page_rows: int) -> None:
    buckets, table = Buckets(count), table_of(values)
    run = MemorySpace().spill("left", cut_into_pages(table, buckets, page_rows), oldest=1, newest=2)
    assert (run.rows, run.tier, run.oldest, run.newest, run.hash_sum) == (len(values), "spilled", 1, 2, hash_sum(table))
    read = [row for bucket in range(count) for page in run.read(bucket) for row in hashes_of(page).tolist()]
    assert read == sorted(values)
    for bucket in range(count):
        left = run.without_bucket(bucket)
        assert list(left.read(bucket)) == []
        assert left.rows == run.rows - sum(page.num_rows for page in run.read(bucket))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6))
def test_ranges_less_ranges(holes: list[tuple[int, int]]) -> None:
    holes = [(low, high) for low, high in holes if low <= high]
    left = subtract_ranges([(0, 10), (15, 30)], holes)
    rows = {row for start, stop in left for row in range(start, stop)}
    gone = {row for low, high in holes for row in range(low, high)}
    assert rows == ({*range(10), *range(15, 30)} - gone)


def test_a_run_without_some_rows() -> None:
    run = run_of([5, 6, 7, 8])
    left = run.without([(1, 2)]).without([(3, 4)])
    assert (left.rows, left.live, left.stored_rows) == (2, ((0, 1), (2, 3)), 4)
    assert [hashes_of(part).tolist() for part in left.parts] == [[5], [7]]
    assert left.digest() != run.digest()


def test_the_digest_of_a_run_does_not_see_the_order_of_equal_hashes() -> None:
    def digest(keys: list[int]) -> list[object]:
        table = pa.table({"_hash": pa.array([4, 4, 4], pa.uint64()), "_k0": pa.array(keys)})
        return resident_run("left", table, oldest=0, newest=0).digest()

    assert digest([1, 2, 3]) == digest([3, 1, 2])
    assert run_of([4, 4, 5]).digest() != run_of([4, 5, 5]).digest()


@pytest.mark.parametrize("pages", [[(0, [1]), (1, [2, 3])]])
def test_memory_writer_is_a_spill_in_steps(pages: list[tuple[int, list[int]]]) -> None:
    writer = MemorySpace().writer("left", table_of([]).schema)
    for bucket, hashes in pages:
        writer.add(bucket, table_of(hashes))
    run = writer.finish(oldest=0, newest=0, level=3)
    assert (run.rows, run.facts()) == (3, {"level": 3})
    assert hashes_of(next(run.read(1))).tolist() == [2, 3]
