"""A progressive join on a virtual clock: rows arrive when the script says, pages and rows take their fixed time.

    rows that have arrived by now -> one batch -> the clock moves by what the batch cost
    both inputs silent for 25 ms  -> tasks of the reactive stage until a row comes; a task that was started is finished,
                                     a dd-task with all its merging passes, HMJ's stage with all its buckets
    all rows processed            -> clean-up, results noted page by page; where nobody looks at it, it is left out, and
                                     how many results there are in all is counted from the keys

Costs are those of section 5.3: a scan of x runs and y pages takes x c_ran + (y - x) c_seq, a merge c_ran for every page
read and written. XJoin pays for its scan of the largest bucket also where nothing new is in it. A flush writes a run
per bucket. An arriving row touches a fifth of the opposite bucket in memory, of the paper's size.
Pages are counted from rows: at a fraction of the paper's size the operator's pages, which cannot shrink as far, are
mostly empty, and counting those would make the many small runs of an optimal flush dearer than they are in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, advance
from watersmeet.lab.experiment import Progress
from watersmeet.lab.workloads import PARTITIONS, Ints, suspension_share
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.progressive.budgeted import BudgetedJoin
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.progressive.xjoin import largest
from watersmeet.state.buckets import Buckets
from watersmeet.state.space import MemorySpace

NAMES = ("R1", "R2")
PAPER_ROWS, PAPER_MEMORY, PAPER_DOMAIN, PAPER_PAGE = 2_000_000, 100_000, 10_000, 102
C_RAN, C_SEQ, C_ROW = 10_000.0, 1_000.0, 0.1  # microseconds
SUB_PARTITIONS = 5


@dataclass(frozen=True)
class Size:
    """A fraction of the paper's sizes: rows, memory and key domain shrink alike.

    So do the costs of disk accesses, which are counted in rows: moving as many rows takes as long as in the paper, and
    finding a run takes the same share of the whole time. Only the operator's pages cannot shrink below ten rows.
    """

    fraction: float
    batch_rows: int

    @property
    def every(self) -> int:
        """Of so many suspensions one is used. The rule, which looks at no result: all of them, unless they are more
        than one for every two rows of ours, because between two of them something must have come."""
        return max(1, round(PAPER_ROWS * suspension_share() / (self.rows / 2)))

    @property
    def stands_for(self) -> int:
        """The paper's rows that one row stands for."""
        return round(1 / self.fraction)

    @property
    def rows(self) -> int:
        """Rows of both relations together."""
        return round(PAPER_ROWS * self.fraction)

    @property
    def memory(self) -> int:
        """Rows that fit into memory."""
        return round(PAPER_MEMORY * self.fraction)

    @property
    def domain(self) -> int:
        """Join values, a multiple of the partitions."""
        return max(1, round(PAPER_DOMAIN * self.fraction / PARTITIONS)) * PARTITIONS

    @property
    def page_rows(self) -> int:
        """Rows of a page."""
        return max(10, round(PAPER_PAGE * self.fraction))


@dataclass
class Curve:
    """Results and cost over time: `results[i]` had come at `seconds[i]`, and `cost[i]` seconds of work were done.

    `flat_cost` is what the same work takes if a random page costs no more than a sequential one.
    """

    seconds: list[float] = field(default_factory=lambda: [0.0])
    results: list[int] = field(default_factory=lambda: [0])
    cost: list[float] = field(default_factory=lambda: [0.0])
    flat_cost: list[float] = field(default_factory=lambda: [0.0])
    transmitted: int = 0  # index of the last point before the clean-up
    whole: int = 0  # results in all

    def add(self, seconds: float, results: int, cost: float, flat_cost: float) -> None:
        """One more point."""
        self.seconds.append(seconds)
        self.results.append(results)
        self.cost.append(cost)
        self.flat_cost.append(flat_cost)

    @property
    def share_before_clean_up(self) -> float:
        """The share of all results that had come when the last row was processed."""
        return self.results[self.transmitted] / max(1, self.whole)

    def sampled(self, points: int = 60) -> Ints:
        """Indices of points evenly spread over time, with the ends of the transmission and of the join."""
        grid = np.linspace(0, self.seconds[-1], points)
        last = len(self.seconds) - 1
        return np.unique([*np.searchsorted(self.seconds, grid).clip(0, last), self.transmitted, last])


