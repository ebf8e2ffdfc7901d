"""Which keys are hot, and where their rows go: a function of what all partitions have measured.

The table of batch N is a function of the versions N - 1 of all partitions: of what they have measured, and of the table
of batch N - 1, which partition 0 keeps. Whoever asks for it reads their manifests; every attempt finds the same, and
nobody waits for anybody.

    hot       the work of a key is more than ENTER of what a partition does on average, until it is less than LEAVE
    pieces    the work of its new rows is cut into pieces of at most PIECE of that, and each goes where the load is
              smallest; results that rows of the other inputs find stay where the rows are that they find
    copies    a partition that becomes a holder costs the rows of the other inputs once more: worth it as long as the
              copies are no more than WORTH of the key's work
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from watersmeet.engine.heat import Heat
from watersmeet.plan.hot_table import ENTER, HotKey, HotTable, home_of

LEAVE = 0.1
PIECE = 0.1
WORTH = 0.5
SETTLED = 0.1  # how much less loaded than a holder a partition must be to become one
FULL = 1.25  # partitions that hold so many times the mean get no pieces
LEAST_LOAD = 256.0  # work of a partition below which nothing changes: there is nothing to spread
MOST_KEYS = 256
MOST_PIECES = 64

Loads = npt.NDArray[np.float64]


@dataclass
class Total:
    """What a key makes all partitions do."""

    work: Loads  # by partition
    rows: dict[str, float]
    text: str
    found: dict[str, Loads] = field(default_factory=dict)  # results, by the input whose new rows found them

    def stays(self, split: str) -> Loads:
        """What partitions will do wherever new rows of the split input go: rows of the others find those that are
        there."""
        others = (amounts for name, amounts in self.found.items() if name != split)
        return sum(others, np.zeros(len(self.work)))

    @property
    def sum(self) -> float:
        """In all partitions."""
        return float(self.work.sum())

    def copied(self, split: str) -> float:
        """The rows of a batch that every further holder gets."""
        return sum(rows for name, rows in self.rows.items() if name != split)


@dataclass(frozen=True)
class Split:
    """How a key is divided."""

    input: str
    witness: int | None

    @classmethod
    def of(cls, key: HotKey) -> Split:
        """As it is."""
        return cls(key.split, key.witness)


def decide(
    before: HotTable, heats: Sequence[Heat], splits: Collection[str], witnessed: Collection[str] = ()
) -> HotTable:
    """The table that follows another one. `splits` are the inputs that may be split, those that are `witnessed` once
    the key's home has had a row of them."""
    partitions = len(heats)
    loads = np.array([heat.load for heat in heats])
    mean = float(loads.mean())
    if partitions == 1 or mean < LEAST_LOAD:
        return before
    totals = _totals(heats)
    splitting: dict[int, Split] = {}
    for number, total in totals.items():
        known = before.keys.get(number)
        found = Split.of(known) if known is not None else _split(number, total, heats, splits, witnessed)
        if found is not None:
            splitting[number] = found
    hot = [
        number
        for number, split in splitting.items()
        if _is_hot(before.keys.get(number), totals[number], mean, split.input)
    ]
    hot.sort(key=lambda number: (-totals[number].sum, number))
    room = MOST_KEYS - len(before.keys)
    fresh = [number for number in hot if number not in before.keys][: max(0, room)]
    hot = [number for number in hot if number in before.keys or number in fresh]
    held = np.array([heat.held for heat in heats], np.float64)
    goes = (totals[number].work - totals[number].stays(splitting[number].input) for number in hot)
    free = np.maximum(loads - sum(goes, np.zeros(partitions)), 0.0)
    balance = Balance(free, held > FULL * held.mean(), mean)
    placed = {}
    for number in hot:
        known = before.keys.get(number)
        stale = () if known is None else tuple(_stale(known, heats))
        key = balance.place(number, known, stale, totals[number], splitting[number])
        if key is not None:
            placed[number] = key
    for number, key in before.keys.items():
        if number not in placed:
            share = totals[number].sum / (mean * partitions) if number in totals else 0.0
            cooled = _cooled(key, heats, round(share, 4))
            if len(cooled.holders) > 1 or cooled.stale:
                placed[number] = cooled
    return HotTable(placed)


