"""Joining two hash-sorted tables under the one-to-many constraint: output rows, and rows done with their only match."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, merge_by_hash
from watersmeet.columns.matching import matches
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.join.hand import Hand

Tables = dict[str, pa.Table]  # a table per input


class DonePairs:
    """Rows in hand, and which of them have been compared with the only row they can match."""

    def __init__(self, emitter: BinaryEmitter, tables: Tables, one_sides: frozenset[str]) -> None:
        self.hand = Hand(emitter, tables)
        self.done = {name: np.zeros(table.num_rows, np.bool_) for name, table in tables.items()}
        # A row that matches one of these inputs is done with.
        self.done_by = {name for name in tables if emitter.other[name] in one_sides}

    def match(self) -> Iterator[pa.Table]:
        """The rows in hand match each other."""
        left, right = self.hand.emitter.names
        for i, j in matches(self.hand.tables[left], self.hand.tables[right]):
            yield from self.hand.pairs(i, j)
            for name, rows in ((left, i), (right, j)):
                self.note(name, rows)

    def note(self, name: str, rows: Indices) -> None:
        """Rows of an input have equal keys with rows of the other."""
        if name in self.done_by:
            self.done[name][rows] = True

    def settle(self) -> Iterator[pa.Table]:
        """All matches are known: rows that have matched and need no more leave."""
        once = self.hand.emitter.once
        if once in self.done:  # all that has matched is about to go
            self.done[once] = self.done[once][~self.hand.matched[once]]
        yield from self.hand.settle()

    def take_done(self, name: str) -> Generator[pa.Table, None, pa.Table]:
        """The rows of an input that are done with leave, and are returned. The only row of their key has come: where
        the condition does not hold they are unmatched."""
        mask = self.done[name]
        if not mask.any():
            return self.hand.tables[name].slice(0, 0)
        gone = self.hand.tables[name].filter(pa.array(mask))
        yield from self.hand.leave(name, mask, "one_to_many")
        return gone


def join_generations(
    emitter: BinaryEmitter, one_sides: frozenset[str], before: Tables, after: Tables
) -> Generator[pa.Table, None, tuple[Tables, Tables]]:
    """All pairs between two generations, none inside one; returns the rows left, merged, and those done with."""
    left, right = emitter.names
    crossed = [
        DonePairs(emitter, {left: before[left], right: after[right]}, one_sides),
        DonePairs(emitter, {left: after[left], right: before[right]}, one_sides),
    ]
    for one in crossed:
        yield from one.match()
        yield from one.settle()
    done = {}
    for name in emitter.names:
        gone = []
        for one in crossed:
            gone.append((yield from one.take_done(name)))
        done[name] = merge_by_hash(gone)
    rest = {name: merge_by_hash([one.hand.rest(name) for one in crossed]) for name in emitter.names}
    return rest, done
