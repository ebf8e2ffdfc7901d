"""The hot keys of a join, and where their rows go in one batch.

A hot key lies in a grid of partitions, each of which is in it once. A row of the *split* input goes to one line of the
grid, and to all partitions of that line; a row of another input goes to one column. A pair of them is in one partition:

    key 7, home 2        left: by line      a b            right: by column      x y
        line 0   (a)     2: a, x     4: a, y
        line 1   (b)     0: b, x     5: b, y

The first partition of a line, or of a column, has the row itself, the others have copies. One column is the plain
case: each row of the split input is in one partition, and the rows of the others are copied to all of them. Most joins
have no other (`Operator.divides_both`).

Lines and columns stay as long as there are rows in them: they wait for rows of the others. A key that has cooled down
sends new rows to the first line and the first column, and is still copied. A key is known by its hash: keys that share
one are hot together, unless one must have a witness at home (`Operator.witnessed`): then rows of another one are an
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# A key is hot when its work is more than this part of what a partition does on average.
ENTER = 0.2

Grid = tuple[tuple[int, ...], ...]  # partitions, by line and column


@dataclass(frozen=True)
class HotKey:
    """Where the rows of one key go.

    Lines and columns are numbered as they came into the grid, in one order: the `ages` of both. The lower one was there
    first. Those of the home are 0.
    """

    hash: int
    split: str  # the input whose rows are divided among the lines
    grid: Grid  # the home is the first partition of the first line
    ages: tuple[tuple[int, ...], tuple[int, ...]]  # of the lines, and of the columns
    lines: tuple[int, ...]  # those that new rows of the split input go to, in these shares: one may be there twice
    columns: tuple[int, ...] = (0,)  # the same of rows of the other inputs
    stale: tuple[int, ...] = ()  # former parts of the grid that still have rows: they cannot come into it again yet
    share: float = 0.0  # of all work that the key makes, estimated
    text: str = ""  # the key as people read it
    witness: int | None = None  # the fingerprint of the key, if its home must have a row of the split input

    @property
    def holders(self) -> tuple[int, ...]:
        """The partitions of the grid."""
        return tuple(sorted(one for line in self.grid for one in line))

    @property
    def listeners(self) -> tuple[int, ...]:
        """The partitions that may have rows of the key: what is promised of it is for all of them."""
        return tuple(sorted({*self.holders, *self.stale}))

    @property
    def shape(self) -> tuple[int, int]:
        """How many lines and columns new rows go to."""
        return len(set(self.lines)), len(set(self.columns))

    @property
    def is_spread(self) -> bool:
        """Whether new rows go to more than one partition."""
        return self.shape != (1, 1)

    def cell(self, partition: int) -> tuple[int, int] | None:
        """The line and the column of a partition; None if it is not in the grid."""
        found = ((r, line.index(partition)) for r, line in enumerate(self.grid) if partition in line)
        return next(found, None)

    def origin(self, line: int, column: int) -> tuple[int, bool]:
        """The partition from which one that is new in the grid takes rows, and whether these are rows of the split
        input: the first one of its line if that was there before its column, else the first one of its column.

        >>> key = HotKey(10, "left", ((0, 1), (2, 3)), ages=((0, 2), (0, 1)), lines=(0, 1), columns=(0, 1))
        >>> key.origin(0, 1), key.origin(1, 0), key.origin(1, 1)
        ((0, True), (0, False), (1, False))
        """
        if self.ages[0][line] < self.ages[1][column]:
            return self.grid[line][0], True
        return self.grid[0][column], False

    def owned(self, line: int, column: int, inputs: Iterable[str]) -> list[str]:
        """The inputs whose rows are in this place themselves: those of others are copies."""
        first = {True: column == 0, False: line == 0}
        return [name for name in inputs if first[name == self.split]]


@dataclass(frozen=True)
class HotTable:
    """The hot keys of one batch, by hash."""

    keys: Mapping[int, HotKey] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Iterable[HotKey]) -> HotTable:
        """A table of these keys."""
        return cls({key.hash: key for key in keys})

    @classmethod
    def from_json(cls, saved: Sequence[Mapping[str, Any]]) -> HotTable:
        """The table that `to_json` wrote."""
        lists = ("grid", "ages", "lines", "columns", "stale")
        return cls.of(HotKey(**{**one, **{name: _tuples(one[name]) for name in lists}}) for one in saved)

    def to_json(self) -> list[dict[str, Any]]:
        """The table in JSON form."""
        return [asdict(self.keys[number]) for number in sorted(self.keys)]


def _tuples(saved: Any) -> Any:
    return tuple(map(_tuples, saved)) if isinstance(saved, list | tuple) else saved


@dataclass(frozen=True)
class Route:
    """Where the rows of a key go on one of the inputs: each row to one of the targets, once per route. All routes of an
    input have as many targets, and a row takes the same place among them in each."""

    hash: int
    input: str
    targets: tuple[int, ...]
    is_copy: bool  # of a row that another partition has, too


def signed(number: int) -> int:
    """A hash as Spark has it.

    >>> signed(7), signed((1 << 64) - 1)
    (7, -1)
    """
    return number - (number >> 63 << 64)


def home_of(number: int, partitions: int) -> int:
    """The partition that a key belongs to when it is not hot, by its hash."""
    return signed(number) % partitions


def routes(table: HotTable, inputs: Iterable[str]) -> list[Route]:
    """All routes of a batch. Rows of keys that have none go home.

    >>> hot = HotTable.of([HotKey(10, "left", ((2,), (0,)), ages=((0, 1), (0,)), lines=(0, 0, 1))])
    >>> for route in routes(hot, ["left", "right"]):
    ...     print(route.input, route.targets, route.is_copy)
    left (2, 2, 0) False
    right (2,) False
    right (0,) True
    """
    names, found = list(inputs), []
    for key in table.keys.values():
        by_column = list(zip(*key.grid, strict=True))
        for name in names:
            lists = [tuple(column[line] for line in key.lines) for column in by_column]
            if name != key.split:
                lists = [tuple(line[column] for column in key.columns) for line in key.grid]
            found += [Route(key.hash, name, targets, is_copy=at > 0) for at, targets in enumerate(lists)]
    return found
