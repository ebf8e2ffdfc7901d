"""How long a micro-batch takes, and how many partitions suit it: the model of docs/scaling.md.

    driver + task * 2 P + (slot + 3 request) * ceil(P / C) + row * n * max(1 / min(P, C), hottest)
        + remote + move * n * (1 - 1 / E) / min(P, C)

for n rows, P partitions, C cores and E executors. `driver` is what Spark's driver does once per micro-batch, `task`
what it does for a task (both stages have P of them), `slot` what a task costs before its first row, `row` the core
seconds of a row. `request` is the time of a request to an object store, of which a task waits for one read and two
writes; a key lives in one partition, so that no micro-batch is faster than the work of its `hottest` key, as a share of
all. With several executors tasks are sent to other processes and report from there (`remote`), and of the rows those
`move` whose partition is another executor's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

REQUESTS = 3  # of a task, one after the other
USUAL_REQUEST = 0.03  # seconds
WORTH_IT = 0.9  # a number of partitions is suggested if a micro-batch takes at most so much of the time


class Slots(NamedTuple):
    """Where the tasks of a session run: so many at once, in so many processes."""

    cores: int
    executors: int = 1


@dataclass(frozen=True)
class BatchCosts:
    """Seconds, of a machine with two cores; `benchmarks/scaling.py` fits those of another one."""

    driver: float = 0.151
    task: float = 0.00064
    slot: float = 0.0439
    row: float = 6.07e-7
    remote: float = 0.0287
    move: float = 5.2e-7

    def parts(
        self,
        rows: float,
        partitions: int,
        cores: int,
        *,
        executors: int = 1,
        request: float = 0.0,
        hottest: float = 0.0,
    ) -> dict[str, float]:
        """The seconds of a micro-batch, by what takes them.

        >>> BatchCosts(0.125, 0.5, 0.25, 2**-16, remote=1.0, move=2**-16).parts(2**16, partitions=4, cores=2)
        {'driver': 0.125, 'task': 4.0, 'slot': 0.5, 'store': 0.0, 'row': 0.5, 'remote': 0.0, 'move': 0.0}
        """
        rounds, at_once = ceil(partitions / cores), min(partitions, cores)
        return {
            "driver": self.driver,
            "task": self.task * 2 * partitions,
            "slot": self.slot * rounds,
            "store": REQUESTS * request * rounds,
            "row": self.row * max(rows / at_once, rows * hottest),
            "remote": self.remote if executors > 1 else 0.0,
            "move": self.move * rows * (1 - 1 / executors) / at_once,
        }

    def seconds(self, rows: float, partitions: int, cores: int, **more: Any) -> float:
        """Of a micro-batch; `more` is what `parts` takes."""
        return sum(self.parts(rows, partitions, cores, **more).values())

    def best(self, rows: float, cores: int, **more: Any) -> int:
        """The number of partitions with which a micro-batch takes least; more than cores never pay.

        >>> [BatchCosts().best(rows, cores=100) for rows in (1_000, 100_000, 10_000_000)]
        [1, 7, 69]
        """
        return min(range(1, cores + 1), key=lambda some: self.seconds(rows, some, cores, **more))


def advice(
    rows: float, partitions: int, slots: Slots, *, object_store: bool, costs: BatchCosts | None = None
) -> Iterator[str]:
    """What the model says of a join's partitions, in words. Rows are those of a micro-batch, `object_store` is where
    the state is."""
    costs, cores = costs or BatchCosts(), slots.cores
    more = {"executors": slots.executors, "request": USUAL_REQUEST if object_store else 0.0}
    best = costs.best(rows, cores, **more)
    now, then = (costs.seconds(rows, some, cores, **more) for some in (partitions, best))
    said = f"partitions: {partitions} take about {now:.2f} s for the {rows:,.0f} rows of a micro-batch on {cores} cores"
    if then > WORTH_IT * now:
        yield f"{said}; no other number is much faster (docs/scaling.md)"
    else:
        yield f"{said}; partitions={best} would take {then:.2f} s (docs/scaling.md)"
