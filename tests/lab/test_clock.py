"""The virtual clock of the progressive joins: every result counted once, whatever the network does."""

from __future__ import annotations

import numpy as np
import pytest

from watersmeet.lab.experiment import no_progress
from watersmeet.lab.rpj_clock import C_RAN, C_SEQ, PAPER_PAGE, DiskWork, Simulation, Size
from watersmeet.lab.workloads import Network, relations, suspensions
from watersmeet.progressive.units import Unit

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


def test_disk_work_takes_the_same_share_of_the_time_at_every_size() -> None:
    arrivals = relations(10, "harmony", 1.0, "reliable", domain=20)
    whole, part = (Simulation(Size(fraction, 20), "rpj", arrivals) for fraction in (1.0, 0.005))
    for seeks in (None, 10):  # a merge, a scan of ten runs
        paper = whole._disk_work(200 * PAPER_PAGE, runs=10, seeks=seeks)
        ours = part._disk_work(PAPER_PAGE, runs=10, seeks=seeks)
        for random in (C_RAN, C_SEQ):
            assert ours.cost(random) == pytest.approx(0.005 * paper.cost(random))
    # Ten runs have half a page more each; a scan seeks ten times, a merge for every page.
    assert whole._disk_work(200 * PAPER_PAGE, runs=10).cost(C_RAN) == 205 * C_RAN
    assert whole._disk_work(200 * PAPER_PAGE, runs=10, seeks=10).cost(C_RAN) == 10 * C_RAN + 195 * C_SEQ


def test_a_merge_is_charged_for_the_rows_that_it_reads_and_writes() -> None:
    size = Size(0.0005, 20, every=1600)
    arrivals = relations(size.rows, "harmony", 1.0, "unreliable", domain=size.domain, stands_for=size.stands_for)
    silences = suspensions(size.rows, stands_for=size.stands_for, every=size.every)
    seen = []

    class Noting(Simulation):
        def _merged(self, bucket: int, before: list[Unit]) -> DiskWork:
            work = super()._merged(bucket, before)
            rows = int(self.operator.units.counts[:, bucket].sum())
            seen.append((work.pages, rows, sum(unit[side] is not None for unit in before for side in (0, 1))))
            return work

    Noting(size, "rpj-dd", arrivals).run(no_progress, silences)
    assert seen
    for pages, rows, runs in seen:  # at most all rows of the bucket, read once and written once
        assert 0 < pages <= 2 * rows / PAPER_PAGE + (runs + 2) * size.fraction / 2
