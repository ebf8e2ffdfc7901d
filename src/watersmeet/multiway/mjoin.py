"""The n-ary join over batches, with the driver input chosen before every buffer (Valsomatzis and Gounaris, 2013).

Semantics     equi-join of 2 to 16 inputs on one key; each combination once, in the batch in which its last row
              arrives. With a window, those whose earliest and latest rows are at most `window` apart.
Optional      inputs named in `optional` may be absent: a combination of the others is a result without a row of them
              in the batch in which it is certain that none will come. They have ended (`absence`, `debts`), or with a
              window its time has passed (`passing`). With one required input its rows with a null key are results.
Memory        what does not fit into a budget goes to disk. With a window it is probed there: results come as before.
              Without, buckets of all inputs are flushed together (`origins`), and what their rows are owed comes in
              batches without rows, when generations on disk are merged, and at the end of the inputs (`spilling`).
Input         rows with a null key match nothing and are not kept; with a window neither are rows without a time.
State         per input its rows, once, in hash-sorted runs; never an intermediate result. With a window a row is kept
              while a row of another input may still come that is near enough: until t + window < the smallest newest
              time of the other inputs, less the lateness. Late rows find what must still be held, and are counted.
Batch         buffers per input -> while any holds rows: the policy names a driver, a slice of its buffer visits the
              other inputs' tables (stored and drained rows), most selective first, results stream out in bounded
              blocks, the slice counts as drained -> the buffers are stored -> memory has room for another batch.
Cost          per slice and other input one look-up of each distinct key that still has a chance in O(log state) runs,
              plus the matching rows, plus the results. A flushed row is written once more, and again for each factor of
              four by which the rows on disk are more than those of a flush.
Limit         `max_results` combinations per batch and partition (and per step of a merge): a `FanOutError` before any
              beyond it is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, data_bytes, hashes_of, take, times_of
from watersmeet.columns.partitions import Partition
from watersmeet.columns.saturating import saturated
from watersmeet.estimate.selectivity import Selectivities
from watersmeet.join.clock import Clock
from watersmeet.join.expiry import expire, inherit_horizon, spill_soonest
from watersmeet.join.generations import Generations
from watersmeet.join.operator import Batch, Operator, OperatorState, Origin
from watersmeet.join.prologue import Prologue
from watersmeet.join.waits import WaitingRows, waits_for_times
from watersmeet.multiway.absence import MEMORY, Absence
from watersmeet.multiway.debts import Debts
from watersmeet.multiway.driver_policies import POLICIES, Situation, choose
from watersmeet.multiway.former_clocks import FormerClock, inherited
from watersmeet.multiway.hash_table import HashTable
from watersmeet.multiway.horizons import Horizons
from watersmeet.multiway.options import MultiwayOptions, required_inputs
from watersmeet.multiway.passing import Passing
from watersmeet.multiway.probe import Probe, groups_of, key_layers
from watersmeet.multiway.probe_order import probe_order
from watersmeet.multiway.results import Results
from watersmeet.multiway.slices import Order, cut
from watersmeet.multiway.spilling import Spilling
from watersmeet.plan.join_plan import InputSpec, JoinPlan
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import HashTiers, TimeSlices
from watersmeet.state.parts import All, InBuckets, Part
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.sharing import inherit, unchanged
from watersmeet.state.space import RunSpace

# Selectivities of the inputs that are not probed first are measured on a sample: one key in SAMPLE, at most SAMPLED.
SAMPLE, SAMPLED = 16, 512

# Stored rows lie in slices of this part of the window.
SLICES = 4


@dataclass
class Step:
    """The account of one slice that drives."""

    driver: int
    rows: Indices
    order: list[int]  # in which the other inputs are visited
    stored: list[int]  # |ht_l| of every input
    sizes: list[float] = field(default_factory=list)  # combinations after each visit
    looked_up: int = 0
    results: int = 0


class MJoin(Operator):
    """Joins many inputs at once and stores each of their rows once."""

    name = "mjoin"

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.options = MultiwayOptions(**plan.options, **plan.tuning)
        self.names = [spec.name for spec in plan.inputs]
        self.policy = POLICIES[self.options.driver]()
        self.results = Results(plan, self.options, self.metrics)
        self.estimates = Selectivities(len(self.names))
        self.window = self.options.window
        self.clock = Clock(dict.fromkeys(self.names, self.window or 0), self.options.lateness)
        self.horizons = Horizons(self.clock, self.window or 0, self.options.optional)
        self.former: list[FormerClock] = []  # until the first batch after the state was divided anew
        times = None if self.window is None else self.options.time
        required = required_inputs(self.name, self.options.optional, self.names)
        alone = required if self.options.optional and len(required) == 1 else ()
        self.prologue = Prologue(
            plan,
            self.accounts,
            self.metrics,
            times=times,
            clock=self.clock,
            preserved=alone,
            drop_late=self.options.late == "drop",
        )
        self.buckets = Buckets(self.options.buckets)
        self.stores = {spec.name: self._store(index, spec) for index, spec in enumerate(plan.inputs)}
        self.tables = [HashTable(self.stores[name], probes_disk=self.window is not None) for name in self.names]
        memory = self.options.memory
        self.memory = None if memory is None else memory // plan.partitions
        self.generations = Generations(self.stores, self.buckets, self.options.page_rows)
        self.absence = Absence(self.names, self.options.optional, self.generations)
        window_times = [self.options.time.get(name, "") for name in self.names]
        self.passing = Passing(self.results, self.absence, window_times, self.window or 0, self.metrics)
        self.debts = Debts(self.results, self.estimates, self.absence, self.metrics)
        # Not a method of this object: a cycle would keep the rows of a batch in memory until it is found.
        joined = partial(self.debts.of_generations, allowed=self.options.max_results)
        self.spilling = Spilling(self.generations, self.absence, self.memory, joined, self.accounts, self.metrics)

    def _store(self, index: int, spec: InputSpec) -> RowStore:
        common: dict[str, Any] = {"buckets": self.buckets, "page_rows": self.options.page_rows}
        if self.window is None:
            layout = HashTiers(lag=index)
            return RowStore(spec.name, spec.schema, layout, self.space, self.accounts, counts_buckets=True, **common)
        column = self.options.time[spec.name]
        common |= {"time": column, "by_time": False, "rule": Horizon(column), "merges_spilled": True}
        slices = TimeSlices(span=self.window, share=SLICES, whole=True)
        return RowStore(spec.name, spec.schema, slices, self.space, self.accounts, **common)

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """Drain the buffers in the order the policy chooses, then store them."""
        if not batch.is_idle:
            self.estimates.age()
        late = [self.clock.bound(name) for name in self.names]
        buffers = [self._admitted(batch, index, late[index]) for index in range(len(self.names))]
        for name, reason, table in self.prologue.take_aside():
            yield from self.results.alone(name, table, reason)
        self.absence.open()
        for index, buffer in enumerate(buffers):
            self.tables[index].open(buffer)
            self.estimates.observe_arrivals(index, buffer.num_rows)
        queues = cut(self._orders(buffers), self.policy.slicing, self.options.slices)
        driver, allowed = -1, self.options.max_results
        while any(queues):
            stored = [table.rows for table in self.tables]
            waiting = [table.waiting for table in self.tables]
            driver, scores = choose(self.policy, Situation(queues, waiting, stored, driver, self.estimates))
            # Inputs that may be absent stop no key: they come last.
            order = sorted(probe_order(driver, stored, self.estimates), key=lambda one: one in self.absence.ended)
            step = Step(driver, queues[driver].popleft().rows, order, stored)
            yield from self._drive(step, buffers[driver], batch.number, allowed)
            allowed -= step.results
            self.tables[driver].drain(step.rows)
            self._report(step, scores.tolist())
        yield from self._absences(buffers, batch, allowed)
        for table in self.tables:
            table.close()
        self._keep(buffers, batch, late)
        yield from self._stay_within_memory(buffers, batch)

    def _admitted(self, batch: Batch, index: int, bound: int | None) -> pa.Table:
        """The rows of an input that take part. A late row of an optional one does not: what lacks it may be out."""
        name = self.names[index]
        buffer = self.prologue.admit(batch, name)
        if self.window is None or bound is None or name not in self.options.optional:
            return buffer
        on_time = times_of(buffer, self._time(index)) >= bound
        self.accounts.leave(name, "late", int(np.count_nonzero(~on_time)))
        return buffer if on_time.all() else take(buffer, np.flatnonzero(on_time))

    def _absences(self, buffers: Sequence[pa.Table], batch: Batch, allowed: int) -> Iterator[pa.Table]:
        """What lacks an optional input and is certain with this batch, all rows of which have driven."""
        if self.window is None:
            for index in self.absence.ending(batch):
                for table in self.debts.of_end(index, self.tables, allowed):
                    allowed -= table.num_rows
                    yield table
                self.absence.end(index)
            return
        optional = {index: self.names[index] for index in self.absence.optional}
        before = self._passed(self.horizons)
        apart = [
            (one, self._passed(Horizons(one.clock(self.clock), self.window, self.options.optional)))
            for one in self.former
        ]
        self.former = []
        for index, name in enumerate(self.names):
            self.clock.see_all(name, times_of(buffers[index], self._time(index)))
        after = {
            index: self.horizons.passed(name, has_ended=self.ends(name, batch)) for index, name in optional.items()
        }
        if optional:
            yield from self.passing.of(self.tables, before, after, allowed, apart)

    def _passed(self, horizons: Horizons) -> dict[int, float]:
        """The horizons of the optional inputs before a batch."""
        named = ((index, self.names[index]) for index in self.absence.optional)
        return {index: horizons.passed(name, has_ended=self.has_ended(name)) for index, name in named}

    def _drive(self, step: Step, buffer: pa.Table, number: int, allowed: int) -> Iterator[pa.Table]:
        """A slice probes what is stored and drained of all other inputs."""
        ended = self.absence.ended
        if all(step.stored[index] or index in ended for index in step.order):
            hashes = hashes_of(buffer)[step.rows]
            self._sample(step, hashes, number)
            self._reach(step, buffer)
            for probe in key_layers(buffer, step.rows, hashes):
                self._visit(step, probe)
                for table in self.results.of(probe, step.driver, allowed - step.results):
                    step.results += table.num_rows
                    yield table
        product = len(step.rows) * prod(float(max(step.stored[index], index in ended)) for index in step.order)
        self.estimates.observe_results(product, step.results)

    def _sample(self, step: Step, hashes: Hashes, number: int) -> None:
        """Estimate the selectivity of the inputs that only keys with a match elsewhere will reach.

        What those keys find says little about all keys, so a few are looked up whatever they matched before.
        """
        begins, counts = groups_of(hashes)
        stride = max(SAMPLE, -(-len(begins) // SAMPLED))
        begins, counts = begins[number % stride :: stride], counts[number % stride :: stride]
        if not len(begins):
            return
        for index in step.order[1:]:
            found = self.tables[index].count(hashes[begins])
            stored = self.tables[index].resident_rows
            if stored:
                hits, matches = int(counts[found > 0].sum()), int(counts @ found)
                self._observe(step, index, stored, int(counts.sum()), hits, matches)

    def _reach(self, step: Step, buffer: pa.Table) -> None:
        """With a window, the span of time in which the slice can have matches."""
        if self.window is not None:
            times = times_of(buffer, self._time(step.driver))[step.rows]
            span = saturated(int(times.min()) - self.window), saturated(int(times.max()) + self.window)
            for index in step.order:
                self.tables[index].span = span

    def _visit(self, step: Step, probe: Probe) -> None:
        """Probe the other inputs, most selective first, as long as any key has a chance."""
        sizes = [0.0] * len(step.order)
        for place, index in enumerate(step.order):
            hits = probe.visit(index, self.tables[index], self.absence.may_lack(index, probe.needles))
            sizes[place] = probe.size
            if place == 0 and step.stored[index]:
                self._observe(step, index, step.stored[index], len(probe.rows), hits, probe.size)
            if not len(probe.alive):
                break
        step.looked_up += probe.looked_up
        step.sizes = [sum(pair) for pair in zip(step.sizes, sizes, strict=True)] if step.sizes else sizes

    def _observe(self, step: Step, index: int, stored: int, rows: int, hits: float, matches: float) -> None:
        self.estimates.observe_pair(step.driver, index, rows=rows, stored=stored, hits=hits, matches=matches)

    def _report(self, step: Step, scores: list[float]) -> None:
        driver = self.names[step.driver]
        self.metrics.count("driver_steps")
        self.metrics.count("lookups", step.looked_up)
        self.metrics.count("intermediate_rows", sum(step.sizes[:-1]))
        self.metrics.count(f"driver_results.{driver}", step.results)
        self.metrics.event(
            "driver",
            input=driver,
            rows=len(step.rows),
            scores=dict(zip(self.names, scores, strict=True)),
            selectivity=self.estimates.of_join,
            probe_order=[self.names[index] for index in step.order],
            intermediate=step.sizes[:-1],
            results=step.results,
        )

    def _orders(self, buffers: Sequence[pa.Table]) -> list[Order]:
        """When each row counts as having arrived: by its time if every input has one, else by its hash."""
        if all(name in self.options.time for name in self.names):
            return [times_of(buffer, self._time(index)) for index, buffer in enumerate(buffers)]
        return [(hashes_of(buffer) >> np.uint64(1)).view(np.int64) for buffer in buffers]

    def _keep(self, buffers: Sequence[pa.Table], batch: Batch, late: Sequence[int | None]) -> None:
        """Store what a row yet to come may need; what none can leaves."""
        for index, name in enumerate(self.names):
            store, buffer = self.stores[name], buffers[index]
            others = self._others(name, batch)
            if not others and not self._is_owing:
                store.remove(All(), "ended")
                self.accounts.leave(name, "ended", buffer.num_rows)
                continue
            if self.window is not None:
                buffer = self._expire(index, buffer, others, late[index])
            store.add(buffer, batch.number)
            if not others:
                self._release(name)
            self.metrics.count("rows_rewritten", store.settle())

    def _others(self, name: str, batch: Batch) -> list[str]:
        """The inputs that a row of `name` may still wait for: if it is optional, also for its own end, because what it
        has decides which combinations lack it."""
        mine = () if name in self.options.optional else (name,)
        return [other for other in self.names if other not in mine and not self.ends(other, batch)]

    @property
    def _is_owing(self) -> bool:
        """Whether rows on disk have not been joined with all there is."""
        return self.window is None and not self.generations.is_empty

    def _release(self, name: str) -> None:
        """All other inputs have ended: rows leave that can owe nothing to what these have on disk."""
        disk = sum(self.stores[other].disk_rows() for other in self.names if other != name)
        self.stores[name].remove(InBuckets(np.flatnonzero(disk == 0).tolist()), "ended")
        self.stores[name].compact()

    def _stay_within_memory(self, buffers: Sequence[pa.Table], batch: Batch) -> Iterator[pa.Table]:
        """Make room for another batch of this size."""
        if self.memory is None:
            if self._is_owing and not batch.is_idle:  # the budget was taken away: rows come back, a few each time
                yield from self.on_idle(batch)
            return
        reserve = sum(data_bytes(buffer) for buffer in buffers)
        if self.window is None:
            self.spilling.make_room(reserve)
            yield from self.spilling.merge_tiers()
        else:
            horizons = {name: self.horizons.of(name, self._others(name, batch)) for name in self.names}
            spill_soonest(self.stores, max(0, self.memory - reserve), horizons, self.metrics)

    def on_idle(self, batch: Batch) -> Iterator[pa.Table]:
        """Merge buckets that owe results, within the budget of pages."""
        if self._is_owing:
            buckets = self.spilling.to_merge(self.options.idle_pages)
            done = [name for name in self.names if not self._others(name, batch)]
            yield from self.spilling.merge(buckets, done)

    def _expire(self, index: int, buffer: pa.Table, others: list[str], late: int | None) -> pa.Table:
        """Drop stored rows that nothing yet to come can match; returns the new rows that something can."""
        name = self.names[index]
        store, horizon = self.stores[name], self.horizons.of(name, others)
        assert isinstance(store.layout, TimeSlices)
        store.layout.bound = self.clock.newest.get(name)  # a batch goes where its newest row does
        useful, gone = expire(store, horizon, times_of(buffer, self._time(index)), late)
        self.metrics.count(f"runs_expired.{name}", len(gone))
        return buffer if useful.all() else buffer.filter(pa.array(useful)).combine_chunks()

    def _time(self, index: int) -> str:
        return self.options.time[self.names[index]]

    def finish(self) -> Iterator[pa.Table]:
        """Join what rows on disk are owed; all other combinations were emitted when their last row came."""
        if self._is_owing:
            buckets = np.flatnonzero(self.generations.disk).tolist()
            yield from self.spilling.merge(buckets, self.names)
        for store in self.stores.values():
            store.remove(All(), "ended")

    def row_stores(self) -> Iterable[RowStore]:
        """One per input."""
        return self.stores.values()

    def waits(self, part: Part, rows: Indices) -> WaitingRows:
        """With a window until all other inputs have passed it, else until they end."""
        if self.window is None:
            return super().waits(part, rows)
        name = part.store.input
        longer = self.window if name in self.options.optional else 0  # see `horizons`
        return waits_for_times(part, rows, self.clock, self.going_on(name), longer)

    @classmethod
    def splits(cls, plan: JoinPlan) -> tuple[str, ...]:
        """Each of them, unless some are optional: what lacks an input is found in one partition. Rows that a partition
        takes from another one come late."""
        options = MultiwayOptions(**plan.options, **plan.tuning)
        exact = not options.optional and options.late != "drop"
        return tuple(spec.name for spec in plan.inputs) if exact else ()

    def inherit(self, heir: Partition, origins: Sequence[Origin], version: int) -> None:
        """The rows and the clocks that are furthest behind. Generations of different origins stay apart.

        With optional inputs the newest clock counts: what lacks them has been reported up to there (`former_clocks`).
        """
        former = [one.operator for one in origins if isinstance(one.operator, MJoin)]
        for origin, join in zip(origins, former, strict=True):
            facts = self.generations.renumbered() if self.window is None else unchanged
            before = self.generations.number
            for name, store in self.stores.items():
                inherit(store, join.stores[name], heir, origin.partition, facts)
            self.generations.number += join.generations.number
            if self.absence.optional and self.window is None:
                self._inherit_absence(join, before, on_disk=not all(one.generations.is_empty for one in former))
        clocks = [join.clock for join in former]
        if self.window is not None:
            for name, store in self.stores.items():
                inherit_horizon(store, [join.stores[name] for join in former])
        if self.absence.optional and self.window is not None:
            for origin, join in zip(origins, former, strict=True):
                self.former += inherited(origin.partition, join.clock, join.former)
            self.clock.catch_up(clocks)
        else:
            self.clock.inherit(clocks)
        self.estimates = self.debts.estimates = former[0].estimates

    def _inherit_absence(self, join: MJoin, before: int, *, on_disk: bool) -> None:
        """What has been reported without the optional inputs that have ended; `before` was the last generation."""
        if not join.absence.ended:
            return
        numbers = {run.slot: run.slot + before for store in join.stores.values() for run in store.spilled}
        if on_disk and self.generations.resident.any():
            self.generations.flush(np.flatnonzero(self.generations.resident).tolist())
            numbers[MEMORY] = self.generations.number
        self.absence.inherit(join.absence, numbers)

    def save(self) -> OperatorState:
        """The rows that are still needed, the estimates, and how far each input's time has come; nothing after the
        end."""
        if self.finished:
            return OperatorState()
        values = {
            "estimates": self.estimates.as_dict(),
            "newest": dict(self.clock.newest),
            "generation": self.generations.number,
            "absence": self.absence.save(),
            **({"reported": reported} if (reported := self.absence.save_former()) else {}),
            **({"former": [one.to_json() for one in self.former]} if self.former else {}),
        }
        return OperatorState(stores=[store.save() for store in self.stores.values()], values=values)

    def restore(self, state: OperatorState) -> None:
        """Take up what `save` returned."""
        for saved in state.stores:
            self.stores[saved.name].restore(saved)
        self.estimates = self.debts.estimates = Selectivities.from_dict(state.values["estimates"])
        self.clock.newest = dict(state.values["newest"])
        self.generations.number = state.values["generation"]
        self.absence.restore(state.values["absence"], state.values.get("reported", ()))
        self.former = [FormerClock.from_json(one) for one in state.values.get("former", ())]
