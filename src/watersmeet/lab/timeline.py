"""Results over time within a batch, for runs in process.

An operator reads no clock, and its results come out one block after the other; so whoever drives it can note when each
of them came. The steps behind them are the batch's `driver` events in the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from watersmeet.join.operator import Batch, Operator, advance


@dataclass(frozen=True)
class Timeline:
    """After `seconds[i]` of a batch, `results[i]` results had come and `drained[i]` of its rows had driven; the first
    entry is zero, the last the end."""

    seconds: list[float]
    results: list[int]
    drained: list[int] = field(default_factory=list)

    @property
    def total(self) -> float:
        """How long the batch took."""
        return self.seconds[-1]

    def share_at(self, seconds: float) -> float:
        """The share of the batch's results that had come by then; 1 for a batch without results.

        >>> Timeline([0.0, 1.0, 3.0, 4.0], [0, 50, 100, 100]).share_at(2.0)
        0.75
        """
        if not self.results[-1]:
            return 1.0
        return float(np.interp(seconds, self.seconds, self.results)) / self.results[-1]


def timed_batch(operator: Operator, batch: Batch, clock: Callable[[], float] = perf_counter) -> Timeline:
    """Take one batch and note when its results come."""
    timeline, noted = Timeline([0.0], [0]), [0]
    start = clock()
    for table in advance(operator, batch):
        timeline.seconds.append(clock() - start)
        timeline.results.append(timeline.results[-1] + table.num_rows)
        noted.append(len(operator.metrics.events))
    timeline.seconds.append(clock() - start)
    timeline.results.append(timeline.results[-1])
    events = operator.metrics.events
    rows = np.cumsum([0, *(event["rows"] if event["kind"] == "driver" else 0 for event in events)])
    timeline.drained.extend(int(rows[min(at, len(events))]) for at in (*noted, len(events)))
    return timeline
