"""The progressive joins under budgets so small that everything happens: every policy, every flush policy."""

from typing import Any

from watersmeet.progressive.options import FLUSHES, OPERATOR, ProgressiveOptions
from watersmeet.testing.cases import Case


def case(policy: str, memory: str, idle_pages: int, **options: Any) -> Case:
    """A case whose name says what is special about it. `memory` is in rows, or in bytes with a "b"."""
    budget = {"memory": int(memory[:-1])} if memory.endswith("b") else {"memory_rows": int(memory)}
    settings = {"policy": policy, "buckets": 3, "page_rows": 2, "fan_in": 2, "flush_share": 0.3, **budget, **options}
    chosen = ProgressiveOptions(**settings, idle_pages=idle_pages)
    name = " ".join([policy, f"memory={memory}", f"idle_pages={idle_pages}", *(f"{k}={v}" for k, v in options.items())])
    return Case(name, chosen.operator, chosen.identity(), chosen.tuning())


# Every policy with every budget; the pages of an idle batch range from one to more than there are.
BUDGETS = {"0": 3, "3": 1, "10": 4, "1000": 1000}
CASES = [case(policy, memory, pages) for policy in OPERATOR for memory, pages in BUDGETS.items()]
CASES += [
    case(policy, "12", 2, flush=flush)
    for policy in ("rpj", "xjoin", "hmj")
    for flush in FLUSHES[policy][1:]
]
CASES += [
    case("rpj", "600b", 3),
    case("hmj", "600b", 3),
    case("rpj", "10", 1000, buckets=1, page_rows=1),
    case("rpj", "10", 2, buckets=64, page_rows=3, fan_in=3),
    case("rpj", "10", 2, idle_after=2_500_000),
]
