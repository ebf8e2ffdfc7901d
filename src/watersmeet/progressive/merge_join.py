"""PSMJ: joins the sorted runs of both inputs while it merges them (2.2, 5.2).

A bucket's range of hashes is walked in steps. In each step every source hands over its rows below the step's bound, so
no more than a step's rows and one page per source are in memory, whatever the size of the bucket (rows of one hash stay
together). The rows of a step are joined at once: results come from the first step of the first merge on.

    hashes    |----------|----------|----------|----------|
    left      a1 a2        a3   ...                               sources a, b: segments of the left input
              b1           b2   ...
    right     c1 c2        c3   ...

Pairs within one unit were joined before (`units`); of the others, `duplicates` tells which were reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, sort_order
from watersmeet.columns.matching import match_blocks, with_equal_keys
from watersmeet.progressive.duplicates import DTS, OWED, Times, new_in_dd_task, times
from watersmeet.state.pages import Cursor, steps


@dataclass
class Source:
    """Rows of one segment. `unit` is the number of its unit in this operation."""

    cursor: Cursor
    unit: int
    rows: int


@dataclass(frozen=True)
class Stretch:
    """The rows of one input in one step: a table in any order, and what puts it in the order of the hashes."""

    table: pa.Table
    order: Indices
    hashes: Hashes
    owed: Times
    dts: Times
    unit: npt.NDArray[np.int32]

    @classmethod
    def of(cls, sources: Sequence[Source], bound: int | None) -> Stretch | None:
        """The next rows of all sources."""
        slices, units = [], []
        for source in sources:
            for piece in source.cursor.below(bound):
                slices.append(piece)
                units.append((source.unit, piece.num_rows))
        if not slices:
            return None
        table = pa.concat_tables(slices).combine_chunks() if len(slices) > 1 else slices[0]
        hashes = hashes_of(table)
        unit = np.repeat(*np.array(units, np.int64).T).astype(np.int32)
        if len(slices) == 1:
            order = np.arange(len(hashes), dtype=np.int64)
            return cls(table, order, hashes, times(table, OWED), times(table, DTS), unit)
        order = sort_order(hashes)
        return cls(table, order, hashes[order], times(table, OWED)[order], times(table, DTS)[order], unit[order])


@dataclass
class MergeJoin:
    """One merging operation on one bucket, whose hashes go from `low` to below `high`."""

    left: list[Source]
    right: list[Source]
    low: int
    high: int
    step_rows: int

    def run(self) -> Iterator[tuple[Stretch | None, Stretch | None]]:
        """The rows of both inputs, step by step: to be joined with `new_pairs`, and written if the runs are merged."""
        rows = sum(source.rows for source in self.left + self.right)
        for bound in steps(self.low, self.high, rows, self.step_rows):
            yield Stretch.of(self.left, bound), Stretch.of(self.right, bound)

    @property
    def pages_read(self) -> int:
        """Pages read so far."""
        return sum(source.cursor.pages_read for source in self.left + self.right)


def new_pairs(left: Stretch | None, right: Stretch | None) -> Iterator[tuple[Indices, Indices]]:
    """Pairs of rows with equal keys that were not joined before, in blocks of bounded size."""
    if left is None or right is None:
        return
    for i, j in match_blocks(left.hashes, right.hashes):
        new = new_in_dd_task(left.owed[i], left.dts[i], right.owed[j], right.dts[j])
        new &= left.unit[i] != right.unit[j]
        if not new.all():
            i, j = i[new], j[new]
        i, j = left.order[i], right.order[j]
        i, j = with_equal_keys(left.table, i, right.table, j)
        if len(i):
            yield i, j
