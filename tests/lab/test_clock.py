"""The virtual clock of the progressive joins: every result counted once, whatever the network does."""

from __future__ import annotations

import numpy as np
import pytest

from watersmeet.lab.experiment import no_progress
from watersmeet.lab.rpj_clock import Simulation, Size
from watersmeet.lab.workloads import Network, relations, suspensions

SIZE = Size(0.0005, 20, every=500)


@pytest.mark.parametrize("network", ["reliable", "unreliable"])
def test_every_policy_reports_the_whole_join(network: Network) -> None:
    each = SIZE.stands_for
    arrivals = relations(SIZE.rows, "reverse", 5.0, network, domain=SIZE.domain, seed=2, stands_for=each)
    silences = suspensions(SIZE.rows, seed=2, stands_for=each, every=SIZE.every) if network == "unreliable" else None
    keys, inputs = arrivals["key"].to_numpy(), arrivals["input"].to_numpy()
    counts = [np.bincount(keys[inputs == index], minlength=SIZE.domain) for index in (0, 1)]
    expected = int((counts[0] * counts[1]).sum())
    for policy in ("rpj", "xjoin", "hmj"):
        curve = Simulation(SIZE, policy, arrivals).run(no_progress, silences)
        assert curve.results[-1] == expected
        assert all(np.diff(curve.seconds) >= 0)
        assert 0 < curve.share_before_clean_up < 1
