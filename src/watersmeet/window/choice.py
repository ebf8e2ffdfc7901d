"""`algorithm="auto"`: the structure of each window, decided again after every batch from what was observed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from watersmeet.window.batch_costs import KernelCosts, Load, hash_cost, loop_cost
from watersmeet.window.cost_model import Method

# The weight of the newest batch in the moving averages.
NEWEST = 0.3
# The other structure must be this much cheaper before the choice changes.
CLEARLY = 0.9


def moving(before: float | None, now: float) -> float:
    """A moving average."""
    return float(now) if before is None else (1 - NEWEST) * before + NEWEST * now


@dataclass
class Choice:
    """The structure of one window, and the averages behind it. Starts with `loop`: nothing known, nothing paid."""

    method: Method = "loop"
    inserted: float | None = None
    probes: float | None = None
    probing: float | None = None
    costs: dict[str, float] = field(default_factory=dict)

    def observe(self, inserted: int, probes: int) -> None:
        """A batch has brought rows to the window and probes against it."""
        if inserted or probes:
            self.inserted = moving(self.inserted, inserted)
            self.probing = moving(self.probing, 1.0 if probes else 0.0)
        if probes:
            self.probes = moving(self.probes, probes)

    def load(self, rows: int, keys: float, runs: int) -> Load:
        """The averages as the cost model takes them."""
        return Load(self.inserted or 0.0, self.probes or 0.0, rows, keys, runs, self.probing or 0.0)

    def decide(self, load: Load, costs: KernelCosts) -> bool:
        """Choose; returns whether the choice changed."""
        self.costs = {"hash": hash_cost(load, costs), "loop": loop_cost(load, costs)}
        other: Method = "loop" if self.method == "hash" else "hash"
        if self.costs[other] >= CLEARLY * self.costs[self.method]:
            return False
        self.method = other
        return True

    def scaled(self, share: float) -> Choice:
        """The same for partitions that get so many times the rows."""
        inserted, probes = (None if rows is None else rows * share for rows in (self.inserted, self.probes))
        return replace(self, inserted=inserted, probes=probes, costs={})

    def as_json(self) -> dict[str, Any]:
        """For the state."""
        return {name: getattr(self, name) for name in ("method", "inserted", "probes", "probing")}
