"""When runs are merged, moved up or left alone, and what is reported about it."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.state.buckets import Buckets
from watersmeet.state.run import Run, resident_run, subtract_ranges
from watersmeet.state.space import MemorySpace, cut_into_pages
from watersmeet.state.tiers import TieredRuns


def run_of(count: int, batch: int = 0) -> Run:
    table = pa.table({"_hash": pa.array(range(count), pa.uint64())})
    return resident_run("left", table, oldest=batch, newest=batch)


def levels(tiers: TieredRuns) -> list[tuple[int, int]]:
    return [(run.rows, run.attributes["level"]) for run in tiers.runs]


def test_a_merge_may_be_as_large_as_the_limits_and_no_larger() -> None:
    for limits in ({"max_rows": 8}, {"max_bytes": 64}):
        exact, beyond = TieredRuns(fanout=2, **limits), TieredRuns(fanout=2, **limits)
        assert [exact.add(run_of(4)), exact.add(run_of(4))] == [0, 8]
        assert levels(exact) == [(8, 1)]
        assert [beyond.add(run_of(4)), beyond.add(run_of(5))] == [0, 0]
        assert levels(beyond) == [(4, 1), (5, 1)]  # moved up as they are: level 0 is free again
        assert beyond.add(run_of(1)) == 0
        assert levels(beyond) == [(4, 1), (5, 1), (1, 0)]


def test_a_cascade_merges_all_levels_in_one_pass() -> None:
    tiers = TieredRuns(fanout=3)
    rewritten = [tiers.add(run_of(1, batch)) for batch in range(9)]
    assert rewritten == [0, 0, 3, 0, 0, 3, 0, 0, 9]  # the last nine rows are written once, not twice
    assert levels(tiers) == [(9, 2)]
    assert (tiers.runs[0].oldest, tiers.runs[0].newest) == (0, 8)


def test_a_cascade_stops_below_a_level_that_would_be_too_large() -> None:
    tiers = TieredRuns(fanout=2, max_rows=7)
    for batch in range(3):
        tiers.add(run_of(2, batch))
    assert levels(tiers) == [(4, 1), (2, 0)]
    assert tiers.add(run_of(2, 3)) == 4  # together with the level above it would be eight
    assert levels(tiers) == [(4, 1), (4, 1)]


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
