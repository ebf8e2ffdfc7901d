"""Everything the join holds, and the rule that says which of its rows have a future."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.arrow import HASH, Indices, key_name, take
from watersmeet.metrics import Metrics
from watersmeet.operator import OperatorState
from watersmeet.plan import JoinPlan
from watersmeet.punctuated.constraints import Clustered, ClusterTracker, Ordered, OrderTracker
from watersmeet.punctuated.intervals import Sources
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.punctuated.overflow import Overflow
from watersmeet.punctuated.propagation import PartialPromises, Propagation
from watersmeet.punctuated.punctuation import SOURCES, PunctuatedRange
from watersmeet.punctuated.purge_policies import Unpurged, spoken_of
from watersmeet.punctuated.scheduling import WaitingPool, scheduling_of
from watersmeet.punctuated.stored_rows import StoredRows
from watersmeet.punctuated.violations import Tracker
from watersmeet.state.buckets import Buckets
from watersmeet.state.run import Run
from watersmeet.state.space import RunSpace


class JoinState:
    """Promises, stored rows, waiting rows, spilled rows and punctuations to propagate, of both inputs."""

    def __init__(self, plan: JoinPlan, options: PunctuatedOptions, space: RunSpace, metrics: Metrics) -> None:
        self.metrics = metrics
        self.left, self.right = self.names = tuple(spec.name for spec in plan.inputs)
        self.other = {self.left: self.right, self.right: self.left}
        self.schemas = {spec.name: spec.schema for spec in plan.inputs}
        self.kinds = kinds = plan.inputs[0].keys
        self.keys = [HASH, *(key_name(i) for i in range(len(kinds)))]
        # A range to propagate is said by every partition: what one of them cannot be asked for must not count as said.
        partitions = 1 if options.propagate else plan.partitions
        self.promises = {name: PunctuatedRange(name, kinds, partitions) for name in self.names}
        self.stored = {name: StoredRows(name, kinds) for name in self.names}
        self.unpurged = {name: Unpurged(f"{name}.unpurged", kinds) for name in self.names}
        self.partial = {name: PartialPromises(name, kinds) for name in self.names}
        self.trackers = {name: _trackers(options, name, kinds) for name in self.names}
        scheduling = scheduling_of(options.scheduling, options.one_sides)
        self.pool = WaitingPool(self.schemas, kinds, scheduling, options.quota)
        self.overflow = Overflow(self.schemas, Buckets(options.buckets), space)
        self.propagation = Propagation(plan, self.promises) if options.propagate else None
        self.promised = 0  # promises heard so far

    def without_future(self, name: str, table: pa.Table, *, mind_disk: bool = True) -> Sources:
        """Which rows of an input (sorted by hash) can find no partner any more, by the source of the promise.

        0 for rows that may: their key is not promised away on the other input, or rows of it wait or are spilled there.
        """
        other = self.other[name]
        sources = self.promises[other].find(table)
        if sources.any():
            if mind_disk and not self.overflow.is_empty:
                sources[self.overflow.touches(other, table)] = 0
            if not self.pool.is_empty:
                sources[self.pool.waits(other, table)] = 0
        return sources

    def purge(self, promised: str) -> None:
        """Purge the rows that the promises of an input have made useless: rows of the other input."""
        name = self.other[promised]
        delta, stored = self.unpurged[promised].take(), self.stored[name]
        if delta.is_empty:
            return
        purged = 0
        for found in spoken_of(stored, delta):
            for run, candidates in found:
                rows = stored.living(run, candidates)
                sources = self.without_future(name, take(run.table.select(self.keys), rows))
                if sources.any():
                    self.count_reasons("purged", name, sources)
                    purged += self.forget(name, run, rows[sources > 0])
        self.metrics.count("purges")
        self.metrics.event("purge", input=name, rows=purged, promises=delta.count)

    def forget(self, name: str, run: Run, rows: Indices) -> int:
        """Take stored rows out of the state; returns how many were there."""
        if len(rows) > 1 and not np.all(rows[1:] > rows[:-1]):
            rows = np.unique(rows)  # a key that should be unique was not, and was kept
        if self.propagation:
            rows = self.stored[name].living(run, rows)
            self.propagation.left_state(name, take(run.table.select(self.keys), rows))
        return self.stored[name].kill(run, rows)

    def count_reasons(self, what: str, name: str, sources: Sources) -> None:
        """Count rows by the reason for which they went."""
        rest = sources[sources > 0]
        for reason, bit in SOURCES.items():
            hit = rest & np.uint8(bit) > 0
            if hit.any():
                self.metrics.count(f"{what}.{name}.{reason}", int(np.count_nonzero(hit)))
                rest = rest[~hit]

    def settle(self, arrived: Mapping[str, int] = MappingProxyType({}), *, all_dead: bool = False) -> None:
        """Rewrite what is mostly dead (or has any dead row) and merge what is small beside the rows that `arrived`."""
        met_by = {name: arrived.get(self.other[name], 0) for name in self.names}
        written = sum(self.stored[name].settle(met_by[name], all_dead=all_dead) for name in self.names)
        if written:
            self.metrics.count("rows_rewritten", written)

    @property
    def resident_bytes(self) -> int:
        """Bytes of all that is held in memory: rows (dead ones until they are rewritten), promises, orders."""
        return sum(run.nbytes for run in self.save().runs if run.tier == "resident")

    def report(self) -> None:
        """Sizes after the batch."""
        for name in self.names:
            spilled = 0 if self.overflow.is_empty else int(self.overflow.rows_on_disk(name).sum())
            self.metrics.gauge(f"state_rows.{name}", self.stored[name].rows + self.pool.rows[name].rows + spilled)
            self.metrics.gauge(f"resident_rows.{name}", self.stored[name].rows)
            self.metrics.gauge(f"resident_bytes.{name}", self.stored[name].nbytes)
            self.metrics.gauge(f"punctuations_held.{name}", len(self.promises[name]))
            if spilled:
                self.metrics.gauge(f"spilled_rows.{name}", spilled)
            if self.pool.rows[name].runs:
                self.metrics.gauge(f"waiting_rows.{name}", self.pool.rows[name].rows)
        if self.propagation:
            self.metrics.gauge("punctuations_pending", self.propagation.pending)

    def save(self) -> OperatorState:
        """All runs, and the values that go with them."""
        runs: list[Run] = []
        values: dict[str, Any] = {"promised": self.promised}
        for name in self.names:
            said, everything = self.promises[name].save()
            stored, next_run = self.stored[name].save()
            new, unpurged = self.unpurged[name].save()
            runs += [*said, *stored, *new, *self.partial[name].save()]
            for tracker in self.trackers[name]:
                runs += tracker.save() if isinstance(tracker, ClusterTracker) else []
            values[name] = {"everything": everything, "next_run": next_run, "unpurged": unpurged}
        for part, key in ((self.pool, "pool"), (self.overflow, "overflow"), (self.propagation, "propagation")):
            if part is not None:
                more, values[key] = part.save()
                runs += more
        return OperatorState(runs, values)

    def restore(self, state: OperatorState) -> None:
        """Take up what `save` returned."""
        runs, values = state.runs, state.values
        self.promised = values["promised"]
        for name in self.names:
            mine = values[name]
            self.promises[name].restore(runs, mine["everything"])
            self.stored[name].restore(runs, mine["next_run"])
            self.unpurged[name].restore(runs, mine["unpurged"])
            self.partial[name].restore(runs)
            for tracker in self.trackers[name]:
                if isinstance(tracker, ClusterTracker):
                    tracker.restore(runs)
        for part, key in ((self.pool, "pool"), (self.overflow, "overflow"), (self.propagation, "propagation")):
            if part is not None:
                part.restore(runs, values[key])


def _trackers(options: PunctuatedOptions, name: str, kinds: tuple[pa.DataType, ...]) -> list[Tracker]:
    trackers: list[Tracker] = []
    for constraint in options.constraints:
        if isinstance(constraint, Clustered) and constraint.input == name:
            trackers.append(ClusterTracker(constraint, kinds))
        elif isinstance(constraint, Ordered) and constraint.input == name:
            column = 0 if constraint.key is None else int(constraint.key.removeprefix("_k"))
            trackers.append(OrderTracker(constraint, column, kinds))
    return trackers
