"""The model of a micro-batch: what it says of partitions, and that it is the one that was measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from watersmeet.chooser.scaling import BatchCosts, Slots, advice

ROOT = Path(__file__).parents[3]
COSTS = BatchCosts(driver=0.1, task=0.001, slot=0.02, row=1e-6, remote=0.05, move=2e-6)


def test_the_costs_are_those_that_were_measured_or_the_page_says_that_none_were() -> None:
    measured = ROOT / "benchmarks/results/scaling.json"
    if measured.exists():
        found = json.loads(measured.read_text())["costs"]
        assert asdict(BatchCosts()) == pytest.approx(found, rel=0.05, abs=1e-4)
    else:
        assert "Not measured yet" in (ROOT / "docs/scaling.md").read_text()


def test_more_partitions_than_cores_come_in_rounds() -> None:
    assert COSTS.parts(0, 5, 2, request=0.03) == pytest.approx(
        {"driver": 0.1, "task": 0.01, "slot": 0.06, "store": 0.27, "row": 0.0, "remote": 0.0, "move": 0.0}
    )


def test_rows_of_other_executors_move() -> None:
    alone, two, four = (COSTS.parts(1_000_000, 4, 4, executors=some) for some in (1, 2, 4))
    assert [(one["remote"], one["move"]) for one in (alone, two, four)] == [(0.0, 0.0), (0.05, 0.25), (0.05, 0.375)]
    (said,) = advice(1_000_000, 4, Slots(4, executors=4), object_store=False, costs=COSTS)
    assert "4 take about 0.80 s" in said


@pytest.mark.parametrize(("hottest", "seconds"), [(0.0, 0.25), (0.2, 0.25), (0.5, 0.5)])
def test_no_batch_is_faster_than_its_hottest_key(hottest: float, seconds: float) -> None:
    assert COSTS.parts(1_000_000, 4, 4, hottest=hottest)["row"] == seconds


def test_the_best_number_grows_with_the_root_of_the_rows() -> None:
    assert [COSTS.best(rows, 1000) for rows in (20_000, 2_000_000, 200_000_000)] == [3, 32, 316]
    assert COSTS.best(200_000_000, 8) == 8
    # Further cores do not help one key.
    assert COSTS.best(2_000_000, 1000, hottest=0.25) == 4


def test_another_number_is_suggested_where_it_is_much_faster() -> None:
    (few,) = advice(1_000_000, 1, Slots(8), object_store=False, costs=COSTS)
    assert few == (
        "partitions: 1 take about 1.12 s for the 1,000,000 rows of a micro-batch on 8 cores; partitions=8 would take "
        "0.26 s (docs/scaling.md)"
    )
    (right,) = advice(1_000_000, 7, Slots(8), object_store=False, costs=COSTS)
    assert right.endswith("on 8 cores; no other number is much faster (docs/scaling.md)")


def test_a_round_costs_more_in_an_object_store() -> None:
    here, there = (next(advice(100_000, 8, Slots(4), object_store=there, costs=COSTS)) for there in (False, True))
    assert "8 take about 0.18 s" in here
    assert "8 take about 0.36 s" in there


def test_the_page_shows_what_is_said() -> None:
    (said,) = advice(2_000, 8, Slots(2), object_store=False)
    assert f"  {said}\n" in (ROOT / "docs/scaling.md").read_text()
