"""What the progressive joins have in common: rows in memory up to a budget, the rest on disk, every pair once.

Semantics     inner equi-join of two inputs; each pair once, in whichever of these stages comes first:
                arrival   a batch meets the rows in memory and itself (mm-stage)
                md        an idle batch: a bucket in memory meets the other input's bucket on disk
                dd        an idle batch: the runs of a bucket on disk are merged and joined (PSMJ)
                clean-up  all inputs have ended: every bucket is merged once more, with what is in memory
Input         rows with a null key match nothing and are not kept.
State         per input `ResidentRows`; `SpilledRows` of both; arrival rates; pairs owed per task. After a batch the
              resident rows leave room for a batch as large as this one within the budget.
Cost          arrival: as the symmetric join, with less to probe; a flushed row is written once more, and again for
              each factor of `combine_runs` by which the rows on disk are more than those of a flush. Idle batches
              read and write up to `idle_pages` pages (the last task is finished). Clean-up reads what is on disk once,
              and in steps: its memory does not grow with the bucket, only with the rows of one key.
State machine
              rows            no rows for `idle_after`          all inputs ended
        +--> arrival --+--> next_task() -> md | dd --+--> clean-up --> finished, state empty
        +--------------+<----------------------------+

A policy (RPJ, XJoin, HMJ) is a subclass: it chooses the next task of an idle batch, and how flushing works.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.arrow import data_bytes, drop_null_keys, hashes_of, merge_by_hash, sort_by_hash
from watersmeet.estimate.arrival_rate import ArrivalRates
from watersmeet.matching import matches
from watersmeet.operator import Batch, Operator, OperatorState
from watersmeet.plan import JoinPlan
from watersmeet.progressive.disk_tasks import DiskTasks, overlapping
from watersmeet.progressive.duplicates import ATS, arriving, departing, resident_schema, times
from watersmeet.progressive.expected import ExpectedResults, dd_cost, md_cost
from watersmeet.progressive.flush_policies import POLICIES, Victim
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.progressive.resident import ResidentRows
from watersmeet.progressive.spilled import SERIAL, SpilledRows, Unit
from watersmeet.state.buckets import Buckets
from watersmeet.state.space import BucketPage, RunSpace, cut_into_pages
from watersmeet.state.tiers import due

# Rows that one step of the clean-up, or of combining runs, takes at most, and the share of the budget that it and the
# pages it reads may take.
STEP_ROWS = 1 << 18
STEP_SHARE = 4

# Spilled runs up to SMALL_RUN rows count as equally long when runs are combined; no more than COMBINED_ROWS and
# COMBINED_BYTES are combined at once, so that no batch stalls. Runs of that size are as many as the state needs.
SMALL_RUN = 1024
COMBINED_ROWS = 1 << 19
COMBINED_BYTES = 1 << 27


@dataclass(frozen=True)
class Task:
    """A task of the reactive stage: what it is expected to give and to cost."""

    kind: Literal["md", "dd"]
    bucket: int
    input: int | None  # whose rows are in memory, for an md-task
    expected: float  # Er
    cost: float  # Et


class BudgetedJoin(Operator):
    """A progressive join under a memory budget; subclasses are the policies."""

    concurrent_flush = False

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.options = options = ProgressiveOptions(**plan.options, **plan.tuning)
        self.names = (plan.inputs[0].name, plan.inputs[1].name)
        self.in_rows = options.memory_rows is not None
        self.limit = ((options.memory_rows if self.in_rows else options.memory) or 0) // plan.partitions
        self.buckets = Buckets(options.buckets)
        self.resident = tuple(
            ResidentRows(spec.name, resident_schema(spec.schema), self.buckets, in_rows=self.in_rows)
            for spec in plan.inputs
        )
        self.spilled = SpilledRows(self.names, options.buckets)
        self.expected = ExpectedResults(options.buckets)
        self.rates = ArrivalRates(2, options.buckets, decay=options.decay, unit=options.rate_unit)
        self.flushing = POLICIES[options.flush_policy](concurrent=self.concurrent_flush)
        memory = (self.resident[0], self.resident[1])
        self.tasks = DiskTasks(plan, space, self.buckets, memory, self.spilled, self.expected, options.page_rows)
        self.batch = -1
        self.clock = 0  # the latest batch time seen; a partition that gets neither rows nor a tick sees none
        self.last_arrival: int | None = None  # time of the last batch with rows

    @abstractmethod
    def next_task(self) -> Task | None:
        """What an idle batch does next; nothing if no task would give results."""

    # -- arrival stage ---------------------------------------------------------------------------------------------

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """Rows meet the rows in memory and each other; then they are stored, and memory is flushed if it is full."""
        self.batch, self.clock = batch.number, max(self.clock, batch.time)
        arrived = [self._arrived(batch, name) for name in self.names]
        counts = np.stack([self.buckets.counts(hashes_of(table)) for table in arrived])
        self.rates.observe(counts, self.clock)
        if counts.any():
            self.last_arrival = self.clock
            yield from self._counted("arrival", self._arrival_stage(arrived))
            held = np.stack([rows.counts for rows in self.resident])
            met = int((counts[0] * held[1] + held[0] * counts[1] + counts[0] * counts[1]).sum())
            self.expected.observe(met, int(self.metrics.counters.get("results_arrival", 0)))
            for index, table in enumerate(arrived):
                self.expected.arrived(index, counts[index], self.spilled.counts[1 - index], batch.number)
                self.metrics.count("rows_merged", self.resident[index].add(table, batch.number))
            self._release()
            self._make_room(reserve=sum(self._size_of(table) for table in arrived))
        self._gauges()

    def _arrived(self, batch: Batch, name: str) -> pa.Table:
        table = batch.rows.get(name)
        if table is None:
            return resident_schema(self.plan.input(name).schema).empty_table()
        return arriving(sort_by_hash(drop_null_keys(table)), batch.number)

    def _arrival_stage(self, arrived: list[pa.Table]) -> Iterator[pa.Table]:
        left, right = arrived
        for part in self.resident[1].parts():
            yield from self._join(left, part)
        for part in self.resident[0].parts():
            yield from self._join(part, right)
        yield from self._join(left, right)

    def _join(self, left: pa.Table, right: pa.Table) -> Iterator[pa.Table]:
        if left.num_rows and right.num_rows:
            left = overlapping(left, right)
        if left.num_rows and right.num_rows:
            right = overlapping(right, left)
        if not (left.num_rows and right.num_rows):
            return
        self.metrics.count("runs_probed")
        for i, j in matches(left, right):
            yield self.plan.projection.gather({self.names[0]: (left, i), self.names[1]: (right, j)})

    def _counted(self, stage: str, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self.metrics.count(f"results_{stage}", table.num_rows)
            yield table

    # -- flushing --------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """What is in memory, in the unit of the budget."""
        return sum(rows.size for rows in self.resident)

    def _size_of(self, table: pa.Table) -> int:
        return table.num_rows if self.in_rows else data_bytes(table)

    def _release(self) -> None:
        """Forget rows whose partner input has ended with nothing on disk: they have met all they will ever meet."""
        for index, rows in enumerate(self.resident):
            if self.has_ended(self.names[1 - index]):
                rows.remove([int(bucket) for bucket in np.flatnonzero(self.spilled.counts[1 - index] == 0)])
                rows.compact()

    def _make_room(self, reserve: int) -> None:
        """Flush until another batch of this size fits into the budget."""
        target = max(0, self.limit - reserve)
        if self.size <= target:
            return
        self._flush(max(self.size - target, ceil(self.options.flush_share * self.limit)), partially=True)
        if self.size > target:  # the rows that left were smaller than the average of their bucket
            self._flush(self.size - target, partially=False)
        self._combine_spilled()

    def _flush(self, amount: int, *, partially: bool) -> None:
        ended = [index for index, name in enumerate(self.names) if self.has_ended(name)]
        probabilities = self.rates.probabilities(ended)
        sizes = np.stack([rows.sizes() for rows in self.resident])
        victims = self.flushing.choose(sizes, probabilities, amount)
        if not partially:
            victims = [Victim(victim.input, victim.bucket) for victim in victims]
        serials: list[dict[int, int]] = [{}, {}]
        for index in (0, 1):
            leaving = self._leaving(index, [victim for victim in victims if victim.input == index], sizes[index])
            if leaving:
                serials[index] = dict.fromkeys(leaving, self._spill(index, leaving))
            for bucket, parts in leaving.items():
                self.metrics.event(
                    "flush",
                    input=self.names[index],
                    bucket=bucket,
                    rows=sum(part.num_rows for part in parts),
                    rows_left=int(self.resident[index].counts[bucket]),
                    probability=float(probabilities[1 - index, bucket]),
                )
        for bucket in sorted(serials[0].keys() | serials[1].keys()):
            self.spilled.add_unit(bucket, Unit(serials[0].get(bucket), serials[1].get(bucket)))

    def _leaving(self, index: int, victims: list[Victim], sizes: npt.NDArray[np.int64]) -> dict[int, list[pa.Table]]:
        """Take victims' rows out of memory; what they are owed is from now on owed by dd-tasks."""
        rows, leaving, whole = self.resident[index], {}, []
        for victim in sorted(victims, key=lambda victim: victim.bucket):
            bucket, count = victim.bucket, int(rows.counts[victim.bucket])
            wanted = count if victim.amount is None else ceil(count * victim.amount / int(sizes[bucket]))
            if wanted < count:
                oldest = rows.remove_oldest(bucket, wanted)
                self.expected.flushed(index, bucket, times(oldest, ATS))
                leaving[bucket] = [oldest]
            else:
                leaving[bucket] = rows.bucket(bucket)
                self.expected.flushed_whole(index, bucket)
                whole.append(bucket)
        rows.remove(whole)
        rows.compact()
        return leaving

    def _spill(self, index: int, leaving: dict[int, list[pa.Table]]) -> int:
        """Write rows of several buckets as one run, sorted by hash."""

        def pages() -> Iterator[BucketPage]:
            for bucket, parts in leaving.items():
                last_md = int(self.expected.last_md[index, bucket])
                rows = departing(merge_by_hash(parts), self.batch, last_md)
                yield from cut_into_pages(rows, self.buckets, self.options.page_rows)

        oldest = min(int(times(part, ATS).min()) for parts in leaving.values() for part in parts)
        attributes = {SERIAL: self.spilled.take_serial()}
        run = self.space.spill(self.names[index], pages(), oldest=oldest, newest=self.batch, **attributes)
        self.metrics.count("rows_flushed", run.rows)
        return self.spilled.add(run)

    def _combine_spilled(self) -> None:
        """Keep spilled runs few while rows come: runs of similar size become one, as often as there are enough."""
        begun = self.tasks.pages
        for index in (0, 1):
            while parts := self._combinable(index):
                step_rows = -(-self._step()[1] // 2)  # of one input: half of what a step of both takes
                self.metrics.count("rows_combined", self.tasks.combine(index, parts, step_rows=step_rows))
        if self.tasks.pages > begun:
            self.metrics.count("pages_combined", self.tasks.pages - begun)

    def _combinable(self, index: int) -> dict[int, list[int]]:
        fanout, runs = self.options.combine_runs, self.spilled.loose(index)
        if len(runs) < fanout or not fanout:
            return {}
        rows = [sum(self.spilled.segment(run, bucket).rows for bucket in buckets) for run, buckets in runs.items()]
        per_row = 1 + self.spilled.nbytes // max(1, int(self.spilled.counts.sum()))
        largest = min(COMBINED_ROWS, COMBINED_BYTES // per_row)
        chosen = due(rows, fanout=fanout, smallest=SMALL_RUN, largest=largest)
        serials = list(runs)
        return {serials[at]: runs[serials[at]] for at in chosen}

    # -- reactive stage --------------------------------------------------------------------------------------------

    def on_idle(self, batch: Batch) -> Iterator[pa.Table]:
        """Tasks, one after the other, until the batch's pages are used or nothing is left to find (Fig. 3)."""
        if self.last_arrival is None or self.clock - self.last_arrival < self.options.idle_after:
            return
        begun = self.tasks.pages
        while (used := self.tasks.pages - begun) < self.options.idle_pages:
            task = self.next_task()
            if task is None:
                break
            yield from self._counted(task.kind, self._run(task, self.options.idle_pages - used))
        self._gauges()

    def md_task(self, index: int, bucket: int) -> Task:
        """The task that joins what an input has in memory with what the other one has on disk."""
        runs, pages = self.spilled.extent(1 - index, bucket)
        cost = md_cost(runs, pages, self.options.random_page_cost, self.options.sequential_page_cost)
        return Task("md", bucket, index, float(self.expected.memory[index, bucket]) * self._match_probability(), cost)

    def dd_task(self, bucket: int) -> Task:
        """The task that joins what both inputs have on disk."""
        left, right = (self.spilled.extent(index, bucket) for index in (0, 1))
        cost = dd_cost((left[0], right[0]), (left[1], right[1]), self.options.fan_in, self.options.random_page_cost)
        return Task("dd", bucket, None, float(self.expected.disk[bucket]) * self._match_probability(), cost)

    def _match_probability(self) -> float:
        keys = self.options.distinct_keys  # of all partitions and buckets
        return self.expected.match_probability(keys / (self.plan.partitions * self.buckets.count) if keys else None)

    def _run(self, task: Task, max_pages: int) -> Iterator[pa.Table]:
        begun, found = self.tasks.pages, 0
        if task.input is not None:
            results = self.tasks.md(task.input, task.bucket, self.batch)
        else:
            results = self.tasks.dd(task.bucket, self.options.fan_in, max_pages)
        for table in results:
            found += table.num_rows
            yield table
        pages = self.tasks.pages - begun
        self.metrics.count("pages", pages)
        self.metrics.event(
            f"{task.kind}_task",
            input=None if task.input is None else self.names[task.input],
            bucket=task.bucket,
            expected=task.expected,
            cost=task.cost,
            pages=pages,
            results=found,
        )

    # -- clean-up --------------------------------------------------------------------------------------------------

    def finish(self) -> Iterator[pa.Table]:
        """Every bucket once more, from disk and memory, in steps that fit into the budget (Fig. 3)."""
        affordable, step_rows = self._step()
        fan_in = max(self.options.fan_in, affordable // self.options.page_rows // 2)
        begun = self.tasks.pages
        for bucket in range(self.buckets.count):
            results = self.tasks.clean_up(bucket, self.batch, fan_in=fan_in, step_rows=step_rows)
            yield from self._counted("cleanup", results)
        self.metrics.count("pages", self.tasks.pages - begun)
        for rows in self.resident:
            rows.clear()
        self._gauges()

    def _step(self) -> tuple[int, int]:
        """The rows that a step's share of the budget holds, and how many rows a step takes."""
        stored = max(1, int(self.spilled.counts.sum()))
        row_size = 1 if self.in_rows else max(1, self.spilled.nbytes // stored)
        affordable = self.limit // STEP_SHARE // row_size
        return affordable, max(self.options.page_rows, min(affordable, STEP_ROWS))

    # -- state -----------------------------------------------------------------------------------------------------

    def _gauges(self) -> None:
        runs = [run for rows in self.resident for run in rows.tiers.runs]
        self.metrics.gauge("resident_rows", sum(run.rows for run in runs))
        self.metrics.gauge("resident_bytes", sum(run.nbytes for run in runs))
        self.metrics.gauge("spilled_rows", int(self.spilled.counts.sum()))
        self.metrics.gauge("spilled_bytes", self.spilled.nbytes)
        self.metrics.gauge("spilled_runs", len(self.spilled.runs))

    def save(self) -> OperatorState:
        """Runs in memory and on disk, and the statistics."""
        runs = [run for rows in self.resident for run in rows.tiers.runs]
        runs += [run for _, run in sorted(self.spilled.runs.items())]
        if self.finished:
            return OperatorState(runs)
        return OperatorState(
            runs,
            {
                "resident": [rows.counts.tolist() for rows in self.resident],
                "spilled": self.spilled.save(),
                "expected": self.expected.save(),
                "rates": self.rates.save(),
                "clock": self.clock,
                "last_arrival": self.last_arrival,
            },
        )

    def restore(self, state: OperatorState) -> None:
        """Sort the runs by input and tier."""
        if not state.values:  # finished: nothing is kept
            return
        for index, rows in enumerate(self.resident):
            runs = [run for run in state.runs if run.tier == "resident" and run.label == self.names[index]]
            rows.restore(runs, state.values["resident"][index])
        self.spilled.restore([run for run in state.runs if run.tier == "spilled"], state.values["spilled"])
        self.expected.restore(state.values["expected"])
        self.rates.restore(state.values["rates"])
        self.clock, self.last_arrival = state.values["clock"], state.values["last_arrival"]
