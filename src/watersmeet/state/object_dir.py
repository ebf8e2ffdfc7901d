"""A state directory in an object store: few requests, and a cache of what never changes on every host.

manifests, documents    read and written as they are, manifests by conditional puts
run files               those of a batch are written to the cache of the host and sent as one object, a pack; a name
                        such as `run-000000000042-0-ab12.pack@4096` is the stretch of a pack that begins there
chunks of tables        an object each, through the cache as well

What a manifest names was written before the manifest was, so nothing is asked about it; if it should be gone, that is
seen when it is fetched.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import xxhash

from watersmeet.errors import StateDirError
from watersmeet.state.directory import PACK, ArrowWriter, Room, StateDir, corrupt, stretch, unwritable
from watersmeet.storage.access import cache_for, open_blobs
from watersmeet.storage.blobs import Blob
from watersmeet.storage.cache import Entry, HostCache, Staged
from watersmeet.storage.retrying import RetryingBlobs
from watersmeet.storage.uri import located

GAP = 256 << 10  # stretches of one object that are no farther apart are fetched by one request
SPAN = 64 << 20  # and no more than so much
PART = 16 << 20  # what is longer is fetched in parts, side by side
AT_ONCE = 8  # requests
_ALIGNED = 64  # where a stretch of a pack may begin: Arrow likes its columns so


class ObjectDir(StateDir):
    """Objects under one root."""

    is_local = False

    def __init__(self, uri: str | os.PathLike[str], blobs: RetryingBlobs | None = None) -> None:
        self.uri = self.root = located(os.fspath(uri)).uri
        self.blobs = blobs or open_blobs(self.uri)
        self._before = Counter(self.blobs.counts)
        self._hits = self._misses = 0
        self._needed: set[str] = set()  # files that are counted as found or fetched
        self._staged: dict[str, Staged] = {}  # stretches of packs that are not sent yet

    @cached_property
    def cache(self) -> HostCache:
        """The cache of this host."""
        return cache_for(self.uri)

    @property
    def place(self) -> str:
        """The directory by the name that every process knows it by."""
        return self.uri

    # -- documents ------------------------------------------------------------------------------------------------

    def create(self, name: str = "") -> None:
        """See that objects can be written, and that the store refuses to write one twice when asked to."""
        if name:
            return
        probe = f".probe-{uuid.uuid4().hex}"
        fenced = self.blobs.put_new(probe, b"1") and not self.blobs.put_new(probe, b"2")
        self.blobs.delete([probe])
        if not fenced:
            raise StateDirError(
                f"state directory {self.uri}",
                expected="a store with conditional puts (If-None-Match)",
                found="one that writes an object twice although it was told not to",
                hint="Without them two queries could mix their state. Use a store that has them (S3, Google Cloud "
                "Storage, Azure, MinIO and others do), or a shared file system.",
            )

    def make(self, name: str) -> None:
        """Folders are there when they have objects."""

    def size(self, name: str) -> int | None:
        """The length of a document, or None if there is none."""
        try:
            return len(self.read(name))
        except FileNotFoundError:
            return None

    def list(self, name: str = "") -> list[str]:
        """The names in a folder (not recursive)."""
        return sorted(found.name for found in self.blobs.list(name))

    def read(self, name: str) -> bytes:
        """A document."""
        return self.blobs.get(name).content

    def read_tagged(self, name: str) -> Blob:
        """A document, with what `replace` needs."""
        return self.blobs.get(name)

    def publish(self, name: str, content: bytes) -> None:
        """Write a document."""
        self.blobs.put(name, [memoryview(content)])

    def publish_new(self, name: str, content: bytes) -> bool:
        """Write a document unless there is one of that name; returns whether it was written. The first writer wins."""
        return self.blobs.put_new(name, content)

    def replace(self, name: str, content: bytes, tag: str) -> bool:
        """Write a document in place of the one that `tag` names; returns whether it was written."""
        return self.blobs.replace(name, content, tag)

    def delete(self, name: str) -> None:
        """Delete an object."""
        self.blobs.delete([name])

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete objects, many at a time."""
        self.blobs.delete(names)

    def delete_tree(self, name: str) -> None:
        """Delete a folder with all that is in it."""
        self.blobs.delete(f"{name}/{found.name}" for found in self.blobs.list(name, recursive=True))

    def idle_seconds(self, name: str) -> float:
        """How long ago an object in a folder was last changed; 0 if that is not known."""
        found = [each.changed for each in self.blobs.list(name, recursive=True) if each.changed is not None]
        return time.time() - max(found) if found else 0.0

    # -- files that never change ----------------------------------------------------------------------------------

    def arrow_writer(self, name: str, schema: pa.Schema, compression: str | None) -> ArrowWriter:
        """An Arrow IPC file that is written batch by batch, and sent as an object of its own when it is closed."""
        return _SingleWriter(self, name, schema, compression)

    def open_room(self, prefix: str) -> Room:
        """Files that are sent as one pack."""
        return PackRoom(self, f"{prefix}{PACK}")

    def check_length(self, name: str, length: int) -> None:
        """Seen when it is fetched: asking would cost a request per file and batch."""

    def stamp(self, name: str) -> int | None:
        """It never changes."""
        return None

    def traffic(self) -> dict[str, int]:
        """Requests and bytes since this object was made, and of the files that were needed those found in the cache
        and those fetched, each once however often it was opened."""
        made = dict(self.blobs.counts - self._before)
        return {**made, "cache_hits": self._hits, "cache_misses": self._misses}

    def checksum(self, name: str) -> str:
        """The checksum of a whole object."""
        return xxhash.xxh3_64_hexdigest(self.read(name))

    def open_verified(
        self, name: str, length: int, checksum: str, *, verify: bool = True, mapped: bool = True
    ) -> pa.NativeFile:
        """A file out of the cache, fetched if it is not there. The cache compares checksums, whatever is asked for."""
        if staged := self._staged.get(name):
            return pa.BufferReader(staged.content)
        entry = self._entry(name, length, checksum)
        opened = self.cache.open(entry, mapped=mapped)
        if opened is not None:
            self._hits += name not in self._needed
            self._needed.add(name)
            return opened
        self._misses += 1
        self._needed.add(name)
        return pa.BufferReader(self._fetched([entry])[entry])

    def prefetch(self, files: Iterable[tuple[str, int, str]]) -> None:
        """Fetch those of the files that are not in the cache, neighbours together, side by side."""
        wanted = {name: self._entry(name, length, checksum) for name, length, checksum in files}
        missing = [entry for entry in wanted.values() if not self.cache.has(entry)]
        self._hits += len(wanted) - len(missing)
        self._misses += len(missing)
        self._needed |= wanted.keys()
        self._fetched(missing)

    def _entry(self, name: str, length: int, checksum: str) -> Entry:
        file, offset = stretch(name)
        return Entry(self.path(file), offset or 0, length, checksum)

    def _fetched(self, entries: Iterable[Entry]) -> dict[Entry, pa.Buffer]:
        """Fetch entries into the cache; their bytes too, as a cache may be too small to keep them."""
        spans = list(_spans(entries))
        found: dict[Entry, pa.Buffer] = {}
        if not spans:
            return found
        parts = [(span, at) for span in spans for at in range(0, span.length, PART)]
        with ThreadPoolExecutor(max(min(AT_ONCE, len(parts)), 1)) as pool, _files(self.cache, spans) as files:
            list(pool.map(lambda part: self._fetch_part(part[0], part[1], files[id(part[0])]), parts))
            for span in spans:
                found |= self._unpack(span, files[id(span)])
        return found

    def _fetch_part(self, span: _Span, at: int, file: Staged) -> None:
        name = span.source[len(self.uri) + 1 :]
        length = min(PART, span.length - at)
        try:
            content = self.blobs.get_range(name, span.start + at, length)
            if len(content) < length:
                raise EOFError
        except (FileNotFoundError, EOFError) as error:
            expected = f"{span.start + at + length} bytes"
            raise corrupt(
                span.source, expected, "no file" if isinstance(error, FileNotFoundError) else "fewer"
            ) from None
        try:
            file.write_at(at, content)
        except OSError as error:
            raise unwritable(str(file.path), error) from error

    def _unpack(self, span: _Span, file: Staged) -> dict[Entry, pa.Buffer]:
        file.close()
        found = {}
        for entry in span.entries:
            buffer = file.content.slice(entry.offset - span.start, entry.length)
            if xxhash.xxh3_64_hexdigest(buffer) != entry.checksum:
                where = f"{entry.source}@{entry.offset}"
                raise corrupt(where, f"{entry.length} bytes with checksum {entry.checksum}", "other bytes")
            if len(span.entries) == 1:
                self.cache.enter(entry, file)
            else:
                self.cache.add(entry, memoryview(buffer))
            found[entry] = buffer
        return found


