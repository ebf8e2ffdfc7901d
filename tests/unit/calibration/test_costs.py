"""Costs are measured on this machine and kept, wherever they are wanted."""

from pathlib import Path

from watersmeet.calibration.kept_costs import calibrate, load
from watersmeet.calibration.semi_stream import semi_stream_costs
from watersmeet.calibration.window import FAMILY, window_costs
from watersmeet.window.batch_costs import KernelCosts


def test_measured_costs_are_kept_wherever_they_are_wanted(tmp_path: Path) -> None:
    place = tmp_path / "not" / "yet" / "there" / "costs.json"
    known = KernelCosts(probe=17.0).model_dump()
    calibrate({FAMILY: lambda: known, "other": lambda: {"a": 1.0}}, place)
    calibrate({FAMILY: lambda: known}, place)  # and again
    assert load("other", place) is None
    assert window_costs(place) == KernelCosts(probe=17.0)


def test_costs_of_another_set_are_measured_anew(tmp_path: Path) -> None:
    place = tmp_path / "costs.json"
    calibrate({FAMILY: lambda: {"probe": 1.0}}, place)
    found = window_costs(place)
    assert found.probe != 1.0
    assert all(cost > 0 for cost in found.model_dump().values())
    assert found.arrange == found.index
    assert load(FAMILY, place) == found.model_dump()


def test_the_costs_of_a_semi_stream_join_are_measured() -> None:
    found = semi_stream_costs(rows=2000)
    assert all(0 < value < 1e-2 for value in vars(found).values())
