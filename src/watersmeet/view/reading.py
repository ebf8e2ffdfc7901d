"""What a join has done so far, for the page: batches added up, and beside that partitions, decisions and restarts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from watersmeet.chooser.story import Story, recorded_story
from watersmeet.engine.held_rows import clock_is_local, key_columns
from watersmeet.errors import StateDirError, StateError
from watersmeet.pipeline.failures import recorded_failures
from watersmeet.pipeline.history import BatchRecord, History
from watersmeet.pipeline.names import recorded_names
from watersmeet.pipeline.report import find_state
from watersmeet.plan.metrics import METRICS
from watersmeet.state.description import Description, recorded_inputs
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
    """One join. What is added up here is never gone through again: looking at a long run costs as much as at a short
    one."""

    def __init__(self, where: str | os.PathLike[str], *, most: int = BATCHES) -> None:
        directory = find_state(where)
        self.record = require_join(directory)
        self.names = recorded_names(directory)
        self.failures: list[dict[str, Any]] = []  # of a pipeline's runs
        super().__init__(directory, most)

    def begin(self) -> None:
        """Forget what was added up, too."""
        super().begin()
        self.complete: list[BatchRecord] = []  # batches that all partitions have committed, oldest first
        self.parts: dict[tuple[int, int], PartitionTotals] = {}  # of all divisions of the state, by division and number
        self.decisions: list[Decision] = []  # oldest first
        self.counted: Counter[str] = Counter()  # counters over all batches read
        self.newest_rows: dict[str, int] = {}  # when each input last had rows
        self.restarts: list[BatchRecord] = []  # the first batches of later runs

    def take(self, part: tuple[int, int], entry: dict[str, Any]) -> None:
        """Add an entry up, and keep its decisions."""
        totals = self.parts.setdefault(part, PartitionTotals())
        totals.results += entry["rows_out"]
        totals.rows.update(entry["rows_in"])
        totals.seconds += sum(entry["timings"].values())
        totals.newest = entry
        time = entry["time"]
        for name, rows in entry["rows_in"].items():
            if rows:
                self.newest_rows[name] = max(time, self.newest_rows.get(name, time))
        for name, value in entry["counters"].items():
            if (known := METRICS.get(name.partition(".")[0])) and known.kind == "counter":
                self.counted[name] += int(value)
        for event in entry["events"]:
            self.decisions.append(Decision(entry["batch"], time, part[1], event))
        record = self.batches[entry["batch"]]
        if record.complete:
            self._completed(record)

    def _completed(self, record: BatchRecord) -> None:
        before = self.complete[-1] if self.complete else None
        if before is None or (before.run and record.run and record.run != before.run):
            for known in ("description", "story"):  # a restart may have others
                self.__dict__.pop(known, None)
            self.restarts += [] if before is None else [record]
        self.complete.append(record)

    def refresh(self) -> list[BatchRecord]:
        """Read what is new. A pipeline may give its sources' names after the join was built."""
        begins = not self.batches
        if begins:
            self.names = recorded_names(self.directory)
        news = super().refresh()
        if news:
            self.record = require_join(self.directory)  # a restart may have divided the state anew
        if begins or not news:  # a run that has failed brings no news
            self.failures = recorded_failures(self.directory)
        self.decisions.sort(key=lambda one: (one.batch, one.partition))  # partitions are read one after the other
        del self.decisions[:-DECISIONS]
        for record in self.complete[: -(self.most or BATCHES)]:
            self.batches.pop(record.batch, None)
        self.complete = self.complete[-(self.most or BATCHES) :]
        return news

    @property
    def partitions(self) -> dict[int, PartitionTotals]:
        """The partitions of the newest division of the state in which a batch has run."""
        newest = max((division for division, _ in self.parts), default=0)
        return {number: totals for (division, number), totals in self.parts.items() if division == newest}

    @property
    def rows(self) -> Counter[str]:
        """Rows that came, by input."""
        return sum((part.rows for part in self.parts.values()), Counter())

    @property
    def results(self) -> int:
        """Results so far."""
        return sum(part.results for part in self.parts.values())

    @property
    def inputs(self) -> list[str]:
        """The inputs as the join calls them."""
        return list(self.record["identity"]["inputs"])

    @cached_property
    def description(self) -> Description | None:
        """The join and its columns as it was last built; None if nobody knows."""
        try:
            return recorded_inputs(self.directory)
        except (StateError, StateDirError):  # an older state has no such record
            return None

    @cached_property
    def story(self) -> Story | None:
        """What was known of the join when it was last built, and what was chosen; None if nobody knows."""
        try:
            return recorded_story(self.directory)
        except StateError:
            return None

    @property
    def tuning(self) -> Mapping[str, Any]:
        """The options that may change at a restart, as the join was last built with them."""
        return {} if self.description is None else self.description.plan.tuning

    @property
    def key_columns(self) -> list[tuple[str, str]]:
        """The columns of a key with their types, those of Spark where it is known."""
        if self.description is None:
            return []
        types = {column.name: column.stored for column in next(iter(self.description.columns.values()))}
        plain = {name: kind.strip('"') for name, kind in types.items() if kind.startswith('"')}  # others are structures
        return [(name, plain.get(name, str(kind))) for name, kind in key_columns(self.description)]

    @property
    def nulls_match(self) -> bool:
        """Whether a null matches a null in a column of the key."""
        return self.description is not None and bool(self.description.plan.null_flags)

    def is_local(self, name: str) -> bool:
        """Whether the times of an input have no zone."""
        return self.description is not None and clock_is_local(self.description, name)

    @property
    def budget(self) -> int | None:
        """The memory that the join may use, all partitions together."""
        memory = self.tuning.get("memory")
        return int(memory) if isinstance(memory, int) else None
