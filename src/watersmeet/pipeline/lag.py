"""What still waits at the sources, as far as it can be known.

Kafka reports its lag itself. For file sources on this machine it is the number of files in the folder that no committed
batch has read, by the checkpoint: its log of each source says which files were taken, its log of offsets how far each
batch went, its log of commits which batches have ended. Files that were read may be gone. Other sources have no answer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from watersmeet.storage.uri import is_local, local_path

_LOG = re.compile(r"(\d+)(\.compact)?$")
# With one of these options (in lower case) Spark reads other files of a folder than it does without.
_CHOOSING = frozenset({"pathglobfilter", "modifiedbefore", "modifiedafter", "recursivefilelookup", "filenameonly"})
_GLOB = frozenset("*?[{")
FILE_FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "avro", "binaryFile", "xml"})


def has_file_lag(format_name: str | None, path: str | None, options: Mapping[str, str], checkpoint: str) -> bool:
    """Whether a source's waiting files can be counted: a whole folder on this machine, as is the checkpoint."""
    local = path is not None and is_local(path) and is_local(checkpoint) and not _GLOB & set(path)
    return local and format_name in FILE_FORMATS and not _CHOOSING & {name.lower() for name in options}


class FileLag:
    """Files of one source that no committed batch has read. `source` is its number in the checkpoint."""

    def __init__(self, folder: str, checkpoint: str, source: int) -> None:
        self.folder = Path(os.path.abspath(local_path(folder) or folder))  # with its links, as Spark has it
        self.checkpoint = Path(local_path(checkpoint) or checkpoint)
        self.source = source
        # By log, the files that it says were taken and that are still there, with the source's offset. A log names
        # every file that ever was; it is read once.
        self._taken: dict[str, dict[str, int]] = {}

    def files(self) -> int | None:
        """How many wait; None if Spark's logs do not tell."""
        try:
            last = self._committed_offset()
            logs = {path.name: path for path in self._current(last)}
            taken = {name: self._taken[name] if name in self._taken else self._read(logs[name]) for name in logs}
        except (OSError, ValueError, LookupError, TypeError):  # cleaned up just now, or in an unknown form
            return None
        # Looked at after the logs were read: what they name and is not there now has gone, and is not still to come.
        found = (path for path in self.folder.rglob("*") if path.is_file())
        there = {str(path) for path in found if _is_read(path.relative_to(self.folder))}
        self._taken = {
            name: {path: offset for path, offset in files.items() if path in there} for name, files in taken.items()
        }
        read = {path for files in self._taken.values() for path, offset in files.items() if offset <= last}
        return len(there - read)

    def _current(self, last: int) -> list[Path]:
        """The logs that tell of files taken up to an offset: the newest compacted one and the plain ones after it."""
        found = []
        for number, compact, path in sorted(_logs(self.checkpoint / "sources" / str(self.source)), reverse=True):
            if number <= last or compact:
                found.append(path)
            if compact:
                break
        return found

    def _read(self, log: Path) -> dict[str, int]:
        """The files of a log. An entry's batch is a number of the source's own; offsets count in it."""
        files = {}
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:  # the first is the version
            entry = json.loads(line)
            path = unquote(local_path(entry["path"]) or "")
            if not path.startswith(f"{self.folder}/".replace("//", "/")):
                raise ValueError(f"{path} is not in {self.folder}")  # the source read another folder before
            files[path] = int(entry["batchId"])
        return files

    def _committed_offset(self) -> int:
        batch = committed_batch(self.checkpoint)
        if batch is None:
            return -1
        # The version of the log, what holds for the whole batch, then a line for each source.
        line = (self.checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[2 + self.source]
        return -1 if line == "-" else int(json.loads(line)["logOffset"])


def committed_batch(checkpoint: str | Path) -> int | None:
    """The newest batch that Spark has committed, by a checkpoint on this machine."""
    return max((number for number, _, _ in _logs(Path(checkpoint, "commits"))), default=None)


def _logs(folder: Path) -> list[tuple[int, bool, Path]]:
    found = ((_LOG.match(path.name), path) for path in folder.glob("*"))
    return [(int(match[1]), match[2] is not None, path) for match, path in found if match]


def reported_lag(report: Mapping[str, Any]) -> str | None:
    """The lag that a source reports itself, out of its part of a progress report."""
    behind = (report.get("metrics") or {}).get("maxOffsetsBehindLatest")
    return None if behind is None else f"{int(behind)} offsets"


def _is_read(path: Path) -> bool:
    """Spark reads the files of a folder and those below its partition columns, but for names with a leading dot or
    underscore and files that are still being copied."""
    name = path.name
    return (
        all("=" in part for part in path.parent.parts) and not name.startswith((".", "_")) and "._COPYING_" not in name
    )
