"""Equations 5 and 6."""

from __future__ import annotations

import numpy as np
import pytest

from watersmeet.estimate.arrival_rate import ArrivalRates

SECOND = 1_000_000


def rates(decay: float = 0.5) -> ArrivalRates:
    return ArrivalRates(2, 2, decay=decay, unit=SECOND)


def test_totals_give_the_share_of_a_bucket_and_recent_rows_the_share_of_an_input() -> None:
    found = rates()
    found.observe(np.array([[30, 10], [0, 0]]), 0)
    found.observe(np.array([[0, 0], [20, 20]]), SECOND)  # ends the first unit: 40 to 0
    found.observe(np.array([[0, 0], [0, 0]]), 2 * SECOND)  # recent = 0.5 * 40 and 0.5 * 40
    assert found.probabilities().tolist() == [[0.375, 0.125], [0.25, 0.25]]


def test_the_first_unit_is_taken_as_it_is_and_later_ones_decay() -> None:
    found = rates(decay=0.9)
    found.observe(np.array([[8, 0], [2, 0]]), 0)
    found.observe(np.array([[0, 0], [10, 0]]), SECOND)
    found.observe(np.array([[0, 0], [0, 0]]), 2 * SECOND)
    assert found.recent.tolist() == pytest.approx([0.9 * 8, 0.9 * 2 + 0.1 * 10])


def test_inputs_and_buckets_without_a_row_yet_share_evenly() -> None:
    assert rates().probabilities().tolist() == [[0.25, 0.25], [0.25, 0.25]]


def test_batches_of_one_unit_add_up() -> None:
    found = rates()
    for _ in range(4):
        found.observe(np.array([[1, 0], [2, 1]]), 500)
    found.observe(np.zeros((2, 2), np.int64), SECOND)
    assert found.recent.tolist() == [4, 12]


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_a_long_silence_keeps_the_last_known_speeds(decay: float) -> None:
    found = rates(decay)
    found.observe(np.array([[3, 0], [1, 0]]), 0)
    found.observe(np.zeros((2, 2), np.int64), 100_000 * SECOND)
    found.observe(np.zeros((2, 2), np.int64), 200_000 * SECOND)
    assert found.probabilities()[:, 0].tolist() == pytest.approx([0.75, 0.25])


def test_an_ended_input_has_probability_zero() -> None:
    found = rates()
    found.observe(np.array([[1, 1], [1, 1]]), 0)
    assert found.probabilities(ended=[0]).tolist() == [[0, 0], [0.25, 0.25]]


def test_saved_rates_go_on_as_before() -> None:
    kept = rates()
    kept.observe(np.array([[5, 1], [2, 2]]), 0)
    other = rates()
    other.restore(kept.save())
    for found in (kept, other):
        found.observe(np.array([[1, 7], [0, 2]]), 3 * SECOND)
    assert kept.save() == other.save()


def test_before_anything_has_come_every_bucket_is_equally_likely() -> None:
    rates = ArrivalRates(inputs=2, buckets=4, decay=0.5, unit=1)
    for time in (0, 1, 5):
        rates.observe(np.zeros((2, 4), np.int64), time)
        assert rates.probabilities().tolist() == [[0.125] * 4] * 2
    rates.observe(np.array([[0, 4, 0, 0], [0, 0, 0, 0]]), 6)
    rates.observe(np.zeros((2, 4), np.int64), 7)
    assert rates.probabilities().tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]
    rates.observe(np.zeros((2, 4), np.int64), 3000)  # so long ago that nothing is left: the speeds stay as last known
    rates.observe(np.zeros((2, 4), np.int64), 3001)
    assert rates.probabilities()[0].tolist() == [0, 1, 0, 0]
