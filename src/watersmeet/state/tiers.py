"""Tiers: keep the resident runs of one input few, at a bounded price per batch.

Every batch adds a run of level 0. As soon as FANOUT runs of one level are there they become one run of the next
level, so a probe meets O(log batches) runs and a row is rewritten O(log) times. A merge is linear (see
`arrow.merge_by_hash`) and cascades are done in one pass. No merge makes a run of more than `max_rows`: beyond that
the number of runs grows by one for each `max_rows` rows of state, which costs a probe less than the stall of an
ever larger merge would.

    level 0   o o o            one more makes four: merged with the level 1 runs if they are then four too
    level 1   OO OO OO
    level 2   OOOOOOOO

Inputs that get a run in every batch would all merge in the same batch. `lag` lets one wait for so many more runs, so
that their merges fall into different batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from watersmeet.arrow import merge_by_hash
from watersmeet.state.run import Run, resident_run

FANOUT = 4
MAX_ROWS = 1 << 21
MAX_BYTES = 1 << 30  # an Arrow column of strings holds less than 2 GiB


class TieredRuns:
    """The resident runs of one input, oldest first."""

    def __init__(
        self,
        runs: Iterable[Run] = (),
        *,
        fanout: int = FANOUT,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        lag: int = 0,
        merge: Callable[[list[Run]], Run] | None = None,
    ) -> None:
        self.runs = list(runs)
        self.fanout = fanout
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.lag = lag % fanout
        self.merge = merge or merge_runs

    @property
    def rows(self) -> int:
        """Rows held."""
        return sum(run.rows for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(run.nbytes for run in self.runs)

    def add(self, run: Run) -> int:
        """Store a run; returns how many rows were rewritten by merging."""
        if not run.rows:
            return 0
        self.runs.append(run.with_attributes(level=0))
        return self._merge()

    def _merge(self) -> int:
        level, chosen = 0, self._at(0)[: self.fanout]
        if len(self._at(0)) < self.fanout + self.lag:
            return 0
        while True:
            above = self._at(level + 1)
            if len(above) + 1 < self.fanout or self._too_large(chosen + above):
                break
            level, chosen = level + 1, above + chosen
        if self._too_large(chosen):
            # Too large to be worth a merge: moved up as they are, so that level 0 is free again.
            self._replace(chosen, [run.with_attributes(level=level + 1) for run in chosen])
            return 0
        merged = self.merge(chosen)
        self._replace(chosen, [merged.with_attributes(level=level + 1)])
        return merged.rows

    def _too_large(self, runs: list[Run]) -> bool:
        return sum(run.rows for run in runs) > self.max_rows or sum(run.nbytes for run in runs) > self.max_bytes

    def _at(self, level: int) -> list[Run]:
        return [run for run in self.runs if run.attributes.get("level", 0) == level]

    def _replace(self, old: list[Run], new: list[Run]) -> None:
        gone = {id(run) for run in old}
        at = next(i for i, run in enumerate(self.runs) if id(run) in gone)
        before = [run for run in self.runs[:at] if id(run) not in gone]
        after = [run for run in self.runs[at:] if id(run) not in gone]
        self.runs = before + new + after


def due(sizes: Sequence[int], *, fanout: int = FANOUT, smallest: int, largest: int) -> list[int]:
    """Which of some runs, given their sizes, to merge into one: those of the lowest level that has `fanout` of them.

    Here the level follows from the size, one more for every factor of `fanout` above `smallest`, so runs may come and
    go in any way. Fewer than `fanout` runs are left on a level, unless together they are larger than `largest`.

    >>> due([5, 90, 7, 6, 80], fanout=3, smallest=10, largest=1000)
    [0, 2, 3]
    >>> due([18, 90, 80, 75], fanout=3, smallest=10, largest=1000)
    [1, 2, 3]
    >>> due([18, 90, 80, 75], fanout=3, smallest=10, largest=200)
    []
    """
    levels: dict[int, list[int]] = {}
    for index, size in enumerate(sizes):
        level = 0
        while size > smallest * fanout**level:
            level += 1
        levels.setdefault(level, []).append(index)
    for level in sorted(levels):
        chosen = levels[level]
        if len(chosen) >= fanout and sum(sizes[index] for index in chosen) <= largest:
            return chosen
    return []


def merge_runs(runs: list[Run]) -> Run:
    """One resident run with the rows of several resident runs of one input."""
    return resident_run(
        runs[0].label,
        merge_by_hash([part for run in runs for part in run.parts]),
        oldest=min(run.oldest for run in runs),
        newest=max(run.newest for run in runs),
    )
