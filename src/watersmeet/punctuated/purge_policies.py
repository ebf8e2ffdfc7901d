"""When to purge: at once, or when enough promises have come together.

On-the-fly dropping is not a matter of policy: a row without a future is never stored. A policy only decides when the
rows that are already stored are looked up. With single keys found by hash and ranges by binary search a purge costs
what it purges, so purging at once is the default; waiting saves marks that are written one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.columns.arrow import HASH, key_name, sort_by_hash
from watersmeet.punctuated.promises.intervals import IntervalSet
from watersmeet.punctuated.promises.keyed_patterns import KeyedPatterns
from watersmeet.punctuated.promises.ordering import Ordering
from watersmeet.punctuated.promises.punctuation import Delta
from watersmeet.state.side_table import SideTable


class PurgePolicy(Protocol):
    """Decides whether a purge is due."""

    def due(self, promises: int, *, idle: bool, pressure: bool) -> bool:
        """Given the promises not yet purged, whether the batch brought no row, and whether memory is short."""


class ImmediatePurge:
    """Purge in the batch that brings the promise: the smallest state, the earliest propagation."""

    def due(self, promises: int, *, idle: bool, pressure: bool) -> bool:
        """Whenever there is anything to purge."""
        return promises > 0


class BatchPurge:
    """Purge after `after` promises, when memory is short, or when a batch brings no row."""

    def __init__(self, after: int) -> None:
        self.after = after

    def due(self, promises: int, *, idle: bool, pressure: bool) -> bool:
        """See the class."""
        return promises >= self.after or (promises > 0 and (idle or pressure))


def purge_policy(name: str, after: int) -> PurgePolicy:
    """The policy of that name."""
    return ImmediatePurge() if name == "immediate" else BatchPurge(after)


class Unpurged:
    """New promises of one input that nothing has been done about yet, under a label of their own."""

    def __init__(self, label: str, kinds: Sequence[pa.DataType]) -> None:
        self.label = label
        self.kinds = tuple(kinds)
        self.count = 0
        self.everything = False
        self._fresh: list[Delta] = []  # those of this batch; often they are taken before the batch ends
        self._points = KeyedPatterns(kinds, range(len(kinds)), (), self.label)
        self._ranges: dict[int, IntervalSet] = {}

    def add(self, delta: Delta) -> None:
        """Remember new promises."""
        self.count += delta.count
        self.everything |= delta.everything
        self._fresh.append(delta)

    def _keep(self) -> None:
        """Put this batch's promises where they can stay."""
        for delta in self._fresh:
            if delta.points is not None:
                new = delta.points.filter(pa.array(self._points.find(delta.points) == 0))
                self._points.add(self._points.entries(new, {}, 1, 0))
            for column, pieces in delta.ranges.items():
                self._range(column).add(pieces)
        self._fresh = []

    def _range(self, column: int) -> IntervalSet:
        if column not in self._ranges:
            self._ranges[column] = IntervalSet(Ordering(self.kinds[column]), self.label, column)
        return self._ranges[column]

    def take(self) -> Delta:
        """All of it; nothing is left."""
        delta = Delta(everything=self.everything, count=self.count)
        names = [HASH, *(key_name(i) for i in range(len(self.kinds)))]
        if self._points.pieces:
            kept = [piece.table.select(names) for piece in self._points.pieces]
            delta.points = sort_by_hash(pa.concat_tables(kept))
        for column, held in self._ranges.items():
            for part in held.parts:
                delta.add(Delta(ranges={column: part}))
        for fresh in self._fresh:
            delta.add(Delta(fresh.points, fresh.ranges))
        self.count, self.everything, self._fresh, self._points.pieces, self._ranges = 0, False, [], [], {}
        return delta

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """Tables and values."""
        self._keep()
        tables = self._points.save()
        for column in sorted(self._ranges):
            tables |= self._ranges[column].save()
        return tables, {"count": self.count, "everything": self.everything}

    def restore(self, tables: Mapping[str, SideTable], values: Mapping[str, Any]) -> None:
        """What `save` returned; tables of other labels are passed over."""
        self.count, self.everything = values["count"], values["everything"]
        for name, table in tables.items():
            label, _, shape = name.partition("/")
            if label == self.label and shape.startswith("intervals/"):
                self._range(int(shape.split("/")[1])).restore(table)
            elif label == self.label:
                self._points.pieces.append(table)
