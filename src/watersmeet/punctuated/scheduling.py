"""Which rows are processed first when a batch brings more than may be processed at once.

The papers' operator reads from queues; a micro-batch hands over everything together. So the queues become a *waiting
pool*: with a quota, at most that many rows are processed per batch, and the others wait, unjoined, in runs of their
own. Without a quota nothing ever waits.

    sequential   oldest first
    priority     the input on which keys are unique (else the one with fewer rows waiting) first; once it has used up a
                 whole quota it is the other input's turn (4.1)
    value        rows whose key a promise covers first: they are what a purge or a propagation waits for (4.2)
    priority_value   both: one input first, and of each input the rows whose key a promise covers; as in the paper,
                 which input goes first outweighs which rows do

Rows with one hash are taken together, so the choice does not depend on the order of rows in a batch; a quota can be
exceeded by the rows of one key. Where the rows of an input come in clusters, a cluster that is begun is read to its
end, as far as it has come (5.4, 1-NC): its rows are joined while their partner is at hand. A batch without rows, a full
memory and the end of the inputs let the pool run dry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, hashes_of, merge_by_hash
from watersmeet.columns.matching import ranges
from watersmeet.punctuated.lookup import Found, covered, has_keys
from watersmeet.punctuated.promises.intervals import Mask
from watersmeet.punctuated.promises.punctuation import Delta
from watersmeet.punctuated.purge_policies import Unpurged
from watersmeet.state.parts import Part
from watersmeet.state.rows import RowStore
from watersmeet.state.side_table import SideTable

Candidates = Iterator[tuple[str, Found]]


class Scheduling(Protocol):
    """Lists waiting rows in the order in which they should be processed."""

    def candidates(self, pool: WaitingPool) -> Candidates:
        """Rows of the pool; all that are listed first are taken first. A row may be listed twice."""


class Sequential:
    """Oldest first, whatever the input."""

    def candidates(self, pool: WaitingPool) -> Candidates:
        """Run by run."""
        parts = [(name, part) for name in pool.names for part in pool.rows[name].parts()]
        for name, part in sorted(parts, key=lambda item: (item[1].run.oldest, item[0], item[1].run.id)):
            yield name, [(part, _all_rows(part))]


class Priority:
    """One input first; the other one's turn comes when it has used up a whole quota."""

    def __init__(self, first: str | None) -> None:
        self.first = first

    def order(self, pool: WaitingPool) -> list[str]:
        """The inputs, by whose turn it is."""
        first = self.first or min(pool.names, key=lambda name: (pool.rows[name].rows, name))
        order = sorted(pool.names, key=lambda name: (name != first, name))
        return order[::-1] if pool.used_up == first else order

    def candidates(self, pool: WaitingPool) -> Candidates:
        """All rows of one input, then all of the other."""
        for name in self.order(pool):
            yield from _oldest_first(pool, name)


class ValueOriented:
    """Rows that promises cover first, then oldest first."""

    def candidates(self, pool: WaitingPool) -> Candidates:
        """Found by hash and by value, not by looking at every row."""
        for promised in pool.names:
            delta = pool.urgent[promised].take()
            still_waiting = False
            for name in pool.names:
                found = [item for part in covered(pool.rows[name], delta) for item in part]
                yield name, found
                still_waiting |= any(len(alive_of(part, rows)) for part, rows in found)
            if still_waiting:
                pool.urgent[promised].add(delta)
        yield from Sequential().candidates(pool)


class PriorityValue(ValueOriented):
    """One input first, and of each the rows that promises cover before the others."""

    def __init__(self, first: str | None) -> None:
        self.priority = Priority(first)

    def candidates(self, pool: WaitingPool) -> Candidates:
        """An input's covered rows, then its others, then the other input's."""
        deltas = {promised: pool.urgent[promised].take() for promised in pool.names}
        found: dict[str, list[tuple[Part, Indices]]] = {promised: [] for promised in pool.names}
        for name in self.priority.order(pool):
            for promised, delta in deltas.items():
                mine = [item for part in covered(pool.rows[name], delta) for item in part]
                found[promised] += mine
                yield name, mine
            yield from _oldest_first(pool, name)
        for promised, delta in deltas.items():
            if any(len(alive_of(part, rows)) for part, rows in found[promised]):
                pool.urgent[promised].add(delta)


def _oldest_first(pool: WaitingPool, name: str) -> Candidates:
    for part in sorted(pool.rows[name].parts(), key=lambda part: (part.run.oldest, part.run.id)):
        yield name, [(part, _all_rows(part))]


