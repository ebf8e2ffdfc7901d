"""The kernels, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.columns.arrow import merge_order
from watersmeet.columns.matching import KeyFilter
from watersmeet.window import kernels
from watersmeet.window.kernels import Ordered, Reach, distinct, distinct_in, order, pairs

rows = st.lists(st.tuples(st.integers(0, 6), st.integers(-20, 20)), max_size=60)


def ordered(some: list[tuple[int, int]]) -> Ordered:
    hashes = np.array([key for key, _ in some], dtype=np.uint64) << np.uint64(61)
    return order(hashes, np.array([time for _, time in some], dtype=np.int64))


@settings(max_examples=150)
@given(left=rows, right=rows, low=st.integers(0, 9), high=st.integers(0, 9), block=st.sampled_from([1, 3, 1000]))
def test_pairs_are_those_of_a_nested_loop(
    left: list[tuple[int, int]], right: list[tuple[int, int]], low: int, high: int, block: int
) -> None:
    found = [
        (int(i), int(j))
        for some, others in pairs(ordered(left), ordered(right), Reach(-low, high), block)
        for i, j in zip(some, others, strict=True)
    ]
    expected = [
        (i, j)
        for i, (key, at) in enumerate(left)
        for j, (other, then) in enumerate(right)
        if key == other and -low <= then - at <= high
    ]
    assert sorted(found) == expected


@settings(max_examples=100)
@given(some=rows)
def test_rows_are_ordered_by_hash_then_time(some: list[tuple[int, int]]) -> None:
    found = ordered(some)
    assert list(zip((found.hashes >> np.uint64(61)).tolist(), found.times.tolist(), strict=True)) == sorted(some)
    parts = [sorted(some[:20]), sorted(some[20:])]
    joined = [row for part in parts for row in part]
    merged = merge_order(np.array([k for k, _ in joined], np.uint64), np.array([t for _, t in joined], np.int64))
    assert [joined[i] for i in merged] == sorted(some)


def test_a_scan_misses_nothing_and_lets_little_through() -> None:
    rng = np.random.default_rng(3)
    hashes = rng.integers(0, 2**64, 100_000, dtype=np.uint64)
    wanted = np.sort(rng.choice(hashes, 500))
    found = KeyFilter(wanted).among(hashes)
    assert np.isin(np.flatnonzero(np.isin(hashes, wanted)), found).all()
    assert len(found) < 500 + 0.05 * len(hashes)


def test_a_hot_key_makes_no_more_pairs_than_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 rows of one key over a long time: 100 million pairs of equal keys, of which few are near each other."""
    made = 0
    expand = kernels.expand

    def counted(*arguments: object) -> object:
        nonlocal made
        for i, j in expand(*arguments):  # type: ignore[arg-type]
            made += len(i)
            yield i, j

    monkeypatch.setattr(kernels, "expand", counted)
    side = order(np.full(10_000, 7, np.uint64), np.arange(10_000, dtype=np.int64))
    results = sum(len(i) for i, _ in pairs(side, side, Reach(-2, 2)))
    assert results == made == 10_000 * 5 - 6


def test_distinct_keys_are_estimated() -> None:
    rng = np.random.default_rng(5)
    domain = rng.integers(0, 2**64, 20_000, dtype=np.uint64)
    sample = rng.choice(domain, 100_000)
    assert distinct(sample) == pytest.approx(len(np.unique(sample)), rel=0.1)
    for count in (100, 4096):
        assert distinct(sample[:count]) == len(np.unique(sample[:count]))
    part = rng.choice(domain, 10_000)
    assert distinct_in(100_000, 10_000, len(np.unique(part))) == pytest.approx(len(np.unique(sample)), rel=0.1)
    assert distinct_in(0, 0, 0) == 0
    assert distinct_in(100_000, 1_000, 1_000) == 100_000  # no key has come twice: none is expected to
