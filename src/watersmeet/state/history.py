"""Looking at state from outside: the newest version of every partition, and the metrics of all batches so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from watersmeet.state.directory import StateDir
from watersmeet.state.identity import PART, divisions, read_join
from watersmeet.state.manifest import Manifest, RunEntry
from watersmeet.state.parts import DEAD
from watersmeet.state.store import PartitionStore

Known = Mapping[tuple[int, int], int]  # division and partition -> a version that has been read


def newest_manifests(directory: StateDir, known: Known = MappingProxyType({})) -> list[Manifest]:
    """The newest version of each partition; partitions that no batch has reached yet are left out, and so are those of
    which that version is `known`.

    If the state has been divided anew, they are those of the newest division of which all partitions have a version.
    """
    by_division = _newest_versions(directory)
    record = read_join(directory)
    for division, partitions in reversed(list(enumerate(divisions(record)))) if record else ():
        if (found := by_division.get(division)) and len(found) == partitions:
            return _read(found, known)
    return _read(by_division[min(by_division)], known) if by_division else []


def _newest_versions(directory: StateDir) -> dict[int, list[tuple[PartitionStore, int]]]:
    """The newest version of each partition that has one, by division; no manifest is read."""
    found: dict[int, list[tuple[PartitionStore, int]]] = {}
    for match in filter(None, map(PART.match, directory.list())):
        store = PartitionStore(directory, int(match[1]), int(match[2] or 0))
        if versions := store.versions():
            found.setdefault(store.division, []).append((store, versions[-1]))
    return found


def _read(newest: Iterable[tuple[PartitionStore, int]], known: Known = MappingProxyType({})) -> list[Manifest]:
    return [
        store.manifest(version)
        for store, version in newest
        if version > known.get((store.division, store.partition), -1)
    ]


def former_metrics(directory: StateDir, division: int) -> list[tuple[int, int, dict[str, Any]]]:
    """The metrics of all batches before a division of the state, oldest first, each after its division and partition.

    A batch that was the last of a division and was repeated in the next one counts there.
    """
    by_division = {division: _read(newest) for division, newest in _newest_versions(directory).items()}
    found: list[tuple[int, int, dict[str, Any]]] = []
    until: int | None = None
    for number in sorted(by_division, reverse=True):
        entries = [(one.partition, entry) for one in by_division[number] for entry in metrics_history(directory, one)]
        entries = [pair for pair in entries if until is None or pair[1]["batch"] < until]
        until = min((entry["batch"] for _, entry in entries), default=until)
        if number < division:
            found += [(number, *pair) for pair in entries]
    return sorted(found, key=lambda one: (one[2]["batch"], one[1]))


def all_metrics(directory: StateDir, newest: Iterable[Manifest]) -> list[tuple[int, dict[str, Any]]]:
    """The partitions' metrics of every batch so far, those before the state was divided anew first, given the newest
    version of each partition."""
    manifests = list(newest)
    former = former_metrics(directory, manifests[0].division) if manifests and manifests[0].division else []
    return [(partition, entry) for _, partition, entry in former] + [
        (one.partition, entry) for one in manifests for entry in metrics_history(directory, one)
    ]


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
        counted = store["values"].get("alive", {})
        for run in runs.get(store["name"], []):
            number = str(run.facts.get("id", 0))
            marked, _ = dead.get(number, (0, 0))
            alive = counted.get(number, run.rows - marked)
            already = min(alive, ruled) if run.tier == "resident" else 0
            ruled -= already
            yield store["input"], run, alive - already


def metrics_history(directory: StateDir, newest: Manifest, after: int = -1) -> list[dict[str, Any]]:
    """The metrics of every batch of a partition later than `after`, oldest first: from segments and its manifest."""
    entries = PartitionStore(directory, newest.partition, newest.division).segments.read(after)
    entries |= {entry["batch"]: entry for entry in newest.history}
    return [entries[batch] for batch in sorted(entries) if after < batch <= newest.version]
