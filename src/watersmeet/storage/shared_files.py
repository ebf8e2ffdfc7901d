"""HDFS, or any other file system of `pyarrow.fs`, as an object store."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from watersmeet.errors import StateDirError
from watersmeet.storage.blobs import Blob, Listed, TransientError
from watersmeet.storage.uri import Location


def hdfs(location: Location) -> FileBlobs:
    """The files below a path of HDFS."""
    try:
        fs, root = pafs.FileSystem.from_uri(location.uri)
    except (pa.ArrowException, OSError) as error:
        raise StateDirError(
            f"state directory {location.uri}",
            expected="an HDFS that pyarrow.fs can reach",
            found=str(error),
            hint="Driver and workers need libhdfs: set HADOOP_HOME, JAVA_HOME and CLASSPATH (hadoop classpath --glob).",
        ) from error
    return FileBlobs(fs, root.rstrip("/"))


@contextmanager
def _passing() -> Iterator[None]:
    """Whatever goes wrong on a file system elsewhere may pass, but for files that are not there."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TransientError(str(error)) from error


class FileBlobs:
    """Files below a root. A file is written beside its place and renamed into it."""

    def __init__(self, fs: pafs.FileSystem, root: str) -> None:
        self.fs, self.root = fs, root

    def get(self, name: str) -> Blob:
        """A file. Its tag is a checksum of it."""
        with _passing(), self.fs.open_input_stream(self._path(name), compression=None) as stream:
            content = bytes(stream.read())
        return Blob(content, xxhash.xxh3_128_hexdigest(content))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """A part of one."""
        with _passing(), self.fs.open_input_file(self._path(name)) as file:
            return bytes(file.read_at(length, start))

    def put(self, name: str, pieces: Sequence[memoryview]) -> None:
        """Write a file."""
        with _passing():
            self._move(self._written(name, pieces), name)

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one of that name.

        HDFS refuses to rename a file to a name that is taken, so the first writer wins; where a rename replaces, two
        writers at the same moment can both see nothing there.
        """
        with _passing():
            if self._exists(name):
                return False
            temporary = self._written(name, [memoryview(content)])
            try:
                if not self._exists(name):
                    self.fs.move(temporary, self._path(name))
                    return True
            except OSError:
                if not self._exists(name):
                    raise
            self.fs.delete_file(temporary)
            return False

    def replace(self, name: str, content: bytes, tag: str) -> bool:
        """Write a file if what is there is still what `tag` names: a look and a write, as there is no better."""
        if self.get(name).tag != tag:
            return False
        self.put(name, [memoryview(content)])
        return True

    def list(self, folder: str, *, recursive: bool = False) -> list[Listed]:
        """The files in a folder, half-made ones too: who lists knows names that begin with a dot, and deletes what dead
        writers have left. A file that is listed `recursive`ly, as if it were a folder, is all that is below it."""
        where = self._path(folder) if folder else self.root
        selector = pafs.FileSelector(where, allow_not_found=True, recursive=recursive)
        with _passing():
            is_file = recursive and self._exists(folder)
            found = [self.fs.get_file_info(where)] if is_file else self.fs.get_file_info(selector)
        return [
            Listed(info.path[len(where) + 1 :], None if info.mtime_ns is None else info.mtime_ns / 1e9)
            for info in found
            if not recursive or info.type == pafs.FileType.File
        ]

    def delete(self, names: Iterable[str]) -> None:
        """Delete files."""
        for name in names:
            with _passing(), suppress(FileNotFoundError):
                self.fs.delete_file(self._path(name))

    def _written(self, name: str, pieces: Sequence[memoryview]) -> str:
        folder, _, base = self._path(name).rpartition("/")
        self.fs.create_dir(folder, recursive=True)
        temporary = f"{folder}/.{base}.{uuid.uuid4().hex}.tmp"
        with self.fs.open_output_stream(temporary, compression=None) as stream:
            for piece in pieces:
                stream.write(piece)
        return temporary

    def _move(self, temporary: str, name: str) -> None:
        try:
            self.fs.move(temporary, self._path(name))
        except OSError:  # HDFS does not replace
            self.delete([name])
            self.fs.move(temporary, self._path(name))

    def _exists(self, name: str) -> bool:
        return bool(self.fs.get_file_info(self._path(name)).type == pafs.FileType.File)

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"
