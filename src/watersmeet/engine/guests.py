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
rows come now. Joins with promises store them, and are told what was promised of the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import HASH, Hashes, hashes_of, key_names, take
from watersmeet.columns.grouping import distinct_keys
from watersmeet.columns.partitions import partition_of
from watersmeet.engine.heat import Heat, fingerprints
from watersmeet.engine.hot_tables import KEEPS, NEWEST, NEXT, hot_table, publish, published, votes
from watersmeet.engine.origins import Origins, held
from watersmeet.errors import StateMismatchError
from watersmeet.join.operator import Batch, Operator
from watersmeet.plan import JoinPlan
from watersmeet.plan.hot_table import HotKey, HotTable, home_of
from watersmeet.plan.metrics import Metrics
from watersmeet.state.directory import StateDir
from watersmeet.state.rules import Horizon

LOOK_EVERY = 8  # batches, for keys of which nothing is left


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
        self.heard: dict[str, int] = dict(before.get("heard", {}))  # in a join with promises, the key they are of
        self.former = HotTable.from_json(before.get("table", []))

    def with_rows_of_home(self, batch: Batch, operator: Operator) -> Batch:
        """The batch, with all rows that keys which are here for the first time need; the operator gets the promises."""
        if not batch.has_guests:
            return batch
        here = [hashes_of(table) for table in (*batch.rows.values(), *batch.copies.values()) if table.num_rows]
        found = self._foreign(np.concatenate(here)) if here else []
        new = [number for number in found if str(number) not in self.own]
        if new:
            keys = self._placed(new, batch.number)
            origins = Origins(self.plan, self.directory, batch.number - 1, self.run_id)
            if operator.has_promises:
                self._hear(keys, origins, batch, operator)
            batch = self._with_rows_of(keys, origins, batch)
        self._check_witnesses(batch)
        self._check_heard(batch)
        return batch

    @property
    def keys(self) -> Hashes:
        """Keys of other partitions that are here, by hash."""
        return np.array(sorted(map(int, self.own)), np.uint64)

    def _placed(self, new: Sequence[int], batch: int) -> list[tuple[HotKey, int, bool]]:
        """Keys that are new here, with the partition from which rows of them are taken, and whether these are rows of
        the split input."""
        table = hot_table(self.plan, self.directory, batch)
        names = [spec.name for spec in self.plan.inputs]
        found = []
        for number in new:
            key = table.keys.get(number)
            cell = None if key is None else key.cell(self.partition)
            if key is None or cell is None:
                raise _stray(self.directory, self.partition, number)
            self.own[str(number)] = key.owned(*cell, names)
            if key.witness is not None:
                self.witnesses[str(number)] = key.witness
            found.append((key, *key.origin(*cell)))
        return found

    def _with_rows_of(self, keys: Sequence[tuple[HotKey, int, bool]], origins: Origins, batch: Batch) -> Batch:
        wanted: dict[int, dict[str, list[int]]] = {}  # by partition and input
        for key, origin, of_split in keys:
            for name in (spec.name for spec in self.plan.inputs if (spec.name == key.split) == of_split):
                wanted.setdefault(origin, {}).setdefault(name, []).append(key.hash)
        taken: dict[str, list[pa.Table]] = {}
        for origin, numbers in sorted(wanted.items()):
            for name, rows in origins.rows(origin, numbers):
                taken.setdefault(name, []).append(rows)
        return replace(batch, taken={name: pa.concat_tables(tables) for name, tables in taken.items()})

    def _hear(
        self, keys: Sequence[tuple[HotKey, int, bool]], origins: Origins, batch: Batch, operator: Operator
    ) -> None:
        """The operator gets what has been promised of new keys: to their homes, which hear of all that is promised of
        single keys, and to the partitions whose rows are taken, which have purged by what they knew."""
        knowing: dict[int, set[int]] = {}
        for key, origin, _ in keys:
            for partition in (home_of(key.hash, self.plan.partitions), origin):
                knowing.setdefault(partition, set()).add(key.hash)
        names = [HASH, *key_names(self.plan.inputs[0].schema)]
        tables = [table.select(names) for table in (*batch.rows.values(), *batch.copies.values())]
        here = pa.concat_tables(tables)
        for partition, numbers in sorted(knowing.items()):
            wanted = np.isin(hashes_of(here), np.array(sorted(numbers), np.uint64))
            mine = distinct_keys(take(here, np.flatnonzero(wanted)))
            operator.hear(origins.operator(partition), mine, batch.number - 1)
            for number, print_ in zip(hashes_of(mine).tolist(), fingerprints(mine).tolist(), strict=True):
                self.heard.setdefault(str(number), print_)

    def copied(self) -> dict[str, Hashes]:
        """By input the keys of which the rows here are copies."""
        return {spec.name: copied_keys({"guests": self.own}, spec.name) for spec in self.plan.inputs}

    def hushed(self) -> dict[str, Hashes]:
        """By input the keys whose homes emit the rows, matched or not."""
        found = {
            spec.name: [int(one) for one in self.witnesses if spec.name not in self.own[one]]
            for spec in self.plan.inputs
        }
        return {name: np.array(numbers, np.uint64) for name, numbers in found.items() if numbers}

    def open_votes(self, batch: int, operator: Operator) -> None:
        """In a join that votes, what all partitions agree on in this batch: by which times rows expire, and the keys
        whose rows may be matched in several of them."""
        if not votes(self.plan):
            return
        agreed = published(self.directory, batch)
        operator.follow(agreed.newest)
        found: dict[str, set[int]] = {spec.name: set(self.copied()[spec.name].tolist()) for spec in self.plan.inputs}
        for number, key in agreed.table.keys.items():
            if home_of(number, self.plan.partitions) == self.partition:
                for name in found.keys() - {key.split}:
                    found[name].add(number)
        operator.vote_on({name: np.array(sorted(numbers), np.uint64) for name, numbers in found.items() if numbers})

    def _check_witnesses(self, batch: Batch) -> None:
        """Rows of a split input must be of the key of which the home has one. Another key with the same hash may have
        none there, and the home would not know that its rows match here."""
        for number, witness in self.witnesses.items():
            for rows in (batch.rows[name] for name in self.own[number] if name in batch.rows):
                mine = take(rows, np.flatnonzero(hashes_of(rows) == np.uint64(int(number))))
                if mine.num_rows and bool(np.any(fingerprints(mine) != np.uint64(witness))):
                    raise _collision(self.plan, self.directory, self.partition, int(number))

    def _check_heard(self, batch: Batch) -> None:
        """Promises have been taken over of the key that came first. Of another one with the same hash others may be
        known elsewhere."""
        if not self.heard:
            return
        numbers = np.array(sorted(map(int, self.heard)), np.uint64)
        prints = np.array([self.heard[str(number)] for number in numbers.tolist()], np.uint64)
        for rows in (table for some in (batch.rows, batch.copies, batch.taken) for table in some.values()):
            hashes = hashes_of(rows)
            known = np.flatnonzero(np.isin(hashes, numbers))
            at = np.searchsorted(numbers, hashes[known])
            wrong = known[fingerprints(take(rows, known)) != prints[at]] if len(known) else known
            if len(wrong):
                raise _collision(self.plan, self.directory, self.partition, int(hashes[wrong].min()))

    def _foreign(self, hashes: Hashes) -> list[int]:
        """The hashes of other partitions' keys."""
        away = hashes[partition_of(hashes, self.plan.partitions) != self.partition]
        found: list[int] = np.unique(away).tolist()
        return found

    def save(self, batch: Batch, operator: Operator) -> dict[str, Any]:
        """What is kept with the version: `batch` is as it came, and the operator has joined it."""
        heat = self.heat.after(batch, operator)
        if batch.number % LOOK_EVERY == 0:
            heat.idle = self._forget(operator)
        heat.guests = frozenset(map(int, self.own))
        kept: dict[str, Any] = {"heat": heat.to_json(), "guests": self.own, "witnesses": self.witnesses}
        if operator.has_promises:
            kept["heard"] = self.heard
        if votes(self.plan):
            kept[NEWEST] = operator.newest_times()
        if self.partition == KEEPS:
            table = hot_table(self.plan, self.directory, batch.number)
            self._report(table, operator.metrics)
            kept["table"] = table.to_json()
            if votes(self.plan):
                kept[NEXT] = publish(self.plan, self.directory, batch.number)
        return kept

    def _forget(self, operator: Operator) -> dict[str, frozenset[int]]:
        """Forget keys of which no row is left: if they come again, they come for the first time. Returns by input those
        of which no row of it is left."""
        self._drop(operator.done_with(self.keys))
        wanted = self.keys
        expires = all(isinstance(store.rule, Horizon) for store in operator.row_stores())
        if not len(wanted) or not (expires or operator.has_promises):
            return {}  # rows leave with the end of an input only
        there = {spec.name: np.zeros(len(wanted), np.int64) for spec in self.plan.inputs}
        for store in operator.row_stores():
            there[store.input] += held(store, wanted)
        rows = np.sum(list(there.values()), axis=0)
        self._drop(wanted[rows == 0])
        return {name: frozenset(wanted[(rows > 0) & (mine == 0)].tolist()) for name, mine in there.items()}

    def _drop(self, gone: Hashes) -> None:
        for number in gone.tolist():
            del self.own[str(number)]
            self.witnesses.pop(str(number), None)
            self.heard.pop(str(number), None)

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
        expected=f"keys of which each has a hash of its own, to spread a hot one in such a join (how={plan.how!r})",
        found=f"two keys with the hash {number}",
        hint='Run the query with a new state directory and checkpoint, and hot_keys="off".',
    )
