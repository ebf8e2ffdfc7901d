"""The n-ary join over batches, with the driver input chosen before every buffer (Valsomatzis and Gounaris, 2013).

Semantics     inner equi-join of 2 to 16 inputs on one key; each combination once, in the batch in which its last row
              arrives. With a window, those whose earliest and latest rows are at most `window` apart.
Input         rows with a null key match nothing and are not kept; with a window neither are rows without a time.
State         per input its rows, once, in hash-sorted runs; never an intermediate result. With a window a row is kept
              while a row of another input may still come that is near enough: until t + window < the smallest newest
              time of the other inputs, less the lateness. Late rows find what must still be held, and are counted.
Batch         buffers per input -> while any holds rows: the policy names a driver, a slice of its buffer visits the
              other inputs' tables (stored and drained rows), most selective first, results stream out in bounded
              blocks, the slice counts as drained -> the buffers are stored.
Cost          per slice and other input one look-up of each distinct key that still has a chance in O(log state) runs,
              plus the matching rows, plus the results.
Limit         `max_results` combinations per batch and partition: a `FanOutError` before any beyond it is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, key_names, times_of
from watersmeet.errors import FanOutError
from watersmeet.estimate.selectivity import Selectivities
from watersmeet.join.clock import Clock
from watersmeet.join.emitter import Emitter
from watersmeet.join.expiry import expire
from watersmeet.join.operator import Batch, Operator, OperatorState
from watersmeet.join.prologue import Prologue
from watersmeet.multiway.combinations import combinations, sizes_of
from watersmeet.multiway.driver_policies import POLICIES, Situation, choose
from watersmeet.multiway.hash_table import HashTable
from watersmeet.multiway.options import MultiwayOptions
from watersmeet.multiway.probe import Matches, Probe, groups_of, key_layers
from watersmeet.multiway.probe_order import probe_order
from watersmeet.multiway.slices import Order, cut
from watersmeet.multiway.window import in_window, within_window
from watersmeet.plan import InputSpec, JoinPlan
from watersmeet.state.layouts import HashTiers, TimeSlices
from watersmeet.state.parts import All
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.space import RunSpace

# Selectivities of the inputs that are not probed first are measured on a sample: one key in SAMPLE, at most SAMPLED.
SAMPLE, SAMPLED = 16, 512

# Stored rows lie in slices of this part of the window.
SLICES = 4

# A key with more combinations than this in one step is reported in the metrics.
LARGE_FAN_OUT = 1_000_000


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
        self.emitter = Emitter(plan.output)
        self.estimates = Selectivities(len(self.names))
        self.window = self.options.window
        self.clock = Clock(dict.fromkeys(self.names, self.window or 0), self.options.lateness)
        times = None if self.window is None else self.options.time
        self.prologue = Prologue(plan, self.accounts, self.metrics, times=times, clock=self.clock)
        self.stores = {spec.name: self._store(index, spec) for index, spec in enumerate(plan.inputs)}
        self.tables = [HashTable(self.stores[name]) for name in self.names]
        needed = [(column.input, column.column) for column in plan.output] + list(self.options.time.items())
        self.columns = [sorted({column for name, column in needed if name == mine}) for mine in self.names]

    def _store(self, index: int, spec: InputSpec) -> RowStore:
        if self.window is None:
            return RowStore(spec.name, spec.schema, HashTiers(lag=index), self.space, self.accounts)
        column = self.options.time[spec.name]
        layout = TimeSlices(span=self.window, share=SLICES, whole=True)
        return RowStore(spec.name, spec.schema, layout, self.space, self.accounts, time=column, rule=Horizon(column))

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """Drain the buffers in the order the policy chooses, then store them."""
        if not batch.is_idle:
            self.estimates.age()
        buffers = [self.prologue.admit(batch, name) for name in self.names]
        for index, buffer in enumerate(buffers):
            self.tables[index].open(buffer)
            self.estimates.observe_arrivals(index, buffer.num_rows)
        queues = cut(self._orders(buffers), self.policy.slicing, self.options.slices)
        driver, allowed = -1, self.options.max_results
        while any(queues):
            stored = [table.rows for table in self.tables]
            waiting = [table.waiting for table in self.tables]
            driver, scores = choose(self.policy, Situation(queues, waiting, stored, driver, self.estimates))
            order = probe_order(driver, stored, self.estimates)
            step = Step(driver, queues[driver].popleft().rows, order, stored)
            yield from self._drive(step, buffers[driver], batch.number, allowed)
            allowed -= step.results
            self.tables[driver].drain(step.rows)
            self._report(step, scores.tolist())
        for table in self.tables:
            table.close()
        self._keep(buffers, batch)

    def _drive(self, step: Step, buffer: pa.Table, number: int, allowed: int) -> Iterator[pa.Table]:
        """A slice meets what is stored and drained of all other inputs."""
        if all(step.stored[index] for index in step.order):
            hashes = hashes_of(buffer)[step.rows]
            self._sample(step, hashes, number)
            for probe in key_layers(buffer, step.rows, hashes):
                self._visit(step, probe)
                if len(probe.alive):
                    yield from self._emit(step, probe, allowed)
        product = len(step.rows) * prod(float(step.stored[index]) for index in step.order)
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
            self._observe(step, index, int(counts.sum()), int(counts[found > 0].sum()), int(counts @ found))

    def _visit(self, step: Step, probe: Probe) -> None:
        """Probe the other inputs, most selective first, as long as any key has a chance."""
        sizes = [0.0] * len(step.order)
        for place, index in enumerate(step.order):
            hits = probe.visit(index, self.tables[index])
            sizes[place] = probe.size
            if place == 0:
                self._observe(step, index, len(probe.rows), hits, probe.size)
            if not len(probe.alive):
                break
        step.looked_up += probe.looked_up
        step.sizes = [sum(pair) for pair in zip(step.sizes, sizes, strict=True)] if step.sizes else sizes

    def _observe(self, step: Step, index: int, rows: int, hits: float, matches: float) -> None:
        stored = step.stored[index]
        self.estimates.observe_pair(step.driver, index, rows=rows, stored=stored, hits=hits, matches=matches)

    def _emit(self, step: Step, probe: Probe, allowed: int) -> Iterator[pa.Table]:
        """All combinations of the groups that every input had a match for, in blocks."""
        self._warn_of_fan_out(probe)
        matches = [
            probe.driver_matches() if index == step.driver else probe.matches(index, self.columns[index])
            for index in range(len(self.names))
        ]
        window = self.options.window
        if window is None:
            self._check_limit(matches, allowed - step.results)
            blocks = combinations(matches)
        else:
            times = [times_of(match.table, self._time(i)) for i, match in enumerate(matches)]
            matches = within_window(matches, times, step.driver, window)
            self._check_limit(matches, allowed - step.results)
            blocks = in_window(combinations(matches), times, window)
        tables = [match.table for match in matches]
        for block in blocks:
            step.results += len(block[0])
            yield self.emitter.rows(dict(zip(self.names, zip(tables, block, strict=True), strict=True)))

    def _check_limit(self, matches: Sequence[Matches], allowed: int) -> None:
        wanted = float(sizes_of(matches).sum())
        if wanted > allowed:
            most = {name: int(m.counts.max()) for name, m in zip(self.names, matches, strict=True)}
            raise FanOutError(
                "multiway_join",
                expected=f"at most max_results={self.options.max_results} results in one batch of one partition",
                found=f"{wanted:.3g} more combinations to build; the most rows of one key are {most}",
                hint="A key that is frequent in several inputs multiplies: filter it, aggregate an input first, give a "
                "window, or raise max_results and restart.",
            )

    def _warn_of_fan_out(self, probe: Probe) -> None:
        largest = float(probe.combinations.max())
        self.metrics.gauge("largest_fan_out", max(largest, self.metrics.counters.get("largest_fan_out", 0)))
        if largest > LARGE_FAN_OUT:
            group = probe.alive[int(np.argmax(probe.combinations))]
            row = probe.buffer.slice(int(probe.rows[probe.begins[group]]), 1)
            key = [str(row.column(name)[0]) for name in key_names(row.schema)]
            self.metrics.event("fan_out", key=key, combinations=largest)

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

    def _keep(self, buffers: Sequence[pa.Table], batch: Batch) -> None:
        """Store what a row yet to come may need; what none can leaves."""
        late = [self.clock.bound(name) for name in self.names]
        if self.window is not None:
            for index, name in enumerate(self.names):
                self.clock.see_all(name, times_of(buffers[index], self._time(index)))
        for index, name in enumerate(self.names):
            store, buffer = self.stores[name], buffers[index]
            others = [other for other in self.names if other != name and not self.ends(other, batch)]
            if not others:
                store.remove(All(), "ended")
                self.accounts.leave(name, "ended", buffer.num_rows)
                continue
            if self.window is not None:
                buffer = self._expire(index, buffer, others, late[index])
            store.add(buffer, batch.number)
            self.metrics.count("rows_rewritten", store.settle())

    def _expire(self, index: int, buffer: pa.Table, others: list[str], late: int | None) -> pa.Table:
        """Drop stored rows that nothing yet to come can match; returns the new rows that something can."""
        name = self.names[index]
        store, horizon = self.stores[name], self.clock.horizon(name, others)
        assert isinstance(store.layout, TimeSlices)
        store.layout.bound = self.clock.newest.get(name)  # a batch goes where its newest row does
        useful, gone = expire(store, horizon, times_of(buffer, self._time(index)), late)
        self.metrics.count(f"runs_expired.{name}", len(gone))
        return buffer if useful.all() else buffer.filter(pa.array(useful)).combine_chunks()

    def _time(self, index: int) -> str:
        return self.options.time[self.names[index]]

    def finish(self) -> Iterator[pa.Table]:
        """Nothing is owed: every combination was emitted when its last row came."""
        for store in self.stores.values():
            store.remove(All(), "ended")
        return iter(())

    def row_stores(self) -> Iterable[RowStore]:
        """One per input."""
        return self.stores.values()

    def save(self) -> OperatorState:
        """The rows that are still needed, the estimates, and how far each input's time has come."""
        values = {"estimates": self.estimates.as_dict(), "newest": dict(self.clock.newest)}
        return OperatorState(stores=[store.save() for store in self.stores.values()], values=values)

    def restore(self, state: OperatorState) -> None:
        """Take up what `save` returned."""
        for saved in state.stores:
            self.stores[saved.name].restore(saved)
        self.estimates = Selectivities.from_dict(state.values["estimates"])
        self.clock.newest = dict(state.values["newest"])
