"""The window join of inputs that also promise something about their keys.

Semantics     those of the window join (`window.window_join`) over the rows that keep the promises. A punctuation takes
              effect at the end of its batch; rows and punctuations of one batch have no order.
No future     a row has none if the other input's window over it has passed; or if its key is promised away on the other
              input; or if the other input has each key once and the row has been compared with the one of its key,
              whether or not that one was near enough. It leaves in the batch in which the first of these becomes known.
Per batch     1  rows that break an earlier promise are diverted, before anything is joined
              2  new rows probe the stored ones of the other input and each other, within the windows
              3  rows that have been compared with their only partner leave
              4  the batch's promises are learned; new and stored rows that they leave without a partner leave
              5  the clocks move, rows behind them leave, the other new rows are stored
Disk          under a memory budget runs on disk are probed like those in memory, so nothing is owed to them, and
              promises reach their rows too: single keys in the pages of their bucket, ranges in all pages.
Structure     both sides are sorted by hash: promises are looked up by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import HASH, Hashes, key_names, sort_by_hash, take, times_of
from watersmeet.columns.matching import matches
from watersmeet.columns.partitions import Partition
from watersmeet.combined.options import PromisedWindowOptions
from watersmeet.join.expiry import behind
from watersmeet.join.hand import Hand
from watersmeet.join.operator import Batch, Operator, OperatorState, Origin
from watersmeet.plan import JoinPlan
from watersmeet.punctuated.dividing import divisible, kept_whole
from watersmeet.punctuated.knowledge import Knowledge
from watersmeet.punctuated.lookup import Found, covered, has_keys, with_keys
from watersmeet.punctuated.promises.intervals import Mask
from watersmeet.punctuated.promises.punctuation import Delta, by_reason
from watersmeet.state.parts import Rows as StoredRows
from watersmeet.state.space import RunSpace
from watersmeet.window.options import WindowOptions
from watersmeet.window.scan import Rows
from watersmeet.window.window_join import WindowJoin


class PromisedWindowJoin(WindowJoin):
    """Joins two inputs within moving windows, and forgets what their promises make useless."""

    name = "promised_window"
    has_promises: ClassVar[bool] = True
    leaves_together: ClassVar[bool] = False  # each partition concludes for itself what promises leave without a future
    OPTIONS: ClassVar[type[WindowOptions]] = PromisedWindowOptions

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        assert isinstance(self.options, PromisedWindowOptions)
        self.one_sides = self.options.one_sides
        self.takes_promises_back = self.options.on_violation == "keep"
        self.knowledge = Knowledge(
            plan,
            self.options.constraints,
            self.options.on_violation,
            self.accounts,
            self.metrics,
            partitions=plan.partitions,
            here=space.partition,
        )

    def _method(self, name: str) -> str:
        return "hash"

    def _arrived(self, batch: Batch, name: str) -> Rows:
        """The rows that arrived, sorted by hash, less those that broke a promise."""
        table = sort_by_hash(super()._arrived(batch, name).table)
        known = self._is_stored(name) if name in self.one_sides else None
        return Rows(self.knowledge.admit(name, table, batch.number, known), self.time_columns[name])

    # -- leaving

    def _keep_all(self, arrived: dict[str, Rows], hand: Hand, batch: Batch) -> Iterator[pa.Table]:
        yield from self._compared_with_their_only_partner(arrived, hand)
        new = {name: self._learn(batch, name, rows.table) for name, rows in arrived.items()}
        for name in self.names:
            yield from hand.leave_by(name, by_reason(self.knowledge.find(name, hand.tables[name])))
            yield from self._purge(name, new[self.other[name]])
        yield from super()._keep_all(arrived, hand, batch)

    def _compared_with_their_only_partner(self, arrived: dict[str, Rows], hand: Hand) -> Iterator[pa.Table]:
        """Rows that can match one row at most leave once that one has come, matched or not. Where promises are taken
        back (`on_violation="keep"`) a second one may come: nothing is known."""
        if self.takes_promises_back:
            return
        done: dict[str, Mask] = {}
        stored: dict[str, Found] = {}
        for one in self.one_sides:  # with two of them each side's rows must be found before the other's leave
            many, ones = self.other[one], arrived[one].table
            done[many] = self._is_stored(one)(hand.tables[many])
            for i, _ in matches(hand.tables[many], ones):
                done[many][i] = True
            stored[many] = with_keys(self.stores[many], ones, on_disk=True)
        for many in sorted(done):
            yield from hand.leave(many, done[many], "one_to_many")
            for part, rows in stored[many]:
                yield from self.emitter.departed(self.stores[many].remove(StoredRows(part, rows), "one_to_many"))

    def _is_stored(self, name: str) -> Callable[[pa.Table], Mask]:
        def stored(rows: pa.Table) -> Mask:
            return has_keys(self.stores[name], rows, on_disk=True)

        return stored

    def _learn(self, batch: Batch, name: str, arrived: pa.Table) -> Delta:
        """What a batch promises about an input. The end of it is the window join's business."""
        new = Delta()
        for source, table in self.knowledge.promised(batch, name, arrived):
            if table.num_rows and source != "ended":
                new.add(self.knowledge.promises[name].add_punctuations(table, batch.number, source))
        return new

    def _purge(self, name: str, promised: Delta) -> Iterator[pa.Table]:
        """Stored rows of an input that the other one's new promises leave without a partner leave."""
        if promised.is_empty:
            return
        store, purged = self.stores[name], 0
        keys = [HASH, *key_names(store.schema)]
        for found in covered(store, promised, on_disk=True):
            for part, rows in found:
                sources = self.knowledge.find(name, take(part.table.select(keys), rows))
                for reason, chosen in by_reason(sources).items():
                    gone = store.remove(StoredRows(part, rows[chosen]), reason)
                    purged += sum(one.rows for one in gone)
                    yield from self.emitter.departed(gone)
        self.metrics.count("purges")
        self.metrics.event("purge", input=name, rows=purged, promises=promised.count)

    # -- hot keys

    @classmethod
    def splits(cls, plan: JoinPlan) -> tuple[str, ...]:
        """As the window join, as far as the promises allow."""
        options = PromisedWindowOptions(**plan.options, **plan.tuning)
        return divisible(super().splits(plan), plan, options.constraints, options.on_violation)

    @classmethod
    def kept_whole(cls, plan: JoinPlan) -> tuple[str, str] | None:
        """What of the promises it is."""
        options = PromisedWindowOptions(**plan.options, **plan.tuning)
        offered = super().splits(plan)
        return kept_whole(offered, plan, options.constraints, options.on_violation) if offered else None

    def take_in(self, batch: Batch) -> Batch:
        """They are stored as if they had always been, but for those that are behind the clock of this partition."""
        for name, table in batch.taken.items():
            useful, store = self.knowledge.useful(name, table), self.stores[name]
            masks = behind(store, times_of(useful, self.time_columns[name]), None)
            for reason, mask in masks.items():
                self.accounts.leave(name, reason, int(np.count_nonzero(mask)))
                useful = useful.filter(pa.array(~mask))
            useful = Rows(useful, self.time_columns[name]).sorted().table
            rows = Hand(self.emitter, {name: useful}).rest(name)
            store.add(store.without_redundant(rows.combine_chunks()), batch.number)
        return replace(batch, taken={})

    def hear(self, origin: Operator, keys: pa.Table, batch: int) -> None:
        """The promises of both inputs."""
        assert isinstance(origin, PromisedWindowJoin)
        self.knowledge.hear(origin.knowledge, keys, batch)

    def note_copies(self, keys: Mapping[str, Hashes]) -> None:
        """Copies that break a promise are not counted."""
        self.knowledge.note_copies(keys)

    # -- state

    def report(self) -> None:
        """Windows and promises."""
        super().report()
        self.knowledge.report()

    def inherit(self, heir: Partition, origins: Sequence[Origin], version: int) -> None:
        """What the window join takes up, and the promises."""
        super().inherit(heir, origins, version)
        former = {one.partition: one.operator for one in origins}
        self.knowledge.inherit(
            heir, {one: join.knowledge for one, join in former.items() if isinstance(join, PromisedWindowJoin)}
        )

    def save(self) -> OperatorState:
        """What the window join keeps, and the promises; nothing of it after the end."""
        if self.finished:
            return OperatorState()
        state = super().save()
        state.tables, state.values["known"] = self.knowledge.save()
        return state

    def restore(self, state: OperatorState) -> None:
        """Take up what `save` returned."""
        super().restore(state)
        self.knowledge.restore(state.tables, state.values["known"])
