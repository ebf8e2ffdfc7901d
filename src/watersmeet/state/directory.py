"""A state directory, written without half-made files: on a disk or a shared file system (here), or in an object store
(see `object_dir`).

state_dir/
  join.json            what the join is
  inputs.json          what the user calls the columns of the inputs
  sources.json         what a pipeline calls the join's inputs, if one runs it
  explain.json         what was chosen and why, for `wm.explain`
  failures.json        when and why runs of the pipeline failed
  control/             markers that travel through the stream (`end_input`)
  ticked, silence/     whether the join had ticks, and a folder without files in their place (see `spark/ticks`)
  part-00003/          one per key partition: manifests and run files, see `store`
"""

from __future__ import annotations

import errno
import io
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from watersmeet.errors import CorruptStateError, StateDirError
from watersmeet.storage.uri import is_local

JOIN_FILE = "join.json"
CONTROL = "control"
WRITE_BYTES = 1 << 16
PACK = ".pack"  # what the name of a file ends with that holds several, one after the other
# What `os.link` says on a file system that has no hard links.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class OutputStream(Protocol):
    """What a file is written through."""

    def write(self, content: Any) -> object:
        """Append bytes."""

    def close(self) -> None:
        """Complete the file."""


class StateDir:
    """Files under one root, memory-mapped and renamed into place. A URI of an object store gives an `ObjectDir`."""

    is_local = True

    def __new__(cls, uri: str | os.PathLike[str] = "", *rest: Any) -> StateDir:
        if cls is StateDir and not is_local(os.fspath(uri)):
            from watersmeet.state.object_dir import ObjectDir

            return object.__new__(ObjectDir)
        return object.__new__(cls)

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self.uri = os.fspath(uri)
        self.fs = pafs.LocalFileSystem()
        self.root = os.path.abspath(_path_of(self.uri))

    @property
    def place(self) -> str:
        """The directory by the name that every process knows it by."""
        return self.root

    def path(self, name: str) -> str:
        """A file's full path."""
        return f"{self.root}/{name}"

    def create(self, name: str = "") -> None:
        """Make a directory, and fail with a clear error if that or writing into it is impossible."""
        probe = f"{name}/.probe-{uuid.uuid4().hex}" if name else f".probe-{uuid.uuid4().hex}"
        try:
            self.fs.create_dir(self.path(name) if name else self.root, recursive=True)
            with self.fs.open_output_stream(self.path(probe)) as stream:
                stream.write(b"")
            self.fs.delete_file(self.path(probe))
        except OSError as error:
            raise StateDirError(
                f"state directory {self.uri}",
                expected="a directory that can be created and written",
                found=str(error),
                hint="Give a state_dir on a writable file system, the same for every executor.",
            ) from error

    def make(self, name: str) -> None:
        """Make a directory if there is none."""
        self.fs.create_dir(self.path(name), recursive=True)

    def size(self, name: str) -> int | None:
        """A file's length, or None if there is no such file."""
        info = self.fs.get_file_info(self.path(name))
        return info.size if info.type == pafs.FileType.File else None

    def list(self, name: str = "") -> list[str]:
        """The names in a directory (not recursive); none if it does not exist."""
        where = self.path(name) if name else self.root
        found = self.fs.get_file_info(pafs.FileSelector(where, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def read(self, name: str) -> bytes:
        """A small file's bytes."""
        with self.fs.open_input_stream(self.path(name), compression=None) as stream:
            return bytes(stream.read())

    def open(self, name: str) -> pa.NativeFile:
        """A file for random access, memory-mapped."""
        # As a buffer, because Arrow reads a file, even a mapped one, through a pool of threads.
        return pa.BufferReader(pa.memory_map(self.path(name), "r").read_buffer())

    def open_unmapped(self, name: str) -> pa.NativeFile:
        """A file that is read piece by piece: mapped pieces would stay in the process's memory until it is closed."""
        return pa.OSFile(self.path(name))

    def open_verified(
        self, name: str, length: int, checksum: str, *, verify: bool = True, mapped: bool = True
    ) -> pa.NativeFile:
        """A file that never changes, for random access. Its length is compared, with `verify` its checksum too."""
        file, offset = stretch(name)
        try:
            opened = self.open(file) if mapped or offset is not None else self.open_unmapped(file)
        except FileNotFoundError:
            raise corrupt(self.path(name), f"{length} bytes", "no file") from None
        self._compare_length(name, length, opened.size())
        if offset is not None:
            opened = pa.BufferReader(opened.read_buffer().slice(offset, length))
        if verify:
            found = self.checksum(name) if offset is None else xxhash.xxh3_64_hexdigest(opened.read_buffer())
            opened.seek(0)
            if found != checksum:
                raise corrupt(self.path(name), f"checksum {checksum}", f"checksum {found}")
        return opened

    def check_length(self, name: str, length: int) -> None:
        """Fail early when a file is gone or has another length than it should have."""
        self._compare_length(name, length, self.size(stretch(name)[0]))

    def _compare_length(self, name: str, length: int, found: int | None) -> None:
        _, offset = stretch(name)
        if found is None or (found != length if offset is None else found < offset + length):
            raise corrupt(self.path(name), f"{length} bytes", "no file" if found is None else f"{found} bytes")

    def prefetch(self, files: Iterable[tuple[str, int, str]]) -> None:
        """Files (name, length and checksum) that will be opened soon: nothing to do where they are at hand."""

    def stamp(self, name: str) -> int | None:
        """Changes when a file does; None if it never can, or that is not known."""
        found: int | None = self.fs.get_file_info(self.path(name)).mtime_ns
        return found

    def traffic(self) -> dict[str, int]:
        """Requests and bytes so far: none where there is no store to ask."""
        return {}

    def publish(self, name: str, content: bytes) -> None:
        """Write a small file so that it is seen whole or not at all."""
        target = Path(self.path(name))
        temporary = _temporary(target)
        try:
            self._write_whole(temporary, content)
            self._rename(temporary, target)
        except OSError as error:
            raise unwritable(self.path(name), error) from error

    def publish_new(self, name: str, content: bytes) -> bool:
        """Publish a small file unless there is one of that name; returns whether it was written. The first one wins."""
        target = Path(self.path(name))
        temporary = _temporary(target)
        try:
            self._write_whole(temporary, content)
            try:
                return self._link(temporary, target, content)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path(name), error) from error

    def _link(self, path: Path, target: Path, content: bytes) -> bool:
        try:
            os.link(path, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # As exclusive, but a reader may find the file half-written; its seal tells him so.
            try:
                with target.open("xb") as stream:
                    stream.write(content)
            except FileExistsError:
                return False
        return True

    def _write_whole(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)

    def _rename(self, path: Path, target: Path) -> None:
        path.replace(target)

    def write_arrow(
        self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str | None
    ) -> tuple[int, str]:
        """Write an Arrow IPC file; returns its length and checksum."""
        writer = self.arrow_writer(name, schema, compression)
        for batch in batches:
            writer.write(batch)
        return writer.close()

    def arrow_writer(self, name: str, schema: pa.Schema, compression: str | None) -> ArrowWriter:
        """An Arrow IPC file that is written batch by batch."""
        try:
            stream = self._open_output(name)
        except OSError as error:
            raise unwritable(self.path(name), error) from error
        return ArrowWriter(stream, name, self.path(name), schema, compression)

    def open_room(self, prefix: str) -> Room:
        """Where one attempt of a batch puts its files, whose names begin with `prefix`."""
        return FileRoom(self, prefix)

    def _open_output(self, name: str) -> OutputStream:
        stream: OutputStream = self.fs.open_output_stream(self.path(name), compression=None)
        return stream

    def delete(self, name: str) -> None:
        """Delete a file; another attempt may have been quicker."""
        try:
            self.fs.delete_file(self.path(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise unwritable(self.path(name), error) from error

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete files."""
        for name in names:
            self.delete(name)

    def delete_tree(self, name: str) -> None:
        """Delete a directory with all that is in it; another process may have been quicker."""
        path = self.path(name)
        while self.fs.get_file_info(path).type != pafs.FileType.NotFound:
            try:
                self.fs.delete_dir(path)
            except FileNotFoundError:
                continue  # a part of it
            except OSError as error:
                raise unwritable(path, error) from error

    def idle_seconds(self, name: str) -> float:
        """How long ago a file, or anything in a directory, was last changed; 0 if that is not known."""
        path = self.path(name)
        found = [self.fs.get_file_info(path)]
        if found[0].type == pafs.FileType.Directory:
            found += self.fs.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
        changed = [info.mtime_ns / 1e9 for info in found if info.mtime_ns is not None]
        return time.time() - max(changed) if changed else 0.0

    def checksum(self, name: str) -> str:
        """The checksum of a file's bytes, read in pieces."""
        digest = xxhash.xxh3_64()
        with self.open_unmapped(name) as stream:
            while piece := stream.read(1 << 22):
                digest.update(piece)
        return digest.hexdigest()


class ArrowWriter:
    """An Arrow IPC file in the making. A file that is not closed belongs to no version and is collected later."""

    def __init__(self, stream: OutputStream, name: str, path: str, schema: pa.Schema, compression: str | None) -> None:
        self.name = name
        self._stream = stream
        self._path = path
        self._sink = _ChecksummedSink(stream.write)
        # Pages are small and other tasks have the other cores: handing columns to threads costs more than it saves.
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        # A page of a few rows is written in a dozen pieces, each a call into Python: gather them.
        self._gathered = pa.BufferedOutputStream(pa.PythonFile(self._sink, "w"), WRITE_BYTES)
        self._writer = pa.ipc.new_file(self._gathered, schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a record batch."""
        try:
            self._writer.write_batch(batch)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def close(self) -> tuple[int, str]:
        """Complete the file; returns its length and checksum."""
        try:
            self._writer.close()
            self._gathered.flush()
            self._stream.close()
        except OSError as error:
            raise unwritable(self._path, error) from error
        return self._sink.length, self._sink.checksum.hexdigest()


class Room(Protocol):
    """Where one attempt of a batch puts its files."""

    def writer(self, schema: pa.Schema, compression: str | None) -> ArrowWriter:
        """The next file; its name is known when it is closed."""

    def seal(self) -> None:
        """All files are complete: see that they are where others find them."""


class FileRoom:
    """Files of their own."""

    def __init__(self, directory: StateDir, prefix: str) -> None:
        self._directory, self._prefix = directory, prefix
        self._written = 0

    def writer(self, schema: pa.Schema, compression: str | None) -> ArrowWriter:
        """The next file."""
        self._written += 1
        return self._directory.arrow_writer(f"{self._prefix}-{self._written - 1}.arrow", schema, compression)

    def seal(self) -> None:
        """They are where they belong."""


class _ChecksummedSink(io.RawIOBase):
    """Passes bytes on, counting and digesting them."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self.length = 0
        self.checksum = xxhash.xxh3_64()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._write(content)
        self.checksum.update(content)
        self.length += len(content)
        return len(content)


def _temporary(target: Path) -> Path:
    """A name beside the target. A leading dot hides it from Spark, which reads the control directory as a source."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")


def _path_of(uri: str) -> str:
    if not uri.startswith("file:"):
        return uri
    try:
        return str(pafs.FileSystem.from_uri(uri)[1])
    except (pa.ArrowException, OSError) as error:
        raise StateDirError(
            f"state directory {uri}", expected="a file URI", found=str(error), hint="Write it as file:///path."
        ) from error


def stretch(name: str) -> tuple[str, int | None]:
    """A file's name, and where in it the bytes meant begin: None for the whole of it.

    >>> stretch("part-00000/run-000000000042-0-ab12.pack@4096"), stretch("run-000000000042-0-ab12-0.arrow")
    (('part-00000/run-000000000042-0-ab12.pack', 4096), ('run-000000000042-0-ab12-0.arrow', None))
    """
    file, _, offset = name.rpartition(f"{PACK}@")
    return (f"{file}{PACK}", int(offset)) if file else (name, None)


def corrupt(name: str, expected: str, found: str) -> CorruptStateError:
    """The error for a state file that is not what its manifest says."""
    return CorruptStateError(
        f"state file {name}",
        expected=expected,
        found=found,
        hint="The file is damaged or gone: restore the state directory from a copy, or start over with a new state "
        "directory and a new checkpoint.",
    )


def unwritable(path: str, error: OSError) -> StateDirError:
    """The error for a file that could not be written or deleted."""
    return StateDirError(
        f"state file {path}",
        expected="free space and permission to write",
        found=str(error),
        hint="Nothing is lost: the batch is not committed and is repeated when the query is started again. Make room, "
        "or make the directory writable, first.",
    )


def seal(body: dict[str, Any]) -> bytes:
    """A JSON document behind a line that holds its length and checksum."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), default=plain_json).encode()
    head = json.dumps({"length": len(text), "checksum": xxhash.xxh3_64_hexdigest(text)}).encode()
    return head + b"\n" + text + b"\n"


def unseal(content: bytes, name: str) -> dict[str, Any]:
    """The document that `seal` wrote, or an error that says how it is damaged."""
    try:
        body = json.loads(sealed_text(content, name))
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise _unsealed(content, name)
    return body


def sealed_text(content: bytes, name: str) -> bytes:
    """The text of that document, whole but not taken apart."""
    head, _, text = content.partition(b"\n")
    text = text.removesuffix(b"\n")
    try:
        expected = json.loads(head)
        intact = expected["length"] == len(text) and expected["checksum"] == xxhash.xxh3_64_hexdigest(text)
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise _unsealed(content, name)
    return text


def _unsealed(content: bytes, name: str) -> CorruptStateError:
    return CorruptStateError(
        f"state file {name}",
        expected="a document with the length and checksum its first line states",
        found=f"{len(content)} bytes that do not fit",
        hint="The file is damaged: restore the state directory from a copy, or start over with a new "
        "state directory and a new checkpoint.",
    )


def unseal_all(content: bytes, name: str) -> list[dict[str, Any]]:
    """The documents of a file that holds several, one after the other."""
    lines = content.splitlines(keepends=True)
    return [unseal(b"".join(lines[at : at + 2]), name) for at in range(0, len(lines), 2)]


def check_fields(body: dict[str, Any], name: str, *fields: str) -> None:
    """Refuse a document, whole as it may be, that is not what its name says."""
    missing = [field for field in fields if field not in body]
    if missing:
        raise CorruptStateError(
            f"state file {name}",
            expected=f"a document with {', '.join(missing)}",
            found=f"one with {', '.join(sorted(body))}",
            hint="The file belongs elsewhere: restore it from a copy.",
        )


def plain_json(value: Any) -> Any:
    """NumPy numbers and arrays in their JSON form."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"state values must be JSON, found {type(value).__name__}")
