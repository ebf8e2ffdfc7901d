"""RPJ-md by expected values: why a small copy of the paper's experiment flatters it."""

from __future__ import annotations

import numpy as np
import pytest

from watersmeet.lab.experiment import no_progress
from watersmeet.lab.rpj_clock import Simulation, Size
from watersmeet.lab.rpj_fluid import Fluid
from watersmeet.lab.workloads import relations


def whole_rows_only(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """From here on a bucket gets a lump of rows or none, as in a copy whose rows stand for so many."""
    draw, arrive = np.random.default_rng(3), Fluid._arrive

    def drawn(self: Fluid) -> None:
        expected = self.share
        came = draw.multinomial(self.lump // rows, expected.ravel()).reshape(expected.shape)
        self.share = came * rows / self.lump
        arrive(self)
        self.share = expected

    monkeypatch.setattr(Fluid, "_arrive", drawn)


def test_md_tasks_find_more_where_a_bucket_gets_less_than_a_row_between_two_flushes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fluid = [Fluid("harmony", 1.0, lump=lump).run() for lump in (1000, 500)]
    assert fluid[0] == pytest.approx(fluid[1], abs=0.05)  # how finely it flows makes no difference
    whole_rows_only(monkeypatch, 200)  # a 200th of the paper's size, and nothing else is different
    assert Fluid("harmony", 1.0, lump=1000).run() > fluid[0] + 0.15


def test_the_fluid_reports_what_the_join_reports_where_rows_are_many() -> None:
    """In memory alone, without md-tasks: results by the expected values and by the join, on the same network."""
    size = Size(0.01, 50)
    each = size.stands_for
    arrivals = relations(size.rows, "harmony", 1.0, "unreliable", domain=size.domain, seed=1, stands_for=each)
    joined = Simulation(size, "rpj-md", arrivals).run(no_progress, None, clean_up=False).share_before_clean_up
    silent = Fluid("harmony", 1.0, lump=1000)
    silent.begins = silent.ends = silent.begins[:0]
    assert silent.run() == pytest.approx(joined, abs=0.02)
