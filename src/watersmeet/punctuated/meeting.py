"""Joining two hash-sorted tables under the one-to-many constraint: output rows, and who has met its only partner."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa

from watersmeet.arrow import Indices, merge_by_hash
from watersmeet.matching import matches
from watersmeet.plan import JoinPlan
from watersmeet.projection import Projection
from watersmeet.punctuated.intervals import Mask
from watersmeet.punctuated.propagation import COLUMN

Rows = dict[str, pa.Table]  # a table per input


class Meeting:
    """Makes output rows for pairs, and notes rows of the many side that are done with."""

    def __init__(self, plan: JoinPlan, one_sides: frozenset[str]) -> None:
        self.left, self.right = (spec.name for spec in plan.inputs)
        self.one_sides = one_sides
        self._output = plan.output
        self._schema = plan.projection.schema
        self._projection = Projection([column for column in plan.output if column.column != COLUMN])

    def rows(self, parts: dict[str, tuple[pa.Table, Indices]]) -> pa.Table:
        """Output rows; the punctuation column, if there is one, is null."""
        made = self._projection.gather(parts)
        if len(self._output) == len(self._projection.columns):
            return made
        columns = iter(made.columns)
        arrays = [
            pa.nulls(made.num_rows, column.field.type) if column.column == COLUMN else next(columns)
            for column in self._output
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def tables(self, left: pa.Table, right: pa.Table, met_left: Mask, met_right: Mask) -> Iterator[pa.Table]:
        """All pairs of two tables; `met` marks rows that have met their only partner."""
        if not (left.num_rows and right.num_rows):
            return
        for i, j in matches(left, right):
            yield self.rows({self.left: (left, i), self.right: (right, j)})
            if self.left in self.one_sides:
                met_right[j] = True
            if self.right in self.one_sides:
                met_left[i] = True

    def generations(self, before: Rows, after: Rows) -> Generator[pa.Table, None, tuple[Rows, Rows]]:
        """All pairs between two generations, none inside one; returns the rows left, merged, and those done with."""
        met = {name: (_none(before[name]), _none(after[name])) for name in before}
        yield from self.tables(before[self.left], after[self.right], met[self.left][0], met[self.right][1])
        yield from self.tables(after[self.left], before[self.right], met[self.left][1], met[self.right][0])
        left_over, done = {}, {}
        for name, masks in met.items():
            pairs = list(zip((before[name], after[name]), masks, strict=True))
            left_over[name] = merge_by_hash([table.filter(pa.array(~mask)) for table, mask in pairs])
            done[name] = merge_by_hash([table.filter(pa.array(mask)) for table, mask in pairs])
        return left_over, done


def _none(table: pa.Table) -> Mask:
    return np.zeros(table.num_rows, np.bool_)
