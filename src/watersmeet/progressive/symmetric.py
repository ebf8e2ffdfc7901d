"""The symmetric join: every row probes every stored row of the other input, with unlimited memory.

Semantics     inner equi-join of two inputs; each pair once, in the batch in which its later row arrives.
Input         tables sorted or not; rows with a null key match nothing and are not kept.
State         per input a store in hash tiers; an input whose partner has ended is not stored any more.
Cost          per batch of b rows: one sort of b, a merge with each of O(log state) runs, b rows written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from watersmeet.columns.matching import matches
from watersmeet.join.binary import BinaryJoin
from watersmeet.join.hand import Hand
from watersmeet.join.operator import Batch
from watersmeet.plan import JoinPlan
from watersmeet.state.layouts import HashTiers
from watersmeet.state.rows import RowStore
from watersmeet.state.space import RunSpace


class SymmetricJoin(BinaryJoin):
    """Joins two inputs and keeps both for ever."""

    name = "symmetric"
    leaves_together: ClassVar[bool] = True  # with the end of the other input

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.stores = {
            spec.name: RowStore(
                spec.name,
                self.emitter.stored_schema(spec.name, spec.schema),
                HashTiers(lag=index),
                space,
                self.accounts,
                flags=self.emitter.flags(spec.name),
                redundant=self.emitter.redundant(spec.name),
            )
            for index, spec in enumerate(plan.inputs)
        }

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """New rows probe the stored ones of the other input, then each other; then they are stored."""
        arrived = {name: self.prologue.admit(batch, name) for name in self.names}
        yield from self.turned_away()
        hand = Hand(self.emitter, arrived)
        for name in self.names:
            for part, i, j in self.probe(name, arrived[name]):
                yield from hand.stored(name, i, part, j)
        for i, j in matches(arrived[self.left], arrived[self.right]):
            yield from hand.pairs(i, j)
        yield from hand.settle()
        for name in self.names:
            yield from self.keep(name, hand, batch)
