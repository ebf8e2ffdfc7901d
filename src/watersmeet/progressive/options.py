"""Options of the progressive joins, validated in one place for the Python API and for pipeline files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from watersmeet.join.flush_policies import FLUSHES, Flush
from watersmeet.plan.join_plan import JoinPlan
from watersmeet.plan.options import Duration, HotKeys, Options, Size, check_memory
from watersmeet.state.space import PAGE_ROWS

Policy = Literal["rpj", "rpj-md", "rpj-dd", "xjoin", "xjoin-fresh", "hmj"]

# The operator behind each policy.
OPERATOR: dict[str, str] = {
    "rpj": "rpj", "rpj-md": "rpj", "rpj-dd": "rpj", "xjoin": "xjoin", "xjoin-fresh": "xjoin", "hmj": "hmj",
}  # fmt: skip

UNLIMITED = "symmetric"  # the operator without a budget

ARRIVAL_BYTES = 4  # of the batch in which a row came, kept with it


class ProgressiveOptions(Options):
    """How a progressive join spends its memory and its idle time.

    >>> ProgressiveOptions(memory="256 MB").memory, ProgressiveOptions(policy="hmj").flush_policy
    (256000000, 'adaptive')
    """

    TUNING: ClassVar[frozenset[str]] = frozenset(
        {
            "memory", "memory_rows", "flush", "flush_share", "page_rows", "idle_after", "idle_pages", "fan_in",
            "combine_runs", "under_budget", "random_page_cost", "sequential_page_cost", "decay", "distinct_keys",
            "whole_tasks",
        }
    )  # fmt: skip
    INTERNAL: ClassVar[frozenset[str]] = frozenset({"under_budget", "memory_rows", "whole_tasks"})
    LAB: ClassVar[Mapping[str, frozenset[str]]] = {"policy": frozenset({"rpj-md", "rpj-dd"})}

    under_budget: bool = False
    """Whether the state was begun under a budget: it may have rows on disk, so its operator goes on without one."""
    memory: Size | None = Field(None, gt=0)
    """Budget for resident rows, shared by the partitions; none means unlimited."""
    memory_rows: int | None = Field(None, ge=0)
    """The same budget in rows, for experiments with rows of one width."""
    policy: Policy = "rpj"
    flush: Flush | None = None
    """What leaves memory first; none means the policy's own way."""
    buckets: int = Field(20, ge=1, le=4096)
    """The papers' n_part, in each partition."""
    page_rows: int = Field(PAGE_ROWS, ge=1)
    """Rows in a page, the unit in which spilled rows are written and read."""
    flush_share: float = Field(0.05, gt=0, le=1)
    """n_flush: a flush frees at least this share of the budget."""
    decay: float = Field(0.5, ge=0, le=1)
    """lambda of section 4.2: what the arrivals of a time unit weigh one unit later."""
    rate_unit: Duration = Field(1_000_000, gt=0)
    """The time unit of `decay`."""
    idle_after: Duration = Field(1_000_000, ge=0)
    """Silence of both inputs after which the reactive stage begins."""
    idle_pages: int = Field(256, ge=0)
    """Pages an idle batch may read and write; the task that uses the last one is finished."""
    whole_tasks: bool = False
    """Whether a dd-task merges until all runs match, however many pages that takes, as in the papers' experiments."""
    fan_in: int = Field(8, ge=2)
    """f: runs of each input that one merging operation combines."""
    combine_runs: int = Field(8, ge=0)
    """Spilled runs of similar size that become one while rows come; 0: only idle tasks merge runs, as in the papers."""
    random_page_cost: float = Field(10.0, gt=0)
    """c_ran: what reading a page costs that does not follow the last one."""
    sequential_page_cost: float = Field(1.0, gt=0)
    """c_seq: what reading the next page costs."""
    distinct_keys: int | None = Field(None, ge=1)
    """|A_join|; none means that it is estimated from the results of the arrival stage."""
    hot_keys: HotKeys = "off"
    """Whether keys with a large part of the work are spread over partitions."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.memory is not None and self.memory_rows is not None:
            raise ValueError("give memory or memory_rows, not both")
        if self.combine_runs == 1:
            raise ValueError("combine_runs must be 0 or at least 2")
        known = FLUSHES[OPERATOR[self.policy]]
        if self.flush is not None and self.flush not in known:
            raise ValueError(f"policy {self.policy!r} has no flush {self.flush!r}, only {', '.join(known)}")
        return self

    @property
    def is_limited(self) -> bool:
        """Whether there is a budget at all."""
        return self.memory is not None or self.memory_rows is not None

    @property
    def operator(self) -> str:
        """The operator that carries out these options."""
        return OPERATOR[self.policy] if self.is_limited or self.under_budget else UNLIMITED

    @property
    def flush_policy(self) -> Flush:
        """The flush policy, the default filled in."""
        return self.flush or FLUSHES[OPERATOR[self.policy]][0]

    def effective(self) -> dict[str, Any]:
        """Without a budget nothing is flushed, so that no policy decides anything."""
        if self.operator == UNLIMITED:
            return {"hot_keys": self.hot_keys}
        return {**super().effective(), "flush": self.flush_policy}

    def check_plan(self, who: str, plan: JoinPlan) -> None:
        """Each partition's share of the memory must hold at least a page of the wider input."""
        if self.memory is not None:
            check_memory(who, self.memory, self.page_rows, plan, beside=ARRIVAL_BYTES)
