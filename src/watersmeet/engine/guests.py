"""Rows of hot keys in a partition that is not their home.

    batch N     partition 5 gets a row of key 7, whose home is partition 2, and has had none before
                it takes all rows of key 7 that its line has, or all that its column has, whichever was in the grid
                first, from version N - 1 of the first partition there, and adds them to the batch, as copies
    from N on   it gets every row of its line and of its column

So from its first batch with the key on it has all that its rows can match. It takes rows of one side only. Rows of the
other, which came into the grid later, have all been sent to it, and it has got none: so there are none yet, and no pair
is found that an older batch has found. (In a window it may be that it has had rows and all have expired. Then those of
the side that it does not take have expired for good.) What is taken is a function of a version, so that every attempt
takes the same, and the version is there as long as the batch can be repeated. No operator knows of it: to them these
rows come now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, take
from watersmeet.columns.partitions import partition_of
from watersmeet.engine.heat import Heat, fingerprints
from watersmeet.engine.registry import build, operator_class
from watersmeet.engine.spreading import decide
from watersmeet.errors import StateMismatchError
from watersmeet.join.operator import Batch, Operator, resume
from watersmeet.plan import JoinPlan
from watersmeet.plan.hot_table import HotTable
from watersmeet.plan.metrics import Metrics
from watersmeet.state.directory import StateDir
from watersmeet.state.parts import Part
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore

KEEPS = 0  # the partition that keeps the table
READERS = 16  # threads that read manifests of an object store
LOOK_EVERY = 8  # batches, for keys of which nothing is left


def hot_table(plan: JoinPlan, directory: StateDir, batch: int) -> HotTable:
    """The hot keys of a batch: a function of what all partitions have kept with the version before."""
    if batch == 0:
        return HotTable()
    kept = _kept(directory, plan.partitions, batch - 1)
    heats = [Heat.from_json(one.get("heat", {})) for one in kept]
    operator = operator_class(plan.operator)
    before = HotTable.from_json(kept[KEEPS].get("table", []))
    return decide(before, heats, operator.splits(plan), operator.witnessed(plan), both=operator.divides_both(plan))


def _kept(directory: StateDir, partitions: int, version: int) -> list[dict[str, Any]]:
    """What the partitions have kept of hot keys with a version."""

    def read(partition: int) -> dict[str, Any]:
        return PartitionStore(directory, partition).manifest(version).hot

    if directory.is_local:
        return [read(partition) for partition in range(partitions)]
    with ThreadPoolExecutor(min(READERS, partitions)) as readers:
        return list(readers.map(read, range(partitions)))


def copied_keys(hot: Mapping[str, Any], input: str) -> Hashes:
    """The hashes of the keys of which a partition has rows of an input as copies, given what `Guests.save` returned."""
    return np.array([int(number) for number, own in hot.get("guests", {}).items() if input not in own], np.uint64)


class Guests:
    """What one partition does about hot keys in one batch; `before` is what `save` returned after the one before."""

    def __init__(self, plan: JoinPlan, directory: StateDir, partition: int, run_id: str, before: Mapping[str, Any]):
        self.plan, self.directory, self.partition, self.run_id = plan, directory, partition, run_id
        self.heat = Heat.from_json(before.get("heat", {}))
        # Keys of other partitions that are here -> the inputs of which their rows are no copies.
        self.own: dict[str, list[str]] = dict(before.get("guests", {}))
        self.witnesses: dict[str, int] = dict(before.get("witnesses", {}))  # those whose homes emit the copied rows
        self.former = HotTable.from_json(before.get("table", []))

    def with_rows_of_home(self, batch: Batch) -> Batch:
        """The batch, with all that keys which are here for the first time need."""
        if not batch.has_guests:
            return batch
        here = [hashes_of(table) for table in (*batch.rows.values(), *batch.copies.values()) if table.num_rows]
        found = self._foreign(np.concatenate(here)) if here else []
        new = [number for number in found if str(number) not in self.own]
        batch = self._with_rows_of(new, batch) if new else batch
        self._check_witnesses(batch)
        return batch

    @property
    def keys(self) -> Hashes:
        """Keys of other partitions that are here, by hash."""
        return np.array(sorted(map(int, self.own)), np.uint64)

    def _with_rows_of(self, new: Sequence[int], batch: Batch) -> Batch:
        table = hot_table(self.plan, self.directory, batch.number)
        copies: dict[str, list[pa.Table]] = {}
        wanted: dict[int, dict[str, list[int]]] = {}  # by partition and input
        names = [spec.name for spec in self.plan.inputs]
        for number in new:
            key = table.keys.get(number)
            cell = None if key is None else key.cell(self.partition)
            if key is None or cell is None:
                raise _stray(self.directory, self.partition, number)
            self.own[str(number)] = key.owned(*cell, names)
            if key.witness is not None:
                self.witnesses[str(number)] = key.witness
            origin, of_split = key.origin(*cell)
            for name in (one for one in names if (one == key.split) == of_split):
                wanted.setdefault(origin, {}).setdefault(name, []).append(number)
        for origin, numbers in sorted(wanted.items()):
            for name, rows in self._rows_of(origin, batch.number - 1, numbers):
                copies.setdefault(name, []).append(rows)
        taken = {name: pa.concat_tables(tables) for name, tables in copies.items()}
        for name, rows in batch.copies.items():
            taken[name] = pa.concat_tables([rows, taken[name]]) if name in taken else rows
        return replace(batch, copies=taken)

    def hushed(self) -> dict[str, Hashes]:
        """By input the keys whose homes emit the rows, matched or not."""
        found = {
            spec.name: [int(one) for one in self.witnesses if spec.name not in self.own[one]]
            for spec in self.plan.inputs
        }
        return {name: np.array(numbers, np.uint64) for name, numbers in found.items() if numbers}

    def _check_witnesses(self, batch: Batch) -> None:
        """Rows of a split input must be of the key of which the home has one. Another key with the same hash may have
        none there, and the home would not know that its rows match here."""
        for number, witness in self.witnesses.items():
            for rows in (batch.rows[name] for name in self.own[number] if name in batch.rows):
                mine = take(rows, np.flatnonzero(hashes_of(rows) == np.uint64(int(number))))
                if mine.num_rows and bool(np.any(fingerprints(mine) != np.uint64(witness))):
                    raise _collision(self.plan, self.directory, self.partition, int(number))

    def _foreign(self, hashes: Hashes) -> list[int]:
        """The hashes of other partitions' keys."""
        away = hashes[partition_of(hashes, self.plan.partitions) != self.partition]
        found: list[int] = np.unique(away).tolist()
        return found

    def _rows_of(
        self, origin: int, version: int, numbers: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[str, pa.Table]]:
        """The rows that a version of another partition holds of some keys, by input."""
        store = PartitionStore(self.directory, origin)
        space = MemorySpace()
        space.partition = origin
        operator = build(self.plan, space)
        resume(operator, store.state(store.manifest(version), self.run_id))
        for rows in operator.row_stores():
            wanted = np.array(sorted(numbers.get(rows.input, ())), np.uint64)
            for part in _parts(rows, wanted) if len(wanted) else ():
                places = _places(part, wanted)
                alive = part.alive(places)
                places = places if alive is None else places[alive]
                if len(places):
                    yield rows.input, _as_came(self.plan, rows.input, take(part.table, places))

    def save(self, batch: Batch, operator: Operator) -> dict[str, Any]:
        """What is kept with the version: `batch` is as it came, and the operator has joined it."""
        heat = self.heat.after(batch, operator)
        if batch.number % LOOK_EVERY == 0:
            heat.idle = self._forget(operator)
        heat.guests = frozenset(map(int, self.own))
        kept: dict[str, Any] = {"heat": heat.to_json(), "guests": self.own, "witnesses": self.witnesses}
        if self.partition == KEEPS:
            table = hot_table(self.plan, self.directory, batch.number)
            self._report(table, operator.metrics)
            kept["table"] = table.to_json()
        return kept

    def _forget(self, operator: Operator) -> dict[str, frozenset[int]]:
        """Forget keys of which no row is left: if they come again, they come for the first time. Returns by input those
        of which no row of it is left."""
        self._drop(operator.done_with(self.keys))
        wanted = self.keys
        if not len(wanted) or not all(isinstance(store.rule, Horizon) for store in operator.row_stores()):
            return {}  # rows leave with the end of an input only
        held = {spec.name: np.zeros(len(wanted), np.int64) for spec in self.plan.inputs}
        for store in operator.row_stores():
            held[store.input] += _held(store, wanted)
        rows = np.sum(list(held.values()), axis=0)
        self._drop(wanted[rows == 0])
        return {name: frozenset(wanted[(rows > 0) & (mine == 0)].tolist()) for name, mine in held.items()}

    def _drop(self, gone: Hashes) -> None:
        for number in gone.tolist():
            del self.own[str(number)]
            self.witnesses.pop(str(number), None)

    def _report(self, table: HotTable, metrics: Metrics) -> None:
        """What is new in the table of a batch."""
        for number, key in table.keys.items():
            was = number in self.former.keys and self.former.keys[number].is_spread
            if key.is_spread != was:
                lines, columns = key.shape
                details = {"key": key.text, "input": key.split, "share": key.share, "partitions": lines * columns}
                metrics.event("hot_key" if key.is_spread else "cooled_key", **details, columns=columns)
        spread = [key for key in table.keys.values() if key.is_spread]
        metrics.gauge("hot_keys", len(spread))
        metrics.gauge("hot_share", round(sum(key.share for key in spread), 4))
        metrics.gauge("hot_partitions", max((prod(key.shape) for key in spread), default=0))


