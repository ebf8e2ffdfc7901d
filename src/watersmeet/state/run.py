"""Runs: immutable, hash-sorted tables of rows. All rows ever stored are in runs.

    resident    one Arrow table, memory-mapped from its file (or just made, not yet written)
    spilled     pages: record batches of bounded size in hash order, compressed, each within one bucket

        page      0     1     2     3     4
        bucket    0     0     1     3     3        shares: (0, 2 pages), (1, 1 page), (3, 2 pages)

Rows can leave a stored run (flushed, merged elsewhere) without a rewrite: `live` lists the ranges that are still
there, and `rows` and `nbytes` count only those.

        rows      0 ..... 1200 ..... 5000 ..... 9000
        live      [0, 1200)          [5000, 9000)        the rows between were dropped with `without`

A run carries what must be known without reading it: rows, bytes, the batches its rows came in, a sum of its hashes
(so that two runs with the same rows in another order have the same digest) and what its store knows of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from sys import maxsize
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import HASH, Hashes, data_bytes, hashes_of, stretch_bytes

Tier = Literal["resident", "spilled"]
Order = Literal["hash", "arrival"]  # sorted by hash (and time, where the store has one), or as the rows came


class RunData(Protocol):
    """Where a run's rows are."""

    @property
    def rows(self) -> int:
        """How many rows there are."""

    def table(self) -> pa.Table:
        """All rows, one chunk per column where they are memory-mapped."""

    def page(self, index: int) -> pa.Table:
        """The rows of one page."""


@dataclass(frozen=True)
class Share:
    """A bucket's share of a spilled run."""

    bucket: int
    pages: int
    rows: int


def shares(pages: Iterable[tuple[int, int]]) -> tuple[Share, ...]:
    """The shares of pages that are given with their bucket and rows, buckets ascending.

    >>> shares([(0, 8), (0, 3), (2, 5)])
    (Share(bucket=0, pages=2, rows=11), Share(bucket=2, pages=1, rows=5))
    """
    found: dict[int, Share] = {}
    for bucket, rows in pages:
        before = found.get(bucket, Share(bucket, 0, 0))
        found[bucket] = Share(bucket, before.pages + 1, before.rows + rows)
    return tuple(found.values())


@dataclass(frozen=True)
class Place:
    """Where a bucket's share lies in a run: its pages, and its rows from `start` on."""

    pages: range
    start: int
    rows: int


