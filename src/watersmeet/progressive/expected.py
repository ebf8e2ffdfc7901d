"""What each task would find: Er and Et of section 5.3.

Er is kept as a number of *pairs owed*: pairs of rows of one bucket that the task would be the first to compare.
Divided by s, the distinct keys of a bucket, this is the paper's Er. With R_i the input in memory and R_o the other:

    Er_mem[i, j]    + |R_o disk[j]|    for each row that arrives in R_i[j]                                     (case 1)
                    - |S_bfr(t)|       for each row t flushed from R_i[j], if no md-task ran since it came     (case 2)
                                       nothing when R_o[j] is flushed                                          (case 3)
                    = 0                when the md-task has run
    Er_disk[j]      + |S_bfr(t)|       for each row t flushed from R_i[j], if no md-task ran since it came
                    = 0                when the dd-task has run

These are upper bounds: rows that leave at their match stay in the counts, heirs of a partition keep its counts whole.
A task that has run sets its own to 0 whatever it found, so that it is not chosen again.

|S_bfr(t)|, the rows of R_o[j] on disk when t came, depends on t's batch only. `epochs` remembers it for the batches
whose rows may still be in memory: one entry per change, and none once an md-task ran or the bucket was flushed. It is
the part of the paper's arrays T_flush and n_flush that can still be asked for. (Case 2 subtracts |S_bfr(t)| and not the
present |R_o disk[j]|, which could make Er negative.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from watersmeet.progressive.duplicates import Times

Counts = npt.NDArray[np.int64]


class ExpectedResults:
    """Pairs owed to md- and dd-tasks, per input and bucket."""

    def __init__(self, buckets: int) -> None:
        self.memory: Counts = np.zeros((2, buckets), np.int64)
        self.disk: Counts = np.zeros(buckets, np.int64)
        self.last_md: Counts = np.full((2, buckets), -1, np.int64)
        self.epochs: list[list[list[tuple[int, int]]]] = [[[] for _ in range(buckets)] for _ in (0, 1)]
        self.met = 0  # pairs of one bucket that were compared in memory ...
        self.results = 0  # ... and how many of them were results

    def arrived(self, index: int, counts: Counts, on_disk: Counts, batch: int) -> None:
        """Rows came to R_mem of an input while the other one had `on_disk` rows on disk (case 1)."""
        self.memory[index] += counts * on_disk
        for bucket in np.flatnonzero(counts):
            epochs, present = self.epochs[index][bucket], int(on_disk[bucket])
            if present != (epochs[-1][1] if epochs else 0):
                epochs.append((batch, present))

    def flushed_whole(self, index: int, bucket: int) -> None:
        """All rows of a bucket left memory: what they were owed by md-tasks is now owed by dd-tasks."""
        self.disk[bucket] += self.memory[index, bucket]
        self.memory[index, bucket] = 0
        self.epochs[index][bucket] = []

    def flushed(self, index: int, bucket: int, ats: Times) -> None:
        """Some rows of a bucket, the oldest, left memory; they had come at `ats` (case 2)."""
        served = self.last_md[index, bucket]
        batches, counts = np.unique(ats[ats > served], return_counts=True)
        epochs = self.epochs[index][bucket]
        if not epochs or not len(batches):
            return
        begins, present = (np.array(column, np.int64) for column in zip(*epochs, strict=True))
        epoch = np.searchsorted(begins, batches, side="right") - 1
        before = np.where(epoch >= 0, present[epoch], 0)  # |S_bfr|
        owed = int((before * counts).sum())
        self.memory[index, bucket] -= owed
        self.disk[bucket] += owed
        # What lies before the epoch of the newest row that left cannot be asked for again.
        self.epochs[index][bucket] = epochs[max(int(epoch[-1]), 0) :]

    def md_done(self, index: int, bucket: int, batch: int) -> None:
        """An md-task served all rows that are in memory."""
        self.memory[index, bucket] = 0
        self.last_md[index, bucket] = batch
        self.epochs[index][bucket] = []

    def dd_done(self, bucket: int, before: int, after: int) -> None:
        """Merging reduced the unmatched pairs on disk; what is owed shrinks in proportion, to 0 with the last."""
        self.disk[bucket] = -(-int(self.disk[bucket]) * after // before) if before else 0

    def nothing_on_disk(self, bucket: int) -> None:
        """All that is on disk has been joined with each other."""
        self.disk[bucket] = 0

    def observe(self, met: int, results: int) -> None:
        """Pairs of one bucket were compared in the arrival stage and gave results."""
        self.met += met
        self.results += results

    def match_probability(self, distinct_keys: float | None) -> float:
        """1/s: how probably two rows of one bucket have the same key."""
        if distinct_keys is not None:
            return 1.0 / max(1.0, distinct_keys)
        return max(self.results, 1) / max(self.met, 1)

    def inherit(self, former: Sequence[ExpectedResults], *, alike: bool) -> None:
        """Go on from former partitions. How their expectations divide is not known: they are kept whole. If these are
        not `alike` in their last md-tasks, what was in memory has been flushed."""
        memory, disk = (np.asarray(sum(getattr(one, name) for one in former)) for name in ("memory", "disk"))
        self.memory, self.disk = (memory, disk) if alike else (np.zeros_like(memory), disk + memory.sum(axis=0))
        self.last_md = former[0].last_md.copy() if alike else np.full_like(self.last_md, -1)
        if len(former) == 1:
            self.epochs = [[list(bucket) for bucket in side] for side in former[0].epochs]
        self.met, self.results = sum(one.met for one in former), sum(one.results for one in former)

    def save(self) -> dict[str, Any]:
        """The state, in JSON form."""
        return {
            "memory": self.memory.tolist(),
            "disk": self.disk.tolist(),
            "last_md": self.last_md.tolist(),
            "epochs": [[[list(entry) for entry in bucket] for bucket in side] for side in self.epochs],
            "met": self.met,
            "results": self.results,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up what `save` returned."""
        self.memory = np.array(saved["memory"], np.int64)
        self.disk = np.array(saved["disk"], np.int64)
        self.last_md = np.array(saved["last_md"], np.int64)
        self.epochs = [[[(batch, rows) for batch, rows in bucket] for bucket in side] for side in saved["epochs"]]
        self.met, self.results = saved["met"], saved["results"]


def md_cost(runs: int, pages: int, random_cost: float, sequential_cost: float) -> float:
    """Et of an md-task: a seek per run, then its other pages in sequence."""
    return runs * random_cost + (pages - runs) * sequential_cost


def dd_cost(runs: tuple[int, int], pages: tuple[int, int], fan_in: int, random_cost: float) -> float:
    """Et of a dd-task: every page read and written at random once per merging pass.

    The passes are the logarithm of the number of runs (of pages, as printed, one page would cost nothing).
    """
    passes = max(1, *(math.ceil(math.log(max(count, 1), fan_in) - 1e-9) for count in runs))
    return 2 * random_cost * sum(pages) * passes
