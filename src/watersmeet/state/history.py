"""Looking at state from outside: the newest version of every partition, and the metrics of all batches so far."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from watersmeet.state.directory import StateDir
from watersmeet.state.manifest import Manifest, RunEntry
from watersmeet.state.parts import DEAD
from watersmeet.state.store import PartitionStore

_PART = re.compile(r"part-(\d+)$")


def newest_manifests(directory: StateDir, known: Mapping[int, int] | None = None) -> list[Manifest]:
    """The newest version of each partition; partitions that no batch has reached yet are left out, and so are those of
    which the version is `known` (by partition)."""
    found = (_PART.match(name) for name in directory.list())
    stores = [PartitionStore(directory, int(match[1])) for match in found if match]
    newest = ((store, versions[-1]) for store in stores if (versions := store.versions()))
    return [store.manifest(version) for store, version in newest if version > (known or {}).get(store.partition, -1)]


def held_runs(manifest: Manifest) -> Iterator[tuple[str, RunEntry, int]]:
    """The runs that hold rows of an input: whose rows they are, the run, and how many of them are alive.

    Stores of anything else, and side tables (marks, orders), are left out. Of rows that have left by a rule only their
    number is known: they are taken off the oldest runs in memory, so that sums are right.
    """
    runs: dict[str, list[RunEntry]] = {}
    for run in manifest.runs:
        runs.setdefault(run.label, []).append(run)
    for store in manifest.stores:
        if not store["input"]:
            continue
        dead, ruled = store["values"]["marks"][DEAD], store["values"].get("ruled", 0)
        for run in runs.get(store["name"], []):
            marked, _ = dead.get(str(run.facts.get("id", 0)), (0, 0))
            alive = run.rows - marked
            already = min(alive, ruled) if run.tier == "resident" else 0
            ruled -= already
            yield store["input"], run, alive - already


def metrics_history(directory: StateDir, newest: Manifest, after: int = -1) -> list[dict[str, Any]]:
    """The metrics of every batch of a partition later than `after`, oldest first: from segments and its manifest."""
    entries = PartitionStore(directory, newest.partition).segments.read(after)
    entries |= {entry["batch"]: entry for entry in newest.history}
    return [entries[batch] for batch in sorted(entries) if after < batch <= newest.version]
