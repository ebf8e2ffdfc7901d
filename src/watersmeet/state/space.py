"""Room for runs: what an operator may ask of whoever keeps its state.

Resident runs need no room of their own (`run.resident_run`); they are written when the batch is committed. A spilled
run is written while it is made, page by page, so that it may be larger than memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.columns.arrow import data_bytes, hashes_of
from watersmeet.state.buckets import Buckets
from watersmeet.state.directory import ArrowWriter, StateDir
from watersmeet.state.run import InMemory, Run, hash_sum, shares
from watersmeet.state.side_table import SideTable
from watersmeet.state.stored_run import PageReaders, StoredRun

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


class FileSpace:
    """Where one attempt of one batch writes its run files."""

    def __init__(
        self, directory: StateDir, folder: str, partition: int, batch: int, attempt: str, readers: PageReaders
    ) -> None:
        self.directory = directory
        self.partition = partition
        self.readers = readers
        self.room = directory.open_room(f"{folder}/run-{batch:012d}-{attempt}-{uuid.uuid4().hex[:8]}")

    def spill(self, label: str, pages: Iterable[BucketPage], *, oldest: int, newest: int, **facts: Any) -> Run:
        """Write a spilled run: one compressed record batch per page."""
        first, rest = _peek(pages)
        writer = self.writer(label, first[1].schema)
        for bucket, page in rest:
            writer.add(bucket, page)
        return writer.finish(oldest=oldest, newest=newest, **facts)

    def writer(self, label: str, schema: pa.Schema) -> SpillWriter:
        """Write a spilled run, a page at a time."""
        return _FileWriter(self.directory, self.room.writer(schema, "lz4"), label, self.readers)

    def store(self, run: Run) -> Run:
        """Write a resident run that has no file yet."""
        if isinstance(run.data, StoredRun):
            return run
        return replace(run, data=self._write(run.table))

    def store_table(self, table: SideTable) -> StoredRun:
        """Write a side table that has no file yet."""
        if isinstance(table.data, StoredRun):
            return table.data
        return self._write(table.table)

    def _write(self, table: pa.Table) -> StoredRun:
        writer = self.room.writer(table.schema, None)
        writer.write(_single_batch(table))
        length, checksum = writer.close()
        rows = table.num_rows
        return StoredRun(self.directory, writer.name, length, checksum, rows, verify=False, readers=self.readers)


class _FileWriter:
    def __init__(self, directory: StateDir, file: ArrowWriter, label: str, readers: PageReaders) -> None:
        self.directory, self.file, self.label, self.readers = directory, file, label, readers
        self.pages: list[tuple[int, int]] = []
        self.nbytes = self.hash_sum = 0

    def add(self, bucket: int, page: pa.Table) -> None:
        self.pages.append((bucket, page.num_rows))
        self.nbytes += data_bytes(page)
        self.hash_sum += hash_sum(page)
        self.file.write(_single_batch(page))

    def finish(self, *, oldest: int, newest: int, **facts: Any) -> Run:
        length, checksum = self.file.close()
        rows = sum(rows for _, rows in self.pages)
        return Run(
            label=self.label,
            data=StoredRun(self.directory, self.file.name, length, checksum, rows, verify=False, readers=self.readers),
            rows=rows,
            nbytes=self.nbytes,
            oldest=oldest,
            newest=newest,
            hash_sum=self.hash_sum % (1 << 64),
            tier="spilled",
            shares=shares(self.pages),
            **facts,
        )


def cut_into_pages(table: pa.Table, buckets: Buckets, page_rows: int = PAGE_ROWS) -> Iterator[BucketPage]:
    """The pages of a hash-sorted table: each within one bucket and at most `page_rows` long."""
    offsets = buckets.offsets(hashes_of(table))
    for bucket in range(buckets.count):
        low, high = int(offsets[bucket]), int(offsets[bucket + 1])
        for start in range(low, high, page_rows):
            yield bucket, table.slice(start, min(page_rows, high - start))


def _single_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _peek(pages: Iterable[BucketPage]) -> tuple[BucketPage, Iterator[BucketPage]]:
    iterator = iter(pages)
    first = next(iterator)

    def rest() -> Iterator[BucketPage]:
        yield first
        yield from iterator

    return first, rest()
