"""Segments: the metrics of finished batches, kept for good in few files.

A manifest carries the metrics of the batches since the last multiple of `SEGMENT`. A full segment becomes a file of its
own. As soon as `FOLD` files of one level are there their contents become one file of the next level, unread, so that
there are at most `FOLD - 1` files per level, and above them one for every `SEGMENT * FOLD ** TOP` batches.

    metrics-0-000008.json      batches 32 to 35
    metrics-1-000000.json      batches 0 to 31: the contents of metrics-0-000000 to metrics-0-000007
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from watersmeet.errors import CorruptStateError
from watersmeet.state.directory import StateDir, check_fields, seal, unseal_all
from watersmeet.state.manifest import FORMAT, check_format

SEGMENT = 4
FOLD = 8
TOP = 3
_NAME = re.compile(r"(\.?)metrics-(\d)-(\d{6})\.json(?:\.\w+\.tmp)?$")


class Segments:
    """The segments of one partition."""

    def __init__(self, directory: StateDir, folder: str) -> None:
        self.directory = directory
        self.folder = folder

    def add(self, history: list[dict[str, Any]], entry: dict[str, Any]) -> list[dict[str, Any]]:
        """The batches that the next manifest carries, `entry` being the newest; a full segment is written."""
        batch = entry["batch"]
        number = batch // SEGMENT
        history = [old for old in history if old["batch"] // SEGMENT == number]
        history.append(entry)
        if batch % SEGMENT == SEGMENT - 1:
            self.directory.publish(
                self._path(0, number), seal({"format": FORMAT, "segment": number, "history": history})
            )
            self._fold(number)
        return history

    def _fold(self, number: int) -> None:
        for level in range(1, TOP + 1):
            if (number + 1) % FOLD:
                return
            try:
                parts = [self.directory.read(self._path(level - 1, number + 1 - FOLD + i)) for i in range(FOLD)]
            except FileNotFoundError:  # someone has deleted a part of the history: the rest stays as it is
                return
            number //= FOLD
            self.directory.publish(self._path(level, number), b"".join(parts))

    def obsolete(self, names: Iterable[str], horizon: int) -> Iterator[str]:
        """Files that were folded up to batch `horizon`, and those that an attempt of that age left half-made."""
        names = list(names)
        found = {(int(match[2]), int(match[3])) for name in names if (match := _NAME.match(name)) and not match[1]}
        for name in names:
            if match := _NAME.match(name):
                level, number = int(match[2]), int(match[3])
                if match[1]:
                    gone = _last(level, number) <= horizon
                else:
                    above = level + 1, number // FOLD
                    gone = above in found and _last(*above) <= horizon
                if gone:
                    yield name

    def read(self, after: int = -1) -> dict[int, dict[str, Any]]:
        """Entries by batch: all later than batch `after`, and some before it."""
        for _ in range(10):  # files may be folded while they are read
            try:
                return self._read(after)
            except FileNotFoundError:
                continue
        return self._read(after)

    def _read(self, after: int) -> dict[int, dict[str, Any]]:
        entries: dict[int, dict[str, Any]] = {}
        for name in self.directory.list(self.folder):
            match = _NAME.match(name)
            if match and not match[1] and _last(int(match[2]), int(match[3])) > after:
                width = FOLD ** int(match[2])
                first = int(match[3]) * width
                bodies = self._documents(f"{self.folder}/{name}")
                numbers = [body["segment"] for body in bodies]
                if numbers != list(range(first, first + width)):
                    raise CorruptStateError(
                        f"state file {self.directory.path(f'{self.folder}/{name}')}",
                        expected=f"segments {first} to {first + width - 1} of the history",
                        found=f"segments {', '.join(map(str, numbers))}",
                        hint="The file belongs elsewhere: restore it from a copy.",
                    )
                entries |= {entry["batch"]: entry for body in bodies for entry in body["history"]}
        return entries

    def _documents(self, name: str) -> list[dict[str, Any]]:
        path = self.directory.path(name)
        bodies = unseal_all(self.directory.read(name), path)
        for body in bodies:
            check_format(body, path)
            check_fields(body, path, "segment", "history")
        return bodies

    def _path(self, level: int, number: int) -> str:
        return f"{self.folder}/metrics-{level}-{number:06d}.json"


def _last(level: int, number: int) -> int:
    """The last batch in a file."""
    return (number + 1) * SEGMENT * int(FOLD**level) - 1
