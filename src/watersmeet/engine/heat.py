"""How much work keys make in a partition: rows that come, plus results. What hot keys are chosen by.

After a batch, the keys with a large part of the rows of an input are counted exactly, and added to those of the
batches before, of which every batch halves the weight. Results of a key are not counted but estimated: new rows of an
input times those that the others hold, scaled so that all keys together have no more than there were. All of it is a
function of the rows of the batch, whatever their order, and is part of what a repeated batch must reproduce.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, hash_keys, hashes_of, key_names, take
from watersmeet.engine.hot_keys import key_texts
from watersmeet.join.operator import Batch, Operator
from watersmeet.plan import JoinPlan

DECAY = 0.5  # what a batch weighs in the next one
KEEP = 32  # keys
RARE = 64  # a key with less than one in so many rows of an input is of no interest
BITS = 12  # of a hash, by which rows are sieved
BINS = 1 << BITS

Counts = npt.NDArray[np.int64]


@dataclass
class KeyHeat:
    """What one key has made a partition do, decayed."""

    work: float = 0.0
    rows: dict[str, float] = field(default_factory=dict)  # that came, by input, without copies
    text: str = ""
    witnesses: dict[str, int] = field(default_factory=dict)  # by input, the fingerprint of a key that came
    found: dict[str, float] = field(default_factory=dict)  # results, by the input whose new rows found them
    held: dict[str, int] = field(default_factory=dict)  # rows in memory, by input


@dataclass
class Heat:
    """The work of a partition, and its hottest keys."""

    load: float = 0.0
    held: int = 0  # rows
    keys: dict[int, KeyHeat] = field(default_factory=dict)
    guests: frozenset[int] = frozenset()  # keys of other partitions that are here
    idle: dict[str, frozenset[int]] = field(default_factory=dict)  # by input, those of which no row of it is left

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Heat:
        """What `to_json` wrote."""
        keys = {int(number): KeyHeat(*one) for number, one in saved.get("keys", {}).items()}
        guests = frozenset(map(int, saved.get("guests", ())))
        idle = {name: frozenset(numbers) for name, numbers in saved.get("idle", {}).items()}
        return cls(saved.get("load", 0.0), saved.get("held", 0), keys, guests, idle)

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        keys = {
            str(number): [one.work, one.rows, one.text, one.witnesses, one.found, one.held]
            for number, one in sorted(self.keys.items())
        }
        guests, idle = sorted(self.guests), {name: sorted(self.idle[name]) for name in sorted(self.idle)}
        return {"load": self.load, "held": self.held, "keys": keys, "guests": guests, "idle": idle}

    def has_none(self, number: int, input: str) -> bool:
        """Whether the partition is known to have no row of an input of another one's key."""
        return number not in self.guests or number in self.idle.get(input, ())

    def after(self, batch: Batch, operator: Operator) -> Heat:
        """The heat after a batch, whose copies are still apart from its rows."""
        came = {name: Sieve(table) for name, table in batch.rows.items()}
        copied = {name: Sieve(table) for name, table in batch.copies.items()}
        everything = (*came.values(), *copied.values())  # of a grid a partition may have nothing but copies
        numbers = sorted({*self.keys, *(one for rows in everything for one in rows.frequent())})
        wanted = np.array(numbers, np.uint64)
        fresh = {name: rows.counts(wanted) for name, rows in came.items()}
        copies = {name: rows.counts(wanted) for name, rows in copied.items()}
        held = _held(operator, wanted)
        results = self._results(operator, held, fresh, copies)
        rows = sum(one.rows for one in everything)
        heat = Heat(round(self.load * DECAY + rows + operator.metrics.rows_out, 3))
        heat.held = sum(store.held for store in operator.row_stores() if store.input)
        for at, number in enumerate(numbers):
            before = self.keys.get(number, KeyHeat())
            new = {name: int(counts[at]) for name, counts in fresh.items() if counts[at]}
            made = {name: float(amounts[at]) for name, amounts in results.items() if amounts[at]}
            work = sum(new.values()) + sum(int(counts[at]) for counts in copies.values()) + sum(made.values())
            heat.keys[number] = KeyHeat(
                round(before.work * DECAY + work, 3),
                _added(before.rows, new),
                before.text,
                before.witnesses,
                _added(before.found, made),
                {name: int(rows[at]) for name, rows in held.items() if rows[at]},
            )
        heat._forget_cold()
        heat._name_keys(batch, operator.plan, operator.witnessed(operator.plan))
        return heat

    def _results(
        self, operator: Operator, held: Mapping[str, Counts], fresh: Mapping[str, Counts], copies: Mapping[str, Counts]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """The results of each key, estimated, by the input whose new rows found them."""
        names = [spec.name for spec in operator.plan.inputs]
        nothing = np.zeros_like(held[names[0]])
        # Of a table some rows are cached.
        there = {name: rows if name in names else np.maximum(rows, 1) for name, rows in held.items()}
        found = {}
        for name in names:
            new = fresh.get(name, nothing) + copies.get(name, nothing)
            others = (rows.astype(np.float64) for other, rows in there.items() if other != name)
            found[name] = new * prod(others, start=1.0)
        total = float(sum(amounts.sum() for amounts in found.values()))
        scale = min(1.0, operator.metrics.rows_out / total) if total else 1.0
        return {name: np.asarray(amounts * scale, np.float64) for name, amounts in found.items()}

    def _forget_cold(self) -> None:
        hottest = sorted(self.keys.items(), key=lambda item: (-item[1].work, item[0]))[:KEEP]
        self.keys = {number: one for number, one in hottest if one.work * RARE >= self.load}

    def _name_keys(self, batch: Batch, plan: JoinPlan, witnessed: Collection[str]) -> None:
        """Give keys that are new their text, and note which inputs they have come on."""
        for number, one in self.keys.items():
            wanted = [name for name in batch.rows if not one.text or (name in witnessed and name not in one.witnesses)]
            for name in wanted:
                key = _first_key(batch.rows[name], number)
                if key is None:
                    continue
                one.text = one.text or key_texts(key, plan.null_flags)[0]
                if name in witnessed:
                    one.witnesses = {**one.witnesses, name: int(fingerprints(key)[0])}


def _held(operator: Operator, wanted: Hashes) -> dict[str, Counts]:
    """How many rows in memory each wanted key has, by input."""
    held = {spec.name: np.zeros(len(wanted), np.int64) for spec in operator.plan.inputs}
    for store in (one for one in operator.row_stores() if one.input):
        rows = held.setdefault(store.input, np.zeros(len(wanted), np.int64))
        for part in store.parts() if len(wanted) else ():
            if part.run.order == "hash":  # others are few, and sorted when they are probed often
                rows += _counts(part.hashes, wanted)
    return held


def _added(before: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """Amounts by input, what was before decayed."""
    names = sorted(before.keys() | new.keys())
    sums = {name: round(before.get(name, 0.0) * DECAY + new.get(name, 0), 3) for name in names}
    return {name: amount for name, amount in sums.items() if amount >= 0.01}


def _first_key(table: pa.Table, number: int) -> pa.Table | None:
    """The key of a row with this hash. Of keys that share it, the same one whatever the order of the rows."""
    rows = np.flatnonzero(hashes_of(table) == np.uint64(number))
    if not len(rows):
        return None
    keys = take(table.select(key_names(table.schema)), rows)
    return keys.slice(int(np.argmin(fingerprints(keys))), 1)


def fingerprints(keys: pa.Table) -> Hashes:
    """A second hash of each key, by which keys can be told apart that have the first one in common."""
    return hash_keys(keys.select(key_names(keys.schema)).columns)


class Sieve:
    """The hashes of a table in the order of its rows, of which a few keys are looked for: by the first bits of a hash
    most rows are out of the question, and need not be sorted. Rows that have a null in their key are left out."""

    def __init__(self, table: pa.Table) -> None:
        for name in key_names(table.schema):
            if table.column(name).null_count:
                table = table.filter(table.column(name).is_valid())
        self._hashes = hashes_of(table)
        self._bins = _bins(self._hashes)
        self.rows = len(self._hashes)

    def _sorted(self, chosen: npt.NDArray[np.bool_]) -> Hashes:
        """The hashes in some of the bins."""
        return np.sort(self._hashes[chosen[self._bins]])

    def frequent(self) -> list[int]:
        """The hashes with a large part of the rows, most frequent first; of those that are equally frequent the smaller
        one."""
        if not self.rows:
            return []
        least = max(-(-self.rows // RARE), 2 if self.rows > RARE else 1)
        chosen = np.bincount(self._bins, minlength=BINS) >= least
        if not chosen.any():
            return []
        hashes, counts = np.unique(self._sorted(chosen), return_counts=True)
        large = np.flatnonzero(counts >= least)
        found: list[int] = hashes[large[np.argsort(-counts[large], kind="stable")[:KEEP]]].tolist()
        return found

    def counts(self, wanted: Hashes) -> Counts:
        """How many rows each wanted hash has."""
        chosen = np.zeros(BINS, np.bool_)
        chosen[_bins(wanted)] = True
        return _counts(self._sorted(chosen), wanted)


def _bins(hashes: Hashes) -> npt.NDArray[np.int64]:
    return (hashes >> np.uint64(64 - BITS)).view(np.int64)


def _counts(ordered: Hashes, wanted: Hashes) -> Counts:
    """How often each wanted hash is among sorted ones."""
    found: Counts = np.searchsorted(ordered, wanted, side="right") - np.searchsorted(ordered, wanted, side="left")
    return found
