"""The paper's equations, with its numbers."""

from __future__ import annotations

import pytest

from watersmeet.window.cost_model import (
    Stream,
    Weights,
    crossover,
    determinant,
    full_join_costs,
    hash_cost,
    loop_cost,
    output_rate,
)


def streams(rate_b: float, keys: float = 10) -> tuple[Stream, Stream]:
    """The setting of Fig. 2 (keys 10) and 3 (keys 20): T = 60, lambda_a = 10."""
    return Stream(10, 60, keys), Stream(rate_b, 60, keys)


def test_directions_by_hand() -> None:
    a, b = streams(100)
    assert loop_cost(a, b) == (10 * 6000 + 2 * 100) * 0.5  # Eq. 2
    assert hash_cost(a, b) == pytest.approx((10 * 600 + 100 * (600 + 1)) * 0.65)  # Eq. 3


def test_full_joins_are_sums_of_their_directions() -> None:
    a, b = streams(100)
    costs = full_join_costs(a, b)
    bucket_a, bucket_b = 60, 600
    assert costs["HH"] == pytest.approx((10 + 100) * (bucket_a + bucket_b + 1) * 0.65)  # Eq. 4
    assert costs["NN"] == pytest.approx((10 * (6000 + 2) + 100 * (600 + 2)) * 0.5)  # Eq. 5
    loops, hashed = 0.5, 0.65
    assert costs["HN"] == pytest.approx(  # Eq. 6
        10 * (6000 * loops + bucket_a * hashed + hashed) + 100 * (bucket_a * hashed + 2 * loops)
    )
    assert costs["NH"] == pytest.approx(hash_cost(a, b) + loop_cost(b, a))


@pytest.mark.parametrize(("keys", "turns_at"), [(10, 68), (20, 145)])
def test_where_the_asymmetric_join_takes_over(keys: float, turns_at: int) -> None:
    """About 70 and 140 in Fig. 2 and 3; exactly 68 and 145 by the formulas."""

    def best(rate: float) -> str:
        costs = full_join_costs(*streams(rate, keys))
        return min(costs, key=lambda name: costs[name])

    assert best(turns_at - 1) == "HH"
    assert best(turns_at + 1) == "HN"


def test_the_crossover_and_the_determinant() -> None:
    assert crossover(10) == pytest.approx(6.69, abs=0.01)  # Eq. 7 and the example below it
    assert determinant(Stream(10, 60, 10), Stream(100, 60, 10)) == "loop"
    assert determinant(Stream(10, 60, 20), Stream(100, 60, 20)) == "hash"
    exact = Weights(loop=1, hash=2)
    assert crossover(10, exact) == 4
    assert determinant(Stream(10, 60, 10), Stream(40, 60, 10), exact) == "hash"  # only beyond it do loops win
    assert determinant(Stream(10, 60, 10), Stream(41, 60, 10), exact) == "loop"


def test_the_output_rate() -> None:
    """Eq. 9 with the regulated rates of Fig. 8: 3.2 for 8 and 2, 5.0 for 5 and 5 (sigma = 1/50, T = 9 and 1)."""
    assert output_rate(Stream(8, 9, 50), Stream(2, 1, 12.5)) == pytest.approx(3.2)
    assert output_rate(Stream(5, 9, 50), Stream(5, 1, 12.5)) == pytest.approx(5.0)