def scheduling_of(name: str, one_sides: frozenset[str]) -> Scheduling:
    """The strategy of that name."""
    first = min(one_sides) if len(one_sides) == 1 else None
    match name:
        case "priority":
            return Priority(first)
        case "priority_value":
            return PriorityValue(first)
        case "value":
            return ValueOriented()
    return Sequential()


def _all_rows(part: Part) -> Indices:
    return np.arange(part.table.num_rows)


def alive_of(part: Part, rows: Indices) -> Indices:
    """Those of a part's rows that are alive now."""
    alive = part.alive(rows)
    return rows if alive is None else rows[alive]


class WaitingPool:
    """Rows that have arrived and are not processed yet: as good as still in the queue."""

    def __init__(
        self,
        stores: Mapping[str, RowStore],
        kinds: Sequence[pa.DataType],
        scheduling: Scheduling,
        quota: int | None,
        clustered: frozenset[str] = frozenset(),
    ) -> None:
        self.names = tuple(stores)
        self.clustered = clustered
        self.scheduling = scheduling
        self.quota = quota
        self.rows = dict(stores)
        self.urgent = {name: Unpurged(f"{name}.urgent", kinds) for name in stores}
        self.used_up: str | None = None  # the input that had a whole quota in the last batch
        self.oldest: dict[str, int] = {}  # the batch of the oldest rows that waited when some were last taken

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not any(rows.runs for rows in self.rows.values())

    def waits(self, name: str, table: pa.Table) -> Mask:
        """Which keys of a hash-sorted table have rows of `name` waiting."""
        if not self.rows[name].runs:
            return np.zeros(table.num_rows, np.bool_)
        return has_keys(self.rows[name], table)

    def promised(self, name: str, delta: Delta) -> None:
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
        self._note_oldest()
        chosen = self._choose(self.quota)
        for rows in self.rows.values():
            rows.settle()
        return chosen, chosen

    def _choose(self, quota: int) -> dict[str, pa.Table]:
        taken: dict[str, list[pa.Table]] = {name: [] for name in self.names}
        left = quota
        for name, found in self.scheduling.candidates(self):
            for part, candidates in found:
                rows = alive_of(part, candidates)
                if left <= 0 or not len(rows):
                    continue
                if len(rows) > left:  # rows with one hash stay together
                    hashes = part.hashes[rows]
                    rows = rows[: np.searchsorted(hashes, hashes[left - 1], side="right")]
                taken[name].append(self.rows[name].hand_over(part, rows))
                left -= len(rows)
        for name in sorted(self.clustered):
            taken[name] += self._rest_of_clusters(name, taken[name])
        counts = {name: sum(table.num_rows for table in tables) for name, tables in taken.items()}
        self.used_up = next((name for name, count in counts.items() if count >= quota), None)
        return {
            name: merge_by_hash(tables) if tables else self.rows[name].schema.empty_table()
            for name, tables in taken.items()
        }

    def _rest_of_clusters(self, name: str, taken: Sequence[pa.Table]) -> Iterator[pa.Table]:
        """The rows that still wait of the keys that are taken."""
        hashes = np.unique(np.concatenate([hashes_of(table) for table in taken])) if taken else np.empty(0, np.uint64)
        for part in list(self.rows[name].parts()) if len(hashes) else ():
            low, high = (np.searchsorted(part.hashes, hashes, side=side) for side in ("left", "right"))
            rows = alive_of(part, ranges(low, high))
            if len(rows):
                yield self.rows[name].hand_over(part, rows)

    def _note_oldest(self) -> None:
        self.oldest = {name: min((run.oldest for run in rows.runs), default=0) for name, rows in self.rows.items()}

    def drain(self) -> dict[str, pa.Table]:
        """All waiting rows, sorted by hash."""
        for urgent in self.urgent.values():
            urgent.take()
        self.used_up = None
        self._note_oldest()
        return {name: rows.drain() for name, rows in self.rows.items()}

    def inherit(self, former: WaitingPool) -> None:
        """The promises that a former partition has received; its rows are taken up with the other stores."""
        self.used_up = self.used_up or former.used_up
        for name in self.names:
            delta = former.urgent[name].take()
            if not delta.is_empty:
                self.urgent[name].add(delta)

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """Tables and values; the rows are saved with their stores."""
        tables: dict[str, SideTable] = {}
        values: dict[str, Any] = {"used_up": self.used_up}
        for name in self.names:
            urgent, values[name] = self.urgent[name].save()
            tables |= urgent
        return tables, values

    def restore(self, tables: Mapping[str, SideTable], values: Mapping[str, Any]) -> None:
        """What `save` returned; tables of other labels are passed over."""
        self.used_up = values["used_up"]
        for name in self.names:
            self.urgent[name].restore(tables, values[name])
