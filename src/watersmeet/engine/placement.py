"""Where the pieces of a hot key go: lines and columns of its grid, and their shares of the new rows.

All of it is a function of what partitions do and hold:

    pieces    the work of new rows is cut into pieces of at most PIECE of what a partition does on average, and each
              goes where the load is smallest; results that rows of the other inputs find stay where the rows are that
              they find
    copies    a partition that comes in costs the rows of the other inputs once more: worth it as long as the copies are
              no more than WORTH of the key's work
    shape     that says how many partitions k the key is worth, in k lines and one column. Where both inputs may be
              divided, the grid is taken that has the fewest copies, split * (columns - 1) + other * (lines - 1), among
              those that have almost k partitions and leave the work as even: if one input is much larger it is k x 1
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from watersmeet.plan.hot_table import Grid, HotKey, home_of

PIECE = 0.1
WORTH = 0.5
SETTLED = 0.1  # how much less loaded than those of the grid a partition must be to come in
MOST_PIECES = 64
TRIES = 4  # shapes of a grid
FEWER = 0.125  # of the partitions that a key is worth, those that a grid may leave out
PENALTY = 0.1  # of the mean, what it counts to give a piece to a line that has a partition which holds too much
UNEVEN = 0.1  # of the mean, by which the busiest partition may do more than with one input copied

Loads = npt.NDArray[np.float64]


@dataclass
class Total:
    """What a key makes all partitions do."""

    work: Loads  # by partition
    rows: dict[str, float]
    text: str
    found: dict[str, Loads] = field(default_factory=dict)  # results, by the input whose new rows found them
    held: dict[str, Loads] = field(default_factory=dict)  # rows, by input

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
        """The rows of a batch that come on the other inputs."""
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


@dataclass(frozen=True)
class Place:
    """A grid, and the lines and columns that new rows go to."""

    grid: Grid
    ages: tuple[tuple[int, ...], tuple[int, ...]]
    lines: tuple[int, ...] = (0,)
    columns: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, key: HotKey | None, home: int) -> Place:
        """Where a key is."""
        return cls(((home,),), ((0,), (0,))) if key is None else cls(key.grid, key.ages, key.lines, key.columns)

    @property
    def shape(self) -> tuple[int, int]:
        """How many lines and columns there are."""
        return len(self.grid), len(self.grid[0])

    @property
    def holders(self) -> set[int]:
        """The partitions of the grid."""
        return {one for line in self.grid for one in line}

    def with_line(self, partitions: Sequence[int]) -> Place:
        """With a further line."""
        lines, columns = self.ages
        return replace(self, grid=(*self.grid, tuple(partitions)), ages=((*lines, self._next), columns))

    def with_column(self, partitions: Sequence[int]) -> Place:
        """With a further column."""
        lines, columns = self.ages
        grid = tuple((*line, one) for line, one in zip(self.grid, partitions, strict=True))
        return replace(self, grid=grid, ages=(lines, (*columns, self._next)))

    def without(self, lines: Collection[int], columns: Collection[int]) -> Place:
        """Without some lines and columns, of which none is the first one or gets new rows."""
        kept = [[at for at in range(n) if at not in gone] for n, gone in zip(self.shape, (lines, columns), strict=True)]
        return Place(
            tuple(tuple(self.grid[line][column] for column in kept[1]) for line in kept[0]),
            (tuple(self.ages[0][line] for line in kept[0]), tuple(self.ages[1][column] for column in kept[1])),
            tuple(kept[0].index(line) for line in self.lines),
            tuple(kept[1].index(column) for column in self.columns),
        )

    @property
    def _next(self) -> int:
        return 1 + max(age for ages in self.ages for age in ages)


@dataclass
class Balance:
    """What partitions do and hold: pieces of hot keys are given to those that do least."""

    loads: Loads  # without what new rows of the hot keys make that have no place yet
    full: npt.NDArray[np.bool_]  # which hold too much
    mean: float

    def place(
        self, number: int, key: HotKey | None, stale: tuple[int, ...], total: Total, split: Split, *, both: bool
    ) -> HotKey | None:
        """Give the pieces of a key to partitions; None if all of it stays at home."""
        home = home_of(number, len(self.loads))
        before = Place.of(key, home)
        chosen, loads = self._in_one_column(_flat(before), stale, total, split.input)
        cells = len(before.holders)
        worth = min(len(chosen.grid), max(self._pieces(total.sum), cells))
        rows = total.rows.get(split.input, 0.0), total.copied(split.input)
        most = _copies(chosen.shape, rows)
        if before.shape[1] > 1:
            chosen, loads = self._shared(before, total, split.input)
            most = np.inf
        peak = max(float(loads.max()), (1 + UNEVEN) * self.mean)
        usable = len(self.loads) - len(set(stale) - before.holders)
        grows = both and (before.shape[1] == 1 or cells < (1 - FEWER) * worth)
        for shape in _shapes(before.shape, worth, usable, rows, most)[:TRIES] if grows else ():
            grid, after = self._shared(self._grown(before, shape, stale), total, split.input)
            if float(after.max()) <= peak:
                chosen, loads = grid, after
                break
        self.loads = loads
        if chosen.holders == {home} and not stale:
            return None
        share = round(total.sum / (self.mean * len(self.loads)), 4)
        text = key.text if key is not None and key.text else total.text
        places = chosen.grid, chosen.ages, chosen.lines, chosen.columns, stale
        return HotKey(number, split.input, *places, share, text, split.witness)

    def _in_one_column(self, place: Place, stale: Collection[int], total: Total, split: str) -> tuple[Place, Loads]:
        """With one input copied: the lines, as many as pay, and what partitions do then."""
        loads, partitions = self.loads.copy(), len(self.loads)
        line_of = {line[0]: at for at, line in enumerate(place.grid)}
        copied = total.copied(split)
        most = max(len(line_of), int(WORTH * total.sum / copied) if copied else partitions)
        goes = max(total.sum - float(total.stays(split).sum()), 0.0)
        pieces = self._pieces(goes)
        lines = []
        for _ in range(pieces):
            others = range(partitions) if len(line_of) < most else ()
            open_to = {*line_of, *(one for one in others if one not in stale)}
            chosen = min(open_to, key=lambda one: self._price(one, line_of, loads, copied))
            if chosen not in line_of:
                line_of[chosen] = len(line_of)
                place = place.with_line([chosen])
                loads[chosen] += copied
            lines.append(line_of[chosen])
            loads[chosen] += goes / pieces
        return replace(place, lines=tuple(sorted(lines)), columns=(0,)), loads

    def _pieces(self, work: float) -> int:
        return min(max(2, ceil(work / (PIECE * self.mean))), MOST_PIECES)

    def _price(self, one: int, holders: Collection[int], loads: Loads, copied: float) -> tuple[bool, float, int]:
        """What it costs to give a piece to a partition: those that hold too much come last."""
        further = 0.0 if one in holders else SETTLED * self.mean + copied
        return bool(self.full[one]), float(loads[one]) + further, one

    def _grown(self, place: Place, shape: tuple[int, int], stale: Collection[int]) -> Place:
        """A larger grid: partitions that do least come in, those that do about as much in the same line."""
        taken = place.holders.union(stale)
        free = (one for one in range(len(self.loads)) if one not in taken)
        ordered = iter(sorted(free, key=lambda one: (bool(self.full[one]), float(self.loads[one]), one)))
        while place.shape[1] < shape[1]:
            place = place.with_column([next(ordered) for _ in place.grid])
        while place.shape[0] < shape[0]:
            place = place.with_line([next(ordered) for _ in place.grid[0]])
        return place

    def _shared(self, place: Place, total: Total, split: str) -> tuple[Place, Loads]:
        """The shares of lines and columns in the new rows of both inputs, and what partitions do then.

        New rows find what is there: in a column its share of the other input's rows, in a line that of the split one's.
        """
        grid, stays, none = np.array(place.grid), total.stays(split), np.zeros(len(self.loads))
        loads = np.maximum(self.loads - stays, 0.0)
        there = total.held.get(split, none), sum((n for name, n in total.held.items() if name != split), none)
        work = [  # of all new rows of the split input by column, and of the others by line
            float(total.found.get(split, none).sum()) * _parts(there[1][grid].max(axis=0)) + total.rows.get(split, 0.0),
            float(stays.sum()) * _parts(there[0][grid].max(axis=1)) + total.copied(split),
        ]
        cells, price = loads[grid], PENALTY * self.mean * self.full[grid]
        pieces = [self._pieces(float(amounts.max())) for amounts in work]
        shares: tuple[list[int], list[int]] = [], []
        turns = sorted(((at + 0.5) / pieces[side], side) for side in (0, 1) for at in range(pieces[side]))
        for _, side in turns:
            mine, further = (cells, price) if side == 0 else (cells.T, price.T)
            piece = work[side] / pieces[side]
            chosen = int((mine + piece + further).max(axis=1).argmin())
            mine[chosen] += piece
            shares[side].append(chosen)
        loads[grid] = cells
        return replace(place, lines=tuple(sorted(shares[0])), columns=tuple(sorted(shares[1]))), loads


def _flat(place: Place) -> Place:
    """The partitions of a grid as lines of one."""
    grid = tuple((one,) for line in zip(*place.grid, strict=True) for one in line)
    return Place(grid, (place.ages[0] if place.shape[1] == 1 else tuple(range(len(grid))), (0,)))


def _parts(amounts: Loads) -> Loads:
    """Amounts as parts of their sum; before there are any, all is in the first place."""
    whole = float(amounts.sum())
    return np.divide(amounts, whole) if whole else np.eye(1, len(amounts))[0]


def _copies(shape: tuple[int, int], rows: tuple[float, float]) -> float:
    """The copies that a grid costs, given the rows that are divided by line and by column."""
    return rows[0] * (shape[1] - 1) + rows[1] * (shape[0] - 1)


def _shapes(
    before: tuple[int, int], worth: int, usable: int, rows: tuple[float, float], most: float
) -> list[tuple[int, int]]:
    """The shapes into which a grid may grow that is worth so many partitions, those with the fewest copies first."""
    found = []
    for columns in range(max(before[1], 2), usable + 1):
        lines = max(before[0], min(ceil(worth / columns), usable // columns))
        enough = (1 - FEWER) * worth <= lines * columns <= usable
        if enough and (lines, columns) != before and _copies((lines, columns), rows) < most:
            found.append((lines, columns))
    return sorted(found, key=lambda shape: (_copies(shape, rows), -shape[0] * shape[1], shape[1]))
