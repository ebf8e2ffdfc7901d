"""Writing a master table: rows of a partition into chunk files, chunks into a version.

Chunk files are written by tasks that may be repeated, so their names carry the attempt; only the files that a finished
attempt reports are named in a manifest. A version exists when its manifest has been published, which happens last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple

import numpy as np
import pyarrow as pa

from watersmeet.arrow import data_bytes, drop_null_keys, hashes_of, sort_by_hash
from watersmeet.semistream.master_table import (
    FORMAT,
    MASTER_FILE,
    Chunk,
    Description,
    Layout,
    MasterTable,
    version_name,
)
from watersmeet.state.directory import StateDir, seal


class PartitionWriter:
    """Cuts the rows of one partition into chunks of about `chunk_rows`, writing each as soon as it is full.

    In the layout "hash" the rows must come in hash order, and a chunk grows beyond `chunk_rows` rather than share a
    hash with the next one.
    """

    def __init__(
        self,
        directory: StateDir,
        version: int,
        partition: int,
        schema: pa.Schema,
        *,
        chunk_rows: int,
        layout: Layout = "hash",
        attempt: str = "0",
    ) -> None:
        self.directory = directory
        self.folder = f"{version_name(version)}/part-{partition:05d}"
        self.schema = schema
        self.chunk_rows = chunk_rows
        self.layout = layout
        self.attempt = attempt
        self.chunks: list[Chunk] = []
        self._buffer: list[pa.Table] = []
        self._rows = 0
        directory.fs.create_dir(directory.path(self.folder), recursive=True)

    def add(self, table: pa.Table) -> None:
        """Take more rows."""
        if not table.num_rows:
            return
        self._buffer.append(table)
        self._rows += table.num_rows
        # Waiting for twice the size keeps the cost of looking for a cut in proportion to what is written.
        if self._rows >= 2 * self.chunk_rows:
            self._cut(last=False)

    def close(self) -> list[Chunk]:
        """Write what is left; a partition has at least one chunk, if an empty one."""
        self._cut(last=True)
        return self.chunks

    def _cut(self, *, last: bool) -> None:
        table = pa.concat_tables([self.schema.empty_table(), *self._buffer]).combine_chunks()
        begin = 0
        for end in self._ends(table):
            self._write(table.slice(begin, end - begin))
            begin = end
        rest = table.slice(begin)
        if last and (rest.num_rows or not self.chunks):
            self._write(rest)
            rest = rest.slice(rest.num_rows)
        self._buffer, self._rows = [rest], rest.num_rows

    def _ends(self, table: pa.Table) -> list[int]:
        """Where full chunks end. Rows that may belong to the last group of equal hashes stay for the next call."""
        if self.layout == "arrival":
            return list(range(self.chunk_rows, table.num_rows + 1, self.chunk_rows))
        hashes = hashes_of(table)
        if np.any(hashes[1:] < hashes[:-1]):
            raise ValueError("rows of a hash-ordered master table must come in hash order")
        changes = np.flatnonzero(hashes[1:] != hashes[:-1]) + 1
        ends: list[int] = []
        while True:
            wanted = (ends[-1] if ends else 0) + self.chunk_rows
            at = int(np.searchsorted(changes, wanted))
            if at == len(changes):
                return ends
            ends.append(int(changes[at]))

    def _write(self, table: pa.Table) -> None:
        if self.layout == "arrival":
            table = sort_by_hash(table)
        name = f"{self.folder}/chunk-{len(self.chunks):05d}-{self.attempt}.arrow"
        batches = table.combine_chunks().to_batches()
        length, checksum = self.directory.write_arrow(name, self.schema, batches, None)
        low = int(hashes_of(table)[0]) if table.num_rows else 0
        self.chunks.append(Chunk(name, length, checksum, table.num_rows, data_bytes(table), low))


def publish_version(
    path: str,
    description: Description,
    number: int,
    partitions: Mapping[int, Sequence[Chunk]],
    *,
    chunk_rows: int,
    layout: Layout = "hash",
) -> None:
    """Make a version out of the chunks of all partitions, and remove what unfinished attempts left beside them."""
    directory = StateDir(path)
    if directory.size(MASTER_FILE) is None:
        directory.publish(MASTER_FILE, seal(description.to_json()))
    common = {"format": FORMAT, "master": description.id, "layout": layout}
    for partition, chunks in partitions.items():
        body = {
            **common,
            "version": number,
            "partition": partition,
            "schema": description.schema,
            "chunks": [astuple(chunk) for chunk in chunks],
        }
        directory.publish(f"{version_name(number)}/part-{partition:05d}.json", seal(body))
        named = {chunk.file for chunk in chunks}
        folder = f"{version_name(number)}/part-{partition:05d}"
        for name in directory.list(folder):
            if f"{folder}/{name}" not in named:
                directory.delete(f"{folder}/{name}")
    everything = [chunk for chunks in partitions.values() for chunk in chunks]
    summary = {
        **common,
        "version": number,
        "chunk_rows": chunk_rows,
        "rows": sum(chunk.rows for chunk in everything),
        "nbytes": sum(chunk.nbytes for chunk in everything),
        "chunks": len(everything),
    }
    directory.publish(f"{version_name(number)}.json", seal(summary))


def write_version(
    path: str,
    description: Description,
    tables: Iterable[pa.Table],
    *,
    chunk_rows: int,
    layout: Layout = "hash",
) -> int:
    """Write a version from tables of rows in process: one table per partition, in order. Returns its number."""
    directory = StateDir(path)
    directory.create()
    there = MasterTable(path).versions()
    number = there[-1] + 1 if there else 1
    chunks: dict[int, list[Chunk]] = {}
    for partition, table in enumerate(tables):
        rows = drop_null_keys(table)
        writer = PartitionWriter(
            directory, number, partition, description.arrow_schema, chunk_rows=chunk_rows, layout=layout
        )
        writer.add(sort_by_hash(rows) if layout == "hash" else rows)
        chunks[partition] = writer.close()
    publish_version(path, description, number, chunks, chunk_rows=chunk_rows, layout=layout)
    return number