@dataclass
class _Span:
    """A stretch of an object that one fetch brings, with the entries in it."""

    source: str
    start: int
    length: int
    entries: list[Entry]


def _spans(entries: Iterable[Entry]) -> Iterator[_Span]:
    """Neighbouring entries of one object, together."""
    span: _Span | None = None
    for entry in sorted(set(entries), key=lambda entry: (entry.source, entry.offset)):
        if span is not None and span.source == entry.source:
            length = entry.offset + entry.length - span.start
            if entry.offset - (span.start + span.length) <= GAP and length <= SPAN:
                span.length = length
                span.entries.append(entry)
                continue
        if span is not None:
            yield span
        span = _Span(entry.source, entry.offset, entry.length, [entry])
    if span is not None:
        yield span


@contextmanager
def _files(cache: HostCache, spans: Iterable[_Span]) -> Iterator[dict[int, Staged]]:
    """A file for every span; their names are gone afterwards."""
    made: dict[int, Staged] = {}
    try:
        for span in spans:
            made[id(span)] = cache.stage()
        yield made
    except OSError as error:
        raise unwritable(str(cache.folder), error) from error
    finally:
        for file in made.values():
            file.discard()


class _StagedWriter(ArrowWriter):
    """An Arrow IPC file in the making, in the cache's folder."""

    def __init__(self, directory: ObjectDir, name: str, schema: pa.Schema, compression: str | None) -> None:
        self._directory = directory
        try:
            self._file = directory.cache.stage()
        except OSError as error:
            raise unwritable(str(directory.cache.folder), error) from error
        super().__init__(self._file, name, str(self._file.path), schema, compression)


