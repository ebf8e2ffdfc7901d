"""XJoin (Urhan and Franklin 2000), as section 2.1 of the RPJ paper describes it.

Memory    *flush largest*: the largest bucket of either input leaves, until there is room.
Idle      the md-task of the largest bucket in memory. Runs on disk are joined with each other only in the clean-up.

As published it returns to the largest bucket whether or not rows have come to it since; a scan that cannot find
anything is skipped here, and the idle batch is over. `xjoin-fresh` is stronger than the published join: it takes the
largest bucket among those that are still owed results, and goes on to the next.
"""

from __future__ import annotations

import numpy as np

from watersmeet.join.flush_policies import Sizes
from watersmeet.progressive.budgeted import BudgetedJoin, Task


class XJoin(BudgetedJoin):
    """Flushes the largest bucket, works on the largest bucket."""

    name = "xjoin"

    def next_task(self) -> Task | None:
        """The md-task of the largest bucket, if it is owed results; with `xjoin-fresh`, of the largest that is."""
        sizes = np.stack([store.bucket_rows for store in self.sides])
        if self.options.policy == "xjoin-fresh":
            sizes = np.where(self.expected.memory > 0, sizes, 0)
        index, bucket = largest(sizes)
        return self.md_task(index, bucket) if self.expected.memory[index, bucket] else None


def largest(sizes: Sizes) -> tuple[int, int]:
    """The input and bucket with the most rows; the first of equals.

    >>> largest(np.array([[3, 7], [7, 1]]))
    (0, 1)
    """
    index, bucket = divmod(int(np.argmax(sizes)), sizes.shape[1])
    return index, bucket
