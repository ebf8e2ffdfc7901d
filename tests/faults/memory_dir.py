"""A state directory in memory that behaves like a local one: names and files are two things, as on a disk.

name   part-00000/run-0  --->  file        a writer goes on with its file when the name is gone,
                                           a reader keeps the bytes that it has opened
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from watersmeet.state.directory import OutputStream, StateDir


@dataclass
class File:
    """What a name stands for. Only the process that made a file ever appends to it."""

    content: bytes = b""

    def write(self, content: Any) -> object:
        """Append bytes."""
        self.content += content
        return len(content)

    def close(self) -> None:
        """Nothing is held back."""


Files = dict[str, File]


class MemoryDir(StateDir):
    """The primitives of a local directory over a dictionary; all that is built on them is the product's."""

    def __init__(self, files: Files) -> None:
        super().__init__("/in-memory")
        self.files = files

    def make(self, name: str) -> None:
        """Directories are there when they have files."""

    def size(self, name: str) -> int | None:
        found = self.files.get(name)
        return None if found is None else len(found.content)

    def list(self, name: str = "") -> list[str]:
        start = f"{name}/" if name else ""
        return sorted({path[len(start) :].partition("/")[0] for path in self.files if path.startswith(start)})

    def read(self, name: str) -> bytes:
        return self._file(name).content

    def open(self, name: str) -> pa.NativeFile:
        return pa.BufferReader(self._file(name).content)

    def open_unmapped(self, name: str) -> pa.NativeFile:
        return MemoryDir.open(self, name)  # one step, also where `open` itself is one

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def _write_whole(self, path: Path, content: bytes) -> None:
        self.files[self._name(path)] = File(content)

    def _rename(self, path: Path, target: Path) -> None:
        self.files[self._name(target)] = self._file(self._name(path))
        del self.files[self._name(path)]

    def _open_output(self, name: str) -> OutputStream:
        made = self.files[name] = File()
        return made

    def _file(self, name: str) -> File:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None

    def _name(self, path: Path) -> str:
        return str(path)[len(self.root) + 1 :]
