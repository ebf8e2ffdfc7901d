"""The answer, recomputed from scratch with dictionaries and loops. Shares no code with the operators."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watersmeet.testing.arrivals import Arrival, Row, Script


def comparable(value: Any) -> Any:
    """A value as the join's equality sees it: all NaNs are one, -0.0 is 0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def inner_join(script: Script, inputs: Sequence[str] = ("left", "right"), keys: int = 1) -> Counter[Row]:
    """The multiset of output rows (key, then the payload of every input) of the plain join of all rows."""
    by_key: list[dict[Row, list[Row]]] = []
    for name in inputs:
        groups = defaultdict(list)
        for arrival in script:
            for row in arrival.rows.get(name, ()):
                if not any(value is None for value in row[:keys]):
                    groups[tuple(comparable(value) for value in row[:keys])].append(row)
        by_key.append(groups)
    answer: Counter[Row] = Counter()
    for key, first in by_key[0].items():
        for rows in itertools.product(first, *(groups.get(key, []) for groups in by_key[1:])):
            answer[(*rows[0][:keys], *itertools.chain.from_iterable(row[keys:] for row in rows))] += 1
    return answer


@dataclass(eq=False)
class Held:
    """A row that has come, and whether it has matched."""

    row: Row
    time: int = 0
    key: Row = ()  # as the operator sees it
    matched: bool = False


class BinaryOracle:
    """A join of two inputs of any type, batch by batch: every pair when its later row comes, and every unmatched row in
    the first batch after which no row still to come can match it.

    A family says which rows join, what a batch tells about the future, and for which rows it is then certain that
    nothing more can match them. `width` is how many payload values a row has.
    """

    sides = ("left", "right")

    def __init__(self, how: str = "inner", width: int = 2) -> None:
        self.pairs = how in ("inner", "left", "right", "full")
        self.preserved = {"left": how in ("left", "full", "left_anti"), "right": how in ("right", "full")}
        self.semi, self.exists = how == "left_semi", how in ("left_semi", "left_anti")
        self.nothing: Row = (None,) * width
        self.held: dict[str, list[Held]] = {side: [] for side in self.sides}
        self.ended: set[str] = set()

    def is_null(self, row: Row) -> bool:
        """Whether a row can match nothing at all."""
        return row[0] is None

    def time_of(self, row: Row, arrival: Arrival) -> int:
        """The time of a row, where that matters."""
        return arrival.time

    def joins(self, left: Held, right: Held) -> bool:
        """Whether two rows match."""
        return bool(left.row[0] == right.row[0])

    def learn(self, number: int, arrival: Arrival, new: Mapping[str, Sequence[Held]]) -> None:
        """What a batch tells about the future, after its rows have been joined."""

    def certain(self, side: str, row: Held) -> bool:
        """Whether no row still to come on the other input can match a row."""
        return self.other(side) in self.ended

    def other(self, side: str) -> str:
        """The other input."""
        return "right" if side == "left" else "left"

    def answer(self, script: Script) -> list[Counter[Row]]:
        """The rows owed in each batch."""
        return [self._batch(number, arrival) for number, arrival in enumerate(script)]

    def _batch(self, number: int, arrival: Arrival) -> Counter[Row]:
        found: Counter[Row] = Counter()
        new: dict[str, list[Held]] = {}
        for side in self.sides:
            rows = arrival.rows.get(side, ())
            seen = rows if arrival.seen is None else arrival.seen.rows.get(side, ())
            new[side] = [
                Held(row, self.time_of(row, arrival), key)
                for row, key in zip(rows, seen, strict=True)
                if not self.is_null(row)
            ]
            if self.preserved[side]:
                found.update(self._alone(side, row) for row in rows if self.is_null(row))
        for lefts, rights in ((new, self.held), (self.held, new), (new, new)):
            for left, right in itertools.product(lefts["left"], rights["right"]):
                if self.joins(left, right):
                    if self.pairs:
                        found[(*left.row, *right.row[1:])] += 1
                    elif self.semi and not left.matched:
                        found[left.row] += 1
                    left.matched = right.matched = True
        self.ended |= arrival.ended
        self.learn(number, arrival, new)
        for side in self.sides:
            staying = []
            for one in self.held[side] + new[side]:
                if not self.certain(side, one):
                    staying.append(one)
                elif self.preserved[side] and not one.matched:
                    found[self._alone(side, one.row)] += 1
            self.held[side] = staying
        return found

    def _alone(self, side: str, row: Row) -> Row:
        if self.exists:
            return row
        return (*row, *self.nothing) if side == "left" else (row[0], *self.nothing, *row[1:])
