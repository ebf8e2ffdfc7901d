"""XJoin (Urhan and Franklin 2000), as section 2.1 of the RPJ paper describes it.

Memory    *flush largest*: the largest bucket of either input leaves, until there is room.
Idle      md-tasks, the largest bucket in memory first. Runs on disk are joined with each other only in the clean-up.
"""

from __future__ import annotations

from watersmeet.progressive.budgeted import BudgetedJoin, Task


class XJoin(BudgetedJoin):
    """Flushes the largest bucket, works on the largest bucket."""

    name = "xjoin"

    def next_task(self) -> Task | None:
        """The md-task of the largest bucket that was not joined with all of the other input's rows on disk."""
        owing = [
            (int(self.sides[index].bucket_rows[bucket]), index, bucket)
            for index in (0, 1)
            for bucket in range(self.buckets.count)
            if self.expected.memory[index, bucket]
        ]
        if not owing:
            return None
        _, index, bucket = max(owing, key=lambda entry: (entry[0], -entry[1], -entry[2]))
        return self.md_task(index, bucket)
