"""The symmetric join: every row meets every stored row of the other input, with unlimited memory.

Semantics     inner equi-join of two inputs; each pair once, in the batch in which its later row arrives.
Input         tables sorted or not; rows with a null key match nothing and are not kept.
State         per input a `TieredRuns`; an input whose partner has ended is not stored any more.
Cost          per batch of b rows: one sort of b, a merge with each of O(log state) runs, b rows written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from watersmeet.arrow import drop_null_keys, sort_by_hash
from watersmeet.matching import matches
from watersmeet.operator import Batch, Operator, OperatorState
from watersmeet.plan import JoinPlan
from watersmeet.state.run import Run, resident_run
from watersmeet.state.space import RunSpace
from watersmeet.state.tiers import TieredRuns


class SymmetricJoin(Operator):
    """Joins two inputs and keeps both for ever."""

    name = "symmetric"

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.left, self.right = (spec.name for spec in plan.inputs)
        self.stored = {spec.name: self._tiers(spec.name) for spec in plan.inputs}
        self.projection = plan.projection

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """New left rows meet the stored right ones, then stored and new left rows meet the new right ones."""
        left, right = (self._arrived(batch, name) for name in (self.left, self.right))
        for run in self.stored[self.right].runs:
            yield from self._join(left, run.table)
        for run in self.stored[self.left].runs:
            yield from self._join(run.table, right)
        yield from self._join(left, right)
        for name, other, table in ((self.left, self.right, left), (self.right, self.left, right)):
            if not self.has_ended(other):
                run = resident_run(name, table, oldest=batch.number, newest=batch.number)
                self.metrics.count("rows_merged", self.stored[name].add(run))

    def _arrived(self, batch: Batch, name: str) -> pa.Table:
        table = batch.rows.get(name)
        if table is None:
            return self.plan.input(name).schema.empty_table()
        return sort_by_hash(drop_null_keys(table))

    def _join(self, left: pa.Table, right: pa.Table) -> Iterator[pa.Table]:
        if not (left.num_rows and right.num_rows):
            return
        self.metrics.count("runs_probed")
        for i, j in matches(left, right):
            yield self.projection.gather({self.left: (left, i), self.right: (right, j)})

    def finish(self) -> Iterator[pa.Table]:
        """Nothing is owed: every pair was reported when its later row came."""
        self.stored = {name: self._tiers(name) for name in self.stored}
        return iter(())

    def save(self) -> OperatorState:
        """The runs of both inputs, except those that only an ended input could have met."""
        kept = [
            run
            for name, other in ((self.left, self.right), (self.right, self.left))
            if not self.has_ended(other)
            for run in self.stored[name].runs
        ]
        return OperatorState(runs=kept)

    def restore(self, state: OperatorState) -> None:
        """Sort the runs by input."""
        for name in self.stored:
            self.stored[name] = self._tiers(name, (run for run in state.runs if run.label == name))

    def _tiers(self, name: str, runs: Iterable[Run] = ()) -> TieredRuns:
        return TieredRuns(runs, lag=0 if name == self.left else 1)
