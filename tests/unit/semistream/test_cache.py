"""The cache, the sizes behind the inequality and the cost model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import data_bytes
from watersmeet.errors import OptionError
from watersmeet.estimate.frequency import amounts_of, per_batch, surely, tally
from watersmeet.plan.metrics import Metrics
from watersmeet.semistream.cache import Cache
from watersmeet.semistream.cost_model import SHORT, CostModel, Costs, Workload, harmonic
from watersmeet.semistream.explain import explain_semi_stream_join
from watersmeet.semistream.row_sizes import row_bytes
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import HashTiers
from watersmeet.state.rows import RowStore
from watersmeet.state.space import MemorySpace

U64 = np.uint64


def rows(hashes: list[int]) -> pa.Table:
    return pa.table({"_hash": pa.array(hashes, pa.uint64()), "_k0": pa.array(hashes, pa.int64())})


def empty() -> Cache:
    schema = rows([]).schema
    return Cache(RowStore("master", schema, HashTiers(), MemorySpace(), Accounts(Metrics())))


def filled() -> Cache:
    cache = empty()
    cache.admit(np.array([2, 5], U64), np.array([2, 0]), np.array([32.0, 0.0]), rows([2, 2]), batch=0)
    cache.admit(np.array([9], U64), np.array([1]), np.array([16.0]), rows([9]), batch=3)
    return cache


def test_the_bytes_of_rows_add_up_to_the_bytes_of_the_table() -> None:
    table = pa.table(
        {
            "a": pa.array([1, 2, 3], pa.int64()),
            "b": pa.array(["", "four", None]),
            "c": pa.array([1, 2, 3], pa.int8()),
            "d": pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
        }
    )
    assert row_bytes(table.select(["a", "b", "c"])).tolist() == [13, 17, 13]
    assert abs(row_bytes(table).sum() - data_bytes(table)) <= 3  # rounded up, and bitmaps


def test_whole_keys_and_absences_are_held_and_dropped() -> None:
    cache = filled()
    assert cache.holds(np.array([1, 2, 5, 9], U64)).tolist() == [False, True, True, True]
    cache.drop(np.array([2, 5], U64))
    assert cache.holds(np.array([2, 5, 9], U64)).tolist() == [False, False, True]
    assert cache.rows.rows == sum(run.rows for run in cache.rows.runs) == 1  # the rows are gone from memory too


def test_eviction_compares_bytes_and_spares_newcomers() -> None:
    cache = filled()
    for _ in range(4, 10):
        cache.note_hits(np.array([2] * 4, U64), np.full(4, 20.0))
    # Hash 2 answers 48 bytes per batch and costs 72; with a stay of 2 batches it is worth keeping.
    assert cache.evict(9, stay=2.0, residence=8, factor=1.0) == 1  # the absence of 5; 9 is too new to judge
    assert cache.holds(np.array([2, 5, 9], U64)).tolist() == [True, False, True]
    assert cache.hits.rows == 0
    assert cache.evict(20, stay=2.0, residence=8, factor=1.0) == 2


def test_the_most_useful_keys_per_byte_are_the_last_to_go() -> None:
    cache = filled()
    cache.note_hits(np.array([2, 9, 9], U64), np.array([20.0, 20.0, 20.0]))
    assert cache.best(60, 4).tolist() == [9]
    assert cache.best(1000, 4).tolist() == [2, 5, 9]
    assert cache.shrink(1, 4) == 1
    assert cache.holds(np.array([2, 5, 9], U64)).tolist() == [True, False, True]


def test_hits_are_summed_however_they_come() -> None:
    cache = empty()
    rng = np.random.default_rng(0)
    total: dict[int, float] = {}
    for _ in range(20):
        hashes = np.sort(rng.integers(0, 30, 40).astype(U64))
        cache.note_hits(hashes, np.ones(40))
        for value in hashes.tolist():
            total[value] = total.get(value, 0) + 1
    assert len(cache.hits.pieces) < 8
    found: dict[int, float] = {}
    for piece in cache.hits.pieces:
        for value, amount in zip(*(column.to_pylist() for column in piece.table.columns), strict=True):
            found[value] = found.get(value, 0) + amount
    assert found == total


def test_frequencies() -> None:
    hashes, sums = tally(np.array([1, 1, 4], U64), np.array([2.0, 3.0, 7.0]))
    assert amounts_of(np.array([0, 1, 4, 9], U64), hashes, sums).tolist() == [0, 5, 7, 0]
    assert surely(np.array([30.0, 900.0]), np.array([1, 4])).tolist() == [0, 450]


def test_what_came_per_batch_counts_the_first_batch_and_the_last() -> None:
    assert per_batch(np.array([12.0, 12.0, 12.0]), np.array([0, 2, 3]), 3).tolist() == [3, 6, 12]
    assert per_batch(np.array([12.0]), np.array([4]), 3).tolist() == [12]  # watched from the next batch on


def test_harmonic_numbers() -> None:
    for exponent in (0.0, 0.5, 1.0, 1.3):
        exact = float((np.arange(1, 5001) ** -exponent).sum())
        assert harmonic(5000, exponent) == pytest.approx(exact, rel=1e-6)


def test_equation_1_and_2_by_hand() -> None:
    load = Workload(1000, 100, 20, skew=0, chunk_rows=100, waiting_overhead=4)
    cost = Costs(read=1.0, look_up=2.0, hit=3.0, wait=20.0, run=5.0, loop=7.0, cache=11.0)
    point = CostModel(load, "mesh", cost).at(10)
    assert point.memory == 100 * 100 + 10 * 10 * (4 + 20)
    runs = 10 * 10 / 8192 + 2.5  # short ones are merged
    assert point.loop_seconds == pytest.approx(7 + 100 * 1 + 100 * 2 + runs * 5 + 10 * 20)
    assert point.service_rate == pytest.approx(10 / point.loop_seconds)
    long = 3 * SHORT  # the runs of all loops, in each of which the chunk is looked up
    assert CostModel(load, "mesh", cost).at(long).loop_seconds == 7 + 100 * 1 + 10 * (100 * 2 + 5) + long * 20


@pytest.mark.parametrize(("policy", "stay"), [("aligned", 0.5), ("ssbj", 1.0)])
def test_a_working_point_with_a_cache_by_hand(policy: str, stay: float) -> None:
    """Rank r is asked for in a share of 1 / (r H) of the rows; it is cached while that many rows outweigh its own."""
    load = Workload(1000, 100, 20, skew=1.0, chunk_rows=100, waiting_overhead=4)
    cost = Costs(read=1.0, look_up=2.0, hit=3.0, wait=20.0, run=0.0, loop=7.0, cache=11.0)
    point = CostModel(load, policy, cost).at(500)
    ranks, row = harmonic(1000, 1.0), stay * (4 + 20)
    cached = int(500 * row * 10 / ranks / (100 + 40))
    assert 10 < point.cached_keys == cached < 1000
    hit = harmonic(cached, 1.0) / ranks
    assert point.hit_share == pytest.approx(hit)
    waiting = (1 - hit) * 500
    assert point.cache_bytes == pytest.approx(cached * 140)
    assert point.waiting_bytes == pytest.approx(waiting * 10 * row)
    runs = waiting * 10 / 8192 + 2.5
    looked_up = 0 if policy == "aligned" else runs * 100
    loop = 7 + 11 + 100 * 1 + looked_up * 2 + hit * 500 * 3 + waiting * 20
    assert point.loop_seconds == pytest.approx(loop)
    assert point.delay_seconds == pytest.approx(10 * loop)
    assert point.memory == pytest.approx(point.cache_bytes + point.waiting_bytes + 100 * 100)


@pytest.mark.parametrize(("policy", "each"), [("mesh", 0.0), ("ssbj", 13.0), ("aligned", 13.0)])
def test_rows_that_find_nothing_take_more_where_their_absence_is_looked_for(policy: str, each: float) -> None:
    load = Workload(1000, 100, 20, skew=0, chunk_rows=100, waiting_overhead=4)
    cost = Costs(read=1.0, look_up=2.0, hit=3.0, wait=20.0, run=5.0, loop=7.0, cache=11.0, miss=13.0)
    some = CostModel(replace(load, unmatched=0.25), policy, cost).at(10)
    assert some.loop_seconds - CostModel(load, policy, cost).at(10).loop_seconds == pytest.approx(0.25 * 10 * each)


def test_without_skew_either_every_key_is_worth_caching_or_none() -> None:
    """1000 keys share what waits: 10 chunks of w rows of 14 bytes; a key costs 140."""
    model = CostModel(Workload(1000, 100, 20, skew=0, chunk_rows=100, waiting_overhead=8), "aligned")
    assert model.at(1000).cached_keys == 0  # just as dear
    assert model.at(1001).cached_keys == 1000
    assert (model.at(1000).chunk_bytes, model.at(1001).chunk_bytes) == (100 * 100, 0)  # no chunk is read any more


@pytest.mark.parametrize("policy", ["aligned", "ssbj", "mesh"])
def test_any_skew_has_an_answer(policy: str) -> None:
    """Between keys that are all alike and a stream of one key."""
    found = {skew: _explained(policy, skew) for skew in (0.0, 5e-324, 1e-3, 0.01, 30.0, 400.0, 1e308)}
    for little in (5e-324, 1e-3):
        assert found[little].memory == pytest.approx(found[0.0].memory, rel=0.02)
    for much in (400.0, 1e308):
        assert found[much].point.cached_keys == int(policy != "mesh")
        assert found[much].hit_share == pytest.approx(float(policy != "mesh"))


def test_with_little_skew_all_keys_are_worth_caching_or_none() -> None:
    """The last of 1000 keys has 1000 ** -0.001 = 0.993 of what the first one keeps waiting, which is a tie at 1000 rows
    a loop if all are alike."""
    model = CostModel(Workload(1000, 100, 20, skew=0.001, chunk_rows=100, waiting_overhead=8), "aligned")
    assert [model.at(rows).cached_keys for rows in (990, 1010)] == [0, 1000]


@pytest.mark.parametrize(("master_rows", "chunks"), [(0, 1), (1, 1), (100, 1), (101, 2)])
def test_a_master_table_has_a_chunk_at_least(master_rows: int, chunks: int) -> None:
    assert Workload(master_rows, 100, 20, chunk_rows=100).chunks == chunks


def test_the_chunk_that_is_read_is_beside_the_budget() -> None:
    known = {"master_rows": 10**6, "master_row_bytes": 100, "stream_row_bytes": 20, "chunk_rows": 1000}
    explained = explain_semi_stream_join(**known, memory=10**6, policy="mesh")
    assert explained.point.memory == pytest.approx(10**6 + 1000 * 100, rel=1e-6)


def test_a_table_that_memory_holds_lets_no_row_wait() -> None:
    small = explain_semi_stream_join(master_rows=100, master_row_bytes=24, stream_row_bytes=24, memory="64 MB")
    assert (small.hit_share, small.point.delay_seconds) == (1.0, 0.0)
    assert small.service_rate == pytest.approx(0.99 / Costs().hit, rel=1e-6)
    assert small.point.loop_seconds < 1  # not the loop of an endless batch
    large = explain_semi_stream_join(master_rows=10_000_000, master_row_bytes=24, stream_row_bytes=24, memory="64 MB")
    assert large.memory == pytest.approx(64e6, rel=1e-6)
    assert large.point.delay_seconds == pytest.approx(100 * large.point.loop_seconds)


def test_the_model_orders_the_policies_as_measured() -> None:
    """Aligned chunks need least; SSBJ needs less than MESHJOIN where keys are hot, and about as much elsewhere."""
    for skew in (0.0, 0.5, 1.0):
        mesh, ssbj, aligned = (_explained(policy, skew).memory for policy in ("mesh", "ssbj", "aligned"))
        assert aligned < min(mesh, ssbj)
        assert ssbj < (0.7 if skew == 1.0 else 1.3) * mesh


def _explained(policy: str, skew: float):  # type: ignore[no-untyped-def]
    return explain_semi_stream_join(
        master_rows=10**7, master_row_bytes=120, stream_row_bytes=20, rate=300_000, skew=skew, policy=policy
    )


def test_memory_and_rate_are_inverse_to_each_other() -> None:
    known = _explained("ssbj", 1.0)
    back = explain_semi_stream_join(
        master_rows=10**7, master_row_bytes=120, stream_row_bytes=20, memory=known.memory, policy="ssbj"
    )
    assert back.service_rate == pytest.approx(300_000, rel=0.02)
    assert "service rate" in str(back)


def test_a_fast_stream_over_a_small_table_caches_all_of_it() -> None:
    point = CostModel(Workload(1000, 100, 20, skew=0, chunk_rows=100), "ssbj").at(10_000)
    assert (point.hit_share, point.waiting_bytes, point.chunk_bytes) == (1.0, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"rate": 1, "memory": 1}, {"rate": -1}, {"memory": "much"}, {"memory": 0}, {"rate": 1, "unmatched": 1.5}],
)
def test_explain_says_what_is_missing(wrong: dict[str, object]) -> None:
    with pytest.raises((OptionError, ValueError)):
        explain_semi_stream_join(master_rows=10, master_row_bytes=10, stream_row_bytes=10, **wrong)  # type: ignore[arg-type]
