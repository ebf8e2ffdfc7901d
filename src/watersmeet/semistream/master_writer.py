"""Writing a master table: rows of a partition into chunk files, chunks into a version.

Chunk files are written by tasks that may be repeated, so their names carry the attempt; only the files that a finished
attempt reports are named in a manifest. A version exists when its manifest has been published, which happens last and
takes a number that nobody has: a version replaces the whole table and owes nothing to the one before it, so of two
writers at once the later simply gets the next number.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import data_bytes, drop_null_keys, hashes_of, sort_by_hash
from watersmeet.errors import StateDirError
from watersmeet.semistream.master_table import FORMAT, Chunk, Description, Layout, MasterTable, version_name
from watersmeet.state.directory import StateDir, seal

ROWS = "rows-"


def new_folder() -> str:
    """A folder for the rows of a version that no other writer has."""
    return f"{ROWS}{uuid.uuid4().hex}"


class PartitionWriter:
    """Cuts the rows of one partition into chunks of about `chunk_rows`, writing each as soon as it is full.

    In the layout "hash" the rows must come in hash order, and a chunk grows beyond `chunk_rows` rather than share a
    hash with the next one.
    """

    def __init__(
        self,
        directory: StateDir,
        folder: str,
        partition: int,
        schema: pa.Schema,
        *,
        chunk_rows: int,
        layout: Layout = "hash",
        attempt: str = "0",
    ) -> None:
        self.directory = directory
        self.folder = f"{folder}/part-{partition:05d}"
        self.schema = schema
        self.chunk_rows = chunk_rows
        self.layout = layout
        self.attempt = attempt
        self.chunks: list[Chunk] = []
        self._buffer: list[pa.Table] = []
        self._rows = 0
        directory.make(self.folder)

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
    folder: str,
    partitions: Mapping[int, Sequence[Chunk]],
    *,
    chunk_rows: int,
    layout: Layout = "hash",
    first: bool = False,
) -> int:
    """Make a version out of the chunks of all partitions in `folder`; returns its number.

    With `first` it must be the first version of the table, and it is an error if there is one already.
    """
    table = MasterTable(path)
    common = {"format": FORMAT, "master": description.id, "layout": layout, "folder": folder}
    for partition, chunks in partitions.items():
        body = {
            **common,
            "partition": partition,
            "schema": description.schema,
            "chunks": [astuple(chunk) for chunk in chunks],
        }
        table.directory.publish(f"{folder}/part-{partition:05d}.json", seal(body))
        _keep_only(table.directory, f"{folder}/part-{partition:05d}", {chunk.file for chunk in chunks})
    everything = [chunk for chunks in partitions.values() for chunk in chunks]
    summary = {
        **common,
        "table": description.to_json(),
        "chunk_rows": chunk_rows,
        "rows": sum(chunk.rows for chunk in everything),
        "nbytes": sum(chunk.nbytes for chunk in everything),
        "chunks": len(everything),
    }
    number = 0
    while True:
        number = 1 if first else max([number, *table.versions()]) + 1
        # A number that was free because its version has been removed meanwhile is below a mark: this version counts as
        # replaced by those that came in between, and nobody sees it.
        if table.directory.publish_new(f"{version_name(number)}.json", seal({**summary, "version": number})):
            return number
        if first:
            table.directory.delete_tree(folder)
            raise already_prepared(table)


def already_prepared(table: MasterTable) -> StateDirError:
    """The error for a path at which a table has been prepared before, or in the meantime."""
    return StateDirError(
        "prepare_master",
        expected="a directory without a master table",
        found=f"version {table.newest} at {table.directory.uri}",
        hint="Call refresh_master(df, path) for a new version, or give another path.",
    )


def _keep_only(directory: StateDir, folder: str, named: set[str]) -> None:
    """Remove what unfinished attempts left beside a version's chunks, and see that all the chunks are there."""
    there = {f"{folder}/{name}" for name in directory.list(folder)}
    for name in there - named:
        directory.delete(name)
    if missing := named - there:
        raise StateDirError(
            f"master table {directory.uri}",
            expected=f"the {len(named)} chunk files written to {folder}",
            found=f"{len(missing)} of them gone",
            hint="They were deleted before the version was complete, as files of a dead writer are after a day without "
            "a change: write it again.",
        )


def write_version(
    path: str,
    description: Description,
    tables: Iterable[pa.Table],
    *,
    chunk_rows: int,
    layout: Layout = "hash",
) -> int:
    """Write a version from tables of rows in process: one table per partition, in order. Returns its number."""
    directory, folder = StateDir(path), new_folder()
    directory.create()
    chunks: dict[int, list[Chunk]] = {}
    for partition, table in enumerate(tables):
        rows = drop_null_keys(table)
        writer = PartitionWriter(
            directory, folder, partition, description.arrow_schema, chunk_rows=chunk_rows, layout=layout
        )
        writer.add(sort_by_hash(rows) if layout == "hash" else rows)
        chunks[partition] = writer.close()
    return publish_version(path, description, folder, chunks, chunk_rows=chunk_rows, layout=layout)
