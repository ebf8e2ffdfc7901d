"""Every progressive policy with every flush policy under every budget, with silences and page budgets at random."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from watersmeet.engine.registry import build
from watersmeet.join.operator import advance
from watersmeet.progressive.options import FLUSHES, OPERATOR, ProgressiveOptions
from watersmeet.state.space import MemorySpace
from watersmeet.testing import batch_of, inner_join, make_plan, random_script
from watersmeet.testing.harness import rows_of

COMBINATIONS = [(policy, flush) for policy, operator in OPERATOR.items() for flush in FLUSHES[operator]]


@pytest.mark.parametrize("memory_rows", [0, 3, 10, 1000])
@pytest.mark.parametrize(("policy", "flush"), COMBINATIONS)
def test_every_pair_once_with_new_page_budgets_all_the_time(policy: str, flush: str, memory_rows: int) -> None:
    rng = random.Random(f"{policy} {flush} {memory_rows}")
    script = random_script(rng.randrange(1 << 32), batches=14, batch_rows=rng.choice([1, 3, 7]), idle_share=0.4)
    found, saved, ended, finished = Counter(), None, {}, False
    for number, arrival in enumerate(script):
        options = ProgressiveOptions(
            policy=policy,
            flush=flush,
            memory_rows=memory_rows,
            buckets=4,
            page_rows=3,
            fan_in=2,
            idle_pages=rng.choice([0, 1, 3, 1000]),
        )
        plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
        operator = build(plan, MemorySpace())
        operator.ended, operator.finished = ended, finished
        if saved is not None:
            operator.restore(saved)
        found += rows_of(advance(operator, batch_of(plan, number, arrival)))
        saved, ended, finished = operator.save(), operator.ended, operator.finished
        resident = sum(run.rows for run in saved.runs if run.tier == "resident")
        assert resident <= memory_rows
    assert found == inner_join(script)
    assert finished
    assert saved is not None
    assert (saved.runs, saved.values) == ([], {})