@dataclass(frozen=True)
class DiskWork:
    """Pages of the paper's that were read or written, and how many of them are random accesses."""

    pages: float
    seeks: float

    def cost(self, random: float) -> float:
        """Microseconds, if a random page takes `random` of them."""
        return self.seeks * random + (self.pages - self.seeks) * C_SEQ


def spread(keys: Ints) -> Hashes:
    """Hashes that put key k into bucket k mod 20, as the paper's hash function does, and apart within it."""
    lows = np.concatenate([np.zeros(1, np.uint64), Buckets(PARTITIONS).bounds])
    within = (keys // PARTITIONS).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hashes: Hashes = lows[keys % PARTITIONS] + (within >> np.uint64(6))
    return hashes


class Simulation:
    """One join under one policy."""

    def __init__(self, size: Size, policy: str, arrivals: pa.Table, *, flush: str | None = None) -> None:
        self.size, self.policy = size, policy
        settings: dict[str, Any] = {
            "policy": policy,
            "flush": flush,
            "memory_rows": size.memory,
            "buckets": PARTITIONS,
            "page_rows": size.page_rows,
            "distinct_keys": size.domain,
            "idle_after": 0,  # the script says when the inputs are silent
            "idle_pages": 1,  # one task at a time ...
            "whole_tasks": True,  # ... and all of it
            "combine_runs": 0,  # the papers merge runs in silences alone
        }
        options = ProgressiveOptions(**settings)
        specs = tuple(InputSpec(name, (pa.int64(),), ()) for name in NAMES)
        output = (OutputColumn(pa.field("key", pa.int64()), NAMES[0], "_k0"),)
        plan = JoinPlan(options.operator, specs, output, options.identity(), options.tuning())
        operator = build(plan, MemorySpace())
        assert isinstance(operator, BudgetedJoin)
        self.operator = operator
        self.keys = arrivals.column("key").to_numpy()
        self.times = arrivals.column("time").to_numpy()
        self.inputs = arrivals.column("input").to_numpy()
        self.rows = pa.table({"_hash": spread(self.keys), "_k0": self.keys})
        self.now, self.work, self.flat_work, self.number = 0.0, 0.0, 0.0, 0
        self.curve = Curve()

    def run(self, progress: Progress, silences: pa.Table | None = None, *, clean_up: bool = True) -> Curve:
        """All arrivals, with tasks in the silences, then the clean-up."""
        begins, ends = ([], []) if silences is None else (silences[name].to_pylist() for name in ("begin", "end"))
        silence, place, count = 0, 0, len(self.times)
        while place < count:
            while silence < len(ends) and ends[silence] <= self.now:
                silence += 1
            until = max(self.now, begins[silence]) if silence < len(begins) else np.inf
            waiting = int(np.searchsorted(self.times, until, side="right")) - place
            if waiting:
                stop = place + min(waiting, self.size.batch_rows)
                self.now = max(self.now, float(self.times[stop - 1]))
                self._batch(place, stop)
                place = stop
            else:
                self.now = until
                self._reactive_stage(float(ends[silence]))
                self.now = max(self.now, float(ends[silence]))
            progress(place, count)
        self.curve.transmitted = len(self.curve.seconds) - 1
        self.curve.whole = self._whole()
        if clean_up:
            self._clean_up()
        return self.curve

    def _whole(self) -> int:
        """Pairs of equal keys."""
        counts = [np.bincount(self.keys[self.inputs == index], minlength=self.keys.max() + 1) for index in (0, 1)]
        return int((counts[0] * counts[1]).sum())

    def _batch(self, place: int, stop: int) -> None:
        rows, inputs = self.rows.slice(place, stop - place), self.inputs[place:stop]
        tables = {name: rows.filter(pa.array(inputs == index)) for index, name in enumerate(NAMES)}
        # A row of ours touches as many rows as one of the paper's does: there are fewer of ours in memory.
        share = PARTITIONS * SUB_PARTITIONS * self.size.fraction
        held = [store.bucket_rows.sum() / share for store in self.operator.sides]
        touched = sum(tables[name].num_rows * (held[1 - index] + 1) for index, name in enumerate(NAMES))
        self._advance(Batch(self.number, int(self.now), tables), touched * C_ROW)

    def _reactive_stage(self, end: float) -> None:
        """Tasks until rows come again at `end`. HMJ returns only when all its buckets are merged (section 2.2)."""
        while (self.policy == "hmj" or self.now < end) and self._task():
            pass
        if self.policy == "xjoin" and self.now < end:  # the largest bucket again, in which nothing is new
            index, bucket = largest(np.stack([store.bucket_rows for store in self.operator.sides]))
            self._spend([self._scan(1 - index, bucket)], 0.0)

    def _task(self) -> bool:
        """One task of the reactive stage; false if there is none worth starting."""
        before = self.now
        self._advance(Batch(self.number, int(self.now)), 0.0)
        return self.now > before

    def _advance(self, batch: Batch, cpu: float) -> None:
        tasks = self.operator.tasks
        rows, runs = tasks.merged_rows, tasks.merged_runs
        results = sum(table.num_rows for table in advance(self.operator, batch))
        works = [work for event in self.operator.metrics.events if (work := self._work_of(event)) is not None]
        if tasks.merged_runs > runs:  # a merge seeks for every page
            works.append(self._disk_work(tasks.merged_rows - rows, runs=tasks.merged_runs - runs))
        self.number += 1
        self._spend(works, cpu + results * C_ROW)
        self._note(self.now, self.curve.results[-1] + results)

    def _spend(self, works: list[DiskWork], cpu: float) -> None:
        """The clock moves by what was done."""
        spent = cpu + sum(work.cost(C_RAN) for work in works)
        self.now += spent
        self.work += spent
        self.flat_work += cpu + sum(work.cost(C_SEQ) for work in works)

    def _note(self, now: float, results: int, more: float = 0.0, flat: float = 0.0) -> None:
        self.curve.add(now / 1e6, results, (self.work + more) / 1e6, (self.flat_work + flat) / 1e6)

    def _work_of(self, event: dict[str, Any]) -> DiskWork | None:
        """What a flush or an md-task wrote or read."""
        match event["kind"]:
            case "flush":
                return self._disk_work(event["rows"], runs=1, seeks=1)
            case "md_task" if event["pages"]:
                return self._scan(1 - NAMES.index(event["input"]), event["bucket"])
        return None

    def _scan(self, index: int, bucket: int) -> DiskWork:
        """All runs that an input has of a bucket on disk, one after the other."""
        units = self.operator.units
        runs = sum(unit[index] is not None for unit in units.units[bucket])
        return self._disk_work(int(units.counts[index, bucket]), runs=runs, seeks=runs)

    def _disk_work(self, rows: float, *, runs: int, seeks: int | None = None) -> DiskWork:
        """Pages of the paper's that hold as many rows; the last page of a run is half full on average."""
        pages = rows / PAPER_PAGE + runs * self.size.fraction / 2
        return DiskWork(pages, pages if seeks is None else seeks * self.size.fraction)

    def _clean_up(self) -> None:
        tasks, units = self.operator.tasks, self.operator.units
        start, pages, results = self.now, tasks.pages, self.curve.results[-1]
        stored = sum(units.extent(side, bucket)[1] for side in (0, 1) for bucket in range(PARTITIONS))
        filled = int(units.counts.sum()) / max(1, stored)  # rows of a page, on average
        batch = Batch(self.number, int(self.now), ended=frozenset(NAMES))
        for rows in (*(table.num_rows for table in advance(self.operator, batch)), 0):
            results += rows
            work = self._disk_work((tasks.pages - pages) * filled, runs=0)
            spent, flat = work.cost(C_RAN), work.cost(C_SEQ)
            self._note(start + spent, results, spent, flat)
