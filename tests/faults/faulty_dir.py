"""A state directory in which a process can die, or stand still, at every single operation.

Each call that reads or changes a file is a step. A `Fate` is asked before every step: it may let it happen, stand still
there until it is told to go on (a zombie), or end the process there. A death during a write leaves the beginning of
what was to be written. After its death a process changes nothing any more, whatever its `finally` clauses try.

What a process does to the files is written down (`Change`): its death leaves the changes up to some point, so a death
can also be had without running anything (`die_at`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.faults.memory_dir import Files, MemoryDir
from watersmeet.state.directory import OutputStream, StateDir

NEVER = 1 << 30
PATIENCE = 20.0  # seconds; a simulated process that takes longer hangs


class Crash(BaseException):
    """The process is dead. No `except Exception` may catch it."""


@dataclass(frozen=True)
class Change:
    """Something a process did to a file: "begin" or "append" to it, "rename" or "delete" it."""

    kind: str
    path: str
    content: bytes = b""
    target: str = ""


def die_at(directory: StateDir, changes: list[Change], count: int, torn: float) -> None:
    """Leave what a process leaves that dies during its change number `count`, a share of whose bytes is written."""
    if count < len(changes) and changes[count].kind == "append":
        dying = changes[count]
        part = replace(dying, content=dying.content[: int(len(dying.content) * torn)])
        changes = [*changes[:count], part]
    else:
        changes = changes[:count]
    files: dict[str, list[bytes]] = {}
    for change in changes:
        if change.kind == "begin":
            files[change.path] = []
        elif change.kind == "append":
            files[change.path].append(change.content)
        elif change.kind == "rename":
            files[change.target] = files.pop(change.path)
        else:
            directory.delete(change.path)
    for path, content in files.items():
        put(directory, path, b"".join(content))


def put(directory: StateDir, name: str, content: bytes) -> None:
    """A file with its content, whatever was there."""
    directory._write_whole(Path(directory.path(name)), content)


@dataclass
class Fate:
    """What becomes of one simulated process: it dies at step `death`, and stands still at step `pause` before that."""

    death: int = NEVER
    pause: int = NEVER
    torn: float = 0.0  # the share of a write's bytes that still reach the file
    steps: int = 0
    dead: bool = False
    changes: list[Change] = field(default_factory=list)
    paused: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def step(self, tear: Callable[[float], object] | None = None, *, may_pause: bool = True) -> None:
        """Ask before an operation; `tear` does a part of it."""
        if self.dead:
            raise Crash
        at, self.steps = self.steps, self.steps + 1
        if may_pause and at >= self.pause and not self.paused.is_set():
            self.paused.set()
            if not self.released.wait(PATIENCE):
                raise TimeoutError("a simulated process was never told to go on")
        if at >= self.death:
            self.dead = True
            if tear is not None:
                tear(self.torn)
            raise Crash


class FaultyDir(StateDir):
    """A directory seen by one simulated process."""

    fate: Fate

    # Run files are opened inside a `cached_property`, which holds a lock over all threads in Python 3.11: real zombies
    # are processes and share no lock, so the simulated ones stand still elsewhere.

    def size(self, name: str) -> int | None:
        self.fate.step(may_pause=False)
        return super().size(name)

    def list(self, name: str = "") -> list[str]:
        self.fate.step()
        return super().list(name)

    def read(self, name: str) -> bytes:
        self.fate.step()
        return super().read(name)

    def open(self, name: str) -> pa.NativeFile:
        self.fate.step(may_pause=False)
        return super().open(name)

    def open_unmapped(self, name: str) -> pa.NativeFile:
        self.fate.step(may_pause=False)
        return super().open_unmapped(name)

    def delete(self, name: str) -> None:
        self.fate.step()
        super().delete(name)
        self.fate.changes.append(Change("delete", name))

    def _write_whole(self, path: Path, content: bytes) -> None:
        write = super()._write_whole
        self.fate.step()
        write(path, b"")
        self.fate.changes.append(Change("begin", self._name(path)))
        self.fate.step(lambda share: write(path, content[: int(len(content) * share)]))
        write(path, content)
        self.fate.changes.append(Change("append", self._name(path), content))

    def _rename(self, path: Path, target: Path) -> None:
        self.fate.step()
        super()._rename(path, target)
        self.fate.changes.append(Change("rename", self._name(path), target=self._name(target)))

    def _open_output(self, name: str) -> OutputStream:
        self.fate.step()
        stream = super()._open_output(name)
        self.fate.changes.append(Change("begin", name))
        return _FaultyStream(stream, name, self.fate)

    def _name(self, path: Path) -> str:
        return str(path)[len(self.root) + 1 :]


class RealFaultyDir(FaultyDir):
    """On a disk."""

    def __init__(self, path: str, fate: Fate) -> None:
        super().__init__(path)
        self.fate = fate


class FaultyMemoryDir(FaultyDir, MemoryDir):
    """In memory: what the simulated processes have in common are the `files`."""

    def __init__(self, files: Files, fate: Fate) -> None:
        MemoryDir.__init__(self, files)
        self.fate = fate


class _FaultyStream:
    def __init__(self, stream: OutputStream, name: str, fate: Fate) -> None:
        self._stream = stream
        self._name = name
        self._fate = fate

    def write(self, content: Any) -> object:
        written = bytes(content)
        self._fate.step(lambda share: self._stream.write(written[: int(len(written) * share)]))
        self._fate.changes.append(Change("append", self._name, written))
        return self._stream.write(written)

    def close(self) -> None:
        self._fate.step()
        self._stream.close()
