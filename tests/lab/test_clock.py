"""The virtual clock: the same bytes every time, and every result counted once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from watersmeet.lab.experiment import no_progress
from watersmeet.lab.registry import EXPERIMENTS
from watersmeet.lab.rpj import _curve
from watersmeet.lab.rpj_clock import Simulation, Size
from watersmeet.lab.store import run
from watersmeet.lab.workloads import Network, relations

SIZE = Size(0.0004, 20)


@pytest.mark.parametrize("network", ["reliable", "unreliable"])
def test_every_policy_reports_the_whole_join(network: Network) -> None:
    arrivals = relations(SIZE.rows, "reverse", 5.0, network, domain=SIZE.domain, seed=2)
    keys, inputs = arrivals["key"].to_numpy(), arrivals["input"].to_numpy()
    counts = [np.bincount(keys[inputs == index], minlength=SIZE.domain) for index in (0, 1)]
    expected = int((counts[0] * counts[1]).sum())
    for policy in ("rpj", "xjoin", "hmj"):
        curve = Simulation(SIZE, policy, arrivals).run(no_progress, reactive=network == "unreliable")
        assert curve.results[-1] == expected
        assert all(np.diff(curve.seconds) >= 0)
        assert 0 < curve.share_before_clean_up < 1


def test_a_figure_on_the_virtual_clock_is_the_same_to_the_byte(tmp_path: Path) -> None:
    for name in ("first", "second"):
        _curve.cache_clear()
        run(EXPERIMENTS["windows/fig11"], "tiny", tmp_path / name, no_progress)
        run(EXPERIMENTS["rpj/eq4"], "tiny", tmp_path / name, no_progress)
    for path in (tmp_path / "first").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "second" / path.relative_to(tmp_path / "first")).read_bytes(), path.name
