"""The limits of the options of a window join, and the costs it is told or measures."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from watersmeet.errors import OptionError
from watersmeet.estimate.calibration import calibrate, load
from watersmeet.window.batch_costs import KernelCosts
from watersmeet.window.measured_costs import FAMILY, window_costs
from watersmeet.window.options import WindowOptions

MOST = 10_000 * 365 * 86_400 * 1_000_000  # 10,000 years


@pytest.mark.parametrize("name", ["window", "lateness"])
def test_times_reach_from_nothing_to_ten_thousand_years(name: str) -> None:
    for value, is_allowed in ((0, True), (MOST, True), (-1, False), (MOST + 1, False)):
        given: dict[str, Any] = {"window": "1 s", "time": "t", name: timedelta(microseconds=value)}
        if is_allowed:
            found = getattr(WindowOptions.checked("window_join", **given), name)
            assert found == ((value, value) if name == "window" else value)
        else:
            with pytest.raises(OptionError, match="10,000 years"):
                WindowOptions.checked("window_join", **given)


@pytest.mark.parametrize("name", list(KernelCosts.model_fields))
def test_a_cost_may_be_nothing_and_not_less(name: str) -> None:
    assert getattr(KernelCosts(**{name: 0.0}), name) == 0.0
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        KernelCosts(**{name: -1e-9})


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
