"""One run at a time: two queries on one checkpoint would ruin it.

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

PATIENCE = 60.0


class BusyError(StateError):
    """Another process runs this pipeline."""


class RunLock:
    """Held while a pipeline runs, for work directories on this machine."""

    def __init__(self, state_dir: str, *, patience: float = PATIENCE) -> None:
        self.path = None if "://" in state_dir else Path(state_dir.removeprefix("file:")).parent / "run.lock"
        self.patience = patience
        self._file: TextIO | None = None

    def __enter__(self) -> RunLock:
        if self.path is None:
            return self
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise self._busy("it is running now") from None
        self._file.seek(0)
        self._wait_for(self._file.read().strip())
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._write("")
            self._file.close()

    def record(self, process: int) -> None:
        """Note the Java process that works for this run."""
        self._write(f"{process} {_start_of(process)}")

    def _write(self, text: str) -> None:
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(text)
            self._file.flush()

    def _wait_for(self, recorded: str) -> None:
        process, _, started = recorded.partition(" ")
        deadline = time.monotonic() + self.patience
        while process.isdigit() and started and _start_of(int(process)) == started:
            if time.monotonic() > deadline:
                raise self._busy(f"process {process} of an earlier run is still there")
            time.sleep(0.2)

    def _busy(self, found: str) -> BusyError:
        return BusyError(
            f"work directory {self.path.parent if self.path else ''}",
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
