"""Flush policies in joins with other facts: what goes to disk, what may be said, and a policy that comes later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.conformance.cases import combined, punctuated, window

from watersmeet.engine.registry import build
from watersmeet.errors import OptionError
from watersmeet.join.operator import Operator, advance, resume, saved
from watersmeet.join.victims import Victims
from watersmeet.plan.options import Options
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.state.buckets import Buckets
from watersmeet.state.space import MemorySpace
from watersmeet.testing import batch_of
from watersmeet.testing.cases import Case
from watersmeet.window.options import WindowOptions

CASES = [
    window.case("flushed", (6, 5), 2, memory=700, policy="rpj"),
    combined.case("flushed", "full", lengths=(6, 5), memory=700, policy="hmj"),
    punctuated.case("flushed", memory=700, policy="xjoin"),
]


def events(case: Case, operator: Operator, first: int = 0, last: int = 8) -> list[dict[str, Any]]:
    found = []
    for number, arrival in enumerate(case.random_script(1, batches=8, idle_share=0.0, end=False)):
        if first <= number < last:
            for _ in advance(operator, batch_of(operator.plan, number, arrival)):
                pass
            found += [event for event in operator.metrics.events if event["kind"] == "flush"]
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_buckets_go_to_disk_as_the_policy_says(case: Case) -> None:
    operator = build(case.plan(), MemorySpace())
    flushed = events(case, operator)
    assert flushed
    assert all(event["rows"] > 0 and event["buckets"] > 0 for event in flushed)
    assert any(store.spilled_rows for store in operator.row_stores())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_policy_may_come_at_a_restart(case: Case) -> None:
    without = {name: value for name, value in case.tuning.items() if name not in ("policy", "memory")}
    if case.operator == "window":
        without["algorithm"] = "NN"  # what came before is not sorted
    before = replace(case, tuning=without)
    first = build(before.plan(), MemorySpace())
    assert events(before, first, last=4) == []
    second = build(case.plan(), first.space)
    resume(second, saved(first))
    assert events(case, second, first=4)


def test_the_bucket_that_fewest_arrivals_are_expected_for_leaves() -> None:
    victims = Victims("rpj", Buckets(2))
    low, high = np.zeros(1, np.uint64), np.full(1, 2**63, np.uint64)
    victims.observe([np.repeat(low, 9), np.repeat(high, 9)], time=0)
    sizes = np.full((2, 2), 10)
    assert victims.choose(sizes, 10) == [[], [1]], "no left row has ever come to the right rows of bucket 1"
    assert victims.choose(sizes, 20) == [[0], [1]]
    other = Victims("rpj", Buckets(2))
    other.restore(victims.save())
    other.restore(None)
    assert other.choose(sizes, 20) == [[0], [1]]
    assert Victims("hmj", Buckets(2)).choose(sizes, 5) == [[0], [0]], "both inputs together"


@pytest.mark.parametrize("options", [WindowOptions, PunctuatedOptions])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy": "rpj"}, "policy has an effect only with memory"),
        ({"flush": "optimal", "memory": "1 MB"}, "flush needs policy 'rpj', 'xjoin' or 'hmj'"),
        ({"policy": "hmj", "flush": "optimal", "memory": "1 MB"}, "policy 'hmj' has no flush 'optimal', only adaptive"),
    ],
)
def test_what_does_not_go_together(options: type[Options], given: dict[str, Any], message: str) -> None:
    window = {"window": "1 h"} if options is WindowOptions else {}
    with pytest.raises(OptionError, match=message):
        options.checked("test", **window, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_overload": "shrink"}, "policy has no effect with on_overload='shrink'"),
        ({"algorithm": "HN"}, "policy needs algorithm='auto' or 'HH'"),
    ],
)
def test_windows_that_no_policy_flushes(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        WindowOptions.checked("test", window="1 h", memory="1 MB", policy="rpj", **given)
