"""Looking at state from outside: the newest version of every partition, and the metrics of all batches so far."""

from __future__ import annotations

import re
from typing import Any

from watersmeet.state.directory import StateDir
from watersmeet.state.manifest import Manifest
from watersmeet.state.store import PartitionStore

_PART = re.compile(r"part-(\d+)$")


def newest_manifests(directory: StateDir) -> list[Manifest]:
    """The newest version of each partition; partitions that no batch has reached yet are left out."""
    found = (_PART.match(name) for name in directory.list())
    stores = [PartitionStore(directory, int(match[1])) for match in found if match]
    return [store.manifest(versions[-1]) for store in stores if (versions := store.versions())]


def metrics_history(directory: StateDir, newest: Manifest, after: int = -1) -> list[dict[str, Any]]:
    """The metrics of every batch of a partition later than `after`, oldest first: from segments and its manifest."""
    entries = PartitionStore(directory, newest.partition).segments.read(after)
    entries |= {entry["batch"]: entry for entry in newest.history}
    return [entries[batch] for batch in sorted(entries) if after < batch <= newest.version]
