"""A join for tests of decisions: every batch starts from what the one before has saved."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, Operator, OperatorState, advance, resume, saved
from watersmeet.plan import JoinPlan
from watersmeet.state.space import MemorySpace


class RestartedJoin:
    """A join that is taken up from its saved state after every batch."""

    def __init__(self, plan: JoinPlan) -> None:
        self.plan, self.number = plan, 0
        self.operator: Operator = build(plan, MemorySpace())
        self.saved = OperatorState()

    def step(self, batch: Batch) -> list[pa.Table]:
        """One batch; returns its results. `counters` and `events` are those of this batch."""
        found = list(advance(self.operator, batch))
        self.number += 1
        self.counters, self.events = dict(self.operator.metrics.counters), list(self.operator.metrics.events)
        self.saved = saved(self.operator)
        self.operator = build(self.plan, MemorySpace())
        resume(self.operator, self.saved)
        return found

    def count(self, name: str) -> int:
        """A counter of the latest batch."""
        return int(self.counters.get(name, 0))

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Its events of a kind."""
        return [event for event in self.events if event["kind"] == kind]
