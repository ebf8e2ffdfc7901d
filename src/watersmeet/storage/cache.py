"""The cache of a host: immutable files of a store on a local disk, shared by all workers of the host.

An entry is a file whose name says what it is (a digest of where it comes from, its checksum and length). It appears by
a rename, is read through a memory map, and is touched when it is used; when there is too much, the entries that were
used longest ago go. A reader that has an entry open keeps it, and so does a writer: whoever deletes the folder takes
names from them, and no bytes. A process compares the checksum when it first opens an entry, and when the file is not
the one that it has compared; one that is damaged or gone is simply not there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import xxhash

from watersmeet.errors import StateDirError

MAKING = "making"  # the folder of files that are not entries yet
IDLE_SECONDS = 86_400  # after which a file in the making is one that a dead process left, and an entry is not missed
MOST_VERIFIED = 100_000  # entries whose checksum a process need not compare again
SHARE = 0.5  # of the room on the disk that the cache may take by default
_SLACK = 0.9  # what is left of the limit after entries were removed, so that not every new one removes an old one
_TRIES = 10  # to make a file in a folder that others delete
_LOOK_AFTER = 1 / 32  # of the limit: so much may a process add before it looks what there is


@dataclass(frozen=True)
class Entry:
    """A stretch of an object: its bytes never change."""

    source: str  # the object's URI
    offset: int
    length: int
    checksum: str

    @property
    def file(self) -> str:
        """The name of its file."""
        where = xxhash.xxh3_128_hexdigest(f"{self.source}@{self.offset}".encode())
        return f"{where[:2]}/{where[2:]}-{self.checksum}-{self.length}"


class Staged:
    """A file in the making. From its beginning on it needs its name only to become an entry; whoever gives it up half
    written, because a batch has failed, need not say so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._complete: pa.Buffer | None = None
        self._length = 0
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)  # of the open file; -1 when it is closed

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes."""
        self._length += self.write_at(self._length, content)

    def write_at(self, at: int, content: bytes | memoryview) -> int:
        """Write bytes to a place of their own, and say how many; several threads may do so."""
        view = memoryview(content).cast("B")
        while view:
            written = os.pwrite(self._number, view, at)
            view, at = view[written:], at + written
        return memoryview(content).nbytes

    def close(self) -> None:
        """It is complete."""
        empty = not os.fstat(self._number).st_size
        mapped = None if empty else pa.memory_map(f"/dev/fd/{self._number}", "r")
        self._complete = pa.py_buffer(b"") if mapped is None else mapped.read_buffer()
        self._release()

    @property
    def content(self) -> pa.Buffer:
        """All of it, mapped."""
        assert self._complete is not None
        return self._complete

    def discard(self) -> None:
        """Forget its name."""
        self._release()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _release(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1

    def __del__(self) -> None:
        if hasattr(self, "_number"):  # else it could not be made
            self.discard()


@dataclass
class HostCache:
    """Entries below one folder."""

    folder: Path
    limit: int | None = None  # bytes; None: a share of the disk
    _verified: dict[str, tuple[int, int]] = field(default_factory=dict)  # files as they were when they were right
    _unseen: float = float("inf")  # bytes that this process has added since it looked what there is
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, entry: Entry, *, mapped: bool = True) -> pa.NativeFile | None:
        """An entry for reading, or None if it is not there, whole."""
        path = self.folder / entry.file
        try:
            with path.open("rb") as file:
                about = os.fstat(file.fileno())
                if about.st_size != entry.length:
                    raise OSError("cut off")
                mapped_file = pa.memory_map(f"/dev/fd/{file.fileno()}", "r") if entry.length else pa.BufferReader(b"")
                buffer = mapped_file.read_buffer()
        except (OSError, pa.ArrowException):
            self.drop(entry)
            return None
        if self._verified.get(entry.file) != _identity(about):
            if xxhash.xxh3_64_hexdigest(buffer) != entry.checksum:
                self.drop(entry)
                return None
            self._note_verified(entry, about)
        with contextlib.suppress(OSError):  # the other time is that of the last write
            os.utime(path, ns=(time.time_ns(), about.st_mtime_ns))
        if mapped or not entry.length:
            # As a buffer, because Arrow reads a file, even a mapped one, through a pool of threads.
            return pa.BufferReader(buffer)
        try:
            return pa.OSFile(str(path))
        except OSError:
            return pa.BufferReader(buffer)

    def has(self, entry: Entry) -> bool:
        """Whether there is a file of the right length."""
        try:
            return (self.folder / entry.file).stat().st_size == entry.length
        except OSError:
            return False

    def add(self, entry: Entry, content: bytes | memoryview) -> None:
        """Enter bytes that were fetched. A cache that cannot be written is no reason to fail."""
        with contextlib.suppress(OSError):
            staged = self.stage()
            try:
                staged.write(content)
                staged.close()
                self.enter(entry, staged)
            finally:
                staged.discard()

    def stage(self) -> Staged:
        """A file in the making."""
        folder = self.folder / MAKING
        for left in reversed(range(_TRIES)):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                return Staged(folder / f"{os.getpid()}-{uuid.uuid4().hex}")
            except FileNotFoundError:  # somebody has just deleted the folder
                if not left:
                    raise
        raise AssertionError("unreachable")

    def enter(self, entry: Entry, staged: Staged) -> None:
        """Enter a file that is complete and whose checksum is known to be right; it stays under its old name too."""
        with contextlib.suppress(OSError):
            if entry.length > self.most(0):
                return
            self._grow(entry.length)
            target = self.folder / entry.file
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = target.with_name(f".{uuid.uuid4().hex}")
            try:
                os.link(staged.path, temporary)
            except OSError:  # no hard links here
                shutil.copyfile(staged.path, temporary)
            about = temporary.stat()
            temporary.replace(target)
            self._note_verified(entry, about)

    def _note_verified(self, entry: Entry, about: os.stat_result) -> None:
        if len(self._verified) >= MOST_VERIFIED:
            self._verified.clear()
        self._verified[entry.file] = _identity(about)

    def drop(self, entry: Entry) -> None:
        """Forget an entry."""
        self._verified.pop(entry.file, None)
        with contextlib.suppress(OSError):
            (self.folder / entry.file).unlink(missing_ok=True)

    def _grow(self, by: int) -> None:
        """Make room for so many bytes, if there may be none."""
        with self._lock:
            self._unseen += by
            if self._unseen < _LOOK_AFTER * self.most(0):
                return
        if self.shrink(by):
            with self._lock:
                self._unseen = 0

    def most(self, held: int) -> int:
        """How many bytes the cache may hold, if it holds so many now."""
        if self.limit is not None:
            return self.limit
        return int(SHARE * (shutil.disk_usage(self.folder).free + held))

    def shrink(self, coming: int = 0) -> bool:
        """Remove what was used longest ago while there is too much, or no room for what is coming. One process of the
        host at a time does so; returns whether this one did."""
        with contextlib.suppress(OSError), (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            for path in (self.folder / MAKING).glob("*"):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > IDLE_SECONDS:
                        path.unlink(missing_ok=True)
            found = []
            for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
                with contextlib.suppress(OSError):
                    about = path.stat()
                    found.append((about.st_atime_ns, about.st_size, path))
            held = sum(size for _, size, _ in found)
            most = self.most(held) - coming
            enough = held if held <= most else _SLACK * most
            for used, size, path in sorted(found):
                if held <= enough and time.time() - used / 1e9 < IDLE_SECONDS:
                    break
                path.unlink(missing_ok=True)
                held -= size
            return True
        return False


def _identity(about: os.stat_result) -> tuple[int, int]:
    """What changes when others write to a file, or put another in its place."""
    return about.st_ino, about.st_mtime_ns


def open_cache(folder: str | None, limit: int | None, local_dirs: str | None = None) -> HostCache:
    """The cache of this host: in the folder asked for, or in Spark's local directory, or where temporary files go."""
    if folder:
        made = Path(folder)
        try:
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateDirError(
                f"cache directory {folder}",
                expected="a directory on a local disk of every executor",
                found=str(error),
                hint="Give a cache_dir that can be created and written, or leave it out.",
                option="cache_dir",
            ) from error
        return HostCache(made, limit)
    for place in [*filter(None, (local_dirs or "").split(",")), tempfile.gettempdir()]:
        made = Path(place) / f"watersmeet-cache-{os.getuid()}"
        with contextlib.suppress(OSError):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
            if made.stat().st_uid == os.getuid() and os.access(made, os.W_OK | os.X_OK):
                return HostCache(made, limit)
    raise StateDirError(
        "the cache of a host",
        expected="a local directory that can be written",
        found="none",
        hint="Give cache_dir, or make spark.local.dir writable.",
        option="cache_dir",
    )
