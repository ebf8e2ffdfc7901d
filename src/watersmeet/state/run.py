"""Runs: immutable, hash-sorted tables of rows. All rows ever stored are in runs.

    resident    one Arrow table, memory-mapped from its file (or just made, not yet written)
    spilled     pages: record batches of bounded size in hash order, compressed, each within one bucket

        page      0     1     2     3     4
        bucket    0     0     1     3     3        pages_of(3) = [3, 4]; bucket 2 has no rows

A run carries what must be known without reading it: rows, bytes, the batches its rows came in, a sum of its hashes
(so that two runs with the same rows in another order have the same digest) and the operator's own attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.arrow import HASH, Hashes, data_bytes, hashes_of
from watersmeet.state.buckets import Buckets

Tier = Literal["resident", "spilled"]


class RunData(Protocol):
    """Where a run's rows are."""

    def table(self) -> pa.Table:
        """All rows, one chunk per column where they are memory-mapped."""

    def page(self, index: int) -> pa.Table:
        """The rows of one page."""


@dataclass(frozen=True)
class Page:
    """One page of a spilled run."""

    bucket: int
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
    pages: tuple[Page, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> pa.Table:
        """All rows. For a spilled run prefer `read`, which takes a page at a time."""
        return self.data.table()

    @property
    def hashes(self) -> Hashes:
        """The hash column."""
        return hashes_of(self.table)

    def pages_of(self, bucket: int) -> list[int]:
        """The pages of a bucket, in hash order."""
        return [index for index, page in enumerate(self.pages) if page.bucket == bucket]

    def read(self, bucket: int) -> Iterator[pa.Table]:
        """A spilled run's rows of one bucket, page by page in hash order."""
        for index in self.pages_of(bucket):
            yield self.data.page(index)

    def slice_of(self, bucket: int, buckets: Buckets) -> pa.Table:
        """A resident run's rows of one bucket, without a copy."""
        offsets = buckets.offsets(self.hashes)
        return self.table.slice(int(offsets[bucket]), int(offsets[bucket + 1] - offsets[bucket]))

    def with_attributes(self, **attributes: Any) -> Run:
        """The same rows under other attributes."""
        return replace(self, attributes={**self.attributes, **attributes})

    def digest(self) -> list[Any]:
        """What two equal runs have in common, whatever the order of rows with equal hashes."""
        pages = [[page.bucket, page.rows] for page in self.pages]
        return [
            self.label,
            self.tier,
            self.rows,
            self.nbytes,
            self.oldest,
            self.newest,
            self.hash_sum,
            pages,
            dict(self.attributes),
        ]


@dataclass(frozen=True)
class InMemory:
    """Rows that have no file yet."""

    pages: tuple[pa.Table, ...]

    def table(self) -> pa.Table:
        """All rows."""
        return self.pages[0] if len(self.pages) == 1 else pa.concat_tables(self.pages)

    def page(self, index: int) -> pa.Table:
        """One page."""
        return self.pages[index]


def resident_run(label: str, table: pa.Table, *, oldest: int, newest: int, **attributes: Any) -> Run:
    """A resident run of rows that are sorted by hash already. It is written when the batch is committed."""
    return Run(
        label=label,
        data=InMemory((table,)),
        rows=table.num_rows,
        nbytes=data_bytes(table),
        oldest=oldest,
        newest=newest,
        hash_sum=hash_sum(table),
        attributes=attributes,
    )


def hash_sum(table: pa.Table) -> int:
    """The sum of the hashes modulo 2**64; 0 for a table that has none."""
    if HASH not in table.column_names or not table.num_rows:
        return 0
    return int(hashes_of(table).sum(dtype=np.uint64))
