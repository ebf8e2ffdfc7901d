"""Looking at state from outside: the newest version of every partition, and the metrics of all batches so far."""

from __future__ import annotations

import re
from typing import Any

from watersmeet.errors import CorruptStateError
from watersmeet.state.directory import StateDir, check_fields, unseal
from watersmeet.state.manifest import Manifest, check_format
from watersmeet.state.store import PartitionStore

_PART = re.compile(r"part-(\d+)$")
_SEGMENT = re.compile(r"metrics-(\d+)\.json$")


def newest_manifests(directory: StateDir) -> list[Manifest]:
    """The newest version of each partition; partitions that no batch has reached yet are left out."""
    found = (_PART.match(name) for name in directory.list())
    stores = [PartitionStore(directory, int(match[1])) for match in found if match]
    return [store.manifest(versions[-1]) for store in stores if (versions := store.versions())]


def metrics_history(directory: StateDir, newest: Manifest) -> list[dict[str, Any]]:
    """The metrics of every batch of a partition, oldest first: finished segments, then what its manifest holds."""
    folder = PartitionStore(directory, newest.partition).folder
    entries: dict[int, dict[str, Any]] = {}
    for name in directory.list(folder):
        if match := _SEGMENT.match(name):
            path = f"{folder}/{name}"
            body = unseal(directory.read(path), directory.path(path))
            check_format(body, directory.path(path))
            check_fields(body, directory.path(path), "segment", "history")
            if body["segment"] != int(match[1]):
                raise CorruptStateError(
                    f"state file {directory.path(path)}",
                    expected=f"segment {int(match[1])} of the history",
                    found=f"segment {body['segment']}",
                    hint="The file belongs elsewhere: restore it from a copy.",
                )
            entries |= {entry["batch"]: entry for entry in body["history"]}
    entries |= {entry["batch"]: entry for entry in newest.history}
    return [entries[batch] for batch in sorted(entries) if batch <= newest.version]
