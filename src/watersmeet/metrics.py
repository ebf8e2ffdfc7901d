"""Counters of one batch, and the decisions behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# A decision is a small dict; a batch keeps at most this many, and counts the rest.
MAX_EVENTS = 200


@dataclass
class Metrics:
    """What an operator did in one batch. All of it is deterministic: timings are kept apart, by the driver."""

    rows_in: dict[str, int] = field(default_factory=dict)
    rows_out: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def reset(self) -> None:
        """Forget the last batch."""
        self.rows_in, self.rows_out, self.counters, self.events = {}, 0, {}, []

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + amount

    def gauge(self, name: str, value: float) -> None:
        """Set a counter to a value seen now."""
        self.counters[name] = value

    def event(self, kind: str, **details: Any) -> None:
        """Record a decision (a flush, a purge, a cache move) with the numbers behind it."""
        if len(self.events) < MAX_EVENTS:
            self.events.append({"kind": kind, **details})
        else:
            self.count("events_not_recorded")

    def as_dict(self) -> dict[str, Any]:
        """The JSON form kept in a manifest."""
        return {
            "rows_in": dict(self.rows_in),
            "rows_out": self.rows_out,
            "counters": dict(self.counters),
            "events": list(self.events),
        }
