"""HMJ, the hash-merge join (Mokbel, Lu, Aref 2004), as section 2.2 of the RPJ paper describes it.

Memory    concurrent flushing: a bucket leaves together with the other input's. Which one: `adaptive` (large and
          balanced), `largest`, `smallest` or `all`.
Idle      dd-tasks (PSMJ), bucket after bucket; no md-tasks.
"""

from __future__ import annotations

import numpy as np

from watersmeet.progressive.budgeted import BudgetedJoin, Task


class HashMergeJoin(BudgetedJoin):
    """Flushes pairs of buckets, merges whenever there is time."""

    name = "hmj"
    concurrent_flush = True

    def next_task(self) -> Task | None:
        """The first bucket whose runs on disk still owe each other results."""
        owing = np.flatnonzero(self.expected.disk)
        return self.dd_task(int(owing[0])) if len(owing) else None
