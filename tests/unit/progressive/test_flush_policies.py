"""Which buckets leave memory."""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.join.flush_policies import (
    LEAST_RUN,
    POLICIES,
    AdaptiveFlush,
    FlushAll,
    FlushLargest,
    FlushSmallest,
    LongRunFlush,
    OptimalFlush,
    Victim,
)

UNKNOWN = np.full((2, 3), 0.1)


def test_the_15_records_of_section_4_1() -> None:
    # 20 rows of each input, half with value 1; p_1 = 35 %, 25 %, p_2 = 10 %, 30 %; 15 rows have to go.
    sizes, probabilities = np.full((2, 2), 10), np.array([[0.35, 0.25], [0.10, 0.30]])
    victims = OptimalFlush().choose(sizes, probabilities, 15)
    assert victims == [Victim(0, 0), Victim(1, 1, amount=5)]
    left = sizes.copy()
    for victim in victims:
        left[victim.input, victim.bucket] -= victim.amount or 10
    assert left.tolist() == [[0, 10], [10, 5]]


tables = st.lists(st.integers(0, 4), min_size=4, max_size=4)


@given(sizes=tables, weights=tables, amount=st.integers(1, 16))
def test_no_other_choice_keeps_more_expected_results(sizes: list[int], weights: list[int], amount: int) -> None:
    held, probabilities = np.array(sizes).reshape(2, 2), np.array(weights).reshape(2, 2) / 100
    amount = min(amount, int(held.sum()))

    def eta(kept: np.ndarray) -> float:  # Eq. 3, per bucket
        return float((kept * probabilities[::-1]).sum())

    kept = held.copy()
    for victim in OptimalFlush().choose(held, probabilities, amount):
        taken = victim.amount or held[victim.input, victim.bucket]
        kept[victim.input, victim.bucket] -= taken
    assert kept.sum() == held.sum() - amount
    others = product(*(range(size + 1) for size in held.ravel()))
    best = max(eta(np.array(o).reshape(2, 2)) for o in others if sum(o) == held.sum() - amount)
    assert eta(kept) == pytest.approx(best)


many = st.lists(st.integers(0, 40), min_size=8, max_size=8)


@given(sizes=many, weights=many, amount=st.integers(1, 200))
def test_a_long_run_flush_leaves_no_short_runs_while_it_can(sizes: list[int], weights: list[int], amount: int) -> None:
    held, probabilities = np.array(sizes).reshape(2, 4), np.array(weights).reshape(2, 4) / 100
    amount = min(amount, int(held.sum()))
    least = ceil(LEAST_RUN * amount)
    victims = LongRunFlush().choose(held, probabilities, amount)
    taken = [victim.amount or int(held[victim.input, victim.bucket]) for victim in victims]
    assert sum(taken) >= amount
    assert sum(taken[:-1]) < max(amount, 1)  # and no more than it must, but for the last run
    assert len({(victim.input, victim.bucket) for victim in victims}) == len(victims)
    long = held[held >= least].sum()
    if long >= amount:
        assert min(taken, default=least) >= least
    else:  # all that makes a long run has left, then the largest of the others
        assert sorted(taken, reverse=True)[: int((held >= least).sum())] == sorted(held[held >= least].tolist())[::-1]


def test_a_long_run_flush_keeps_the_order_of_the_optimal_one() -> None:
    sizes = np.array([[2, 10, 10], [10, 10, 10]])
    probabilities = np.array([[0.3, 0.2, 0.1], [0.05, 0.15, 0.2]])
    victims = LongRunFlush().choose(sizes, probabilities, 20)
    assert victims == [Victim(1, 2), Victim(0, 1)]  # Victim(0, 0) would be the first, with a run of two rows


def test_an_ended_input_gives_up_the_rows_that_wait_for_it() -> None:
    # p_2 = 0: nothing can meet the rows of input 0 any more, so they go first.
    victims = OptimalFlush().choose(np.full((2, 2), 5), np.array([[0.5, 0.5], [0.0, 0.0]]), 12)
    assert [victim.input for victim in victims] == [0, 0, 1]


def test_largest_and_smallest_take_whole_buckets() -> None:
    sizes = np.array([[4, 9, 0], [7, 1, 9]])
    assert FlushLargest().choose(sizes, UNKNOWN, 10) == [Victim(0, 1), Victim(1, 2)]
    assert FlushSmallest().choose(sizes, UNKNOWN, 3) == [Victim(1, 1), Victim(0, 0)]


def test_all_takes_everything_and_no_empty_bucket() -> None:
    assert len(FlushAll().choose(np.array([[4, 9, 0], [7, 1, 9]]), UNKNOWN, 1)) == 5


def test_adaptive_prefers_large_balanced_pairs() -> None:
    sizes = np.array([[50, 20, 22], [1, 20, 18]])
    chosen = AdaptiveFlush(concurrent=True).choose(sizes, UNKNOWN, 41)
    assert chosen == [Victim(0, 1), Victim(1, 1), Victim(0, 2), Victim(1, 2)]


@pytest.mark.parametrize("name", ["all", "largest", "smallest", "adaptive"])
def test_concurrent_flushing_takes_both_sides_of_a_bucket(name: str) -> None:
    victims = POLICIES[name](concurrent=True).choose(np.array([[3, 8, 5], [2, 8, 1]]), UNKNOWN, 4)
    for bucket in {victim.bucket for victim in victims}:
        assert {victim.input for victim in victims if victim.bucket == bucket} == {0, 1}
