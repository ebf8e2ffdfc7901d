"""The master table: versions of a table, cut by key partition and then into chunks, read through a memory map.

    path/
      v-000002.json                            a version exists when this file does: what the table is, its folder
      rows-<id>/part-00003.json                the chunks of a partition: file, length, checksum, rows, lowest hash
      rows-<id>/part-00003/chunk-00000-<attempt>.arrow
      from-000002-<id>                         the versions before 2 are removed
      joins/<id>.json                          state directories of the joins that read the table

A writer puts its rows into a folder of its own and then takes the next free number; the first to create the version's
file has it. So writers at the same time get different versions, and none touches what another has written.

Partitions are cut as those of a join are (`pmod(hash, P)`). A join with another number of them reads a partition of the
table that has its keys and others', or several as one (`share`). In the layout "hash" chunk i of a partition holds the
hashes from its lowest up to the next chunk's lowest, and no hash is in two chunks, so a row of the stream needs one
chunk; in the layout "arrival" rows are where they happened to come. Inside a chunk rows are always sorted by hash:
probing one touches only the pages it needs. What is read depends on (version, partition, chunk) and on nothing else.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, merge_by_hash
from watersmeet.columns.partitions import Partition
from watersmeet.errors import CorruptStateError, StateDirError
from watersmeet.state.directory import StateDir, check_fields, unseal

FORMAT = 2
_VERSION = re.compile(r"v-(\d{6,})\.json$")
_FLOOR = re.compile(r"from-(\d{6,})-\w+$")

Layout = Literal["hash", "arrival"]

_VERIFIED: set[tuple[str, str, int | None]] = set()  # path, checksum and time of the chunks this process has checked


@dataclass(frozen=True)
class Description:
    """What all versions of a master table have in common. `fields` belongs to whoever prepared it."""

    id: str
    keys: list[str]
    columns: list[str]
    schema: str
    partitions: int
    hash: str
    fields: list[Any] = field(default_factory=list)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the chunks."""
        return decode_schema(self.schema)

    def to_json(self) -> dict[str, Any]:
        """For the file of a version."""
        return asdict(self)


@dataclass(frozen=True)
class Chunk:
    """One chunk as its partition's manifest lists it."""

    file: str
    length: int
    checksum: str
    rows: int
    nbytes: int
    low: int


