"""What a join did, batch by batch, from its state directory: no Spark needed, and cheap enough to do while it runs.

`History` adds the partitions up and remembers what it has read, so that keeping up with a running join costs one small
file per partition and batch. When the state is divided anew it begins anew: a batch of the former division may be
repeated in the new one, and counts there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from watersmeet.plan.metrics import add_up
from watersmeet.state.directory import StateDir
from watersmeet.state.history import former_metrics, metrics_history, newest_manifests
from watersmeet.state.identity import divisions, read_join
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
    partitions: int = 0  # that have committed it
    whole: int = 0  # how many there are, in the division of the state that the batch ran in
    estimates: dict[str, float] = field(default_factory=dict)
    run: str = ""  # of the query: another one after a restart

    @property
    def complete(self) -> bool:
        """Whether all partitions have committed it, perhaps not Spark yet."""
        return self.partitions == self.whole

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
        self.beginnings = 0  # how often everything has been read
        self.begin()

    def begin(self) -> None:
        """Forget everything that was read: the next `refresh` reads it anew."""
        self.beginnings += 1
        self.first = 0  # batches before it are left out
        self.division = 0  # the newest that was read
        self.manifests: dict[int, Manifest] = {}  # the newest of each partition
        self.batches: dict[int, BatchRecord] = {}
        self.ended: frozenset[str] = frozenset()
        self.finished_in: int | None = None  # the batch with which the join ended
        self._read_up_to: dict[tuple[int, int], int] = {}
        self._newest_former = -1  # the newest batch that was read of a former division

    @property
    def finished(self) -> bool:
        """Whether all partitions have ended: nothing more will come of the join."""
        return self.finished_in is not None

    def refresh(self) -> list[BatchRecord]:
        """Read what is new, and return just that, per batch, oldest first; or everything, if it has begun anew: then
        `beginnings` is another number.

        Partitions commit one after the other, so a batch may come in pieces; `batches` has them added up.
        """
        changed = newest_manifests(self.directory, self._read_up_to)
        if self._read_up_to and changed and changed[0].division != self.division:
            self.begin()
            changed = newest_manifests(self.directory)
        if changed and not self.manifests:
            self.division = changed[0].division
            if self.most is not None:
                self.first = max(max(manifest.version for manifest in changed) + 1 - self.most, 0)
        found = [(manifest, self._new_entries(manifest)) for manifest in changed]
        if any(entry["batch"] <= self._newest_former for _, entries in found for entry in entries):
            self.begin()  # the state was divided ahead of a batch, which turned out to be a repeated one
            return self.refresh()
        news: dict[int, BatchRecord] = {}
        if not self._read_up_to and self.division:
            former = [one for one in former_metrics(self.directory, self.division) if one[2]["batch"] >= self.first]
            whole = Counter(int(entry["batch"]) for *_, entry in former)  # what was not repeated was complete
            for division, partition, entry in former:
                self._add(news, (division, partition), entry, whole[entry["batch"]])
            self._newest_former = max(whole, default=-1)
        self.manifests |= {manifest.partition: manifest for manifest in changed}
        partitions = self._partitions() if changed else 0
        for manifest, entries in found:
            part = (manifest.division, manifest.partition)
            for entry in entries:
                self._add(news, part, entry, partitions)
            self._read_up_to[part] = max(self._read_up_to.get(part, -1), manifest.version)
        manifests = self.manifests.values()
        if manifests:
            self.ended = frozenset.intersection(*(frozenset(manifest.ended) for manifest in manifests))
            if all(manifest.finished for manifest in manifests):
                self.finished_in = max(max(manifest.ended.values()) for manifest in manifests)
        return [news[number] for number in sorted(news)]

    def take(self, part: tuple[int, int], entry: dict[str, Any]) -> None:
        """An entry of a partition (its division and number) was read: for whoever wants more than is added up."""

    def forget(self, keep: int) -> None:
        """Drop all but the newest batches from `batches`."""
        for number in sorted(self.batches)[:-keep]:
            del self.batches[number]

    def _add(self, news: dict[int, BatchRecord], part: tuple[int, int], entry: dict[str, Any], whole: int) -> None:
        number = int(entry["batch"])
        for batches in (self.batches, news):
            record = batches.setdefault(number, BatchRecord(number))
            record.whole = whole
            record.add(entry)
        self.take(part, entry)

    def _partitions(self) -> int:
        """How many partitions there are in the division that is read."""
        record = read_join(self.directory)
        numbers = divisions(record) if record else []
        return int(numbers[self.division]) if self.division < len(numbers) else len(self.manifests)

    def _new_entries(self, manifest: Manifest) -> list[dict[str, Any]]:
        """The entries that were not read: usually all in the manifest, else finished segments are read too."""
        last = self._read_up_to.get((manifest.division, manifest.partition), self.first - 1)
        begins = int(manifest.history[0]["batch"]) if manifest.history else manifest.version + 1
        found = manifest.history if begins <= last + 1 else metrics_history(self.directory, manifest, last)
        return [entry for entry in found if int(entry["batch"]) > last]