@dataclass(frozen=True, eq=False)
class Run:
    """A stored piece of one input. `label` says whose rows these are (an input's name, or what the operator chose)."""

    label: str
    data: RunData
    rows: int
    nbytes: int
    oldest: int
    newest: int
    hash_sum: int
    tier: Tier = "resident"
    shares: tuple[Share, ...] = ()  # of the buckets, as stored
    live: tuple[tuple[int, int], ...] | None = None  # None: all rows are there
    id: int = 0  # counts up within a store; rewritten rows get a new run
    level: int = 0  # how many merges made it
    order: Order = "hash"
    slot: int = 0  # runs of one slot belong together: a slice of time, a generation, a number of chunks read
    width: int = 0  # of a slice of time
    time_from: int | None = None
    time_to: int | None = None
    keys: int = 0  # about how many different ones
    spent: int = 0  # nanoseconds of scanning so far, for a run as it came
    foreign: int = 0  # rows of other partitions, marked as dead: the run was divided by reference

    @property
    def table(self) -> pa.Table:
        """All rows as stored, dropped ones too. For a spilled run prefer `read`, which takes a page at a time."""
        return self.data.table()

    @property
    def own(self) -> int:
        """The rows that are not of other partitions."""
        return self.rows - self.foreign

    @property
    def parts(self) -> list[pa.Table]:
        """A resident run's live rows, as slices in hash order, without a copy."""
        if self.live is None:
            return [self.table]
        return [self.table.slice(start, stop - start) for start, stop in self.live]

    @property
    def hashes(self) -> Hashes:
        """The hash column."""
        return hashes_of(self.table)

    def has(self, row: int) -> bool:
        """Whether a row of the file is still there."""
        if self.live is None:
            return True
        at = bisect_right(self.live, (row, maxsize)) - 1
        return at >= 0 and row < self.live[at][1]

    @cached_property
    def places(self) -> dict[int, Place]:
        """Where each bucket of a spilled run is; buckets that were dropped are not."""
        found, page, start = {}, 0, 0
        for share in self.shares:
            if self.has(start):
                found[share.bucket] = Place(range(page, page + share.pages), start, share.rows)
            page, start = page + share.pages, start + share.rows
        return found

    def read(self, bucket: int) -> Iterator[pa.Table]:
        """A spilled run's rows of one bucket, page by page in hash order."""
        place = self.places.get(bucket)
        for index in place.pages if place else ():
            yield self.data.page(index)

    def without(self, ranges: Iterable[tuple[int, int]]) -> Run:
        """The run less some ranges of its rows; its file stays as it is.

        What is left of a spilled run is not read: its bytes are counted in proportion to its rows.
        """
        live = subtract_ranges(((0, self.stored_rows),) if self.live is None else self.live, ranges)
        rows = sum(stop - start for start, stop in live)
        # Which rows of other partitions are among them is not looked at: as many as there are in proportion.
        left = replace(self, live=live, rows=rows, foreign=self.foreign * rows // self.rows if self.rows else 0)
        if self.tier == "resident":
            edges = [edge for bounds in live for edge in bounds]
            return replace(left, nbytes=int(stretch_bytes(self.table, edges)[::2].sum()) if live else 0)
        return replace(left, nbytes=self.nbytes * rows // self.rows if self.rows else 0)

    def without_bucket(self, bucket: int) -> Run:
        """A spilled run less the pages of one bucket."""
        place = self.places.get(bucket)
        return self if place is None else self.without([(place.start, place.start + place.rows)])

    @property
    def stored_rows(self) -> int:
        """The rows in the file, dropped ones too."""
        return self.data.rows

    def facts(self) -> dict[str, Any]:
        """What the store and its layout know of the run, where it is not what it is by default."""
        facts = zip(FACTS, _facts(self), _DEFAULTS, strict=True)
        return {name: value for name, value, default in facts if value != default}

    def digest(self) -> list[Any]:
        """What two equal runs have in common, whatever the order of rows with equal hashes."""
        return [
            self.label,
            self.tier,
            self.rows,
            self.nbytes,
            self.oldest,
            self.newest,
            self.hash_sum,
            [[share.bucket, share.pages, share.rows] for share in self.shares],
            self.live,
            _facts(self),
        ]


@dataclass(frozen=True)
class InMemory:
    """Rows that have no file yet."""

    pages: tuple[pa.Table, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(page.num_rows for page in self.pages)

    def table(self) -> pa.Table:
        """All rows."""
        return self.pages[0] if len(self.pages) == 1 else pa.concat_tables(self.pages)

    def page(self, index: int) -> pa.Table:
        """One page."""
        return self.pages[index]


# What a store and its layout know of a run besides its rows.
FACTS = ("id", "level", "order", "slot", "width", "time_from", "time_to", "keys", "spent", "foreign")
_facts = attrgetter(*FACTS)
_DEFAULTS = _facts(Run)


def resident_run(label: str, table: pa.Table, *, oldest: int, newest: int, **facts: Any) -> Run:
    """A resident run. It is written when the batch is committed."""
    return Run(
        label=label,
        data=InMemory((table,)),
        rows=table.num_rows,
        nbytes=data_bytes(table),
        oldest=oldest,
        newest=newest,
        hash_sum=hash_sum(table),
        **facts,
    )


def subtract_ranges(ranges: Iterable[tuple[int, int]], holes: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ascending ranges less others.

    >>> subtract_ranges([(0, 10), (20, 30)], [(4, 6), (8, 22)])
    ((0, 4), (6, 8), (22, 30))
    """
    left = list(ranges)
    for low, high in holes:
        cut = [piece for start, stop in left for piece in ((start, min(stop, low)), (max(start, high), stop))]
        left = [(start, stop) for start, stop in cut if start < stop]
    return tuple(left)


def hash_sum(table: pa.Table) -> int:
    """The sum of the hashes modulo 2**64; 0 for a table that has none."""
    if HASH not in table.column_names or not table.num_rows:
        return 0
    return int(hashes_of(table).sum(dtype=np.uint64))
