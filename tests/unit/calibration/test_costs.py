"""Costs are measured on this machine and kept, wherever they are wanted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from watersmeet.calibration import kept_costs, semi_stream
from watersmeet.calibration.kept_costs import calibrate, load
from watersmeet.calibration.semi_stream import CHUNK_ROWS, CHUNKS, Loop, semi_stream_costs
from watersmeet.calibration.window import FAMILY, STORED, window_costs
from watersmeet.semistream.cost_model import Costs, waiting_runs
from watersmeet.window.batch_costs import KernelCosts
from watersmeet.window.kernels import SAMPLE


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
    assert (found.scan_call, found.arrange_call) == (1000.0, 1000.0)  # nanoseconds
    assert found.call == found.scan_run == 0.0  # per run: many take as long as one, by this clock
    assert found.store_call == 1000.0 / STORED
    assert found.merge_call == found.slice_call == found.narrow == 0.0  # the differences of two calls
    assert found.count == round(1000.0 / SAMPLE, 3)
    assert found.probe == found.merge == 0.0  # per row: a large call takes as long as a small one, by this clock
    assert load(FAMILY, place) == found.model_dump()


def test_a_cost_per_row_is_a_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(kept_costs, "process_time", clock)

    def kernel(rows: int) -> Callable[[], object]:
        return lambda: [clock() for _ in range(rows)]  # a microsecond for every row, and one for the call

    assert kept_costs.per_row(kernel, small=10, large=60, repeats=2) == pytest.approx(1000.0)


@pytest.mark.parametrize("policy", ["aligned", "mesh"])
def test_the_costs_of_a_semi_stream_join_are_measured(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every stretch takes a microsecond: what rows take cannot be seen, what a loop takes can."""
    for module in (kept_costs, semi_stream):
        monkeypatch.setattr(module, "process_time", Clock())
    monkeypatch.setattr(semi_stream, "CYCLES", 1)
    read, look_up = 1e-6 / 2000, 1e-6 / 200  # a tenth of the rows is looked up
    found = semi_stream_costs(policy, rows=2000)
    assert (found.read, found.look_up) == pytest.approx((read, look_up))
    assert (found.hit, found.wait, found.run, found.cache) == pytest.approx((0.0, 0.0, 0.0, 0.0), abs=1e-15)
    looked_up = 0 if policy == "aligned" else CHUNK_ROWS
    assert found.loop == pytest.approx(max(1e-6 - CHUNK_ROWS * read - looked_up * look_up, 0.0), abs=1e-15)


def test_what_a_row_and_the_cache_take_is_told_from_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that take what the model says, for costs that are found again."""
    costs = Costs(read=0.0, look_up=0.0, hit=2e-6, wait=5e-6, run=7e-4, loop=1e-3, cache=3e-3, miss=4e-6)

    def measured(folder: str, policy: str, rows: int, *, skew: float, unmatched: float = 0.0) -> Loop:
        hit = 0.25 if skew else 0.125 * unmatched
        waiting = (1 - hit) * rows
        seconds = costs.loop + (costs.cache if skew else 0) + hit * rows * costs.hit
        seconds += waiting * (costs.wait + unmatched * costs.miss) + waiting_runs(waiting, CHUNKS) * costs.run
        return Loop(rows, seconds, hit)

    monkeypatch.setattr(semi_stream, "measured_loop", measured)
    monkeypatch.setattr(semi_stream, "_seconds", lambda action, rows: 0.0)
    assert vars(semi_stream_costs("ssbj", rows=2000)) == pytest.approx(vars(costs))
    assert vars(semi_stream_costs("mesh", rows=2000)) == pytest.approx(
        {**vars(costs), "hit": 0.0, "cache": 0.0, "miss": 0.0}
    )
