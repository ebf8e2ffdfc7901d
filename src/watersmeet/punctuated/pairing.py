"""Joining two hash-sorted tables under the one-to-many constraint: output rows, and rows done with their only match."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import merge_by_hash
from watersmeet.columns.matching import matches
from watersmeet.join.emitter import Emitter
from watersmeet.punctuated.promises.intervals import Mask

Tables = dict[str, pa.Table]  # a table per input


class Pairing:
    """Builds output rows for pairs, and notes rows of the many side that have matched the only row they can match."""

    def __init__(self, names: tuple[str, str], emitter: Emitter, one_sides: frozenset[str]) -> None:
        self.left, self.right = names
        self.emitter = emitter
        self.one_sides = one_sides

    def pairs(self, left: pa.Table, right: pa.Table, done_left: Mask, done_right: Mask) -> Iterator[pa.Table]:
        """All pairs of two tables; `done` marks rows that have matched the only row they can match."""
        for i, j in matches(left, right):
            yield self.emitter.rows({self.left: (left, i), self.right: (right, j)})
            if self.left in self.one_sides:
                done_right[j] = True
            if self.right in self.one_sides:
                done_left[i] = True

    def generations(self, before: Tables, after: Tables) -> Generator[pa.Table, None, tuple[Tables, Tables]]:
        """All pairs between two generations, none inside one; returns the rows left, merged, and those done with."""
        done = {name: (_none(before[name]), _none(after[name])) for name in before}
        yield from self.pairs(before[self.left], after[self.right], done[self.left][0], done[self.right][1])
        yield from self.pairs(after[self.left], before[self.right], done[self.left][1], done[self.right][0])
        left_over, left = {}, {}
        for name, masks in done.items():
            marked = list(zip((before[name], after[name]), masks, strict=True))
            left_over[name] = merge_by_hash([table.filter(pa.array(~mask)) for table, mask in marked])
            left[name] = merge_by_hash([table.filter(pa.array(mask)) for table, mask in marked])
        return left_over, left


def _none(table: pa.Table) -> Mask:
    return np.zeros(table.num_rows, np.bool_)
