"""What a join has done so far, for the page: batches added up, and beside that partitions, decisions and restarts."""

from __future__ import annotations

import os
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from watersmeet.pipeline.history import BatchRecord, History
from watersmeet.pipeline.names import recorded_names
from watersmeet.pipeline.report import find_state
from watersmeet.state.identity import require_join

BATCHES = 5_000  # the newest ones are read; a page shows no more
DECISIONS = 1_000  # the newest ones are kept


@dataclass
class PartitionTotals:
    """One key partition: what came of it since the first batch read, and its newest entry."""

    results: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    newest: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """A decision, with where and when it was made."""

    batch: int
    time: int
    partition: int
    event: dict[str, Any]


class JoinReader(History):
    """One join. Input names are those of the pipeline's sources where it has any."""

    def __init__(self, where: str | os.PathLike[str], *, most: int = BATCHES) -> None:
        directory = find_state(where)
        super().__init__(directory, most)
        self.record = require_join(directory)
        self.names = recorded_names(directory)
        self.partitions: dict[int, PartitionTotals] = {}
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS)

    def take(self, partition: int, entry: dict[str, Any]) -> None:
        """Add an entry up by partition, and keep its decisions."""
        totals = self.partitions.setdefault(partition, PartitionTotals())
        totals.results += entry["rows_out"]
        totals.rows.update(entry["rows_in"])
        totals.seconds += sum(entry["timings"].values())
        totals.newest = entry
        for event in entry["events"]:
            self.decisions.append(Decision(entry["batch"], entry["time"], partition, event))

    def refresh(self) -> list[BatchRecord]:
        """Read what is new. A pipeline may give its sources' names after the join was built."""
        if not self.batches:
            self.names = recorded_names(self.directory)
        news = super().refresh()
        for number in sorted(self.batches)[: -self.most or None]:
            del self.batches[number]
        return news

    @property
    def complete(self) -> list[BatchRecord]:
        """The batches that all partitions have committed, oldest first."""
        expected = int(self.record["partitions"])
        return [self.batches[number] for number in sorted(self.batches) if self.batches[number].partitions >= expected]

    @property
    def inputs(self) -> list[str]:
        """The inputs as the join calls them."""
        return list(self.record["identity"]["inputs"])

    @property
    def tuning(self) -> dict[str, Any]:
        """The options that may change at a restart, as they are now."""
        return next((manifest.tuning for manifest in self.manifests.values()), {})

    @property
    def budget(self) -> int | None:
        """The memory that the join may use, all partitions together."""
        memory = self.tuning.get("memory")
        return int(memory) if isinstance(memory, int) else None
