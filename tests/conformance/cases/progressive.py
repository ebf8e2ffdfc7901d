"""The progressive joins under budgets so small that everything happens (all of them: `test_progressive_budgets`)."""

from collections import Counter
from dataclasses import replace
from typing import Any

from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.testing.arrivals import Row, Script
from watersmeet.testing.cases import Case
from watersmeet.testing.oracle import BinaryOracle


def case(policy: str, memory_rows: int | None, idle_pages: int, **options: Any) -> Case:
    """A case whose name says what is special about it."""
    small = {
        "policy": policy,
        "buckets": 3,
        "page_rows": 4,
        "fan_in": 2,
        "combine_runs": 2,
        "flush_share": 0.3,
        "memory_rows": memory_rows,
    }
    chosen = ProgressiveOptions(**{**small, "idle_pages": idle_pages, **options})
    shown = {"memory_rows": memory_rows, "idle_pages": idle_pages, **options}
    name = " ".join([policy, *(f"{key}={value}" for key, value in shown.items() if value is not None)])
    return Case(name, chosen.operator, chosen.identity(), chosen.tuning())


CASES = [
    case("rpj", 3, 4),
    case("rpj", 10, 1000, buckets=1, page_rows=1),
    case("rpj", None, 3, memory=900),
    case("rpj-md", 10, 2),
    case("rpj-dd", 10, 2, fan_in=3, combine_runs=3),
    case("rpj", 10, 2, flush="long-run"),
    case("rpj", None, 3, memory=900, flush="long-run", whole_tasks=True),
    case("rpj", 10, 2, flush="classes"),
    case("xjoin", 10, 2),
    case("xjoin-fresh", 3, 2, combine_runs=0),
    case("hmj", 10, 3),
    case("hmj", None, 3, memory=900, flush="largest"),
]


def typed(how: str) -> list[Case]:
    """A join type under budgets: what is owed comes late, so that only the whole answer is known."""

    def whole(script: Script) -> Counter[Row]:
        return sum(BinaryOracle(how).answer(script), Counter())

    chosen = [case("rpj", 3, 4), case("rpj", None, 3, memory=900), case("xjoin", 10, 2), case("hmj", 10, 3)]
    return [replace(one, name=f"{one.name}, {how}", how=how, oracle=whole) for one in chosen]


CASES += [one for how in JOIN_TYPES if how != "inner" for one in typed(how)]
