"""One run at a time: two queries on one checkpoint, or on one state, would ruin it.

What is locked are these places themselves, not the folder that they are in: others may be in it. A lock file stands
beside its place, so that the place has nothing in it but its own, and its name begins with a dot: `state/*` are states.

The lock is held by the process through the operating system, so it is gone when the process is, however it ended. The
Java process of a run that was killed may outlive it by a moment; its number stands in the lock file, and the next run
waits for it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import TextIO

from watersmeet.errors import StateError
from watersmeet.state.directory import StateDir
from watersmeet.storage.uri import is_local, local_path

PATIENCE = 60.0


class BusyError(StateError):
    """Another process runs this pipeline."""


class RunLock:
    """Held while a pipeline runs: its state directory, and its checkpoint, where they are on this machine."""

    def __init__(self, state_dir: str, checkpoint: str | None = None, *, patience: float = PATIENCE) -> None:
        self.state = _beside(StateDir(state_dir).root) if is_local(state_dir) else None
        where = None if checkpoint is None else local_path(checkpoint)
        found = (self.state, None if where is None else _beside(where))
        self.paths = list(dict.fromkeys(path for path in found if path is not None))
        self.patience = patience
        self._files: list[TextIO] = []

    def __enter__(self) -> RunLock:
        try:
            for path in self.paths:
                self._take(path)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")
        self._close()

    def _take(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+")
        except OSError:
            if path == self.state:
                raise
            return  # Spark may know a path without a scheme in a file system that is not this machine's
        self._files.append(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(path, "it is running now") from None
        file.seek(0)
        self._wait_for(path, file.read().strip())

    def _close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()

    def record(self, process: int) -> None:
        """Note the Java process that works for this run."""
        self._write(f"{process} {_start_of(process)}")

    def _write(self, text: str) -> None:
        for file in self._files:
            file.seek(0)
            file.truncate()
            file.write(text)
            file.flush()

    def _wait_for(self, path: Path, recorded: str) -> None:
        process, _, started = recorded.partition(" ")
        deadline = time.monotonic() + self.patience
        while process.isdigit() and started and _start_of(int(process)) == started:
            if time.monotonic() > deadline:
                raise _busy(path, f"process {process} of an earlier run is still there")
            time.sleep(0.2)


def _beside(where: str) -> Path:
    place = Path(where).resolve()
    return place.with_name(f".{place.name}.lock")


def _busy(path: Path, found: str) -> BusyError:
    return BusyError(
        f"directory {path.with_name(path.name[1:].removesuffix('.lock'))}",
        expected="no other run of this pipeline",
        found=found,
        hint="Wait for it or stop it; a second pipeline needs a name of its own.",
    )


def _start_of(process: int) -> str:
    """When a process began, by the system's own count (numbers of processes are used again); "" if it is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return "alive" if not Path("/proc").is_dir() and _exists(process) else ""
    state, fields = text.rpartition(")")[2].split()[0], text.rpartition(")")[2].split()
    return "" if state == "Z" else fields[19]


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True
