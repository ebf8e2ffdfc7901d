"""A hash-sorted table that grows with every batch, in a few pieces: keys with their numbers, not rows of an input.

A younger piece at least half as long as the one before it is merged with it, so there are O(log) pieces and an entry is
rewritten O(log) times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, hashes_of, merge_by_hash, take
from watersmeet.state.marks import Mask
from watersmeet.state.side_table import SideTable


class SortedTables:
    """Entries with a `_hash`; `combine` makes one entry of those that belong together when pieces are merged."""

    def __init__(self, schema: pa.Schema, combine: Callable[[pa.Table], pa.Table] | None = None) -> None:
        self.schema = schema
        self.combine = combine
        self.pieces: list[SideTable] = []

    @property
    def rows(self) -> int:
        """How many entries there are."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(piece.nbytes for piece in self.pieces)

    def add(self, table: pa.Table) -> None:
        """Add entries, sorted by hash."""
        if not table.num_rows:
            return
        self.pieces.append(SideTable.of(table))
        while len(self.pieces) > 1 and 2 * self.pieces[-1].rows >= self.pieces[-2].rows:
            self.pieces[-2:] = [SideTable.of(self._merged(self.pieces[-2:]))]

    def table(self) -> pa.Table:
        """All entries, sorted by hash."""
        return self._merged(self.pieces)

    def _merged(self, pieces: list[SideTable]) -> pa.Table:
        table = merge_by_hash([self.schema.empty_table(), *(piece.table for piece in pieces)])
        return self.combine(table) if self.combine else table

    def holds(self, hashes: Hashes) -> Mask:
        """Which hashes have an entry."""
        found = np.zeros(len(hashes), np.bool_)
        for piece in self.pieces:
            found |= contains(hashes_of(piece.table), hashes)
        return found

    def drop(self, gone: Hashes) -> None:
        """Remove the entries of some hashes (sorted); pieces that have none of them stay as they are."""
        kept = []
        for piece in self.pieces:
            stays = ~contains(gone, hashes_of(piece.table))
            if stays.all():
                kept.append(piece)
            elif stays.any():
                kept.append(SideTable.of(take(piece.table, np.flatnonzero(stays))))
        self.pieces = kept

    def clear(self) -> None:
        """Forget everything."""
        self.pieces = []

    def save(self, name: str) -> dict[str, SideTable]:
        """The pieces under names that begin with `name`."""
        return {f"{name}.{number}": piece for number, piece in enumerate(self.pieces)}

    def restore(self, name: str, tables: Mapping[str, SideTable]) -> None:
        """Take up what `save` returned; tables of other names are passed over."""
        mine = sorted((int(key.rpartition(".")[2]), key) for key in tables if key.rpartition(".")[0] == name)
        self.pieces = [tables[key] for _, key in mine]


def contains(ordered: Hashes, wanted: Hashes) -> Mask:
    """Which of the wanted values are in a sorted array."""
    if not len(ordered):
        return np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.asarray(ordered[at] == wanted)
