"""What still waits at the sources, as far as it can be known.

Kafka reports its lag itself. For file sources on this machine it is the number of files in the folder less those in the
checkpoint's log of the source. Other sources have no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_LOG = re.compile(r"(\d+)(\.compact)?$")
FILE_FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "avro", "binaryFile", "xml"})


class FileLag:
    """Files of one source that have not been read, by Spark's log of those that have."""

    def __init__(self, folder: str, log: str) -> None:
        self.folder = Path(folder)
        self.log = Path(log)
        self._counted: dict[str, int] = {}

    def files(self) -> int:
        """How many wait."""
        there = sum(1 for path in self.folder.rglob("*") if path.is_file() and not _hidden(path, self.folder))
        return max(there - self._read(), 0)

    def _read(self) -> int:
        """Entries of the newest compacted log and of the plain ones after it."""
        found = sorted(self._logs(), reverse=True)
        total = 0
        for _number, compact, name in found:
            if name not in self._counted:
                lines = (self.log / name).read_text(encoding="utf-8").splitlines()
                self._counted[name] = sum(1 for line in lines[1:] if line.strip())
            total += self._counted[name]
            if compact:
                break
        return total

    def _logs(self) -> Iterator[tuple[int, bool, str]]:
        for path in self.log.glob("*"):
            if match := _LOG.match(path.name):
                yield int(match[1]), match[2] is not None, path.name


def reported_lag(report: Mapping[str, Any]) -> str | None:
    """The lag that a source reports itself, out of its part of a progress report."""
    behind = (report.get("metrics") or {}).get("maxOffsetsBehindLatest")
    return None if behind is None else f"{int(behind)} offsets"


def _hidden(path: Path, folder: Path) -> bool:
    """Spark reads no file below a name that begins with a dot or an underscore (but for partition columns)."""
    return any(part.startswith((".", "_")) and "=" not in part for part in path.relative_to(folder).parts)
