"""RPJ-md at the paper's size without rows: every bucket gets its expected share of whatever arrives.

It shares no code with the join, and nothing but the prices with `rpj_clock`, so that it can tell why a small copy
differs from the paper's size. There a bucket of an input gets 25 to 225 rows (speeds 1:1) between two flushes, and
loses them to the disk unless an md-task meets them before. In a copy of a 200th it gets 0.1 to 1.1 rows: mostly there
is no row that a task would have to meet, and none that a flush would leave as a run. So tasks are fewer and cheaper
than in the paper. Here nothing is rounded to whole rows, and the size makes no difference.

    arrived     A rows have come to R_i[j], the rows of the opposite bucket on disk meanwhile make them owed O pairs
    flush       oldest first; the rows between the last md-task and the flushed ones take their pairs with them (case 2)
    md-task     reports what is owed, for a seek per run and a page per 102 rows
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from watersmeet.lab.rpj_clock import C_RAN, C_ROW, C_SEQ, PAPER_DOMAIN, PAPER_MEMORY, PAPER_PAGE, PAPER_ROWS
from watersmeet.lab.rpj_clock import SUB_PARTITIONS as SUB
from watersmeet.lab.workloads import PARTITIONS, Floats, Pattern, partition_shares, zipf_gaps

FLUSHED = PAPER_MEMORY // 20  # n_flush
AFTER = 25  # ms of silence
KEYS = PAPER_DOMAIN / PARTITIONS  # s


@dataclass
class _Bucket:
    """One bucket of an input: what came over time, what of it has left, what an md-task has met."""

    arrived: list[float]
    owed: list[float]
    flushed: float = 0.0
    met: float = 0.0  # pairs owed that were reported, or have left with their rows

    @property
    def pairs(self) -> float:
        """What an md-task would report now, times s."""
        return self.owed[-1] - self.met

    def arrive(self, rows: float, on_disk: float) -> None:
        """Rows come while the opposite bucket has so many on disk."""
        self.arrived.append(self.arrived[-1] + rows)
        self.owed.append(self.owed[-1] + rows * on_disk)

    def flush(self, rows: float) -> None:
        """The oldest rows leave."""
        self.flushed += rows
        after = min(bisect_left(self.arrived, self.flushed), len(self.arrived) - 1)
        before = max(after - 1, 0)
        step = self.arrived[after] - self.arrived[before]
        way = (self.flushed - self.arrived[before]) / step if step else 1.0
        self.met = max(self.met, self.owed[before] + min(way, 1.0) * (self.owed[after] - self.owed[before]))


class Fluid:
    """RPJ-md on an unreliable network, in arrivals of `lump` rows of the paper's."""

    def __init__(self, pattern: Pattern, ratio: float, *, lump: int = 200, seed: int = 1) -> None:
        speeds = np.array([[ratio], [1.0]]) / (1 + ratio)
        self.share: Floats = speeds * np.stack([shares / shares.sum() for shares in partition_shares(pattern)])
        self.lump = lump
        gaps = zipf_gaps(PAPER_ROWS, np.random.default_rng([seed, 1]))
        ends = np.cumsum(gaps) / 1e3
        self.times = np.concatenate([[0.0], ends[lump - 1 : -1 : lump]])
        silent = gaps > AFTER
        self.begins, self.ends = ends[silent] - (gaps[silent] - AFTER) / 1e3, ends[silent]
        # Optimal flush: the bucket whose partners are least likely to come leaves first.
        self.order = [(1 - int(at) // PARTITIONS, int(at) % PARTITIONS) for at in np.argsort(self.share, axis=None)]
        self.buckets = [[_Bucket([0.0], [0.0]) for _ in range(PARTITIONS)] for _ in (0, 1)]
        self.memory, self.disk, self.runs, self.pairs = (np.zeros((2, PARTITIONS)) for _ in range(4))
        self.now, self.results, self.tasks = 0.0, 0.0, 0

    def run(self) -> float:
        """The share of the results before the clean-up."""
        silence, place = 0, 0
        while place < len(self.times):
            silence = max(silence, int(np.searchsorted(self.ends, self.now, side="right")))
            until = max(self.now, self.begins[silence]) if silence < len(self.ends) else np.inf
            if self.times[place] <= until:
                self.now = max(self.now, float(self.times[place]))
                self._arrive()
                place += 1
            else:
                self.now = float(until)
                while self.now < self.ends[silence] and self._task():
                    pass
                self.now = max(self.now, float(self.ends[silence]))
        came = self.memory + self.disk
        return self.results / float((came[0] * came[1]).sum() / KEYS)

    def _arrive(self) -> None:
        rows = self.share * self.lump
        self.results += float((rows * self.memory[::-1]).sum() + (rows[0] * rows[1]).sum()) / KEYS
        self.now += self.lump * C_ROW / 1e6 * (float(self.memory.sum()) / 2 / PARTITIONS / SUB + 1)
        for side in (0, 1):
            for bucket, one in enumerate(self.buckets[side]):
                one.arrive(rows[side, bucket], self.disk[1 - side, bucket])
        self.pairs += rows * self.disk[::-1]
        self.memory += rows
        while self.memory.sum() > PAPER_MEMORY:
            self._flush()

    def _flush(self) -> None:
        left = float(FLUSHED)
        for at in self.order:
            rows = min(left, float(self.memory[at]))
            if rows > 0:
                bucket = self.buckets[at[0]][at[1]]
                bucket.flush(rows)
                self.pairs[at] = bucket.pairs
                self.memory[at] -= rows
                self.disk[at] += rows
                self.runs[at] += 1
                self.now += (C_RAN + rows / PAPER_PAGE * C_SEQ) / 1e6
                left -= rows

    def _task(self) -> bool:
        """The md-task with the highest output rate; false if none would find anything."""
        pages = np.maximum(self.disk / PAPER_PAGE - self.runs / 2, 0.0)
        seconds = (self.runs * C_RAN + pages * C_SEQ)[::-1] / 1e6  # a scan of the opposite bucket
        rates = np.divide(self.pairs, seconds, out=np.zeros_like(seconds), where=seconds > 0)
        best = np.unravel_index(int(rates.argmax()), rates.shape)
        if rates[best] <= 0:
            return False
        bucket = self.buckets[best[0]][best[1]]
        self.results += bucket.pairs / KEYS
        bucket.met, self.pairs[best] = bucket.owed[-1], 0.0
        self.now += float(seconds[best])
        self.tasks += 1
        return True
