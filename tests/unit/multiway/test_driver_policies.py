"""Which input drives next: the scores by hand, ties, and the order re-made after every buffer."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from watersmeet.estimate.selectivity import Selectivities
from watersmeet.multiway.driver_policies import POLICIES, Situation, choose
from watersmeet.multiway.slices import Slice


def situation(waiting: list[int], stored: list[int], *, last: int = -1, heads: list[int] | None = None) -> Situation:
    estimates = Selectivities(len(waiting))
    estimates.observe_results(product=9_999_999, results=999)  # sigma_MJoin = (999 + 1) / (9,999,999 + 1)
    for index, rows in enumerate(stored):
        estimates.observe_arrivals(index, rows)
    heads = heads or [0] * len(waiting)
    queues = [deque([Slice(np.arange(rows), head)] if rows else []) for rows, head in zip(waiting, heads, strict=True)]
    return Situation(queues, waiting, stored, last, estimates)


def test_output_size_is_equation_1() -> None:
    driver, scores = choose(POLICIES["output_size"](), situation([10, 40, 20], [100, 200, 50]))
    assert scores.tolist() == pytest.approx([10 * 1e-4 * 200 * 50, 40 * 1e-4 * 100 * 50, 20 * 1e-4 * 100 * 200])
    assert driver == 2


def test_output_rate_leaves_the_buffer_out() -> None:
    driver, scores = choose(POLICIES["output_rate"](), situation([1000, 40, 1], [100, 200, 50]))
    assert scores.tolist() == pytest.approx([1e-4 * 200 * 50, 1e-4 * 100 * 50, 1e-4 * 100 * 200])
    assert driver == 2


def test_consumption_rate_takes_the_input_with_the_fewest_results_per_row() -> None:
    driver, scores = choose(POLICIES["consumption_rate"](), situation([5, 5, 5], [99, 499, 9]))
    assert scores.tolist() == pytest.approx([1000 / 100, 1000 / 500, 1000 / 10])
    assert driver == 1


def test_the_controls_look_at_nothing_or_at_the_opposite() -> None:
    given = situation([10, 40, 20], [100, 200, 50])
    assert choose(POLICIES["fixed_order"](), given)[0] == 0
    assert choose(POLICIES["fixed_order"](), situation([0, 40, 20], [100, 200, 50]))[0] == 1
    best, scores = choose(POLICIES["output_size"](), given)
    worst, same = choose(POLICIES["reversed_output_size"](), given)
    assert scores.tolist() == same.tolist()
    assert (scores[best], scores[worst]) == (scores.max(), scores.min())


def test_timestamp_takes_the_oldest_slice() -> None:
    assert choose(POLICIES["timestamp"](), situation([5, 5, 5], [1, 1, 1], heads=[4, 2, 3]))[0] == 1


def test_round_robin_goes_round_and_skips_empty_buffers() -> None:
    policy = POLICIES["round_robin"]()
    assert choose(policy, situation([5, 5, 5], [1, 1, 1]))[0] == 0
    assert choose(policy, situation([5, 5, 5], [1, 1, 1], last=0))[0] == 1
    assert choose(policy, situation([5, 0, 5], [1, 1, 1], last=0))[0] == 2
    assert choose(policy, situation([5, 5, 5], [1, 1, 1], last=2))[0] == 0


@pytest.mark.parametrize("name", POLICIES)
def test_ties_go_to_the_first_input_and_empty_buffers_never_drive(name: str) -> None:
    assert choose(POLICIES[name](), situation([7, 7, 7], [50, 50, 50]))[0] == 0
    assert choose(POLICIES[name](), situation([0, 7, 7], [50, 50, 50]))[0] == 1


def test_an_estimate_of_nothing_still_ranks_the_inputs() -> None:
    """Before the first result sigma_MJoin is unknown; the order must follow the sizes all the same."""
    unknown = Situation([deque()] * 2, [1, 9], [10, 10], -1, Selectivities(2))
    assert choose(POLICIES["output_size"](), unknown)[0] == 1