class MasterTable:
    """A prepared master table."""

    def __init__(self, path: str) -> None:
        self.directory = StateDir(path)

    @cached_property
    def description(self) -> Description:
        """What the table is."""
        return Description(**self.latest()["table"])

    def latest(self) -> dict[str, Any]:
        """What `version` says of the newest one."""
        while True:
            number = self.newest
            try:
                return self.version(number)
            except StateDirError:
                if number in self.versions():
                    raise
                # A newer one has taken its place meanwhile.

    def about(self) -> dict[str, Any]:
        """What decides how it is read: its size, its layout, its partitions."""
        newest = self.latest()
        return {**newest, "partitions": newest["table"]["partitions"]}

    def versions(self) -> list[int]:
        """The versions there are, oldest first."""
        names: list[str] | None = None
        while names != (found := self.directory.list()):
            names = found
            floor = max((floor_of(name) or 0 for name in names), default=0)
            if there := [number for number in _numbers(names) if number >= floor]:
                return there
            # A listing is no snapshot: it may miss a version published meanwhile, and that version's predecessor,
            # removed meanwhile. Two equal listings without a version are believed.
        return []

    @property
    def newest(self) -> int:
        """The newest version."""
        there = self.versions()
        if not there:
            raise StateDirError(
                f"master table {self.directory.uri}",
                expected="a table written by prepare_master",
                found="no version of one",
                hint="Prepare it first: prepare_master(df, on=..., path=...).",
            )
        return there[-1]

    def version(self, number: int) -> dict[str, Any]:
        """Rows, bytes, layout, chunk size and folder of a version."""
        name = f"{version_name(number)}.json"
        body = self._document(name, version=number)
        where = self.directory.path(name)
        check_fields(body, where, "chunk_rows", "rows", "nbytes", "layout", "folder", "table")
        check_fields(body["table"], where, *(part.name for part in fields(Description)))
        return body

    def every_version(self) -> list[int]:
        """Those too that are being removed."""
        return _numbers(self.directory.list())

    def share(self, number: int, partition: Partition, master: str = "") -> MasterPartition:
        """All of a version that a partition of a join can need, whatever numbers of partitions join and table have."""
        origins = partition.origins(self.parts(number, master))
        parts = [self.partition(number, one, master) for one in origins]
        if len(parts) == 1:
            return parts[0]
        if parts[0].layout == "hash":
            ranges = max(parts, key=lambda part: part.count).chunks
            first = parts[0]
            return SeveralPartitions(
                first.directory, first.master, number, "hash", first.schema, ranges, tuple(origins), parts
            )  # fmt: skip
        return replace(parts[0], chunks=[chunk for part in parts for chunk in part.chunks], numbers=tuple(origins))

    def parts(self, number: int, master: str = "") -> int:
        """Into how many partitions it is cut: the same in all versions."""
        known = (self.directory.place, master)
        if known not in _PARTITIONS:
            table = Description(**self.version(number)["table"])
            if table.id != master or self.directory.is_local:
                return table.partitions
            _PARTITIONS[known] = table.partitions
        return _PARTITIONS[known]

    def partition(self, number: int, partition: int, master: str = "") -> MasterPartition:
        """One partition of one version. Of a `master` whose id is known a process asks an object store only once: a
        version never changes."""
        known = (self.directory.place, master, number, partition)
        if not (found := _KNOWN.get(known)):
            found = self._partition(number, partition)
            if found.master == master and not self.directory.is_local:
                _KNOWN[known] = found
                for oldest in list(_KNOWN)[:-_MOST_KNOWN]:
                    _KNOWN.pop(oldest, None)
        return replace(found, directory=self.directory)

    def _partition(self, number: int, partition: int) -> MasterPartition:
        folder = self.version(number)["folder"]
        name = f"{folder}/part-{partition:05d}.json"
        body = self._document(name, folder=folder, partition=partition)
        check_fields(body, self.directory.path(name), "master", "layout", "schema", "chunks")
        return MasterPartition(
            self.directory,
            master=body["master"],
            version=number,
            layout=body["layout"],
            schema=decode_schema(body["schema"]),
            chunks=[Chunk(*entry) for entry in body["chunks"]],
            numbers=(partition,),
        )

    def _document(self, name: str, **itself: int | str) -> dict[str, Any]:
        """A sealed document that must say of itself what its name says."""
        try:
            body = unseal(self.directory.read(name), f"{self.directory.uri}/{name}")
        except FileNotFoundError:
            there = self.versions()
            raise StateDirError(
                f"master table {self.directory.uri}",
                expected=name,
                found=f"versions {there[0]} to {there[-1]}" if there else "no version at all",
                hint="Versions that a join may still need must be kept; let refresh_master remove old ones.",
            ) from None
        if body.get("format") != FORMAT:
            raise CorruptStateError(
                f"master table {self.directory.uri}, {name}",
                expected=f"format {FORMAT}",
                found=f"format {body.get('format')}",
                hint="It was written by another release of Watersmeet: use that one, or prepare the table again.",
            )
        found = {key: body.get(key) for key in itself}
        if found != itself:
            raise CorruptStateError(
                f"master table {self.directory.uri}, {name}",
                expected=", ".join(f"{key} {value}" for key, value in itself.items()),
                found=", ".join(f"{key} {value}" for key, value in found.items()),
                hint="The file belongs elsewhere: restore it from a copy, or write a new version with refresh_master.",
            )
        return body


