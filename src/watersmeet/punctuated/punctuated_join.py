"""The metadata-aware join (MJoin): what can never match again is not kept.

Semantics     inner equi-join of two inputs. A punctuation ("no more rows with these keys on this input") takes effect
              at the end of its batch; rows and punctuations of one batch have no order.
Per batch     1  rows that break an earlier promise are diverted (`violations`), before anything is joined
              2  the rows chosen by the scheduling (`scheduling`; all of them without a quota) probe the stored rows of
                 the other input and each other
              3  the batch's promises are added: punctuations, ended clusters, orders, ended inputs
              4  a row without a future is dropped on the fly, the others are stored
              5  stored rows without a future are purged when the purge policy says so (`purge_policies`)
              6  with a memory budget, the largest buckets are flushed when it is exceeded; what was flushed in earlier
                 batches is merged and joined, so that there are few pieces of each size (`spilling`)
              7  promises that now hold for the output are propagated (`propagation`)
No future     a row has none if its key is promised away on the other input and no row of that key is waiting or on disk
              there; or if it is on the many side and has matched its one partner (`join_state`).
Cost          a batch costs in proportion to its rows and promises and to the rows purged: single keys are found by
              hash, ranges by binary search in an order of the values (`lookup`).

L. Ding, E. A. Rundensteiner, G. T. Heineman: MJoin: A Metadata-Aware Stream Join Operator. DEBS 2003.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, take
from watersmeet.columns.grouping import distinct_keys
from watersmeet.columns.partitions import Partition
from watersmeet.join.binary import BinaryJoin
from watersmeet.join.hand import Hand
from watersmeet.join.operator import Batch, Operator, OperatorState, Origin
from watersmeet.join.waits import WaitingRows, Waits
from watersmeet.plan import JoinPlan
from watersmeet.punctuated.dividing import divisible, kept_whole
from watersmeet.punctuated.join_state import JoinState
from watersmeet.punctuated.lookup import has_keys
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.punctuated.pairing import DonePairs, Tables
from watersmeet.punctuated.promises.intervals import Mask
from watersmeet.punctuated.promises.punctuation import Delta, by_reason
from watersmeet.punctuated.purge_policies import purge_policy
from watersmeet.punctuated.spilling import Spilling
from watersmeet.state.parts import All, Part
from watersmeet.state.rows import RowStore
from watersmeet.state.space import RunSpace


class PunctuatedJoin(BinaryJoin):
    """Joins two inputs and forgets what their promises make useless."""

    name = "punctuated"
    has_promises: ClassVar[bool] = True

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.options = PunctuatedOptions(**plan.options, **plan.tuning)
        self.one_sides = self.options.one_sides
        self.state = state = JoinState(plan, self.options, space, self.emitter)
        self.stores = state.stored
        self.policy = purge_policy(self.options.purge, self.options.purge_after)
        memory = None if self.options.memory is None else self.options.memory // plan.partitions
        self.spilling = Spilling(state, self.emitter, self.options, memory)

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """The steps of the module's docstring."""
        state = self.state
        arrived = {name: self._admitted(batch, name) for name in state.names}
        yield from self.turned_away()
        self.spilling.arrived(arrived, batch.time)
        now, waited = state.pool.admit(arrived, batch.number)
        yield from self._process(now, waited, batch, arrived)
        yield from self._purge_if_due(batch)
        if self.spilling.over_budget and not state.pool.is_empty:
            self.metrics.event("quota_lifted", rows=sum(rows.rows for rows in state.pool.rows.values()))
            drained = state.pool.drain()
            yield from self._process(drained, drained, batch, None)
            yield from self._purge_if_due(batch)
        self.spilling.flush(batch.number)
        if (yield from self.spilling.merge_generations(batch.number)):
            yield from self._purge_if_due(batch)
        if not batch.is_idle:
            yield from self._propagate()

    def _admitted(self, batch: Batch, name: str) -> pa.Table:
        """The rows that arrived, sorted by hash, less those with a null in the key and those that broke a promise."""
        state = self.state

        def is_known(rows: pa.Table) -> Mask:
            return has_keys(state.stored[name], rows) | state.pool.waits(name, rows)

        table = self.prologue.admit(batch, name)
        known = is_known if name in self.one_sides else None
        return state.knowledge.admit(name, table, batch.number, known)

    def _process(self, now: Tables, waited: Tables, batch: Batch, arrived: Tables | None) -> Iterator[pa.Table]:
        """Join rows, learn what the batch promises, store what may still match."""
        names = self.state.names
        new = DonePairs(self.emitter, now, self.one_sides)
        yield from self._join(new)
        for name in names:
            if arrived is not None:
                self._learn(batch, name, arrived[name])
            if waited[name].num_rows:
                self._released(name, waited[name])
        for name in names:
            yield from self._store(name, new, batch, late=waited[name].num_rows > 0)

    def _join(self, new: DonePairs) -> Iterator[pa.Table]:
        """New rows probe the stored ones, then each other; rows that have matched their only partner are noted."""
        state = self.state
        for name in state.names:
            for part, i, j in self.probe(name, new.hand.tables[name]):
                yield from new.hand.stored(name, i, part, j)
                new.note(name, i)
                if name in self.one_sides:
                    yield from self.emitter.departed(state.forget(state.other[name], part, j, "one_to_many"))
        yield from new.match()
        yield from new.settle()

    def _learn(self, batch: Batch, name: str, arrived: pa.Table) -> None:
        """Everything that a batch promises about an input."""
        for source, table in self.state.knowledge.promised(batch, name, arrived):
            self._add_promises(batch, name, table, source)

    def _add_promises(self, batch: Batch, name: str, table: pa.Table, source: str) -> None:
        if not table.num_rows:
            return
        state = self.state
        ranges = state.propagation.fresh_ranges(name, table) if state.propagation else None
        delta = state.promises[name].add_punctuations(table, batch.number, source)
        if delta.is_empty:
            return
        state.promised += delta.count
        state.unpurged[name].add(delta)
        state.pool.promised(name, delta)
        if state.propagation and ranges is not None:
            state.propagation.promised(name, delta, ranges, batch.number)

    def _released(self, name: str, waited: pa.Table) -> None:
        """Rows that had been waiting are processed: what only waited for them can be purged and propagated now."""
        keys = distinct_keys(waited)
        promised = keys.filter(pa.array(self.state.promises[name].find(keys) > 0))
        if promised.num_rows:
            self.state.unpurged[name].add(Delta(points=promised, count=promised.num_rows))
            self.state.generations.forget_merges(promised)
        if self.state.propagation:
            self.state.propagation.changed(keys)

    def _store(self, name: str, new: DonePairs, batch: Batch, *, late: bool) -> Iterator[pa.Table]:
        state = self.state
        yield from new.take_done(name)
        sources = state.without_future(name, new.hand.tables[name])
        yield from new.hand.leave_by(name, by_reason(sources))
        table = new.hand.rest(name)
        if table.num_rows:
            oldest = min(state.pool.oldest[name], batch.number) if late else batch.number
            state.stored[name].add(table.combine_chunks(), batch.number, oldest=oldest)
            if state.propagation:
                entered = state.promises[name].find_voided(table)
                if late:
                    entered |= state.promises[name].find(table) > 0
                state.propagation.entered_late(name, table.filter(pa.array(entered)))

    def _purge_if_due(self, batch: Batch) -> Iterator[pa.Table]:
        pressure = self.spilling.over_budget
        for name in self.state.names:
            due = self.policy.due(self.state.unpurged[name].count, idle=batch.is_idle, pressure=pressure)
            # An end takes effect in its own batch, whatever the policy, and so does what proves rows unmatched.
            if due or self.ends(name, batch) or self.other[name] in self.emitter.preserved:
                yield from self.emitter.departed(self.state.purge(name))
        self.state.settle({name: table.num_rows for name, table in batch.rows.items()})

    def _propagate(self) -> Iterator[pa.Table]:
        if self.state.propagation:
            for table in self.state.propagation.ready(self.state.stored, self.state.pool, self.state.generations):
                self.metrics.count("punctuations_out", table.num_rows)
                yield table

    def on_idle(self, batch: Batch) -> Iterator[pa.Table]:
        """Merge spilled buckets, those that owe most first, within the budget of pages."""
        pages = 0
        for bucket in self.spilling.to_merge():
            if pages >= self.options.idle_pages:
                break
            pages += self.state.generations.pages(bucket)
            yield from self.spilling.merge(bucket, batch.number)
        if pages:
            self.state.settle()
            self.spilling.flush(batch.number)
        yield from self._propagate()

    def finish(self) -> Iterator[pa.Table]:
        """All inputs have ended: process what waits, merge what is on disk, forget everything."""
        last = Batch(max(self.ended.values()))
        drained = self.state.pool.drain()
        yield from self._process(drained, drained, last, None)
        while buckets := self.state.generations.on_disk():
            for bucket in buckets:
                yield from self.spilling.merge(bucket, last.number, final=True)
        if self.state.propagation:
            yield from self.state.propagation.rest()
        for store in self.state.row_stores:
            yield from self.emitter.departed(store.remove(All(), "ended"))

    def report(self) -> None:
        """Promises, and rows that wait."""
        self.state.report()

    def waits(self, part: Part, rows: Indices) -> WaitingRows:
        """Until the other input promises the key away, or its only partner comes."""
        name, state = part.store.input, self.state
        if part.store is state.pool.rows[name]:
            yield rows, Waits("turn")
            return
        other = self.other[name]
        over = state.without_future(name, take(part.table.select(state.keys), rows)) > 0
        if over.any():
            yield rows[over], Waits("sweep")
        if not over.all():
            yield rows[~over], Waits("partner" if other in self.one_sides else "promise", (other,))

    def row_stores(self) -> Iterable[RowStore]:
        """Stored and waiting rows."""
        return self.state.row_stores

    # -- hot keys

    @classmethod
    def splits(cls, plan: JoinPlan) -> tuple[str, ...]:
        """As other joins, as far as the promises allow. A punctuation of the output would be about rows that lie in
        several partitions."""
        options = PunctuatedOptions(**plan.options, **plan.tuning)
        offered = () if options.propagate else super().splits(plan)
        return divisible(offered, plan, options.constraints, options.on_violation)

    @classmethod
    def witnessed(cls, plan: JoinPlan) -> tuple[str, ...]:
        """None: a row may have been purged by a promise that it has met."""
        return ()

    @classmethod
    def kept_whole(cls, plan: JoinPlan) -> tuple[str, str] | None:
        """What of the options it is."""
        options = PunctuatedOptions(**plan.options, **plan.tuning)
        if options.propagate:
            return f"propagate={options.propagate!r}", (
                "A promise holds for the output when no partition has rows of its key any more, and none knows that of "
                "the others."
            )
        return kept_whole(super().splits(plan), plan, options.constraints, options.on_violation)

    def take_in(self, batch: Batch) -> Batch:
        """They are stored as if they had always been: nothing that they could match has come, and whether they keep
        their promises was found out where they came from."""
        for name, table in batch.taken.items():
            rows = Hand(self.emitter, {name: self.state.knowledge.useful(name, table)}).rest(name)
            self.state.stored[name].add(rows.combine_chunks(), batch.number)
        return replace(batch, taken={})

    def hear(self, origin: Operator, keys: pa.Table, batch: int) -> None:
        """The promises of both inputs."""
        assert isinstance(origin, PunctuatedJoin)
        self.state.knowledge.hear(origin.state.knowledge, keys, batch)

    def note_copies(self, keys: Mapping[str, Hashes]) -> None:
        """Copies that break a promise are not counted."""
        self.state.knowledge.note_copies(keys)

    # -- state

    def inherit(self, heir: Partition, origins: Sequence[Origin], version: int) -> None:
        """Rows, promises and what is pending."""
        former = {one.partition: one.operator.state for one in origins if isinstance(one.operator, PunctuatedJoin)}
        self.state.inherit(heir, former)
        if self.spilling.victims is not None:
            joins = [one.operator for one in origins if isinstance(one.operator, PunctuatedJoin)]
            self.spilling.victims.inherit([join.spilling.victims for join in joins])

    def save(self) -> OperatorState:
        """Rows, promises and what is pending; nothing of it after the end."""
        if self.finished:
            return OperatorState()
        state = self.state.save()
        if self.spilling.victims is not None:
            state.values["victims"] = self.spilling.victims.save()
        return state

    def restore(self, state: OperatorState) -> None:
        """Take up what `save` returned."""
        self.state.restore(state)
        if self.spilling.victims is not None:
            self.spilling.victims.restore(state.values.get("victims"))
