"""Room for runs: what an operator may ask of whoever keeps its state.

Resident runs need no room of their own (`run.resident_run`); they are written when the batch is committed. A spilled
run is written while it is made, page by page, so that it may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.columns.arrow import data_bytes, hashes_of
from watersmeet.state.buckets import Buckets
from watersmeet.state.run import InMemory, Run, hash_sum, shares

BucketPage = tuple[int, pa.Table]  # a bucket, and some of its rows in hash order

PAGE_ROWS = 8192


class SpillWriter(Protocol):
    """A spilled run in the making."""

    def add(self, bucket: int, page: pa.Table) -> None:
        """Append a page."""

    def finish(self, *, oldest: int, newest: int, **facts: Any) -> Run:
        """The run, complete."""


class RunSpace(Protocol):
    """Where spilled runs go. `partition` is the key partition whose state this is."""

    partition: int

    def spill(self, label: str, pages: Iterable[BucketPage], *, oldest: int, newest: int, **facts: Any) -> Run:
        """Write a spilled run, page by page, buckets and hashes ascending. Pages must not be empty."""

    def writer(self, label: str, schema: pa.Schema) -> SpillWriter:
        """The same for pages that are handed over one by one, so that several runs can be written at once."""


class MemorySpace:
    """Spilled runs held in memory: for the lab and for tests, where pages are counted and not read from disk."""

    partition = 0

    def spill(self, label: str, pages: Iterable[BucketPage], *, oldest: int, newest: int, **facts: Any) -> Run:
        """Keep the pages."""
        kept = list(pages)
        tables = tuple(table for _, table in kept)
        return Run(
            label=label,
            data=InMemory(tables),
            rows=sum(table.num_rows for table in tables),
            nbytes=sum(data_bytes(table) for table in tables),
            oldest=oldest,
            newest=newest,
            hash_sum=sum(hash_sum(table) for table in tables) % (1 << 64),
            tier="spilled",
            shares=shares((bucket, table.num_rows) for bucket, table in kept),
            **facts,
        )

    def writer(self, label: str, schema: pa.Schema) -> SpillWriter:
        """Collect the pages."""
        return _MemoryWriter(self, label)


class _MemoryWriter:
    def __init__(self, space: MemorySpace, label: str) -> None:
        self.space, self.label = space, label
        self.pages: list[BucketPage] = []

    def add(self, bucket: int, page: pa.Table) -> None:
        self.pages.append((bucket, page))

    def finish(self, *, oldest: int, newest: int, **facts: Any) -> Run:
        return self.space.spill(self.label, self.pages, oldest=oldest, newest=newest, **facts)


def cut_into_pages(table: pa.Table, buckets: Buckets, page_rows: int = PAGE_ROWS) -> Iterator[BucketPage]:
    """The pages of a hash-sorted table: each within one bucket and at most `page_rows` long."""
    offsets = buckets.offsets(hashes_of(table))
    for bucket in range(buckets.count):
        low, high = int(offsets[bucket]), int(offsets[bucket + 1])
        for start in range(low, high, page_rows):
            yield bucket, table.slice(start, min(page_rows, high - start))
