"""Er as in section 5.3: with one key per bucket (s = 1) the expectation is exact, whatever happened before."""

from __future__ import annotations

import random

import numpy as np
import pytest

from watersmeet.engine.registry import build
from watersmeet.join.operator import advance
from watersmeet.progressive.budgeted import BudgetedJoin
from watersmeet.progressive.expected import ExpectedResults, dd_cost, md_cost
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of, make_plan


def no_rows(*counts: int) -> np.ndarray:
    return np.array(counts, np.int64)


def test_case_1_an_arriving_row_is_owed_all_that_is_on_disk() -> None:
    expected = ExpectedResults(1)
    expected.arrived(0, no_rows(3), on_disk=no_rows(10), batch=4)
    assert expected.memory.tolist() == [[30], [0]]


def test_case_2_a_flushed_row_takes_along_what_was_on_disk_when_it_came() -> None:
    expected = ExpectedResults(1)
    expected.arrived(0, no_rows(2), on_disk=no_rows(10), batch=1)
    expected.arrived(0, no_rows(1), on_disk=no_rows(25), batch=3)  # 15 were flushed in between
    expected.flushed(0, 0, np.array([1], np.int32))
    assert (int(expected.memory[0, 0]), int(expected.disk[0])) == (35, 10)
    expected.flushed(0, 0, np.array([1, 3], np.int32))
    assert (int(expected.memory[0, 0]), int(expected.disk[0])) == (0, 45)


@pytest.mark.parametrize("on_disk", [1, 2])
def test_case_2_a_single_row_on_disk_is_owed_too(on_disk: int) -> None:
    expected = ExpectedResults(1)
    expected.arrived(0, no_rows(3), on_disk=no_rows(on_disk), batch=1)
    expected.flushed(0, 0, np.array([1], np.int32))
    assert (int(expected.memory[0, 0]), int(expected.disk[0])) == (2 * on_disk, on_disk)


def test_case_2_a_row_that_an_md_task_served_takes_nothing_along() -> None:
    expected = ExpectedResults(1)
    expected.arrived(0, no_rows(2), on_disk=no_rows(10), batch=1)
    expected.md_done(0, 0, batch=2)
    expected.arrived(0, no_rows(1), on_disk=no_rows(10), batch=3)
    expected.flushed(0, 0, np.array([1, 1], np.int32))
    assert (int(expected.memory[0, 0]), int(expected.disk[0])) == (10, 0)
    expected.flushed_whole(0, 0)
    assert (int(expected.memory[0, 0]), int(expected.disk[0])) == (0, 10)


def test_part_of_a_dd_task_takes_a_share() -> None:
    expected = ExpectedResults(1)
    expected.disk[0] = 10
    expected.dd_done(0, before=9, after=1)
    assert expected.disk[0] == 2  # rounded up: something is left as long as pairs are
    expected.dd_done(0, before=1, after=0)
    assert expected.disk[0] == 0


@pytest.mark.parametrize("policy", ["rpj", "rpj-md", "rpj-dd", "xjoin", "hmj"])
def test_with_one_key_per_bucket_every_task_finds_exactly_what_was_expected(policy: str) -> None:
    rng, ident, kinds = random.Random(policy), 0, set()
    options = ProgressiveOptions(
        policy=policy,
        memory_rows=15,
        buckets=1,
        page_rows=2,
        fan_in=3,
        distinct_keys=1,
        flush_share=0.1,
        idle_pages=10**6,
    )
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    operator = build(plan, MemorySpace())
    assert isinstance(operator, BudgetedJoin)
    for number in range(60):
        rows = {}
        if rng.random() < 0.7:
            for name in ("left", "right"):
                rows[name] = [(7, ident + i, "") for i in range(rng.randint(0, 3))]
                ident += 3
        for _ in advance(operator, batch_of(plan, number, Arrival(rows, time=number * 1_000_000))):
            pass
        for event in operator.metrics.events:
            if event["kind"] != "flush":
                assert event["results"] == event["expected"], (number, event)
                kinds.add(event["kind"])
        assert (operator.expected.memory >= 0).all()
    assert kinds == {"rpj": {"md_task", "dd_task"}, "xjoin": {"md_task"}, "rpj-md": {"md_task"}}.get(
        policy, {"dd_task"}
    )


def test_costs() -> None:
    assert md_cost(runs=3, pages=10, random_cost=10, sequential_cost=1) == 37
    # 8 runs with fan-in 8 are one pass, 9 are two; a single page costs something too.
    assert dd_cost((8, 1), (20, 5), fan_in=8, random_cost=10) == 500
    assert dd_cost((9, 1), (20, 5), fan_in=8, random_cost=10) == 1000
    assert dd_cost((1, 1), (1, 1), fan_in=8, random_cost=10) == 40