@dataclass
class MasterPartition:
    """The chunks of one partition of one version, or of several as one."""

    directory: StateDir
    master: str
    version: int
    layout: Layout
    schema: pa.Schema
    chunks: list[Chunk]
    numbers: tuple[int, ...] = ()  # of the partitions

    @cached_property
    def lows(self) -> Hashes:
        """The lowest hash that belongs to each chunk (layout "hash"); the first chunk begins at 0."""
        lows = np.array([chunk.low for chunk in self.chunks], dtype=np.uint64)
        lows[0] = 0
        return lows

    @property
    def count(self) -> int:
        """How many chunks there are: k in the paper."""
        return len(self.chunks)

    @property
    def rows(self) -> int:
        """Rows in all chunks: R_t in the paper."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in all chunks."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def mean_row_bytes(self) -> float:
        """v_R, where one number must do."""
        return self.nbytes / max(self.rows, 1)

    def chunk_of(self, hashes: Hashes) -> Indices:
        """The one chunk that can hold each hash (layout "hash")."""
        return np.searchsorted(self.lows, hashes, side="right") - 1

    def read(self, index: int) -> pa.Table:
        """One chunk, memory-mapped where the file system allows it.

        Its checksum is compared when this process reads it for the first time, and again if the file has changed.
        """
        chunk = self.chunks[index]
        seen = (self.directory.path(chunk.file), chunk.checksum, self.directory.stamp(chunk.file))
        try:
            opened = self.directory.open_verified(
                chunk.file, chunk.length, chunk.checksum, verify=seen not in _VERIFIED
            )
            _VERIFIED.add(seen)
            table = pa.ipc.open_file(opened).read_all()
        except CorruptStateError as error:
            raise self._corrupt(chunk, error.expected, error.found) from None
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt(chunk, "an Arrow IPC file", str(error)) from error
        if table.num_rows != chunk.rows or table.schema != self.schema:
            raise self._corrupt(chunk, f"{chunk.rows} rows of the table's schema", f"{table.num_rows} rows")
        return table

    def _corrupt(self, chunk: Chunk, expected: str, found: str) -> CorruptStateError:
        return CorruptStateError(
            f"master table {self.directory.uri}, version {self.version}, {chunk.file}",
            expected=expected,
            found=found,
            hint="The file is damaged or gone: restore it from a copy, or write a new version with refresh_master.",
        )


@dataclass
class SeveralPartitions(MasterPartition):
    """Partitions in the layout "hash", read as one: a chunk is what all of them have between two lowest hashes.

    The ranges are those of the partition with most chunks. No key is in two of the partitions.
    """

    parts: list[MasterPartition] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of all partitions."""
        return sum(part.rows for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows of all partitions."""
        return sum(part.nbytes for part in self.parts)

    def read(self, index: int) -> pa.Table:
        """What all partitions have of a range."""
        ends = self.lows[index : index + 2]
        found = []
        for part in self.parts:
            first, *last = part.chunk_of(ends).tolist()
            for number in range(first, (last[0] if last else part.count - 1) + 1):
                table = part.read(number)
                start, *stop = np.searchsorted(hashes_of(table), ends).tolist()
                found.append(table.slice(start, (stop[0] if stop else table.num_rows) - start))
        return merge_by_hash(found)


_PARTITIONS: dict[tuple[str, str], int] = {}
_KNOWN: dict[tuple[str, str, int, int], MasterPartition] = {}
_MOST_KNOWN = 64


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := _VERSION.match(name)))


def floor_of(name: str) -> int | None:
    """The number in the name of a mark "the versions before it are removed"; None for other files."""
    match = _FLOOR.match(name)
    return int(match[1]) if match else None


def version_name(number: int) -> str:
    """The name under which a version is kept."""
    return f"v-{number:06d}"


def encode_schema(schema: pa.Schema) -> str:
    """A schema as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """The schema that `encode_schema` wrote."""
    return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text)))
