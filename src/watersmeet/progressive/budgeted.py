"""What the progressive joins have in common: rows in memory up to a budget, the rest on disk, every pair once.

Semantics     inner equi-join of two inputs; each pair once, in whichever of these stages comes first:
                arrival   a batch probes the rows in memory and itself (mm-stage)
                md        an idle batch: a bucket in memory probes the other input's bucket on disk
                dd        an idle batch: the runs of a bucket on disk are merged and joined (PSMJ)
                clean-up  all inputs have ended: every bucket is merged once more, with what is in memory
Input         rows with a null key match nothing and are not kept.
State         per input a store, in memory and on disk; `Units` of both; arrival rates; pairs owed per task. After a
              batch the resident rows leave room for a batch as large as this one within the budget.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import data_bytes, hashes_of, merge_by_hash
from watersmeet.columns.matching import near_matches
from watersmeet.columns.partitions import Partition
from watersmeet.estimate.arrival_rate import ArrivalRates
from watersmeet.join.binary import BinaryJoin
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.join.flush_policies import POLICIES, Victim
from watersmeet.join.hand import Hand, known, with_flag
from watersmeet.join.operator import Batch, OperatorState, Origin
from watersmeet.plan import JoinPlan
from watersmeet.progressive.disk_tasks import DiskTasks
from watersmeet.progressive.duplicates import ATS, Mask, arriving, departing, resident_schema, times
from watersmeet.progressive.expected import ExpectedResults, dd_cost, md_cost
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.progressive.units import Unit, Units
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import HashTiers, due_by_size
from watersmeet.state.parts import InBuckets, Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.sharing import inherit
from watersmeet.state.space import BucketPage, RunSpace, cut_into_pages

# Rows that one step of the clean-up, or of combining runs, takes at most, and the share of the budget that it and the
# pages it reads may take.
STEP_ROWS = 1 << 18
STEP_SHARE = 4

# The budget of a join whose budget was taken away: what it has on disk is still joined, and nothing more goes there.
NO_LIMIT = 1 << 60

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


class BudgetedJoin(BinaryJoin):
    """A progressive join under a memory budget; subclasses are the policies."""

    concurrent_flush = False
    leaves_together: ClassVar[bool] = True  # at the end, when all that is on disk is joined (see `_release`)

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.options = options = ProgressiveOptions(**plan.options, **plan.tuning)
        self.in_rows = options.memory_rows is not None
        budget = options.memory_rows if self.in_rows else options.memory
        self.limit = NO_LIMIT if budget is None else budget // plan.partitions
        self.buckets = Buckets(options.buckets)
        self.emitter = BinaryEmitter(
            plan, self.accounts, self.metrics, beside=dict.fromkeys(self.names, ATS), marks_once=True
        )
        self.stores = {
            spec.name: RowStore(
                spec.name,
                self.emitter.stored_schema(spec.name, resident_schema(spec.schema)),
                HashTiers(),
                space,
                self.accounts,
                buckets=self.buckets,
                counts_buckets=True,
                flags=self.emitter.flags(spec.name),
            )
            for spec in plan.inputs
        }
        self.sides = (self.stores[self.left], self.stores[self.right])
        self.units = Units(self.sides, options.buckets)
        self.expected = ExpectedResults(options.buckets)
        self.rates = ArrivalRates(2, options.buckets, decay=options.decay, unit=options.rate_unit)
        self.flushing = POLICIES[options.flush_policy](concurrent=self.concurrent_flush)
        self.tasks = DiskTasks(
            plan, self.emitter, self.buckets, self.sides, self.units, self.expected, options.page_rows
        )
        self.batch = -1
        self.clock = 0  # the latest batch time seen; a partition that gets neither rows nor a tick sees none
        self.last_arrival: int | None = None  # time of the last batch with rows

    @abstractmethod
    def next_task(self) -> Task | None:
        """What an idle batch does next; nothing if no task would give results."""

    # -- arrival stage ---------------------------------------------------------------------------------------------

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """Rows probe the rows in memory and each other; then they are stored, and memory is flushed if it is full."""
        self.batch, self.clock = batch.number, max(self.clock, batch.time)
        arrived = [self._arrived(batch, name) for name in self.names]
        yield from self.turned_away()
        counts = np.stack([self.buckets.counts(hashes_of(table)) for table in arrived])
        self.rates.observe(counts, self.clock)
        if counts.any():
            self.last_arrival = self.clock
            hand = Hand(self.emitter, dict(zip(self.names, arrived, strict=True)))
            yield from self._counted("arrival", self._arrival_stage(hand))
            held = np.stack([store.bucket_rows for store in self.sides])
            compared = int((counts[0] * held[1] + held[0] * counts[1] + counts[0] * counts[1]).sum())
            self.expected.observe(compared, int(self.metrics.counters.get("stage_results.arrival", 0)))
            for index, name in enumerate(self.names):
                table = hand.rest(name)
                if self.emitter.type.exists:  # some rows have left already
                    counts[index] = self.buckets.counts(hashes_of(table))
                self.expected.arrived(index, counts[index], self.units.counts[1 - index], batch.number)
                self.sides[index].add(table, batch.number)
                self.metrics.count("rows_rewritten", self.sides[index].settle())
        yield from self._release(batch)
        if any(table.num_rows for table in arrived):
            self._make_room(batch, reserve=sum(self._size_of(table) for table in arrived))
            if self.emitter.type.exists:  # runs that were combined lose the rows that have matched
                yield from self._release(batch)

    def _arrived(self, batch: Batch, name: str) -> pa.Table:
        return arriving(self.prologue.admit(batch, name), batch.number)

    def _arrival_stage(self, hand: Hand) -> Iterator[pa.Table]:
        for name in self.names:
            table = hand.tables[name]
            parts = list(self.stores[self.other[name]].parts()) if table.num_rows else []
            self.metrics.count("runs_probed", len(parts))
            for part in parts:
                for i, j in near_matches(table, part.table):
                    alive = part.alive(j)
                    yield from (
                        hand.stored(name, i, part, j) if alive is None else hand.stored(name, i[alive], part, j[alive])
                    )
        for i, j in near_matches(hand.tables[self.left], hand.tables[self.right]):
            yield from hand.pairs(i, j)
        yield from hand.settle()

    def _counted(self, stage: str, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self.metrics.count(f"stage_results.{stage}", table.num_rows)
            yield table

    # -- flushing --------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """What is in memory, in the unit of the budget."""
        return sum(store.resident_rows if self.in_rows else store.nbytes for store in self.sides)

    def _size_of(self, table: pa.Table) -> int:
        return table.num_rows if self.in_rows else data_bytes(table)

    def _release(self, batch: Batch) -> Iterator[pa.Table]:
        """Rows whose partner input has ended leave if nothing of it is on disk: they have been joined with all there
        is. So have rows that came before it was flushed, or before the last md-task; where unmatched rows are wanted,
        they are looked for.

        Buckets with rows that partitions vote on stay to the end: what they owe is a matter of each partition, and they
        must leave all of them in the same batch.
        """
        for index, store in enumerate(self.sides):
            other = self.names[1 - index]
            if not self.ends(other, batch):
                continue
            on_disk, stays = self.units.counts[1 - index] > 0, self._stays(index)
            free = np.flatnonzero(~on_disk & ~stays)
            yield from self.emitter.departed(store.remove(InBuckets(free.tolist()), "ended"))
            # What comes later has something on disk to be joined with.
            if other in batch.ended and self.names[index] in self.emitter.preserved:
                for bucket in np.flatnonzero(on_disk & ~stays & (store.bucket_rows > 0)).tolist():
                    met = max(self.units.flushed[1 - index, bucket], self.expected.last_md[index, bucket])
                    for part in store.bucket(bucket):
                        rows = np.flatnonzero(times(part.table, ATS) <= met)
                        yield from self.emitter.departed(store.remove(Rows(part, rows), "ended"))
            store.compact()

    def _stays(self, index: int) -> Mask:
        """The buckets of an input that have rows on which partitions vote."""
        found = np.zeros(self.buckets.count, np.bool_)
        if self.emitter.ballots is not None:
            found[self.buckets.of(self.emitter.ballots.keys.get(self.names[index], np.empty(0, np.uint64)))] = True
        return found

    def _make_room(self, batch: Batch, reserve: int) -> None:
        """Flush until another batch of this size fits into the budget."""
        target = max(0, self.limit - reserve)
        if self.size <= target:
            return
        self._flush(max(self.size - target, ceil(self.options.flush_share * self.limit)), batch, partially=True)
        if self.size > target:  # the rows that left were smaller than the average of their bucket
            self._flush(self.size - target, batch, partially=False)
        self._combine_spilled()

    def _flush(self, amount: int, batch: Batch, *, partially: bool) -> None:
        ended = [index for index, name in enumerate(self.names) if self.ends(name, batch)]
        probabilities = self.rates.probabilities(ended)
        sizes = np.stack([self._bucket_sizes(store) for store in self.sides])
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
                    rows_left=int(self.sides[index].bucket_rows[bucket]),
                    probability=float(probabilities[1 - index, bucket]),
                )
        for bucket in sorted(serials[0].keys() | serials[1].keys()):
            self.units.add_unit(bucket, Unit(serials[0].get(bucket), serials[1].get(bucket)), batch.number)

    def _bucket_sizes(self, store: RowStore) -> npt.NDArray[np.int64]:
        """What each bucket holds in memory, in the unit of the budget."""
        return store.bucket_rows if self.in_rows else store.bucket_bytes()

    def _leaving(self, index: int, victims: list[Victim], sizes: npt.NDArray[np.int64]) -> dict[int, list[pa.Table]]:
        """Take victims' rows out of memory; what they are owed is from now on owed by dd-tasks."""
        store, whole = self.sides[index], []
        leaving: dict[int, list[pa.Table]] = {}
        for victim in sorted(victims, key=lambda victim: victim.bucket):
            bucket, count = victim.bucket, int(store.bucket_rows[victim.bucket])
            wanted = count if victim.amount is None else ceil(count * victim.amount / int(sizes[bucket]))
            if wanted < count:
                oldest = self._take_oldest(store, bucket, wanted)
                self.expected.flushed(index, bucket, times(oldest, ATS))
                leaving[bucket] = [oldest]
            else:
                self.expected.flushed_whole(index, bucket)
                whole.append(bucket)
        leaving |= store.take(whole)
        store.compact()
        return dict(sorted(leaving.items()))

    def _take_oldest(self, store: RowStore, bucket: int, rows: int) -> pa.Table:
        """Take about `rows` of a bucket's rows out of memory, the oldest batches first, sorted by hash."""
        runs = [part.run for part in store.bucket(bucket)]
        merged = merge_by_hash(store.take([bucket])[bucket])
        leaving = oldest_rows(merged, rows)
        staying = merged.filter(pa.array(~leaving)).combine_chunks()
        # As many merges as the runs it comes from: what is left of a bucket must not make the others merge sooner.
        newest, level = max(run.newest for run in runs), max(run.level for run in runs)
        store.add(staying, newest, oldest=min(run.oldest for run in runs), level=level)
        return merged.filter(pa.array(leaving)).combine_chunks()

    def _spill(self, index: int, leaving: dict[int, list[pa.Table]]) -> int:
        """Write rows of several buckets as one run, sorted by hash."""

        def pages() -> Iterator[BucketPage]:
            for bucket, parts in leaving.items():
                last_md = int(self.expected.last_md[index, bucket])
                rows = departing(merge_by_hash(parts), self.batch, last_md)
                yield from cut_into_pages(rows, self.buckets, self.options.page_rows)

        oldest = min(int(times(part, ATS).min()) for parts in leaving.values() for part in parts)
        run = self.sides[index].spill(pages(), oldest=oldest, newest=self.batch)
        self.metrics.count("runs_flushed")
        self.metrics.count("rows_flushed", run.rows)
        return run.id

    def _combine_spilled(self) -> None:
        """Keep spilled runs few while rows come: runs of similar size become one, as often as there are enough."""
        for index in (0, 1):
            while parts := self._combinable(index):
                step_rows = -(-self._step()[1] // 2)  # of one input: half of what a step of both takes
                self.tasks.combine(index, parts, step_rows=step_rows)

    def _combinable(self, index: int) -> dict[int, list[int]]:
        fanout, runs = self.options.combine_runs, self.units.loose(index)
        if len(runs) < fanout or not fanout:
            return {}
        rows = [sum(self.units.segment(index, run, bucket).rows for bucket in buckets) for run, buckets in runs.items()]
        per_row = 1 + self.units.nbytes // max(1, int(self.units.counts.sum()))
        largest = min(COMBINED_ROWS, COMBINED_BYTES // per_row)
        chosen = due_by_size(rows, fanout=fanout, smallest=SMALL_RUN, largest=largest)
        serials = list(runs)
        return {serials[at]: runs[serials[at]] for at in chosen}

    # -- reactive stage --------------------------------------------------------------------------------------------

    def on_idle(self, batch: Batch) -> Iterator[pa.Table]:
        """Tasks, one after the other, until the batch's pages are used or nothing is left to find (Fig. 3)."""
        if self.last_arrival is None or self.clock - self.last_arrival < self.options.idle_after:
            return
        begun, last = self.tasks.pages, None
        while (used := self.tasks.pages - begun) < self.options.idle_pages:
            task = self.next_task()
            if task is None or task == last:  # a task that left everything as it was would be the next one for ever
                break
            last = task
            yield from self._counted(task.kind, self._run(task, self.options.idle_pages - used))
            is_over = task.input is not None and self.ends(self.names[1 - task.input], batch)
            if task.input is not None and is_over and not self._stays(task.input)[task.bucket]:
                gone = self.sides[task.input].remove(InBuckets([task.bucket]), "ended")
                yield from self.emitter.departed(gone)
        if self.emitter.type.exists:
            yield from self._release(batch)

    def md_task(self, index: int, bucket: int) -> Task:
        """The task that joins what an input has in memory with what the other one has on disk."""
        runs, pages = self.units.extent(1 - index, bucket)
        cost = md_cost(runs, pages, self.options.random_page_cost, self.options.sequential_page_cost)
        # Of a semi or anti join all that is on disk may have left since its results were expected.
        owed = float(self.expected.memory[index, bucket]) if pages else 0.0
        return Task("md", bucket, index, owed * self._match_probability(), cost)

    def dd_task(self, bucket: int) -> Task:
        """The task that joins what both inputs have on disk."""
        left, right = (self.units.extent(index, bucket) for index in (0, 1))
        cost = dd_cost((left[0], right[0]), (left[1], right[1]), self.options.fan_in, self.options.random_page_cost)
        owed = float(self.expected.disk[bucket]) if left[1] and right[1] else 0.0
        return Task("dd", bucket, None, owed * self._match_probability(), cost)

    def _match_probability(self) -> float:
        keys = self.options.distinct_keys  # of all partitions and buckets
        return self.expected.match_probability(keys / (self.plan.partitions * self.buckets.count) if keys else None)

    def _run(self, task: Task, max_pages: int) -> Iterator[pa.Table]:
        begun, found = self.tasks.pages, 0
        if task.input is not None:
            results = self.tasks.md(task.input, task.bucket, self.batch)
        else:
            results = self.tasks.dd(
                task.bucket, self.options.fan_in, NO_LIMIT if self.options.whole_tasks else max_pages
            )
        for table in results:
            found += table.num_rows
            yield table
        self.metrics.event(
            f"{task.kind}_task",
            input=None if task.input is None else self.names[task.input],
            bucket=task.bucket,
            expected=task.expected,
            cost=task.cost,
            pages=self.tasks.pages - begun,
            results=found,
        )

    # -- clean-up --------------------------------------------------------------------------------------------------

    def finish(self) -> Iterator[pa.Table]:
        """Every bucket once more, from disk and memory, in steps that fit into the budget (Fig. 3)."""
        affordable, step_rows = self._step()
        fan_in = max(self.options.fan_in, affordable // self.options.page_rows // 2)
        for bucket in range(self.buckets.count):
            results = self.tasks.clean_up(bucket, self.batch, fan_in=fan_in, step_rows=step_rows)
            yield from self._counted("clean_up", results)
        yield from super().finish()

    def _step(self) -> tuple[int, int]:
        """The rows that a step's share of the budget holds, and how many rows a step takes."""
        stored = max(1, int(self.units.counts.sum()))
        row_size = 1 if self.in_rows else max(1, self.units.nbytes // stored)
        affordable = self.limit // STEP_SHARE // row_size
        return affordable, max(self.options.page_rows, min(affordable, STEP_ROWS))

    # -- state -----------------------------------------------------------------------------------------------------

    def save(self) -> OperatorState:
        """The stores, the units and the statistics; nothing of it after the end."""
        if self.finished:
            return OperatorState()
        state = super().save()
        state.values = {
            "units": self.units.save(),
            "expected": self.expected.save(),
            "rates": self.rates.save(),
            "clock": self.clock,
            "last_arrival": self.last_arrival,
        }
        return state

    def inherit(self, heir: Partition, origins: Sequence[Origin], version: int) -> None:
        """Rows, units, and what is owed. Pairs of rows of different origins have no keys in common, so their units may
        count as not joined.

        Rows in memory owe pairs by their bucket's last md-task. Where origins differ in that, what is in memory is
        flushed, so that every row says itself what it owes.
        """
        former = [one.operator for one in origins if isinstance(one.operator, BudgetedJoin)]
        self.batch = version
        alike = all(np.array_equal(one.expected.last_md, former[0].expected.last_md) for one in former)
        for origin, join in zip(origins, former, strict=True):
            maps = [
                inherit(store, other, heir, origin.partition, wanted=lambda run: alike or run.tier == "spilled")
                for store, other in zip(self.sides, join.sides, strict=True)
            ]
            self.units.inherit(join.units, (maps[0], maps[1]))
            if not alike:
                self._flush_inherited(join, heir)
        self.expected.inherit([join.expected for join in former], alike=alike)
        for bucket in np.flatnonzero(self.expected.disk).tolist():
            if not self.units.unmatched_pairs(bucket):  # what was expected there belongs to other heirs
                self.expected.nothing_on_disk(bucket)
        self.rates.inherit([join.rates for join in former])
        self.clock = max(join.clock for join in former)
        arrivals = [join.last_arrival for join in former if join.last_arrival is not None]
        self.last_arrival = max(arrivals, default=None)

    def _flush_inherited(self, join: BudgetedJoin, heir: Partition) -> None:
        """Write what a former partition had in memory to disk, as one flush after the batch `self.batch`."""
        serials: list[dict[int, int]] = [{}, {}]
        for index, other in enumerate(join.sides):
            leaving: dict[int, list[pa.Table]] = {}
            for bucket in np.flatnonzero(other.bucket_rows).tolist():
                tables = [part.take(part.living) for part in other.bucket(bucket)]
                mine = [table.filter(pa.array(heir.owns(hashes_of(table)))).combine_chunks() for table in tables]
                if mine := [table for table in mine if table.num_rows]:
                    leaving[bucket] = mine
            if leaving:
                self.expected.last_md[index] = join.expected.last_md[index]
                serials[index] = dict.fromkeys(leaving, self._spill(index, leaving))
        for bucket in sorted(serials[0].keys() | serials[1].keys()):
            self.units.add_unit(bucket, Unit(serials[0].get(bucket), serials[1].get(bucket)), self.batch)

    def restore(self, state: OperatorState) -> None:
        """Take up what `save` returned, or the state of a join that had no budget so far."""
        if "units" not in state.values:
            self._restore_unlimited(state)
            return
        super().restore(state)
        self.units.restore(state.values["units"])
        self.expected.restore(state.values["expected"])
        self.rates.restore(state.values["rates"])
        self.clock, self.last_arrival = state.values["clock"], state.values["last_arrival"]

    def _restore_unlimited(self, state: OperatorState) -> None:
        """Rows that have all been joined with each other, as if they had come in batch 0: nothing is owed to them, and
        they are the first to be flushed. They are written again, once."""
        for saved in state.stores:
            store, spec = self.stores[saved.name], self.plan.input(saved.name)
            flags = self.emitter.flags(spec.name) if spec.name in self.emitter.flagged else ()
            before = RowStore(spec.name, spec.schema, HashTiers(), self.space, self.accounts, flags=flags)
            before.restore(saved)
            for part in before.parts():
                rows = arriving(part.take(part.living), 0)
                if store.flags:
                    rows = with_flag(rows, known(rows))
                run = part.run
                store.add(rows.select(store.schema.names), run.newest, oldest=run.oldest, level=run.level)


def oldest_rows(table: pa.Table, rows: int) -> Mask:
    """Which rows of a hash-sorted table are about the `rows` oldest, one at least and not all.

    Within a batch rows go by hash, and rows of one batch with one hash go together: which of them came first in the
    batch must not matter.
    """
    ats, hashes = times(table, ATS), hashes_of(table)
    batches, counts = np.unique(ats, return_counts=True)
    reached = np.cumsum(counts)
    last = int(np.searchsorted(reached, rows))  # only some of this batch's rows
    of_last = hashes[ats == batches[last]]  # already sorted
    wanted = rows - int(reached[last] - counts[last])
    return np.asarray((ats < batches[last]) | ((ats == batches[last]) & (hashes <= of_last[wanted - 1])))
