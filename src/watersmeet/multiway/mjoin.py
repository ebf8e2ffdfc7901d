"""The n-ary join over batches, with the driver input chosen before every buffer (Valsomatzis and Gounaris, 2013).

Semantics     inner equi-join of 2 to 16 inputs on one key; each combination once, in the batch in which its last row
              arrives. With a window, those whose earliest and latest rows are at most `window` apart.
Input         rows with a null key match nothing and are not kept; with a window neither are rows without a time.
State         per input its rows, once, in hash-sorted runs; never an intermediate result. With a window a row is kept
              while a row of another input may still come that is near enough: until t + window < the smallest newest
              time of the other inputs, less the lateness. Later rows meet what is still held, and are counted.
Batch         buffers per input -> while any holds rows: the policy names a driver, a slice of its buffer visits the
              other inputs' tables (stored and drained rows), most selective first, results stream out in bounded
              blocks, the slice counts as drained -> the buffers are stored.
Cost          per slice and other input one look-up of each distinct key that still has a chance in O(log state) runs,
              plus the matching rows, plus the results.
Limit         `max_results` combinations per batch and partition: a `FanOutError` before any beyond it is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.arrow import Hashes, Indices, drop_null_keys, hashes_of, key_names, sort_by_hash
from watersmeet.errors import FanOutError
from watersmeet.estimate.selectivity import Selectivities
from watersmeet.multiway.combinations import combinations, sizes_of
from watersmeet.multiway.driver_policies import POLICIES, Situation, choose
from watersmeet.multiway.expiring_runs import ExpiringRuns
from watersmeet.multiway.hash_table import HashTable
from watersmeet.multiway.options import MultiwayOptions
from watersmeet.multiway.probe import Matches, Probe, groups_of, key_layers
from watersmeet.multiway.probe_order import probe_order
from watersmeet.multiway.slices import Order, cut
from watersmeet.multiway.window import in_window, times_of, within_window
from watersmeet.operator import Batch, Operator, OperatorState
from watersmeet.plan import JoinPlan
from watersmeet.saturating import saturated
from watersmeet.state.run import Run, resident_run
from watersmeet.state.space import RunSpace
from watersmeet.state.tiers import TieredRuns

# Selectivities of the inputs that are not probed first are measured on a sample: one key in SAMPLE, at most SAMPLED.
SAMPLE, SAMPLED = 16, 512

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
        self.projection = plan.projection
        self.estimates = Selectivities(len(self.names))
        self.newest: list[int | None] = [None for _ in self.names]  # the newest time seen
        self.tables = [self._table(index) for index in range(len(self.names))]
        needed = [(column.input, column.column) for column in plan.output] + list(self.options.time.items())
        self.columns = [sorted({column for name, column in needed if name == mine}) for mine in self.names]

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """Drain the buffers in the order the policy chooses, then store them."""
        if batch.is_idle:
            return
        self.estimates.age()
        buffers = [self._arrived(batch, index) for index in range(len(self.names))]
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
        for index, buffer in enumerate(buffers):
            self._store(index, buffer, batch.number)

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
            times = [times_of(match.table.column(self._time(i))) for i, match in enumerate(matches)]
            matches = within_window(matches, times, step.driver, window)
            self._check_limit(matches, allowed - step.results)
            blocks = in_window(combinations(matches), times, window)
        tables = [match.table for match in matches]
        for block in blocks:
            step.results += len(block[0])
            yield self.projection.gather(dict(zip(self.names, zip(tables, block, strict=True), strict=True)))

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
        self.metrics.count("steps")
        self.metrics.count("probes", step.looked_up)
        self.metrics.count("intermediate", sum(step.sizes[:-1]))
        self.metrics.count(f"results.{driver}", step.results)
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

    def _arrived(self, batch: Batch, index: int) -> pa.Table:
        """The rows that can match, in hash order; late ones and those without a time are counted."""
        name = self.names[index]
        table = batch.rows.get(name)
        if table is None:
            return self.plan.input(name).schema.empty_table()
        table = drop_null_keys(table)
        if self.options.window is not None:
            column = table.column(self._time(index))
            if column.null_count:
                self.metrics.count(f"rows_without_time.{name}", column.null_count)
                table = table.filter(pc.is_valid(column))
            if table.num_rows:
                times, newest = times_of(table.column(self._time(index))), self.newest[index]
                if newest is not None and (late := int((times < saturated(newest - self.options.lateness)).sum())):
                    self.metrics.count(f"rows_late.{name}", late)
                self.newest[index] = max(int(times.max()), newest if newest is not None else int(times.max()))
        return sort_by_hash(table)

    def _orders(self, buffers: Sequence[pa.Table]) -> list[Order]:
        """When each row counts as having arrived: by its time if every input has one, else by its hash."""
        if all(name in self.options.time for name in self.names):
            return [times_of(buffer.column(self._time(index))) for index, buffer in enumerate(buffers)]
        return [(hashes_of(buffer) >> np.uint64(1)).view(np.int64) for buffer in buffers]

    def _store(self, index: int, buffer: pa.Table, number: int) -> None:
        """Keep what a row yet to come may need, and let go of what none can."""
        oldest = self._oldest_needed(index)
        if oldest == inf:
            buffer = buffer.slice(0, 0)
        attributes = {}
        if self.options.window is not None and buffer.num_rows:
            times = times_of(buffer.column(self._time(index)))
            if oldest != -inf and (times < oldest).any():
                self.metrics.count("rows_expired", int((times < oldest).sum()))
                buffer, times = buffer.filter(pa.array(times >= oldest)), times[times >= oldest]
            if buffer.num_rows:
                attributes = {"earliest": int(times.min()), "latest": int(times.max())}
        run = resident_run(self.names[index], buffer, oldest=number, newest=number, **attributes)
        self.metrics.count("rows_merged", self.tables[index].close(run))
        self.metrics.count("rows_expired", self._expire(index))

    def _oldest_needed(self, index: int) -> float:
        """The earliest time at which a row of this input may still meet one yet to come: -inf is any, inf is none."""
        others = [i for i, name in enumerate(self.names) if i != index and not self.has_ended(name)]
        if not others:
            return inf
        if self.options.window is None or any(self.newest[i] is None for i in others):
            return -inf
        return saturated(min(self.newest[i] or 0 for i in others) - self.options.lateness - self.options.window)

    def _expire(self, index: int) -> int:
        """Drop stored rows that nothing yet to come can meet."""
        table, oldest = self.tables[index], self._oldest_needed(index)
        if oldest == inf:
            dropped = table.runs.rows
            table.runs = self._runs(index)
            return dropped
        return table.runs.expire(oldest) if isinstance(table.runs, ExpiringRuns) else 0

    def _time(self, index: int) -> str:
        return self.options.time[self.names[index]]

    def _table(self, index: int) -> HashTable:
        return HashTable(self._runs(index))

    def _runs(self, index: int, runs: Sequence[Run] = ()) -> TieredRuns | ExpiringRuns:
        window = self.options.window
        return TieredRuns(runs, lag=index) if window is None else ExpiringRuns(runs, window=window)

    def finish(self) -> Iterator[pa.Table]:
        """Nothing is owed: every combination was reported when its last row came."""
        self.tables = [self._table(index) for index in range(len(self.names))]
        return iter(())

    def save(self) -> OperatorState:
        """The rows that are still needed, the estimates, and how far each input's time has come."""
        for index in range(len(self.names)):
            self._expire(index)  # an input may have ended since the batch was stored
        runs = [run for table in self.tables for run in table.runs.runs]
        return OperatorState(runs, {"estimates": self.estimates.as_dict(), "newest": self.newest})

    def restore(self, state: OperatorState) -> None:
        """Sort the runs by input."""
        for index, name in enumerate(self.names):
            self.tables[index].runs = self._runs(index, [run for run in state.runs if run.label == name])
        self.estimates = Selectivities.from_dict(state.values["estimates"])
        self.newest = list(state.values["newest"])