class _SingleWriter(_StagedWriter):
    def close(self) -> tuple[int, str]:
        """Complete the file, send it and enter it in the cache."""
        length, checksum = super().close()
        try:
            self._directory.blobs.put(self.name, list(_pieces(self._file)))
            self._directory.cache.enter(self._directory._entry(self.name, length, checksum), self._file)
        finally:
            self._file.discard()
        return length, checksum


class PackRoom:
    """The files of one attempt of a batch, sent together."""

    def __init__(self, directory: ObjectDir, pack: str) -> None:
        self._directory, self._pack = directory, pack
        self._files: list[Staged] = []
        self._length = 0

    def writer(self, schema: pa.Schema, compression: str | None) -> ArrowWriter:
        """The next file."""
        return _PackedWriter(self._directory, self, schema, compression)

    def add(self, file: Staged, length: int, checksum: str) -> str:
        """Take a complete file; returns the name of its stretch."""
        name = f"{self._pack}@{self._length}"
        self._files.append(file)
        self._length += length + _padding(length)
        # Until it is sent it is read from here: the cache may remove its own name for it at any time.
        self._directory._staged[name] = file
        self._directory.cache.enter(self._directory._entry(name, length, checksum), file)
        return name

    def seal(self) -> None:
        """Send the pack."""
        if not self._files:
            return
        pieces: list[memoryview] = []
        for file in self._files:
            pieces += _pieces(file)
            pieces.append(memoryview(bytes(_padding(len(file.content)))))
        self._directory.blobs.put(self._pack, pieces)
        self._directory._staged.clear()
        for file in self._files:
            file.discard()
        self._files = []


class _PackedWriter(_StagedWriter):
    def __init__(self, directory: ObjectDir, room: PackRoom, schema: pa.Schema, compression: str | None) -> None:
        super().__init__(directory, "", schema, compression)
        self._room = room

    def close(self) -> tuple[int, str]:
        """Complete the file; the pack is sent with all its files."""
        length, checksum = super().close()
        self.name = self._room.add(self._file, length, checksum)
        return length, checksum


def _padding(length: int) -> int:
    return -length % _ALIGNED


def _pieces(file: Staged) -> Iterator[memoryview]:
    view = memoryview(file.content).cast("B")  # Arrow's bytes have a sign, which the client's uploads in parts refuse
    for at in range(0, len(view), PART):
        yield view[at : at + PART]
