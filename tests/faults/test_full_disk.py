"""A disk that is full while rows are spilled, and one that becomes read-only: a clear error, and then the run goes on.

Where the system lets us, the disk is a small tmpfs; elsewhere writes beyond its size fail with the same error number.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from watersmeet.engine.runtime import run_batch
from watersmeet.errors import StateDirError
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.directory import OutputStream, StateDir
from watersmeet.testing import batch_of, inner_join, make_plan, random_script
from watersmeet.testing.harness import rows_of

OPTIONS = ProgressiveOptions(policy="rpj", memory_rows=20, page_rows=8, buckets=3, fan_in=2, idle_pages=4)
PLAN = make_plan("rpj", options=OPTIONS.identity(), tuning=OPTIONS.tuning())
SCRIPT = random_script(3, batches=8, batch_rows=40, keys=60, width=40, idle_share=0.0, null_share=0.0)


class Disk:
    """A disk of 80 kB that can be made larger, read-only and writable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.is_real = mount("-t", "tmpfs", "-o", "size=80k", "tmpfs", str(path))
        self.directory = StateDir(path) if self.is_real else SmallDir(path)

    def grow(self) -> None:
        if isinstance(self.directory, SmallDir):
            self.directory.room = 1 << 40
        else:
            assert mount("-o", "remount,size=100m", str(self.path))

    def set_writable(self, writable: bool) -> None:
        if self.is_real:
            assert mount("-o", f"remount,{'rw' if writable else 'ro'}", str(self.path))
        elif isinstance(self.directory, SmallDir):
            self.directory.is_writable = writable

    def close(self) -> None:
        if self.is_real:
            subprocess.run(["umount", str(self.path)], check=True)


class SmallDir(StateDir):
    """The same without a disk of its own."""

    room = 60_000
    is_writable = True

    def _write_whole(self, path: Path, content: bytes) -> None:
        self.take(len(content))
        super()._write_whole(path, content)

    def _open_output(self, name: str) -> OutputStream:
        self.take(0)
        return _SmallStream(super()._open_output(name), self)

    def take(self, size: int) -> None:
        self.room -= size
        if self.room < 0 or not self.is_writable:
            number = errno.ENOSPC if self.is_writable else errno.EROFS
            raise OSError(number, os.strerror(number))


class _SmallStream:
    def __init__(self, stream: OutputStream, disk: SmallDir) -> None:
        self.stream, self.disk = stream, disk

    def write(self, content: Any) -> object:
        self.disk.take(len(content))
        return self.stream.write(content)

    def close(self) -> None:
        self.stream.close()


def mount(*arguments: str) -> bool:
    """Whether a mount succeeded; it does for root on Linux."""
    try:
        return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture(params=["tmpfs if there can be one", "without a disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    if request.param == "without a disk":
        monkeypatch.setattr(f"{__name__}.mount", lambda *arguments: False)
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


def advance(disk: Disk, number: int, attempt: str) -> Counter[Any]:
    batch = batch_of(PLAN, number, SCRIPT[number])
    return rows_of(run_batch(PLAN, disk.directory, 0, batch, run_id=attempt, attempt=attempt))


def run_to_the_end(disk: Disk, number: int, found: Counter[Any]) -> None:
    for later in range(number, len(SCRIPT)):
        found += advance(disk, later, "after")
    assert (found == inner_join(SCRIPT)) is True


def test_a_full_disk_stops_the_batch_and_loses_nothing(disk: Disk) -> None:
    found: Counter[Any] = Counter()
    done = 0

    def run_until_full() -> None:
        nonlocal done
        for number in range(len(SCRIPT)):
            found.update(advance(disk, number, "before"))
            done += 1

    with pytest.raises(StateDirError, match=r"state file .*: expected free space.*No space left.*Nothing is lost"):
        run_until_full()
    assert 0 < done < len(SCRIPT) - 1
    with pytest.raises(StateDirError, match="No space left"):
        advance(disk, done, "again")
    disk.grow()
    run_to_the_end(disk, done, found)


def test_a_read_only_directory_stops_the_batch_and_loses_nothing(disk: Disk) -> None:
    disk.grow()
    found = advance(disk, 0, "before") + advance(disk, 1, "before")
    disk.set_writable(False)
    with pytest.raises(
        StateDirError, match=r"state file .*: expected free space and permission to write, found .*[Rr]ead-only"
    ):
        advance(disk, 2, "before")
    disk.set_writable(True)
    run_to_the_end(disk, 2, found)
