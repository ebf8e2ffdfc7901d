"""Which rows are processed first when a batch brings more than may be processed at once.

The papers' operator reads from queues; a micro-batch hands over everything together. So the queues become a *waiting
pool*: with a quota, at most that many rows are processed per batch, and the others wait, unjoined, in runs of their
own. Without a quota nothing ever waits.

    sequential   oldest first
    priority     the input on which keys are unique (else the one with fewer rows waiting) first; once it has used up a
                 whole quota it is the other input's turn (4.1)
    value        rows whose key a promise speaks of first: they are what a purge or a propagation waits for (4.2)

Rows with one hash are taken together, so the choice does not depend on the order of rows in a batch; a quota can be
exceeded by the rows of one key. A batch without rows, a full memory and the end of the inputs let the pool run dry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.arrow import merge_by_hash, take
from watersmeet.punctuated.intervals import Mask
from watersmeet.punctuated.punctuation import Delta
from watersmeet.punctuated.purge_policies import Unpurged, spoken_of
from watersmeet.punctuated.stored_rows import Found, StoredRows
from watersmeet.state.run import Run

Candidates = Iterator[tuple[str, Found]]


class Scheduling(Protocol):
    """Lists waiting rows in the order in which they should be processed."""

    def candidates(self, pool: WaitingPool) -> Candidates:
        """Rows of the pool; all that are listed first are taken first. A row may be listed twice."""


class Sequential:
    """Oldest first, whatever the input."""

    def candidates(self, pool: WaitingPool) -> Candidates:
        """Run by run."""
        runs = [(run.oldest, name, run) for name in pool.names for run in pool.rows[name].runs]
        for _, name, run in sorted(runs, key=lambda item: (item[0], item[1], item[2].attributes["id"])):
            yield name, [(run, pool.rows[name].living(run, np.arange(run.rows)))]


class Priority:
    """One input first; the other one's turn comes when it has used up a whole quota."""

    def __init__(self, first: str | None) -> None:
        self.first = first

    def candidates(self, pool: WaitingPool) -> Candidates:
        """All rows of one input, then all of the other."""
        first = self.first or min(pool.names, key=lambda name: (pool.rows[name].rows, name))
        order = sorted(pool.names, key=lambda name: (name != first, name))
        if pool.used_up == first:
            order.reverse()
        for name in order:
            for run in sorted(pool.rows[name].runs, key=lambda run: (run.oldest, run.attributes["id"])):
                yield name, [(run, pool.rows[name].living(run, np.arange(run.rows)))]


class ValueOriented:
    """Rows that promises speak of first, then oldest first."""

    def candidates(self, pool: WaitingPool) -> Candidates:
        """Found by hash and by value, not by looking at every row."""
        for promised in pool.names:
            delta = pool.urgent[promised].take()
            still_waiting = False
            for name in pool.names:
                found = [item for part in spoken_of(pool.rows[name], delta) for item in part]
                yield name, found
                still_waiting |= any(len(pool.rows[name].living(run, rows)) for run, rows in found)
            if still_waiting:
                pool.urgent[promised].add(delta)
        yield from Sequential().candidates(pool)


def scheduling_of(name: str, one_sides: frozenset[str]) -> Scheduling:
    """The strategy of that name."""
    if name == "priority":
        return Priority(min(one_sides) if len(one_sides) == 1 else None)
    return ValueOriented() if name == "value" else Sequential()


class WaitingPool:
    """Rows that have arrived and are not processed yet: as good as still in the queue."""

    def __init__(
        self, schemas: Mapping[str, pa.Schema], kinds: Sequence[pa.DataType], scheduling: Scheduling, quota: int | None
    ) -> None:
        self.names = tuple(schemas)
        self.schemas = dict(schemas)
        self.scheduling = scheduling
        self.quota = quota
        self.rows = {name: StoredRows(f"{name}.waiting", kinds) for name in schemas}
        self.urgent = {name: Unpurged(f"{name}.urgent", kinds) for name in schemas}
        self.used_up: str | None = None  # the input that had a whole quota in the last batch

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not any(rows.runs for rows in self.rows.values())

    def waits(self, name: str, table: pa.Table) -> Mask:
        """Which keys of a hash-sorted table have rows of `name` waiting."""
        if not self.rows[name].runs:
            return np.zeros(table.num_rows, np.bool_)
        return self.rows[name].has(table)

    def hear(self, name: str, delta: Delta) -> None:
        """Learn what was promised, for value-oriented scheduling."""
        if self.quota is not None and isinstance(self.scheduling, ValueOriented) and not delta.is_empty:
            self.urgent[name].add(delta)

    def admit(self, arrived: Mapping[str, pa.Table], batch: int) -> tuple[dict[str, pa.Table], dict[str, pa.Table]]:
        """The rows to process now, sorted by hash, and which of them had been waiting."""
        count = sum(table.num_rows for table in arrived.values()) + sum(rows.rows for rows in self.rows.values())
        if self.quota is None or count <= self.quota:
            waited = self.drain()
            now = {name: merge_by_hash([waited[name], arrived[name]]) for name in self.names}
            return now, waited
        for name, table in arrived.items():
            self.rows[name].add(table, batch)
        chosen = self._choose(self.quota)
        for rows in self.rows.values():
            rows.settle()
        return chosen, chosen

    def _choose(self, quota: int) -> dict[str, pa.Table]:
        taken: dict[str, list[pa.Table]] = {name: [] for name in self.names}
        left = quota
        for name, found in self.scheduling.candidates(self):
            for run, candidates in found:
                rows = self.rows[name].living(run, candidates)
                if left <= 0 or not len(rows):
                    continue
                if len(rows) > left:  # rows with one hash stay together
                    hashes = run.hashes[rows]
                    rows = rows[: np.searchsorted(hashes, hashes[left - 1], side="right")]
                taken[name].append(take(run.table, rows))
                left -= self.rows[name].kill(run, rows)
        counts = {name: sum(table.num_rows for table in tables) for name, tables in taken.items()}
        self.used_up = next((name for name, count in counts.items() if count >= quota), None)
        return {
            name: merge_by_hash(tables) if tables else self.schemas[name].empty_table()
            for name, tables in taken.items()
        }

    def drain(self) -> dict[str, pa.Table]:
        """All waiting rows, sorted by hash."""
        drained = {}
        for name, rows in self.rows.items():
            tables = [rows.living_table(run) for run in rows.runs]
            drained[name] = merge_by_hash(tables) if tables else self.schemas[name].empty_table()
            rows.drop(list(rows.runs))
            self.urgent[name].take()
        self.used_up = None
        return drained

    def save(self) -> tuple[list[Run], dict[str, Any]]:
        """Runs and values."""
        runs: list[Run] = []
        values: dict[str, Any] = {"used_up": self.used_up}
        for name in self.names:
            mine, number = self.rows[name].save()
            urgent, said = self.urgent[name].save()
            runs += [*mine, *urgent]
            values[name] = {"next": number, "urgent": said}
        return runs, values

    def restore(self, runs: Sequence[Run], values: dict[str, Any]) -> None:
        """What `save` returned; runs of other labels are passed over."""
        self.used_up = values["used_up"]
        for name in self.names:
            self.rows[name].restore(runs, values[name]["next"])
            self.urgent[name].restore(runs, values[name]["urgent"])
