"""Costs are measured on this machine and kept, wherever they are wanted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from watersmeet.calibration import kept_costs, semi_stream
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


class Clock:
    """Processor time that goes on by a microsecond whenever it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.reads * 1e-6


def test_costs_of_another_set_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(kept_costs, "process_time", clock)
    place = tmp_path / "costs.json"
    calibrate({FAMILY: lambda: {"probe": 1.0}}, place)
    found = window_costs(place)
    assert clock.reads > 0
    assert (found.call, found.scan_call, found.arrange_call) == (1000.0, 1000.0, 1000.0)  # nanoseconds
    assert found.probe == found.merge == 0.0  # per row: a large call takes as long as a small one, by this clock
    assert load(FAMILY, place) == found.model_dump()


def test_a_cost_per_row_is_a_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(kept_costs, "process_time", clock)

    def kernel(rows: int) -> Callable[[], object]:
        return lambda: [clock() for _ in range(rows)]  # a microsecond for every row, and one for the call

    assert kept_costs.per_row(kernel, small=10, large=60, repeats=2) == pytest.approx(1000.0)


def test_the_costs_of_a_semi_stream_join_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kept_costs, semi_stream):
        monkeypatch.setattr(module, "process_time", Clock())
    found = vars(semi_stream_costs(rows=2000))
    assert found.pop("loop") == pytest.approx(1e-6)
    looked_up, written = 1e-6 / 200, 1e-6 / 2000
    assert found.pop("look_up") == pytest.approx(looked_up)  # a tenth of the rows
    assert found.pop("append") == pytest.approx(2 * written)  # sorted, then written
    assert set(found) == {"read", "output", "remove", "receive"}
    assert list(found.values()) == pytest.approx([written] * 4)
