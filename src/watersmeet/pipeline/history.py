"""What a join did, batch by batch, from its state directory: no Spark needed, and cheap enough to do while it runs.

`History` adds the partitions up and remembers what it has read, so that keeping up with a running join costs one small
file per partition and batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from watersmeet.plan.metrics import add_up
from watersmeet.state.directory import StateDir
from watersmeet.state.history import former_metrics, metrics_history, newest_manifests
from watersmeet.state.manifest import Manifest


@dataclass
class BatchRecord:
    """One micro-batch, all partitions together."""

    batch: int
    time: int = 0
    rows_in: Counter[str] = field(default_factory=Counter)
    rows_out: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    resident_bytes: int = 0
    spilled_bytes: int = 0
    state_rows: int = 0
    seconds: float = 0.0  # of the slowest partition
    partitions: int = 0
    estimates: dict[str, float] = field(default_factory=dict)
    run: str = ""  # of the query: another one after a restart

    def add(self, entry: dict[str, Any]) -> None:
        """Take in what one partition recorded."""
        self.partitions += 1
        self.time = max(self.time, int(entry["time"]))
        self.rows_in.update({name: int(rows) for name, rows in entry["rows_in"].items()})
        self.rows_out += int(entry["rows_out"])
        add_up(self.counters, entry["counters"])
        self.events.update(str(event["kind"]) for event in entry["events"])
        self.resident_bytes += int(entry["resident_bytes"])
        self.spilled_bytes += int(entry["spilled_bytes"])
        self.state_rows += int(entry["state_rows"])
        self.seconds = max(self.seconds, sum(entry["timings"].values()))
        add_up(self.estimates, entry.get("estimates", {}))
        self.run = str(entry.get("run", ""))


class History:
    """The batches of a join, kept up to date by `refresh`: all of them, or those from the newest `most` on."""

    def __init__(self, directory: StateDir, most: int | None = None) -> None:
        self.directory = directory
        self.most = most
        self.first = 0  # batches before it are left out
        self.manifests: dict[int, Manifest] = {}  # the newest of each partition
        self.batches: dict[int, BatchRecord] = {}
        self.ended: frozenset[str] = frozenset()
        self.finished_in: int | None = None  # the batch with which the join ended
        self._read_up_to: dict[tuple[int, int], int] = {}

    @property
    def finished(self) -> bool:
        """Whether all partitions have ended: nothing more will come of the join."""
        return self.finished_in is not None

    def refresh(self) -> list[BatchRecord]:
        """Read what is new, and return just that, per batch, oldest first.

        Partitions commit one after the other, so a batch may come in pieces; `batches` has them added up.
        """
        changed = newest_manifests(self.directory, self._read_up_to)
        if changed and not self.manifests and self.most is not None:
            self.first = max(max(manifest.version for manifest in changed) + 1 - self.most, 0)
        news: dict[int, BatchRecord] = {}
        if changed and changed[0].division and not self._read_up_to:
            for partition, entry in former_metrics(self.directory, changed[0].division):
                if entry["batch"] >= self.first:
                    self.batches.setdefault(entry["batch"], BatchRecord(entry["batch"])).add(entry)
                    self.take(partition, entry)
        for manifest in changed:
            last = self._read_up_to.get((manifest.division, manifest.partition), self.first - 1)
            for entry in self._entries(manifest, last):
                number = int(entry["batch"])
                if number > last:
                    self.batches.setdefault(number, BatchRecord(number)).add(entry)
                    news.setdefault(number, BatchRecord(number)).add(entry)
                    self.take(manifest.partition, entry)
            self._read_up_to[manifest.division, manifest.partition] = max(last, manifest.version)
        newest = max((manifest.division for manifest in (*changed, *self.manifests.values())), default=0)
        held = {number: one for number, one in self.manifests.items() if one.division == newest}
        self.manifests = held | {manifest.partition: manifest for manifest in changed}
        manifests = self.manifests.values()
        if manifests:
            self.ended = frozenset.intersection(*(frozenset(manifest.ended) for manifest in manifests))
            if all(manifest.finished for manifest in manifests):
                self.finished_in = max(max(manifest.ended.values()) for manifest in manifests)
        return [news[number] for number in sorted(news)]

    def take(self, partition: int, entry: dict[str, Any]) -> None:
        """An entry was read: for whoever wants more of it than is added up."""

    def _entries(self, manifest: Manifest, last: int) -> list[dict[str, Any]]:
        """The entries after batch `last`: usually all in the manifest, else finished segments are read too."""
        begins = int(manifest.history[0]["batch"]) if manifest.history else manifest.version + 1
        return manifest.history if begins <= last + 1 else metrics_history(self.directory, manifest, last)
