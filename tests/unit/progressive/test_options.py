"""Bad parameters are found when the join is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from watersmeet.errors import OptionError
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.testing import make_plan


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"memory": 0}, "memory"),
        ({"memory": "much"}, "a size such as"),
        ({"memory": "1 MB", "memory_rows": 5}, "Did you mean 'memory'"),
        ({"policy": "lru"}, "policy"),
        ({"buckets": 0}, "buckets"),
        ({"decay": 1.5}, "decay"),
        ({"decay": -0.1}, "decay"),
        ({"idle_after": "soon"}, "a duration such as"),
        ({"fan_in": 1}, "fan_in"),
        ({"flush_share": 0}, "flush_share"),
        ({"policy": "hmj", "flush": "optimal"}, "only adaptive, all, largest, smallest"),
        ({"policy": "rpj", "flush": "adaptive"}, "only optimal, long-run, classes, largest, smallest, all"),
        ({"bucket": 3}, "Did you mean 'buckets'"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ProgressiveOptions.checked("progressive_join", **wrong)


def test_memory_must_hold_a_page_in_every_partition() -> None:
    options, plan = ProgressiveOptions(memory="1 MB"), make_plan("rpj")
    options.check_plan("progressive_join", replace(plan, partitions=2))
    # hash, key and number have eight bytes, the offset of a text and the arrival time four
    with pytest.raises(OptionError, match=r"of at least 32 bytes in each of 200 partitions, found 1000000 bytes"):
        options.check_plan("progressive_join", replace(plan, partitions=200))


def test_without_memory_the_join_is_unlimited() -> None:
    assert ProgressiveOptions().operator == "symmetric"
    assert ProgressiveOptions(memory="1 MB").operator == "rpj"
    assert ProgressiveOptions(memory_rows=0, policy="hmj").operator == "hmj"


def test_what_may_change_between_restarts() -> None:
    before = ProgressiveOptions(memory="1 MB", idle_pages=3)
    after = ProgressiveOptions(memory="2 MB", idle_pages=30, flush="largest")
    assert before.identity() == after.identity() == {"policy": "rpj", "buckets": 20, "rate_unit": 1_000_000}


@pytest.mark.parametrize(
    ("name", "least"),
    [("memory_rows", 0), ("buckets", 1), ("page_rows", 1), ("rate_unit", 1), ("idle_after", 0), ("idle_pages", 0),
     ("fan_in", 2), ("distinct_keys", 1)],
)  # fmt: skip
def test_the_least_that_an_option_may_be(name: str, least: int) -> None:
    assert getattr(ProgressiveOptions(**{name: least}), name) == least
    with pytest.raises(OptionError, match=name):
        ProgressiveOptions.checked("progressive_join", **{name: least - 1})
