"""Dividing the service rate and the memory, against brute force."""

from __future__ import annotations

import random

import numpy as np
import pytest

from watersmeet.testing.arrivals import make_plan, table_of
from watersmeet.window.memory_split import Demand, regulate, slower_first, split
from watersmeet.window.shedding import ServiceRate, expected_loss, kept, regulated, share_of_left


@pytest.mark.parametrize(
    ("strategy", "rates"),
    [("equal", (5, 5)), ("rate", (8, 2)), ("inverse_rate", (2, 8)), ("window", (9, 1)), ("inverse_window", (1, 9))],
)
def test_the_strategies_of_figure_8(strategy: str, rates: tuple[float, float]) -> None:
    share = share_of_left(strategy, 80, 20, (9, 1))
    assert regulated(80, 20, 10, share) == pytest.approx(rates)


def test_no_other_split_of_the_service_rate_gives_more() -> None:
    rng = random.Random(1)
    for _ in range(200):
        left, right = rng.uniform(1, 100), rng.uniform(1, 100)
        service_rate = rng.uniform(1, 150)
        best = regulated(left, right, service_rate, 0.5)
        assert best[0] <= left
        assert best[1] <= right
        assert sum(best) <= max(service_rate, 0) + 1e-9 or left + right <= service_rate
        for share in np.linspace(0, 1, 101):
            other = regulated(left, right, service_rate, float(share))
            assert other[0] * other[1] <= best[0] * best[1] * (1 + 1e-9)


def test_the_share_of_results_lost() -> None:
    assert expected_loss((80, 20), (5, 5)) == pytest.approx(1 - 25 / 1600)
    assert expected_loss((80, 20), (80, 20)) == 0


def test_the_same_rows_are_kept_whatever_their_order() -> None:
    spec = make_plan("window").input("left")
    rows = [(i % 50, i, "x" * (i % 3)) for i in range(5000)]
    table = table_of(spec, rows)
    mask = kept(table, 7, 0.3)
    assert mask.mean() == pytest.approx(0.3, abs=0.03)
    reverse = kept(table_of(spec, rows[::-1]), 7, 0.3)
    assert (mask == reverse[::-1]).all()
    assert not (mask == kept(table, 8, 0.3)).all()  # another batch drops others


def entry(rows: int, seconds: float, shed: int = 0) -> dict[str, object]:
    return {"rows_in": {"left": rows}, "counters": {"left.left.shed": shed}, "timings": {"join": seconds}}


def test_the_service_rate_is_learnt_from_busy_batches_only() -> None:
    service = ServiceRate()
    service.learn([entry(10, 0.01)], interval=1.0)
    assert service.rate() is None  # at leisure: nothing is known
    service.learn([entry(50_000, 10.0, shed=10_000)], interval=10.0)
    assert service.rate() == pytest.approx(4_000)
    assert ServiceRate(given=5.0).rate() == 5.0
    half = ServiceRate(parallel=0.5)  # two partitions take turns on one core
    half.learn([entry(40_000, 10.0)], interval=20.0)
    assert half.rate() == pytest.approx(2_000)


def test_the_slower_window_is_served_first() -> None:
    assert slower_first(10, 50) == "left"
    assert slower_first(50, 10) == "right"
    assert slower_first(50, 49, before="left") == "left"  # about equal: no change
    assert split("optimal", "left", (10, 50), (5000, 5000), 1000) == (1000, 0)
    assert split("optimal", "right", (50, 10), (5000, 300), 1000) == (700, 300)  # T' <= T: the rest is not wasted


def test_no_other_rates_and_windows_give_more() -> None:
    """Eq. 14 under lambda' <= lambda and T' <= T, against a grid over rates and splits."""
    rng = random.Random(2)
    for _ in range(60):
        left = Demand(rng.uniform(1, 20), rng.uniform(1, 30), rng.uniform(1, 3))
        right = Demand(rng.uniform(1, 20), rng.uniform(1, 30), rng.uniform(1, 3))
        service_rate, memory = rng.uniform(1, 30), rng.uniform(10, 400)
        best = regulate(left, right, service_rate, memory)

        def output(rates: tuple[float, float], given: tuple[float, float]) -> float:
            return given[0] / left.row_bytes * rates[1] + given[1] / right.row_bytes * rates[0]  # noqa: B023

        found = output(best.rates, best.bytes)
        assert best.rates[0] <= left.rate + 1e-9
        assert best.rates[1] <= right.rate + 1e-9
        assert sum(best.rates) <= service_rate + 1e-9
        assert sum(best.bytes) <= memory + 1e-9
        total = min(service_rate, left.rate + right.rate)
        for x in np.linspace(max(0, total - right.rate), min(left.rate, total), 60):
            rates = (float(x), float(total - x))
            most = (rates[0] * left.window * left.row_bytes, rates[1] * right.window * right.row_bytes)
            for share in np.linspace(0, 1, 21):
                first = min(most[0], memory * float(share))
                given = (first, min(most[1], memory - first))
                assert output(rates, given) <= found * (1 + 1e-6) + 1e-9
