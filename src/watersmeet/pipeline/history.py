"""What a join did, batch by batch, read from its state directory: no Spark needed, and cheap enough to do while it runs.

Every partition's manifest carries the metrics of the batches since the last multiple of `SEGMENT`; older ones are in
segment files. `History` adds the partitions up and remembers what it has read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from watersmeet.errors import CorruptStateError, MissingVersionError
from watersmeet.state.directory import StateDir, unseal
from watersmeet.state.manifest import SEGMENT, Manifest
from watersmeet.state.store import PartitionStore

_PARTITION = re.compile(r"part-(\d{5})$")


@dataclass
class BatchRecord:
    """One micro-batch, added up over the partitions."""

    batch: int
    time: int = 0
    rows_in: Counter[str] = field(default_factory=Counter)
    rows_out: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    resident_bytes: int = 0
    spilled_bytes: int = 0
    state_rows: int = 0
    seconds: float = 0.0  # of the slowest partition
    partitions: int = 0

    def add(self, entry: dict[str, Any]) -> None:
        """Take in what one partition recorded."""
        self.partitions += 1
        self.time = max(self.time, int(entry["time"]))
        self.rows_in.update({name: int(rows) for name, rows in entry["rows_in"].items()})
        self.rows_out += int(entry["rows_out"])
        for name, value in entry["counters"].items():
            self.counters[name] += value
        self.events.update(str(event["kind"]) for event in entry["events"])
        self.resident_bytes += int(entry["resident_bytes"])
        self.spilled_bytes += int(entry["spilled_bytes"])
        self.state_rows += int(entry["state_rows"])
        self.seconds = max(self.seconds, sum(entry["timings"].values()))


def partitions_of(directory: StateDir) -> list[int]:
    """The key partitions that have state."""
    return [int(match[1]) for name in directory.list() if (match := _PARTITION.match(name))]


def newest_manifests(directory: StateDir) -> list[Manifest]:
    """Each partition's newest version. A partition whose files are being collected right now is read again."""
    return [manifest for number in partitions_of(directory) if (manifest := _newest(PartitionStore(directory, number)))]


def _newest(store: PartitionStore) -> Manifest | None:
    for _ in range(3):
        versions = store.versions()
        if not versions:
            return None
        try:
            return store.manifest(versions[-1])
        except MissingVersionError:  # collected between listing and reading: there is a newer one
            continue
    return None


class History:
    """The batches of a join, kept up to date by `refresh`."""

    def __init__(self, directory: StateDir) -> None:
        self.directory = directory
        self.batches: dict[int, BatchRecord] = {}
        self.ended: frozenset[str] = frozenset()
        self.finished = False
        self._read_up_to: dict[int, int] = {}

    def refresh(self) -> list[BatchRecord]:
        """Read what is new, and return just that, per batch, oldest first.

        Partitions commit one after the other, so a batch may come in pieces; `batches` has them added up.
        """
        manifests = newest_manifests(self.directory)
        news: dict[int, BatchRecord] = {}
        for manifest in manifests:
            last = self._read_up_to.get(manifest.partition, -1)
            for entry in self._entries(manifest, last):
                number = int(entry["batch"])
                if number > last:
                    self.batches.setdefault(number, BatchRecord(number)).add(entry)
                    news.setdefault(number, BatchRecord(number)).add(entry)
            self._read_up_to[manifest.partition] = max(last, manifest.version)
        if manifests:
            self.ended = frozenset.intersection(*(frozenset(manifest.ended) for manifest in manifests))
            self.finished = all(manifest.finished for manifest in manifests)
        return [news[number] for number in sorted(news)]

    def _entries(self, manifest: Manifest, last: int) -> Iterator[dict[str, Any]]:
        """The entries after batch `last`: those of whole segments from their files, the rest from the manifest."""
        in_manifest = int(manifest.history[0]["batch"]) if manifest.history else manifest.version + 1
        for segment in range((last + 1) // SEGMENT, in_manifest // SEGMENT):
            yield from self._segment(manifest.partition, segment)
        yield from manifest.history

    def _segment(self, partition: int, segment: int) -> list[dict[str, Any]]:
        name = f"part-{partition:05d}/metrics-{segment:06d}.json"
        if self.directory.size(name) is None:
            raise CorruptStateError(
                f"state file {name}",
                expected="the metrics of an earlier stretch of batches",
                found="no file",
                hint="The state directory is incomplete: copy it as a whole.",
            )
        entries: list[dict[str, Any]] = unseal(self.directory.read(name), name)["history"]
        return entries
