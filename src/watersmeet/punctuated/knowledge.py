"""What is known of both inputs' keys: punctuations, clusters and orders, and the rows that break them.

A join asks it in every batch:

    admit          which of the new rows keep what was promised before; the others are diverted (`violations`)
    promised       what the batch promises: punctuations, clusters that ended, an order followed, ended inputs
    find           which rows of an input can find no partner any more, and by which source of a promise

Where hot keys are spread, a partition may have rows of keys that belong to others (see `dividing`):

    hear           what was promised of such keys before they came here
    useful         which of the rows that come from there have a future
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, sort_by_hash
from watersmeet.columns.partitions import Partition
from watersmeet.join.operator import Batch
from watersmeet.plan import JoinPlan
from watersmeet.plan.metrics import Metrics
from watersmeet.punctuated.promises.constraints import Clustered, ClusterTracker, Constraint, Ordered, OrderTracker
from watersmeet.punctuated.promises.intervals import Mask, Sources
from watersmeet.punctuated.promises.partial import PartialPromises
from watersmeet.punctuated.promises.patterns import punctuation_schema
from watersmeet.punctuated.promises.punctuation import PunctuatedRange, by_reason, reason_of
from watersmeet.punctuated.promises.shared import SharedRange
from watersmeet.punctuated.violations import Tracker, Violations
from watersmeet.state.accounts import Accounts
from watersmeet.state.side_table import SideTable

Tables = dict[str, SideTable]


class Knowledge:
    """The promises of two inputs."""

    def __init__(
        self,
        plan: JoinPlan,
        constraints: Sequence[Constraint],
        on_violation: str,
        accounts: Accounts,
        metrics: Metrics,
        *,
        partitions: int,
        here: int,
    ) -> None:
        self.metrics, self.accounts = metrics, accounts
        left, right = self.names = (plan.inputs[0].name, plan.inputs[1].name)
        self.other = {left: right, right: left}
        self.kinds = kinds = plan.inputs[0].keys
        self.promises = {
            name: SharedRange(name, kinds, partitions, here)
            if plan.hot_keys
            else PunctuatedRange(name, kinds, partitions)
            for name in self.names
        }
        self.partial = {name: PartialPromises(name, kinds) for name in self.names}
        self.trackers = {name: _trackers(constraints, name, kinds) for name in self.names}
        self.gates = {
            name: Violations(name, on_violation, self.promises[name], self.trackers[name], accounts)
            for name in self.names
        }

    def admit(self, name: str, table: pa.Table, batch: int, is_known: Callable[[pa.Table], Mask] | None) -> pa.Table:
        """The rows of a batch (sorted by hash) less those that break a promise. `is_known` tells, for an input on which
        keys are unique, which keys it has stored already."""
        return self.gates[name].admit(table, batch, self.metrics, is_known) if table.num_rows else table

    def promised(self, batch: Batch, name: str, arrived: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Everything that a batch promises about an input, as punctuations, with the source of each promise."""
        told = batch.punctuations.get(name)
        if told is not None and told.num_rows:
            self.metrics.count(f"punctuations_in.{name}", told.num_rows)
            yield "punctuation", self.partial[name].complete(told)
        for tracker in self.trackers[name]:
            yield "clustered" if isinstance(tracker, ClusterTracker) else "ordered", tracker.close(arrived)
        if name in batch.ended:
            schema = punctuation_schema(self.kinds)
            yield "ended", pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)

    def find(self, name: str, table: pa.Table) -> Sources:
        """Which rows of an input (sorted by hash) the other one's promises leave without a partner to come."""
        return self.promises[self.other[name]].find(table)

    def hear(self, origin: Knowledge, keys: pa.Table, batch: int) -> None:
        """Another partition's promises of some keys (sorted by hash), which hold since a batch."""
        for name in self.names:
            sources = origin.promises[name].find(keys)
            for bits in np.unique(sources[sources > 0]).tolist():
                self.promises[name].add_keys(keys.filter(pa.array(sources == bits)), batch, reason_of(bits))

    def useful(self, name: str, table: pa.Table) -> pa.Table:
        """Rows of an input that have come to another partition, sorted by hash; those that can find no partner here
        leave."""
        table = sort_by_hash(table)
        sources = self.find(name, table)
        for reason, mask in by_reason(sources).items():
            self.accounts.leave(name, reason, int(np.count_nonzero(mask)))
        return table.filter(pa.array(sources == 0)) if sources.any() else table

    def note_copies(self, keys: Mapping[str, Hashes]) -> None:
        """By input the keys of which the rows here are copies."""
        for name, gate in self.gates.items():
            gate.copied = keys.get(name, gate.copied)

    def report(self) -> None:
        """How many promises are held."""
        for name, promises in self.promises.items():
            self.metrics.gauge(f"punctuations_held.{name}", len(promises))

    def inherit(self, heir: Partition, origins: Mapping[Partition, Knowledge]) -> None:
        """Go on from former partitions. Every partition receives punctuations of many keys, so those that are
        incomplete are the same in all of them."""
        for name in self.names:
            self.promises[name].inherit({one: former.promises[name] for one, former in origins.items()})
            self.partial[name] = next(iter(origins.values())).partial[name]
            for former in origins.values():
                for tracker, other in zip(self.trackers[name], former.trackers[name], strict=True):
                    if isinstance(tracker, ClusterTracker) and isinstance(other, ClusterTracker):
                        tracker.inherit(other, heir)

    def save(self) -> tuple[Tables, dict[str, Any]]:
        """Tables and values."""
        tables: Tables = {}
        values: dict[str, Any] = {}
        for name in self.names:
            said, values[name] = self.promises[name].save()
            tables |= said | self.partial[name].save()
            for tracker in self.trackers[name]:
                tables |= tracker.save() if isinstance(tracker, ClusterTracker) else {}
        return tables, values

    def restore(self, tables: Mapping[str, SideTable], values: Mapping[str, Any]) -> None:
        """Take up what `save` returned; tables of other names are passed over."""
        for name in self.names:
            self.promises[name].restore(tables, values[name])
            self.partial[name].restore(tables)
            for tracker in self.trackers[name]:
                if isinstance(tracker, ClusterTracker):
                    tracker.restore(tables)


def _trackers(constraints: Sequence[Constraint], name: str, kinds: tuple[pa.DataType, ...]) -> list[Tracker]:
    trackers: list[Tracker] = []
    for constraint in constraints:
        if isinstance(constraint, Clustered) and constraint.input == name:
            trackers.append(ClusterTracker(constraint, kinds))
        elif isinstance(constraint, Ordered) and constraint.input == name:
            column = 0 if constraint.key is None else int(constraint.key.removeprefix("_k"))
            trackers.append(OrderTracker(constraint, column, kinds))
    return trackers
