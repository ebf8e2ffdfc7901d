"""Everything the join holds, and the rule that says which of its rows have a future."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import HASH, Indices, key_name, take
from watersmeet.columns.grouping import distinct_keys
from watersmeet.columns.partitions import Partition
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.join.operator import OperatorState
from watersmeet.plan import JoinPlan
from watersmeet.punctuated.generations import Generations
from watersmeet.punctuated.knowledge import Knowledge
from watersmeet.punctuated.lookup import covered
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.punctuated.promises.intervals import Mask, Sources
from watersmeet.punctuated.promises.punctuation import Delta, by_reason
from watersmeet.punctuated.propagation import Propagation
from watersmeet.punctuated.purge_policies import Unpurged
from watersmeet.punctuated.scheduling import WaitingPool, alive_of, scheduling_of
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import SizeTiers
from watersmeet.state.parts import Departed, Part, Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.sharing import inherit
from watersmeet.state.side_table import SideTable
from watersmeet.state.space import RunSpace

SMALLEST = 1024  # runs up to this length count as equally long, longer ones if many rows probe them


class JoinState:
    """Promises, stored rows, waiting rows, flushed rows and punctuations to propagate, of both inputs."""

    def __init__(self, plan: JoinPlan, options: PunctuatedOptions, space: RunSpace, emitter: BinaryEmitter) -> None:
        self.metrics, self.accounts = emitter.metrics, emitter.accounts
        self.left, self.right = self.names = (plan.inputs[0].name, plan.inputs[1].name)
        self.other = {self.left: self.right, self.right: self.left}
        self.schemas = {spec.name: spec.schema for spec in plan.inputs}
        self.kinds = kinds = plan.inputs[0].keys
        self.keys = [HASH, *(key_name(i) for i in range(len(kinds)))]
        # A range to propagate is emitted by every partition: what one of them cannot emit must not count as emitted.
        partitions = 1 if options.propagate else plan.partitions
        self.knowledge = Knowledge(
            plan,
            options.constraints,
            options.on_violation,
            self.accounts,
            self.metrics,
            partitions=partitions,
            here=space.partition,
        )
        self.promises = self.knowledge.promises
        buckets = Buckets(options.buckets)
        self.tiers = {name: SizeTiers(SMALLEST) for name in self.names}
        self.stored = {
            name: RowStore(
                name,
                emitter.stored_schema(name, self.schemas[name]),
                self.tiers[name],
                space,
                self.accounts,
                buckets=buckets,
                counts_buckets=True,
                flags=emitter.flags(name),
                redundant=emitter.redundant(name),
            )
            for name in self.names
        }
        self.unpurged = {name: Unpurged(f"{name}.unpurged", kinds) for name in self.names}
        waiting = {
            name: RowStore(f"{name}.waiting", self.schemas[name], SizeTiers(SMALLEST), space, self.accounts, input=name)
            for name in self.names
        }
        scheduling = scheduling_of(options.scheduling, options.one_sides)
        self.pool = WaitingPool(waiting, kinds, scheduling, options.quota, options.clustered)
        self.generations = Generations(self.stored, buckets)
        self.propagation = Propagation(plan, self.promises, space, self.accounts) if options.propagate else None
        self.promised = 0  # promises learned so far

    @property
    def row_stores(self) -> list[RowStore]:
        """Stored and waiting rows."""
        return [*self.stored.values(), *self.pool.rows.values()]

    def without_future(self, name: str, table: pa.Table, *, mind_disk: bool = True) -> Sources:
        """Which rows of an input (sorted by hash) can find no partner any more, by the source of the promise.

        0 for rows that may: their key is not promised away on the other input, or rows of it wait or are flushed there.
        """
        other = self.other[name]
        sources = self.knowledge.find(name, table)
        if sources.any():
            if mind_disk and not self.generations.is_empty:
                sources[self.generations.touches(other, table)] = 0
            if not self.pool.is_empty:
                sources[self.pool.waits(other, table)] = 0
        return sources

    def purge(self, promised: str) -> Iterator[Departed]:
        """Purge the rows that the promises of an input have made useless: rows of the other input."""
        name = self.other[promised]
        delta, stored = self.unpurged[promised].take(), self.stored[name]
        if delta.is_empty:
            return
        purged = 0
        for found in covered(stored, delta):
            for part, candidates in found:
                rows = alive_of(part, candidates)
                sources = self.without_future(name, take(part.table.select(self.keys), rows))
                for reason, chosen in by_reason(sources).items():
                    for gone in self.forget(name, part, rows[chosen], reason):
                        purged += gone.rows
                        yield gone
        self.metrics.count("purges")
        self.metrics.event("purge", input=name, rows=purged, promises=delta.count)

    def on_disk(self) -> dict[str, Mask]:
        """The buckets of which each input has a part on disk."""
        return {name: store.disk_rows() > 0 for name, store in self.stored.items()}

    def freed(self, before: Mapping[str, Mask]) -> bool:
        """Nothing of an input may be on disk any more in buckets where something was `before`. What it had promised of
        rows in memory there was looked up when it could not take effect: it is due once more; returns whether there is
        any."""
        due = False
        for name, store in self.stored.items():
            other = self.other[name]
            buckets = before[other] & (self.stored[other].disk_rows() == 0) & (store.bucket_rows > 0)
            parts = [part for bucket in np.flatnonzero(buckets).tolist() for part in store.bucket(bucket)]
            for part in parts:
                rows = part.table.select(self.keys)
                rows = rows if part.living is None else take(rows, part.living)
                promised = distinct_keys(rows.filter(pa.array(self.knowledge.find(name, rows) > 0)))
                if promised.num_rows:
                    self.unpurged[other].add(Delta(points=promised, count=promised.num_rows))
                    due = True
        return due

    def forget(self, name: str, part: Part, rows: Indices, reason: str) -> list[Departed]:
        """Stored rows leave."""
        left = self.stored[name].remove(Rows(part, rows), reason)
        if self.propagation:
            for piece, numbers in (piece for gone in left for piece in gone.pieces()):
                self.propagation.left_state(name, take(piece.table.select(self.keys), numbers))
        return left

    def settle(self, arrived: Mapping[str, int] = MappingProxyType({}), *, tight: bool = False) -> None:
        """Rewrite what is mostly dead (or has any dead row) and merge what is small beside the rows that `arrived`."""
        for name, store in self.stored.items():
            self.tiers[name].smallest = max(SMALLEST, arrived.get(self.other[name], 0) // 2)
            self.metrics.count("rows_rewritten", store.settle(tight=tight))

    @property
    def resident_bytes(self) -> int:
        """Bytes of all that is held in memory: rows (dead ones until they are rewritten), promises, orders."""
        pending = self.propagation.points.values() if self.propagation else ()
        stores: int = sum(store.nbytes for store in (*self.row_stores, *pending))
        return stores + sum(table.nbytes for table in self._tables()[0].values())

    def report(self) -> None:
        """Sizes after the batch."""
        for name in self.names:
            self.metrics.gauge(f"waiting_rows.{name}", self.pool.rows[name].rows)
        self.knowledge.report()
        if self.propagation:
            self.metrics.gauge("punctuations_pending", self.propagation.pending)

    def _tables(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """All that is not rows. A table that has not changed is not made again."""
        tables, known = self.knowledge.save()
        values: dict[str, Any] = {"promised": self.promised, "generations": self.generations.save(), "known": known}
        for name in self.names:
            new, values[name] = self.unpurged[name].save()
            tables |= new
        waiting, values["pool"] = self.pool.save()
        tables |= waiting
        if self.propagation:
            pending, values["propagation"] = self.propagation.save()
            tables |= pending
        return tables, values

    def save(self) -> OperatorState:
        """Rows, promises and what is pending."""
        tables, values = self._tables()
        pending = self.propagation.points.values() if self.propagation else ()
        return OperatorState(
            stores=[store.save() for store in (*self.row_stores, *pending)], tables=tables, values=values
        )

    def inherit(self, heir: Partition, origins: Mapping[Partition, JoinState]) -> None:
        """Rows, promises and what is pending of former partitions."""
        for partition, former in origins.items():
            facts = self.generations.renumbered()
            for store, other in zip(self.row_stores, former.row_stores, strict=True):
                inherit(store, other, heir, partition, facts)
            self.generations.number += former.generations.number
            self.promised += former.promised
            self.pool.inherit(former.pool)
            for name in self.names:
                self.unpurged[name].add(former.unpurged[name].take())
        self.knowledge.inherit(heir, {one: former.knowledge for one, former in origins.items()})
        if self.propagation:
            waiting = {one: former.propagation for one, former in origins.items() if former.propagation}
            self.propagation.inherit(heir, waiting)
        for former in origins.values():  # other heirs may have what was on disk there
            self.freed(former.on_disk())

    def restore(self, state: OperatorState) -> None:
        """Take up what `save` returned."""
        tables, values = state.tables, state.values
        self.promised = values["promised"]
        self.generations.restore(values["generations"])
        self.knowledge.restore(tables, values["known"])
        for name in self.names:
            self.unpurged[name].restore(tables, values[name])
        self.pool.restore(tables, values["pool"])
        pending = self.propagation.points.values() if self.propagation else ()
        stores = {store.name: store for store in (*self.row_stores, *pending)}
        for saved in state.stores:
            stores[saved.name].restore(saved)
        if self.propagation:
            self.propagation.restore(tables, values["propagation"])