def _cooled(key: HotKey, heats: Sequence[Heat], share: float) -> HotKey:
    """A key whose rows go home. Holders that have no row left of the split input, and get none in this batch, need no
    copies from the next one on: they are stale until those that they have are gone, too."""
    home = home_of(key.hash, len(heats))
    done = {one for one in key.holders if one not in (home, *key.targets) and heats[one].needs_no_copies(key.hash)}
    holders = tuple(one for one in key.holders if one not in done)
    stale = tuple(sorted(done | set(_stale(key, heats))))
    return replace(key, holders=holders, targets=(home,), stale=stale, share=share)


def _stale(key: HotKey, heats: Sequence[Heat]) -> list[int]:
    """Of former holders, to which nothing has been sent since, those that still have rows."""
    return [one for one in key.stale if key.hash in heats[one].guests]


def _totals(heats: Sequence[Heat]) -> dict[int, Total]:
    found: dict[int, Total] = {}
    for partition, heat in enumerate(heats):
        for number, one in heat.keys.items():
            total = found.setdefault(number, Total(np.zeros(len(heats)), {}, ""))
            total.work[partition] += one.work
            total.text = total.text or one.text
            for name, rows in one.rows.items():
                total.rows[name] = total.rows.get(name, 0.0) + rows
            for name, results in one.found.items():
                total.found.setdefault(name, np.zeros(len(heats)))[partition] += results
    return found


def candidates(
    number: int, heats: Sequence[Heat], splits: Collection[str], witnessed: Collection[str]
) -> dict[str, int | None]:
    """The inputs by which a key can be split that is not yet, with the witnesses that they need."""
    home = heats[home_of(number, len(heats))].keys.get(number)
    there: dict[str, int] = {} if home is None else home.witnesses
    return {name: there.get(name) for name in splits if name not in witnessed or name in there}


def _split(
    number: int, total: Total, heats: Sequence[Heat], splits: Collection[str], witnessed: Collection[str]
) -> Split | None:
    """The input that is split: the largest at the time when the key becomes hot."""
    found = candidates(number, heats, splits, witnessed)
    name = max(sorted(found), key=lambda name: total.rows.get(name, 0.0), default=None)
    return None if name is None else Split(name, found[name])


def _is_hot(key: HotKey | None, total: Total, mean: float, split: str) -> bool:
    limit = LEAVE if key is not None and key.is_spread else ENTER
    return total.sum >= limit * mean and total.copied(split) <= WORTH * total.sum


@dataclass
class Balance:
    """What partitions do and hold: pieces of hot keys are given to those that do least."""

    loads: Loads  # without what new rows of the hot keys make that have no place yet
    full: npt.NDArray[np.bool_]  # which hold too much
    mean: float

    def place(
        self, number: int, key: HotKey | None, stale: tuple[int, ...], total: Total, split: Split
    ) -> HotKey | None:
        """Give the pieces of a key to partitions; None if all of it stays at home."""
        partitions, home = len(self.loads), home_of(number, len(self.loads))
        holders = set(key.holders) if key is not None else {home}
        copied = total.copied(split.input)
        most = max(len(holders), int(WORTH * total.sum / copied) if copied else partitions)
        goes = max(total.sum - float(total.stays(split.input).sum()), 0.0)
        pieces = min(max(2, ceil(goes / (PIECE * self.mean))), MOST_PIECES)
        targets = []
        for _ in range(pieces):
            others = range(partitions) if len(holders) < most else ()
            open_to = holders.union(one for one in others if one not in stale)
            chosen = min(open_to, key=lambda one: self._price(one, holders, copied))
            if chosen not in holders:
                holders.add(chosen)
                self.loads[chosen] += copied
            targets.append(chosen)
            self.loads[chosen] += goes / pieces
        if holders == {home} and not stale:
            return None
        share = round(total.sum / (self.mean * partitions), 4)
        text = key.text if key is not None and key.text else total.text
        places = tuple(sorted(holders)), tuple(sorted(targets)), stale
        return HotKey(number, split.input, *places, share, text, split.witness)

    def _price(self, one: int, holders: Collection[int], copied: float) -> tuple[bool, float, int]:
        """What it costs to give a piece to a partition: those that hold too much come last."""
        further = 0.0 if one in holders else SETTLED * self.mean + copied
        return bool(self.full[one]), float(self.loads[one]) + further, one
