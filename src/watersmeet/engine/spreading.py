"""Which keys are hot, and where their rows go: a function of what all partitions have measured.

The table of batch N is a function of the versions N - 1 of all partitions: of what they have measured, and of the table
of batch N - 1, which partition 0 keeps. Whoever asks for it reads their manifests; every attempt finds the same, and
nobody waits for anybody.

A key is hot when its work is more than ENTER of what a partition does on average, until it is less than LEAVE. Where
its pieces go is a matter of `placement`. A line or a column of its grid leaves when no row is left of those that it has
for itself: copies, of which there may be some, have nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from watersmeet.engine import placement
from watersmeet.engine.heat import Heat
from watersmeet.engine.placement import Balance, Place, Split, Total
from watersmeet.plan.hot_table import ENTER, Grid, HotKey, HotTable, home_of

LEAVE = 0.1
FULL = 1.25  # partitions that hold so many times the mean get no pieces
LEAST_LOAD = 256.0  # work of a partition below which nothing changes: there is nothing to spread
MOST_KEYS = 256


def decide(
    before: HotTable,
    heats: Sequence[Heat],
    splits: Collection[str],
    witnessed: Collection[str] = (),
    *,
    both: bool = False,
) -> HotTable:
    """The table that follows another one. `splits` are the inputs that may be split, those that are `witnessed` once
    the key's home has had a row of them; `both` says that the two of them may be divided at once."""
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
        key = balance.place(number, known, stale, totals[number], splitting[number], both=both)
        if key is not None:
            placed[number] = key
    for number, key in before.keys.items():
        if number not in placed:
            share = totals[number].sum / (mean * partitions) if number in totals else 0.0
            cooled = _cooled(key, heats, splits, round(share, 4))
            if len(cooled.holders) > 1 or cooled.stale:
                placed[number] = cooled
    return HotTable(placed)


def _cooled(key: HotKey, heats: Sequence[Heat], splits: Collection[str], share: float) -> HotKey:
    """A key whose rows go home. Lines and columns that have no row left but copies, and get none in this batch, leave:
    their partitions are stale until the copies are gone, too."""
    across = next((name for name in splits if name != key.split), "")  # with several columns there is one
    kept = Place.of(key, key.grid[0][0]).without(
        empty(key, key.grid, key.lines, key.split, heats),
        empty(key, tuple(zip(*key.grid, strict=True)), key.columns, across, heats),
    )
    stale = tuple(sorted({*key.holders, *_stale(key, heats)} - kept.holders))
    return replace(key, grid=kept.grid, ages=kept.ages, lines=(0,), columns=(0,), stale=stale, share=share)


def empty(key: HotKey, stretches: Grid, busy: Collection[int], input: str, heats: Sequence[Heat]) -> list[int]:
    """Those of the lines, or columns, that have no row of an input left and have got none: the first one stays."""
    return [
        at
        for at, partitions in enumerate(stretches)
        if at not in (0, *busy) and all(heats[one].has_none(key.hash, input) for one in partitions)
    ]


def _stale(key: HotKey, heats: Sequence[Heat]) -> list[int]:
    """Of former parts of the grid, to which nothing has been sent since, those that still have rows."""
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
            for amounts, mine in ((total.found, one.found), (total.held, one.held)):
                for name, amount in mine.items():
                    amounts.setdefault(name, np.zeros(len(heats)))[partition] += amount
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
    return total.sum >= limit * mean and total.copied(split) <= placement.WORTH * total.sum
