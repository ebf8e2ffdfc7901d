"""The hot keys of a join, and where their rows go in one batch.

A hot key has one input that is *split*: each of its rows goes to one of the `targets`. The rows of the other inputs are
copied to all `holders`. Every result has exactly one row of the split input, so it is found in one partition:

    key 7, home 2        left (split)     a b c d e f         right (copied)     x y
        partition 2                       a     d                                x y        home: holds all copies
        partition 0                         b     e                              x y
        partition 5                           c     f                            x y

A holder stays one as long as it has rows of the split input: they wait for rows of the others. A key that has cooled
down has its home as the only target, and is still copied. A key is known by its hash: keys that share one are hot
together, unless one must have a witness at home (`Operator.witnessed`): then rows of another one are an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# A key is hot when its work is more than this part of what a partition does on average.
ENTER = 0.2


@dataclass(frozen=True)
class HotKey:
    """Where the rows of one key go."""

    hash: int
    split: str  # the input whose rows are divided
    holders: tuple[int, ...]  # partitions that have all rows of the other inputs; the home is one of them
    targets: tuple[int, ...]  # those that new rows of the split input go to, in these shares: one may be there twice
    stale: tuple[int, ...] = ()  # former holders that still have copies: they cannot become holders yet
    share: float = 0.0  # of all work that the key makes, estimated
    text: str = ""  # the key as people read it
    witness: int | None = None  # the fingerprint of the key, if its home must have a row of the split input

    @property
    def is_spread(self) -> bool:
        """Whether new rows go to more than one partition."""
        return len(set(self.targets)) > 1


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
        lists = ("holders", "targets", "stale")
        return cls.of(HotKey(**{**one, **{name: tuple(one[name]) for name in lists}}) for one in saved)

    def to_json(self) -> list[dict[str, Any]]:
        """The table in JSON form."""
        return [asdict(self.keys[number]) for number in sorted(self.keys)]


@dataclass(frozen=True)
class Route:
    """Where the rows of a key go on one of the inputs: each row to one of the targets, once per route."""

    hash: int
    input: str
    targets: tuple[int, ...]
    is_copy: bool  # of a row that the key's home has, too


def signed(number: int) -> int:
    """A hash as Spark has it.

    >>> signed(7), signed((1 << 64) - 1)
    (7, -1)
    """
    return number - (number >> 63 << 64)


def home_of(number: int, partitions: int) -> int:
    """The partition that a key belongs to when it is not hot, by its hash."""
    return signed(number) % partitions


def routes(table: HotTable, inputs: Iterable[str], partitions: int) -> list[Route]:
    """All routes of a batch. Rows of keys that have none go home.

    >>> hot = HotTable.of([HotKey(10, "left", holders=(0, 2), targets=(0, 2, 2))])
    >>> for route in routes(hot, ["left", "right"], 4):
    ...     print(route.input, route.targets, route.is_copy)
    left (0, 2, 2) False
    right (0,) True
    right (2,) False
    """
    names, found = list(inputs), []
    for key in table.keys.values():
        home = home_of(key.hash, partitions)
        for name in names:
            if name == key.split:
                found.append(Route(key.hash, name, key.targets, is_copy=False))
            else:
                found += [Route(key.hash, name, (holder,), is_copy=holder != home) for holder in key.holders]
    return found
