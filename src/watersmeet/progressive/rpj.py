"""RPJ, the rate-based progressive join (Tao, Yiu, Papadias, Hadjieleftheriou, Mamoulis, SIGMOD 2005).

Memory    *optimal flush*: the rows least likely to match an arrival leave first (section 4).
Idle      the md- or dd-task with the highest expected output rate Er/Et, again and again (section 5, Fig. 3).

`rpj-md` and `rpj-dd` are the paper's variants whose reactive stage has only md- or only dd-tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.progressive.budgeted import BudgetedJoin, Task

KINDS = {"rpj": ("md", "dd"), "rpj-md": ("md",), "rpj-dd": ("dd",)}


class RateBasedJoin(BudgetedJoin):
    """Flushes by arrival probability, works by output rate."""

    name = "rpj"

    def next_task(self) -> Task | None:
        """The task with the highest rate; the first of equals. None if no task would find anything."""
        best: Task | None = None
        for task in self._candidates():
            if task.expected > 0 and (best is None or task.expected / task.cost > best.expected / best.cost):
                best = task
        return best

    def _candidates(self) -> Iterator[Task]:
        kinds = KINDS[self.options.policy]
        for bucket in range(self.buckets.count):
            if "md" in kinds:
                for index in (0, 1):
                    if self.expected.memory[index, bucket]:
                        yield self.md_task(index, bucket)
            if "dd" in kinds and self.expected.disk[bucket]:
                yield self.dd_task(bucket)
