"""Parts of a store: rows to look at where they lie, and rows that have left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, one_chunk, take, times_of
from watersmeet.columns.saturating import Times
from watersmeet.state.rules import Horizon, Mask
from watersmeet.state.run import Run

if TYPE_CHECKING:
    from watersmeet.state.shelf import Shelf

DEAD = "dead"
PIECE_ROWS = 1 << 16  # rows that left are handed out in pieces of this size


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a run that lie together: all of a resident run, a live range of it, or a page of a spilled run."""

    store: Shelf
    run: Run
    table: pa.Table
    base: int = 0  # the number of its first row in the run
    left: Mapping[str, Indices] | None = None  # of a run that has left: its marks, which the store has forgotten

    @cached_property
    def hashes(self) -> Hashes:
        """The hash column."""
        return hashes_of(self.table)

    @cached_property
    def times(self) -> Times:
        """The time of each row, in microseconds."""
        assert self.store.time is not None
        return times_of(self.table, self.store.time)

    @cached_property
    def _ruled(self) -> Mask | None:
        rule = self.store.rule
        if self.left is not None and isinstance(rule, Horizon):
            return None  # rows behind the horizon are held until their run leaves: they leave with it
        return None if rule is None or rule.spares(self.run) else rule.alive(self.run, self.table)

    def _has(self, flag: str) -> bool:
        """Whether rows of the run have been marked since it was written."""
        return self.store.marks[flag].count(self.run) > 0 if self.left is None else flag in self.left

    def _marked(self, flag: str, rows: Indices) -> Mask:
        numbers = rows + self.base
        return (
            self.store.marks[flag].test(self.run, numbers) if self.left is None else np.isin(numbers, self.left[flag])
        )

    def alive(self, rows: Indices) -> Mask | None:
        """Which of some rows of the part are alive; None if all are."""
        marked = self.unmarked(rows)
        if self._ruled is None:
            return marked
        return self._ruled[rows] if marked is None else self._ruled[rows] & marked

    @property
    def mask(self) -> Mask | None:
        """Which rows are alive; None if all are."""
        return self.alive(np.arange(self.table.num_rows)) if self._has(DEAD) else self._ruled

    @cached_property
    def living(self) -> Indices | None:
        """The rows that are alive; None if all are."""
        mask = self.mask
        return None if mask is None else np.flatnonzero(mask)

    def unmarked(self, rows: Indices) -> Mask | None:
        """Which of some rows of the part are not marked as dead, whatever a rule says; None if none is."""
        return ~self._marked(DEAD, rows) if self._has(DEAD) else None

    def of_keys(self, wanted: Hashes) -> Indices:
        """The living rows that have one of some sorted keys; where rows are sorted, few are looked at."""
        if self.run.order == "hash":
            bounds = zip(*(np.searchsorted(self.hashes, wanted, side=side) for side in ("left", "right")), strict=True)
            found = np.concatenate([np.arange(first, last) for first, last in bounds])
        else:
            found = np.flatnonzero(np.isin(self.hashes, wanted))
        alive = self.alive(found)
        return found if alive is None else found[alive]

    @property
    def undead(self) -> Indices:
        """The rows that are not marked as dead, whatever a rule says."""
        rows = np.arange(self.table.num_rows)
        unmarked = self.unmarked(rows)
        return rows if unmarked is None else rows[unmarked]

    @property
    def is_shared_only(self) -> bool:
        """Whether the only dead rows of the run are those of other partitions."""
        foreign = self.run.foreign
        return foreign > 0 and self._ruled is None and self.store.marks[DEAD].count(self.run) == foreign

    def written(self, flag: str, rows: Indices) -> Mask:
        """Which of some rows carried a flag when the run was written; only their bits are read."""
        column = one_chunk(self.table.column(column_of(flag)))
        bits, at = np.frombuffer(column.buffers()[1], np.uint8), rows + column.offset
        return np.asarray((bits[at >> 3] >> (at & 7).astype(np.uint8)) & np.uint8(1) > 0)

    def flag(self, name: str, rows: Indices) -> Mask:
        """Which of some rows carry a flag: from the start, or since then."""
        found = self.written(name, rows)
        return found | self._marked(name, rows) if self._has(name) else found

    def take(self, rows: Indices | None) -> pa.Table:
        """Some rows with their flags as they are now; all of them for None."""
        table = self.table if rows is None else take(self.table, rows)
        for name in self.store.flags:
            if self._has(name):
                numbers = np.arange(self.table.num_rows) if rows is None else rows
                at = table.schema.get_field_index(column_of(name))
                table = table.set_column(at, table.schema.field(at), pa.array(self.flag(name, numbers)))
        return table


@dataclass(frozen=True)
class All:
    """Every row."""


@dataclass(frozen=True)
class Before:
    """Rows before a time: runs that are wholly before it at once, the others when they are rewritten."""

    time: int


@dataclass(frozen=True)
class Whole:
    """All rows of a run."""

    run: Run


@dataclass(frozen=True)
class Rows:
    """Some rows of a part."""

    part: Part
    rows: Indices


@dataclass(frozen=True)
class InBuckets:
    """The rows in memory of some buckets."""

    buckets: Sequence[int]


@dataclass(frozen=True)
class ByRule:
    """So many rows that the store's rule has declared dead; they are gone from memory when their run is rewritten."""

    count: int


What = All | Before | Whole | Rows | InBuckets | ByRule


@dataclass(frozen=True, eq=False)
class Departed:
    """Rows that have left. Nothing is read before somebody asks for them."""

    input: str
    reason: str
    rows: int
    parts: Callable[[], Iterator[tuple[Part, Indices | None]]]

    def pieces(self, most: int = PIECE_ROWS) -> Iterator[tuple[Part, Indices]]:
        """Parts and row numbers, in pieces of bounded size."""
        for part, rows in self.parts():
            numbers = np.arange(part.table.num_rows) if rows is None else rows
            for start in range(0, len(numbers), most):
                yield part, numbers[start : start + most]


def column_of(flag: str) -> str:
    """The column of a run in which a flag is that rows had when the run was written."""
    return f"_{flag}"
