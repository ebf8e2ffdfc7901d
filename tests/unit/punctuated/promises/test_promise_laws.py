"""Sets of promises against sets of integers, how few lists they are kept in, and violations counted by brute force."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import hash_keys
from watersmeet.columns.grouping import distinct_keys, group_ids
from watersmeet.engine.registry import build
from watersmeet.join.operator import advance
from watersmeet.punctuated.promises.constraints import duplicate_keys
from watersmeet.punctuated.promises.intervals import Intervals, IntervalSet
from watersmeet.punctuated.promises.keyed_patterns import KeyedPatterns
from watersmeet.punctuated.promises.ordering import Ordering
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.punctuated.promises.punctuation import Delta, PunctuatedRange
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of, make_plan

TOP = 30  # stands for all that is endless
CODES = np.arange(TOP, dtype=np.int64)


def some(rng: random.Random, count: int) -> Intervals:
    """Intervals below TOP, the last of them now and then endless."""
    lows = np.array([rng.randrange(TOP - 1) for _ in range(count)], np.int64)
    highs = lows + np.array([rng.randint(1, 6) for _ in range(count)])
    endless = np.array([rng.random() < 0.15 for _ in range(count)], np.bool_)
    return Intervals.promised(lows, highs, endless, source=1, batch=rng.randrange(5))


def values(held: Intervals) -> set[int]:
    return {
        int(code)
        for low, high, endless in zip(held.low, held.high, held.endless, strict=True)
        for code in CODES
        if low <= code and (endless or code < high)
    }


@pytest.mark.parametrize("seed", range(60))
def test_intervals_are_sets(seed: int) -> None:
    rng = random.Random(seed)
    first, second = some(rng, rng.randint(0, 6)), some(rng, rng.randint(1, 6))
    one, two = first.united(), second.united()
    assert values(one) == values(first)
    assert all(one.low[1:] > one.high[:-1])  # sorted, disjoint, not even touching
    assert not one.endless[:-1].any()
    rest = one.minus(two)
    assert values(rest) == values(one) - values(two)
    assert all((rest.low < rest.high) | rest.endless)
    found = two.find(CODES)
    assert {int(code) for code in CODES[found >= 0]} == values(two)
    assert (found[found < 0] == -1).all()
    for code, at in zip(CODES, found, strict=True):
        if at >= 0:
            assert two.low[at] <= code
            assert two.endless[at] or code < two.high[at]


@pytest.mark.parametrize("seed", range(20))
def test_a_set_of_intervals_says_what_is_new_and_stays_in_few_lists(seed: int) -> None:
    rng = random.Random(seed)
    held, known = IntervalSet(Ordering(pa.int64())), set[int]()
    for _ in range(25):
        fresh = some(rng, rng.randint(1, 3))
        fresh = fresh.where(~fresh.endless) if rng.random() < 0.9 else fresh
        if not len(fresh):
            continue
        new = held.add(fresh)
        assert values(new) == values(fresh) - known
        known |= values(fresh)
        assert {int(code) for code in CODES[held.find(CODES) > 0]} == known
        sizes = [len(part) for part in held.parts]
        assert len(held) == sum(sizes)
        assert all(before > 2 * after for before, after in pairwise(sizes))
        lows = np.array([0, 3, 9], np.int64)
        highs = np.array([4, 5, 20], np.int64)
        for endless in (False, True):
            covered = held.covers(lows, highs, np.full(3, endless))
            inside = [
                any(
                    part.low[at] <= low and (part.endless[at] or (not endless and high <= part.high[at]))
                    for part in held.parts
                    for at in range(len(part))
                )
                for low, high in zip(lows, highs, strict=True)
            ]
            assert covered.tolist() == inside
    again = IntervalSet(Ordering(pa.int64()))
    for table in held.save().values():
        again.restore(table)
    assert (again.find(CODES) == held.find(CODES)).all()


def test_an_interval_within_another_up_to_its_end_is_covered() -> None:
    held = IntervalSet(Ordering(pa.int64()))
    held.add(Intervals.promised(np.array([2]), np.array([8]), np.array([False]), 1, 0))
    lows, highs = np.array([2, 2, 1, 3, 7]), np.array([8, 9, 8, 8, 8])
    assert held.covers(lows, highs, np.zeros(5, np.bool_)).tolist() == [True, False, False, True, True]


def keyed(keys: list[int]) -> pa.Table:
    column = pa.array(keys, pa.int64())
    table = pa.table({"_hash": hash_keys([column]), "_k0": column})
    return table.take(np.argsort(table.column("_hash").to_numpy(), kind="stable"))


def test_single_keys_stay_in_few_runs_and_hits_are_counted() -> None:
    points, known = KeyedPatterns([pa.int64()], (0,), (), "left"), list[int]()
    rng = random.Random(3)
    for batch in range(40):
        fresh = [1000 * batch + i for i in range(rng.randint(1, 5))]
        points.add(points.entries(keyed(fresh), {}, 1, batch))
        known += fresh
        sizes = [table.rows for table in points.save().values()]
        assert sum(sizes) == len(known)
        assert all(before > 2 * after for before, after in pairwise(sizes))
    rows = keyed([known[3]] * 4 + [known[7]] * 2 + [-1])
    entries = points.entries(keyed([known[3], known[7], known[9]]), {}, 1, 0)
    hits = dict(zip(entries.column("_k0").to_pylist(), points.hits(entries, rows).tolist(), strict=True))
    assert hits == {known[3]: 4, known[7]: 2, known[9]: 0}


@pytest.mark.parametrize("seed", range(20))
def test_of_one_column_exactly_what_is_new_is_looked_up(seed: int) -> None:
    rng = random.Random(seed)
    table = keyed(list(range(16)))
    codes = np.array(table.column("_k0").to_pylist())
    promises = PunctuatedRange("left", [pa.int64()])
    for batch in range(6):
        low = rng.randrange(12)
        pattern = Pattern.value(low) if rng.random() < 0.5 else Pattern.between(low, low + rng.randrange(4))
        before = promises.find(table) > 0
        delta = promises.add_punctuations(punctuation_table([pa.int64()], [[pattern]]), batch)
        new = (promises.find(table) > 0) & ~before
        found = np.zeros(16, np.bool_)
        if delta.points is not None:
            found |= np.isin(codes, delta.points.column("_k0").to_pylist())
        for pieces in delta.ranges.values():
            found |= pieces.find(codes) >= 0
        assert not delta.everything
        assert (found == new).all()
        assert delta.is_empty == (not found.any())


def test_deltas_add_up() -> None:
    points, ranges = Delta(points=keyed([1]), count=1), {0: Intervals.promised(*_between(3, 5), 1, 0)}
    for first, second in ((Delta(), points), (points, Delta())):
        total = Delta()
        total.add(first)
        total.add(second)
        assert total.points is not None
        assert (total.points.column("_k0").to_pylist(), total.count, total.is_empty) == ([1], 1, False)
    total = Delta(points=keyed([1]), count=1)
    total.add(Delta(points=keyed([2]), ranges=ranges, count=2))
    assert total.points is not None
    assert sorted(total.points.column("_k0").to_pylist()) == [1, 2]
    assert (total.count, values(total.ranges[0])) == (3, {3, 4})
    for empty in (Delta(ranges=ranges), Delta(everything=True), Delta(points=keyed([1]))):
        assert not empty.is_empty
    assert Delta().is_empty


def _between(low: int, high: int) -> tuple[Any, Any, Any]:
    return np.array([low]), np.array([high]), np.array([False])


@pytest.mark.parametrize("seed", range(10))
def test_groups_of_composite_keys(seed: int) -> None:
    rng = random.Random(seed)
    rows = [(rng.randrange(3), rng.choice("abc"), rng.randrange(2) / 2) for _ in range(40)]
    ids = group_ids([pa.chunked_array([pa.array(column)]) for column in zip(*rows, strict=True)])
    for i, one in enumerate(rows):
        for j, two in enumerate(rows):
            assert (ids[i] == ids[j]) == (one == two)


def test_copies_of_a_key_are_told_from_keys_that_hash_alike() -> None:
    table = pa.table({"_hash": pa.array([5, 5, 5, 9, 9, 12], pa.uint64()), "_k0": [1, 2, 1, 3, 4, 6]})
    assert duplicate_keys(table).tolist() == [True, False, True, False, False, False]
    assert duplicate_keys(table.slice(0, 1)).tolist() == [False]
    assert sorted(distinct_keys(table).column("_k0").to_pylist()) == [1, 2, 3, 4, 6]


def torn(rows: list[tuple[int, int]]) -> int:
    """Rows of (key, place) before which, but after the first row of their key, another key came."""
    count = 0
    for key, place in rows:
        begun = min(at for other, at in rows if other == key)
        count += any(other != key and begun < at < place for other, at in rows)
    return count


@pytest.mark.parametrize("seed", range(40))
def test_rows_of_a_torn_cluster_are_counted(seed: int) -> None:
    """One batch: within it, the order of the sequence decides; rows of one place have no order."""
    rng = random.Random(seed)
    rows = [(rng.randrange(4), rng.randrange(8)) for _ in range(rng.randint(1, 9))]
    constraint = {"kind": "clustered", "input": "right", "sequence": "_p0"}
    plan = make_plan(
        "punctuated", options={"constraints": [constraint]}, tuning={"on_violation": "drop"}, payload=(pa.int64(),)
    )
    join = build(plan, MemorySpace())
    list(advance(join, batch_of(plan, 0, Arrival({"right": rows}))))
    assert join.metrics.counters.get("violations.right.clustered", 0) == torn(rows)
    assert sum(store.rows for store in join.save().stores) == len(rows) - torn(rows)
