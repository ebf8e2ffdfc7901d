"""The virtual clock of the progressive joins: every result counted once, whatever the network does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from watersmeet.lab.experiment import no_progress
from watersmeet.lab.rpj_clock import (
    C_RAN,
    C_ROW,
    C_SEQ,
    PAPER_MEMORY,
    PAPER_PAGE,
    SUB_PARTITIONS,
    DiskWork,
    Simulation,
    Size,
)
from watersmeet.lab.workloads import PARTITIONS, Network, relations, suspension_share, suspensions

SIZE = Size(0.0002, 5)


@pytest.mark.parametrize("network", ["reliable", "unreliable"])
def test_every_policy_reports_the_whole_join(network: Network) -> None:
    each = SIZE.stands_for
    arrivals = relations(SIZE.rows, "reverse", 5.0, network, domain=SIZE.domain, seed=2, stands_for=each)
    silences = suspensions(SIZE.rows, seed=2, stands_for=each, every=SIZE.every) if network == "unreliable" else None
    keys, inputs = arrivals["key"].to_numpy(), arrivals["input"].to_numpy()
    counts = [np.bincount(keys[inputs == index], minlength=SIZE.domain) for index in (0, 1)]
    expected = int((counts[0] * counts[1]).sum())
    for policy in ("rpj", "xjoin", "xjoin-fresh", "hmj"):
        curve = Simulation(SIZE, policy, arrivals).run(no_progress, silences)
        assert curve.results[-1] == curve.whole == expected
        assert all(np.diff(curve.seconds) >= 0)
        assert 0 < curve.share_before_clean_up < 1


def test_a_clean_up_that_nobody_looks_at_changes_no_share() -> None:
    arrivals = relations(SIZE.rows, "reverse", 5.0, "reliable", domain=SIZE.domain, seed=2)
    seen, unseen = (Simulation(SIZE, "rpj", arrivals).run(no_progress, clean_up=shown) for shown in (True, False))
    assert seen.share_before_clean_up == unseen.share_before_clean_up
    assert len(unseen.seconds) == seen.transmitted + 1 < len(seen.seconds)


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


def test_an_arriving_row_takes_as_long_at_every_size() -> None:
    """With memory filled alike, at two fractions of the paper's size."""
    spent = []
    for fraction in (0.002, 0.001):
        size = Size(fraction, 10)
        arrivals = relations(size.memory + 10, "harmony", 1.0, "reliable", domain=size.domain, seed=4)
        simulation = Simulation(replace(size, batch_rows=size.memory // 2), "rpj", arrivals)
        simulation._batch(0, size.memory // 2)
        before, results = simulation.work, simulation.curve.results[-1]
        simulation._batch(size.memory // 2, size.memory // 2 + 10)
        found = simulation.curve.results[-1] - results
        spent.append((simulation.work - before - found * C_ROW) / 10)
    paper = PAPER_MEMORY / 2 / 2 / PARTITIONS / SUB_PARTITIONS * C_ROW  # half of it is full, of each input a half
    assert spent == pytest.approx([paper, paper], rel=0.1)


def unreliable(policy: str, fraction: float = 0.0002) -> Noting:
    size = Size(fraction, 5)
    arrivals = relations(size.rows, "harmony", 1.0, "unreliable", domain=size.domain, stands_for=size.stands_for)
    simulation = Noting(size, policy, arrivals)
    simulation.run(no_progress, suspensions(size.rows, stands_for=size.stands_for, every=size.every))
    return simulation


class Noting(Simulation):
    """Notes the disk work of every step, and what the operator merged in it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: list[tuple[list[DiskWork], int, int, list[dict[str, Any]]]] = []
        self.merged = (0, 0)
        self.stages: list[int] = []
        self.unmatched: list[int] = []

    def _spend(self, works: list[DiskWork], cpu: float) -> None:
        tasks = self.operator.tasks
        rows, runs = tasks.merged_rows - self.merged[0], tasks.merged_runs - self.merged[1]
        self.merged = (tasks.merged_rows, tasks.merged_runs)
        events = list(self.operator.metrics.events)
        self.seen.append((works, rows, runs, events))
        self.unmatched += [self.operator.units.unmatched_pairs(e["bucket"]) for e in events if e["kind"] == "dd_task"]
        super()._spend(works, cpu)

    def _reactive_stage(self, end: float) -> None:
        super()._reactive_stage(end)
        self.stages.append(int(np.count_nonzero(self.operator.expected.disk)))


def test_a_merge_is_charged_for_the_rows_and_runs_that_it_reads_and_writes() -> None:
    merges = [one for one in unreliable("rpj-dd").seen if one[2]]
    assert merges
    for works, rows, runs, events in merges:
        assert [event["kind"] for event in events] == ["dd_task"]
        assert [work.pages for work in works] == [pytest.approx(rows / PAPER_PAGE + runs * 0.0002 / 2)]
        assert works[0].seeks == works[0].pages  # every page at random


def test_a_dd_task_is_finished_and_hmj_merges_all_buckets_before_it_returns() -> None:
    dd = unreliable("rpj-dd")
    assert dd.unmatched
    assert not any(dd.unmatched)  # after each of its tasks all runs of the bucket match
    hmj = unreliable("hmj")
    assert hmj.stages
    assert not any(hmj.stages)  # nothing is owed on disk when HMJ's stage ends
    assert any(dd.stages)  # RPJ-dd returns when rows come


def test_xjoin_pays_for_a_scan_that_finds_nothing() -> None:
    futile = [works for works, _, _, events in unreliable("xjoin").seen if works and not events]
    assert futile
    assert not [works for works, _, _, events in unreliable("xjoin-fresh").seen if works and not events]


def test_the_rule_for_suspensions_looks_at_sizes_alone() -> None:
    assert [Size(fraction, 1).every for fraction in (1.0, 0.1, 0.005)] == [1, 1, 16]
    for fraction in (0.0005, 0.005, 0.02):
        size = Size(fraction, 1)
        assert suspension_share() * 2_000_000 / size.every <= size.rows / 2 * 1.05