def _held(store: RowStore, wanted: Hashes) -> Indices:
    """How many rows a store has of each of some sorted keys; one at least if there are any on disk: none is read."""
    found = np.full(len(wanted), len(store.spilled), np.int64)
    for part in store.parts():
        places = _places(part, wanted)
        alive = part.alive(places)
        places = places if alive is None else places[alive]
        found += np.bincount(np.searchsorted(wanted, part.hashes[places]), minlength=len(wanted))
    return found


def _parts(store: RowStore, wanted: Hashes) -> Iterator[Part]:
    """All that may have rows of some keys: of what is on disk, their buckets."""
    yield from store.parts()
    for run in store.spilled:
        buckets = None if store.buckets is None else sorted(set(store.buckets.of(wanted).tolist()))
        yield from store.pages(run, buckets)


def _places(part: Part, wanted: Hashes) -> Indices:
    """The rows of a part that have one of some keys; where rows are sorted, few are looked at."""
    if part.run.order != "hash":
        return np.flatnonzero(np.isin(part.hashes, wanted))
    bounds = zip(*(np.searchsorted(part.hashes, wanted, side=side) for side in ("left", "right")), strict=True)
    return np.concatenate([np.arange(first, last) for first, last in bounds])


def _as_came(plan: JoinPlan, name: str, rows: pa.Table) -> pa.Table:
    """Stored rows in the schema of their input. Columns that the join has not kept it does not need."""
    schema = plan.input(name).schema
    columns = [
        rows.column(field.name).cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _stray(directory: StateDir, partition: int, number: int) -> StateMismatchError:
    return StateMismatchError(
        f"state directory {directory.uri}, partition {partition}",
        expected="rows of its own keys, and of hot keys that are spread to it",
        found=f"a row of another partition's key (hash {number})",
        hint="A union, coalesce or self-join right after the join renumbers its partitions: put .repartition(n) "
        "between, or write the result to a sink first.",
    )


def _collision(plan: JoinPlan, directory: StateDir, partition: int, number: int) -> StateMismatchError:
    return StateMismatchError(
        f"state directory {directory.uri}, partition {partition}",
        expected=f"keys of which each has a hash of its own, to spread a hot one in a join with how={plan.how!r}",
        found=f"two keys with the hash {number}",
        hint='Run the query with a new state directory and checkpoint, and hot_keys="off".',
    )
