"""A progressive join on a virtual clock: rows arrive when the script says, pages and rows take their fixed time.

    rows that have arrived by now -> one batch -> the clock moves by what the batch cost
    both inputs silent for 25 ms  -> one task of the reactive stage; a task that was started is finished
    all rows processed            -> clean-up, results noted page by page

Costs are those of section 5.3: a scan of x runs and y pages takes x c_ran + (y - x) c_seq, a merge c_ran for every page
read and written. A flush writes a run per bucket. An arriving row touches a fifth of the opposite bucket in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.arrow import Hashes
from watersmeet.lab.experiment import Progress
from watersmeet.lab.workloads import PARTITIONS, Ints
from watersmeet.operator import Batch, Operator, advance
from watersmeet.operators import build
from watersmeet.plan import InputSpec, JoinPlan
from watersmeet.progressive.budgeted import BudgetedJoin
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.projection import OutputColumn
from watersmeet.state.buckets import Buckets
from watersmeet.state.space import MemorySpace

NAMES = ("R1", "R2")
PAPER_ROWS, PAPER_MEMORY, PAPER_DOMAIN, PAPER_PAGE = 2_000_000, 100_000, 10_000, 102
C_RAN, C_SEQ, C_ROW = 10_000.0, 1_000.0, 0.1  # microseconds
SUB_PARTITIONS = 5
SUSPENDED_AFTER = 25_000  # microseconds of silence


@dataclass(frozen=True)
class Size:
    """A fraction of the paper's sizes: rows, memory and key domain shrink alike.

    So do the costs of disk accesses, which are counted in rows: moving as many rows takes as long as in the paper, and
    finding a run takes the same share of the whole time. Only the operator's pages cannot shrink below ten rows.
    """

    fraction: float
    batch_rows: int

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
    """Results and cost over time: `results[i]` had come at `seconds[i]`, and `cost[i]` seconds of work were done."""

    seconds: list[float] = field(default_factory=lambda: [0.0])
    results: list[int] = field(default_factory=lambda: [0])
    cost: list[float] = field(default_factory=lambda: [0.0])
    transmitted: int = 0  # index of the last point before the clean-up

    def add(self, seconds: float, results: int, cost: float) -> None:
        """One more point."""
        self.seconds.append(seconds)
        self.results.append(results)
        self.cost.append(cost)

    @property
    def share_before_clean_up(self) -> float:
        """The share of all results that had come when the last row was processed."""
        return self.results[self.transmitted] / max(1, self.results[-1])

    def sampled(self, points: int = 60) -> Ints:
        """Indices of points evenly spread over time."""
        grid = np.linspace(0, self.seconds[-1], points)
        return np.unique(np.searchsorted(self.seconds, grid).clip(0, len(self.seconds) - 1))


def spread(keys: Ints) -> Hashes:
    """Hashes that put key k into bucket k mod 20, as the paper's hash function does, and apart within it."""
    lows = np.concatenate([np.zeros(1, np.uint64), Buckets(PARTITIONS).bounds])
    within = (keys // PARTITIONS).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hashes: Hashes = lows[keys % PARTITIONS] + (within >> np.uint64(6))
    return hashes


class Simulation:
    """One join under one policy."""

    def __init__(self, size: Size, policy: str, arrivals: pa.Table, *, flush: str | None = None) -> None:
        self.size = size
        settings: dict[str, Any] = {
            "policy": policy,
            "flush": flush,
            "memory_rows": size.memory,
            "buckets": PARTITIONS,
            "page_rows": size.page_rows,
            "distinct_keys": size.domain,
            "idle_after": SUSPENDED_AFTER,
            "idle_pages": 1,  # one task, and one merging operation of it, at a time
        }
        options = ProgressiveOptions(**settings)
        specs = tuple(InputSpec(name, (pa.int64(),), ()) for name in NAMES)
        output = (OutputColumn(pa.field("key", pa.int64()), NAMES[0], "_k0"),)
        plan = JoinPlan(options.operator, specs, output, options.identity(), options.tuning())
        self.operator: Operator = build(plan, MemorySpace())
        keys = arrivals.column("key").to_numpy()
        self.times = arrivals.column("time").to_numpy()
        self.inputs = arrivals.column("input").to_numpy()
        self.rows = pa.table({"_hash": spread(keys), "_k0": keys})
        self.now, self.work, self.number = 0.0, 0.0, 0
        self.curve = Curve()

    def run(self, progress: Progress, *, reactive: bool, done: int = 0, total: int = 0) -> Curve:
        """All arrivals, then the clean-up."""
        place, count = 0, len(self.times)
        while place < count:
            self.now = max(self.now, float(self.times[place]))
            stop = self._arrived(place, reactive)
            self.now = max(self.now, float(self.times[stop - 1]))
            self._batch(place, stop)
            place = stop
            while reactive and place < count and self._suspended(place) and self._task():
                pass
            if self.number % 50 == 0:
                progress(done + place, total or count)
        self._clean_up()
        return self.curve

    def _arrived(self, place: int, reactive: bool) -> int:
        """Up to where the rows of the next batch go: a full batch, or until the next suspension."""
        stop = min(place + self.size.batch_rows, len(self.times))
        if reactive:
            # Rows that came while a task was running are one batch; then the network is watched again.
            behind = int(np.searchsorted(self.times, self.now, side="right"))
            gaps = np.diff(self.times[max(place, behind - 1) : stop + 1])
            silent = np.flatnonzero(gaps > SUSPENDED_AFTER)
            if len(silent):
                stop = min(stop, max(place, behind - 1) + int(silent[0]) + 1)
        return max(stop, place + 1)

    def _suspended(self, place: int) -> bool:
        """Whether the next row is still to come when 25 ms have passed since the last one."""
        begins = max(self.now, float(self.times[place - 1]) + SUSPENDED_AFTER)
        if begins >= self.times[place]:
            return False
        self.now = begins
        return True

    def _batch(self, place: int, stop: int) -> None:
        rows, inputs = self.rows.slice(place, stop - place), self.inputs[place:stop]
        tables = {name: rows.filter(pa.array(inputs == index)) for index, name in enumerate(NAMES)}
        assert isinstance(self.operator, BudgetedJoin)
        held = [resident.counts.sum() / PARTITIONS / SUB_PARTITIONS for resident in self.operator.resident]
        touched = sum(tables[name].num_rows * (held[1 - index] + 1) for index, name in enumerate(NAMES))
        self._advance(Batch(self.number, int(self.now), tables), touched * C_ROW)

    def _task(self) -> bool:
        """One task of the reactive stage; false if there is none worth starting."""
        before = self.now
        self._advance(Batch(self.number, int(self.now)), 0.0)
        return self.now > before

    def _advance(self, batch: Batch, cpu: float) -> None:
        results = sum(table.num_rows for table in advance(self.operator, batch))
        spent = cpu + results * C_ROW
        spent += sum(self._cost_of(event) for event in self.operator.metrics.events)
        self.number += 1
        self.now += spent
        self.work += spent
        self.curve.add(self.now / 1e6, self.curve.results[-1] + results, self.work / 1e6)

    def _cost_of(self, event: dict[str, Any]) -> float:
        match event["kind"]:
            case "flush":
                return self._scan(1, event["rows"])
            case "md_task":  # its cost is x c_ran + (y - x) c_seq with 10 and 1 for the two
                runs = (event["cost"] - event["pages"]) / (C_RAN / C_SEQ - 1)
                return self._scan(max(runs, 0.0), event["pages"] * self.size.page_rows)
            case "dd_task":
                return self._merge(event["pages"])
        return 0.0

    def _scan(self, runs: float, rows: float) -> float:
        return runs * (C_RAN - C_SEQ) * self.size.fraction + rows / PAPER_PAGE * C_SEQ

    def _merge(self, pages: float) -> float:
        return pages * self.size.page_rows / PAPER_PAGE * C_RAN

    def _clean_up(self) -> None:
        self.curve.transmitted = len(self.curve.seconds) - 1
        assert isinstance(self.operator, BudgetedJoin)
        tasks = self.operator.tasks
        start, pages, results = self.now, tasks.pages, self.curve.results[-1]
        for table in advance(self.operator, Batch(self.number, int(self.now), ended=frozenset(NAMES))):
            results += table.num_rows
            spent = self._merge(tasks.pages - pages)
            self.curve.add((start + spent) / 1e6, results, (self.work + spent) / 1e6)
        spent = self._merge(tasks.pages - pages)
        self.curve.add((start + spent) / 1e6, results, (self.work + spent) / 1e6)
