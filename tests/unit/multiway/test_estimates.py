"""Selectivities, and the probe order that follows from them."""

from __future__ import annotations

import json

import pytest

from watersmeet.estimate.selectivity import Selectivities
from watersmeet.multiway.probe_order import probe_order


def test_steps_of_a_run_tile_the_product_of_all_inputs() -> None:
    """Rows that join and are stored in any order: the products of the steps add up to |S1| x |S2| x |S3|."""
    estimates, stored = Selectivities(3), [0, 0, 0]
    for driver, rows in ((0, 10), (1, 5), (2, 7), (2, 3), (0, 4), (1, 20)):
        others = [stored[i] for i in range(3) if i != driver]
        estimates.observe_results(rows * others[0] * others[1], results=0)
        stored[driver] += rows
    assert estimates.product == stored[0] * stored[1] * stored[2]


def test_estimates_follow_data_that_changes() -> None:
    estimates = Selectivities(3)
    for batch in range(60):
        estimates.age()
        hits = (1, 50) if batch < 30 else (50, 1)
        for driven in (1, 2):
            estimates.observe_pair(0, driven, rows=100, stored=100, hits=hits[driven - 1], matches=hits[driven - 1])
        if batch == 29:
            assert probe_order(0, [0, 100, 100], estimates) == [1, 2]
    assert probe_order(0, [0, 100, 100], estimates) == [2, 1]


def test_equal_hit_shares_are_told_apart_by_the_number_of_matches() -> None:
    estimates = Selectivities(3)
    estimates.observe_pair(0, 1, rows=10, stored=1000, hits=10, matches=500)
    estimates.observe_pair(0, 2, rows=10, stored=1000, hits=10, matches=20)
    assert probe_order(0, [0, 1000, 1000], estimates) == [2, 1]


def test_nothing_known_probes_the_smallest_table_first() -> None:
    assert probe_order(1, [30, 5, 10, 20], Selectivities(4)) == [2, 3, 0]


def test_what_was_seen_in_either_direction_counts() -> None:
    estimates = Selectivities(2)
    estimates.observe_pair(0, 1, rows=10, stored=20, hits=4, matches=30)
    estimates.observe_pair(1, 0, rows=5, stored=8, hits=1, matches=2)
    assert estimates.pair(0, 1) == estimates.pair(1, 0) == 32 / 240
    assert (estimates.hit_share(0, 1), estimates.hit_share(1, 0)) == (0.4, 0.2)


def test_results_per_combination_and_per_row_have_one_result_added() -> None:
    estimates = Selectivities(2)
    estimates.observe_arrivals(0, 9)
    estimates.observe_arrivals(1, 4)
    estimates.observe_results(99, 7)
    assert estimates.of_join == 8 / 100
    assert estimates.of_inputs().tolist() == [8 / 10, 8 / 5]
    estimates.observe_results(100, 2)
    assert estimates.of_join == 10 / 200


def test_estimates_survive_json_exactly() -> None:
    estimates = Selectivities(2)
    estimates.observe_pair(0, 1, rows=3, stored=7, hits=1, matches=2)
    estimates.age()
    again = Selectivities.from_dict(json.loads(json.dumps(estimates.as_dict())))
    assert again.as_dict() == estimates.as_dict()
    assert again.pair(1, 0) == pytest.approx(2 / 21)
