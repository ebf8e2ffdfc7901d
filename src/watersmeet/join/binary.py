"""What the joins of two inputs share: their sides, and probing one side's rows with the other's.

A batch goes through the same steps in every family; a family fills in those it has a say in:

    1  admit    null keys, null times and broken promises are diverted (`prologue`)
    2  probe    new rows with stored ones, then with each other; results leave through the emitter
    3  learn    what the batch tells about the future: punctuations, orders, times, ended inputs
    4  exits    rows without a future leave, the other new rows are stored
    5  settle   runs are merged
    6  budget   what does not fit into memory is flushed
    7  disk     what is owed to flushed rows, as far as there is time
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices
from watersmeet.columns.partitions import Partition
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.join.hand import Hand, probe
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.join.operator import Batch, Operator, OperatorState, Origin
from watersmeet.join.prologue import Prologue
from watersmeet.join.votes import Ballots
from watersmeet.plan import JoinPlan
from watersmeet.state.parts import All, Part
from watersmeet.state.rows import RowStore
from watersmeet.state.sharing import inherit
from watersmeet.state.space import RunSpace


def _emitted_alone(plan: JoinPlan) -> dict[str, bool]:
    """By input, whether the other one's rows are emitted by themselves."""
    left, right = (spec.name for spec in plan.inputs)
    kind = JOIN_TYPES[plan.how]
    return {left: kind.unmatched[1], right: kind.unmatched[0] or kind.exists}


class BinaryJoin(Operator):
    """Two inputs, each with a store. Subclasses make the stores and add the steps of their family."""

    leaves_together: ClassVar[bool] = False  # whether partitions that share a key let its rows go in the same batch

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.left, self.right = self.names = (plan.inputs[0].name, plan.inputs[1].name)
        self.other = {self.left: self.right, self.right: self.left}
        self.emitter = BinaryEmitter(plan, self.accounts, self.metrics)
        self.prologue = Prologue(plan, self.accounts, self.metrics, preserved=self.emitter.preserved)
        self.stores: dict[str, RowStore] = {}

    def turned_away(self) -> Iterator[pa.Table]:
        """Output rows for what the prologue has let through to no join, because it can match nothing."""
        for name, reason, table in self.prologue.take_aside():
            yield from self.emitter.unmatched(name, table, np.arange(table.num_rows), reason)

    def probe(self, name: str, table: pa.Table) -> Iterator[tuple[Part, Indices, Indices]]:
        """Pairs of new rows of an input and rows of the other one in memory, part by part, in blocks."""
        parts = list(self.stores[self.other[name]].parts())
        self.metrics.count("runs_probed", len(parts) if table.num_rows else 0)
        return probe(table, parts)

    def keep(self, name: str, hand: Hand, batch: Batch) -> Iterator[pa.Table]:
        """Store new rows, unless no row that could match them will come: then they leave, and the stored ones too."""
        store = self.stores[name]
        if self.ends(self.other[name], batch):
            yield from self.emitter.departed(store.remove(All(), "ended"))
            yield from hand.leave_all(name, "ended")
        else:
            store.add(hand.rest(name), batch.number)
            self.metrics.count("rows_rewritten", store.settle())

    def finish(self) -> Iterator[pa.Table]:
        """No pair is owed: each was emitted when its later row came. What is left never matched."""
        for store in self.stores.values():
            yield from self.emitter.departed(store.remove(All(), "ended"))

    def row_stores(self) -> Iterable[RowStore]:
        """One per input."""
        return self.stores.values()

    @classmethod
    def splits(cls, plan: JoinPlan) -> tuple[str, ...]:
        """Those whose other side's rows are emitted in pairs only, those with a witness; both if partitions vote."""
        voting, witnessed = cls.votes(plan), cls.witnessed(plan)
        return tuple(name for name, alone in _emitted_alone(plan).items() if voting or not alone or name in witnessed)

    @classmethod
    def divides_both(cls, plan: JoinPlan) -> bool:
        """Where nothing is emitted but pairs, and either input can be split."""
        return not any(_emitted_alone(plan).values()) and len(cls.splits(plan)) == len(plan.inputs)

    @classmethod
    def witnessed(cls, plan: JoinPlan) -> tuple[str, ...]:
        """Those whose other side's rows are emitted when they match nothing, or at their first match. One row matches
        all rows of its key as long as these can come, if equal keys are all that matching takes."""
        return () if plan.condition else tuple(name for name, alone in _emitted_alone(plan).items() if alone)

    @classmethod
    def votes(cls, plan: JoinPlan) -> bool:
        """Where rows of both inputs are emitted by themselves and no row of a key is a witness for those of the other:
        if they leave in the same batch in all partitions that have them (`leaves_together`)."""
        return cls.leaves_together and all(_emitted_alone(plan).values()) and not cls.witnessed(plan)

    def vote_on(self, keys: Mapping[str, Hashes]) -> None:
        """The emitter votes."""
        self.emitter.ballots = Ballots(self.plan, self.space.partition, self.metrics, keys)

    def cast(self) -> list[pa.Table]:
        """What the emitter was told of rows that left."""
        return [] if self.emitter.ballots is None else self.emitter.ballots.cast

    def hush(self, copies: Mapping[str, Hashes]) -> None:
        """The emitter leaves them out."""
        self.emitter.hushed = copies

    def inherit(self, heir: Partition, origins: Sequence[Origin], version: int) -> None:
        """The rows of both inputs."""
        for origin in origins:
            former = origin.operator
            assert isinstance(former, BinaryJoin)
            for name, store in self.stores.items():
                inherit(store, former.stores[name], heir, origin.partition)

    def save(self) -> OperatorState:
        """The stores."""
        return OperatorState(stores=[store.save() for store in self.stores.values()])

    def restore(self, state: OperatorState) -> None:
        """Take up what `save` returned."""
        for saved in state.stores:
            self.stores[saved.name].restore(saved)
