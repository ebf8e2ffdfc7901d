"""The hot keys of a batch: what all partitions agree on before it begins.

    most joins        the table of batch N is a function of the versions N - 1 of all partitions: whoever asks reads all
    joins that vote   partition 0 publishes with its version N - 1 what holds in batch N, a function of the versions
                      N - 2 of all partitions: whoever asks reads one

Where partitions vote (`join.votes`) every one of them asks in every batch, so that it must be cheap: the home of a key
must know whether others may have matched its rows, and all must let them go in the same batch. For the latter the
newest times of the inputs are published beside the table. They are the newest in any partition, so that a row that is
in time for its input as a whole is late in none.

The table follows from the one before. That what it knows of the partitions is older by a batch makes no difference to
that: a line that leaves got no rows in batch N - 1, in which it was not to get any; its partition counts as stale until
a version in which it was stale already shows that nothing is left there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from watersmeet.engine.heat import Heat
from watersmeet.engine.registry import operator_class
from watersmeet.engine.spreading import decide
from watersmeet.plan import JoinPlan
from watersmeet.plan.hot_table import HotTable
from watersmeet.state.directory import StateDir
from watersmeet.state.store import PartitionStore

KEEPS = 0  # the partition that keeps the table
READERS = 16  # threads that read manifests of an object store
NEXT = "next"  # under which it keeps what is published for the next batch
NEWEST = "newest"  # under which every partition keeps the newest times that came

Kept = Mapping[str, Any]


@dataclass(frozen=True)
class Published:
    """What holds in a batch of a join that votes, for all partitions."""

    table: HotTable = field(default_factory=HotTable)
    newest: Mapping[str, int] = field(default_factory=dict)  # by input, the newest time that has come anywhere


def votes(plan: JoinPlan) -> bool:
    """Whether partitions vote on rows of hot keys that nothing matches."""
    return plan.hot_keys and operator_class(plan.operator).votes(plan)


def hot_table(plan: JoinPlan, directory: StateDir, batch: int) -> HotTable:
    """The hot keys of a batch."""
    if batch == 0:
        return HotTable()
    if votes(plan):
        return published(directory, batch).table
    kept = _kept(directory, plan.partitions, batch - 1)
    return _decided(plan, HotTable.from_json(kept[KEEPS].get("table", [])), kept)


def published(directory: StateDir, batch: int) -> Published:
    """What holds in a batch of a join that votes."""
    if batch == 0:
        return Published()
    return _next(PartitionStore(directory, KEEPS).manifest(batch - 1).hot)


def publish(plan: JoinPlan, directory: StateDir, batch: int) -> dict[str, Any]:
    """What partition 0 keeps with a batch for the one after it."""
    found = Published()
    if batch > 0:
        kept = _kept(directory, plan.partitions, batch - 1)
        newest: dict[str, int] = {}
        for one in kept:
            for name, time in one.get(NEWEST, {}).items():
                newest[name] = max(time, newest.get(name, time))
        found = Published(_decided(plan, _next(kept[KEEPS]).table, kept), newest)
    return {"table": found.table.to_json(), NEWEST: dict(found.newest)}


def _next(hot: Kept) -> Published:
    said = hot.get(NEXT, {})
    return Published(HotTable.from_json(said.get("table", [])), said.get(NEWEST, {}))


def _decided(plan: JoinPlan, before: HotTable, kept: Sequence[Kept]) -> HotTable:
    """The table after another one, by what partitions have kept with a version."""
    heats = [Heat.from_json(one.get("heat", {})) for one in kept]
    operator = operator_class(plan.operator)
    return decide(before, heats, operator.splits(plan), operator.witnessed(plan), both=operator.divides_both(plan))


def _kept(directory: StateDir, partitions: int, version: int) -> list[Kept]:
    """What the partitions have kept of hot keys with a version."""

    def read(partition: int) -> Kept:
        return PartitionStore(directory, partition).manifest(version).hot

    if directory.is_local:
        return [read(partition) for partition in range(partitions)]
    with ThreadPoolExecutor(min(READERS, partitions)) as readers:
        return list(readers.map(read, range(partitions)))
