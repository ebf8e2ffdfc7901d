"""The answer, recomputed from scratch with dictionaries and loops. Shares no code with the operators."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
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


class OptionalOracle:
    """A join of many inputs, some of them optional, batch by batch: whatever is known after a batch and was not before.

    What is known follows from the whole history alone: the combinations of the required inputs' rows are joined with
    the optional inputs in the order given, as left joins are. A combination without a match is a result if no row can
    come that matches it: the optional input has ended, or its newest time less the lateness is more than the window
    after the combination's earliest row. With a window, the first payload value is the time, and no row is late.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        optional: Sequence[str],
        width: int = 2,
        window: int | None = None,
        lateness: int = 0,
    ) -> None:
        self.inputs, self.optional = inputs, optional
        self.window, self.lateness = window, lateness
        self.required = [name for name in inputs if name not in optional]
        self.nothing: Row = (None,) * width

    def answer(self, script: Script) -> list[Counter[Row]]:
        """The rows owed in each batch."""
        known = [self.known(script[: number + 1]) for number in range(len(script))]
        for before, after in itertools.pairwise(known):
            assert before <= after, "a result was taken back"
        return [after - before for before, after in zip([Counter[Row](), *known], known, strict=False)]

    def known(self, history: Script) -> Counter[Row]:
        """All results that are certain after a history."""
        bounds = self._bounds(history)
        by_key: dict[Any, dict[str, list[Row]]] = defaultdict(lambda: {name: [] for name in self.inputs})
        for arrival in history:
            for name, rows in arrival.rows.items():
                for row in rows:
                    by_key[row[0]][name].append(row)
        # A null equals nothing; it is a combination where one input alone is required.
        nulls = by_key.pop(None, {})
        alone = nulls.get(self.required[0], []) if len(self.required) == 1 else []
        found = Counter(self._row({self.required[0]: row}) for row in alone)
        for of_key in by_key.values():
            for chosen in itertools.product(*(of_key[name] for name in self.required)):
                required = dict(zip(self.required, chosen, strict=True))
                if self._within(required.values()):
                    found.update(self._row(one) for one in self._extended(required, of_key, bounds))
        return found

    def _bounds(self, history: Script) -> dict[str, float]:
        """The earliest time at which a row can still come on an input."""
        bounds = dict.fromkeys(self.inputs, -math.inf)
        for arrival in history:
            for name, rows in arrival.rows.items():
                if self.window is not None:
                    times = [row[1] - self.lateness for row in rows if row[0] is not None]
                    bounds[name] = max([bounds[name], *times])
            bounds |= dict.fromkeys(arrival.ended, math.inf)
        return bounds

    def _within(self, rows: Collection[Row]) -> bool:
        times = [row[1] for row in rows]
        return self.window is None or max(times) - min(times) <= self.window

    def _extended(
        self, chosen: dict[str, Row], rows: Mapping[str, Sequence[Row]], bounds: Mapping[str, float]
    ) -> list[dict[str, Row]]:
        """A combination of required rows with those of the optional inputs, or without."""
        found = [chosen]
        for name in self.optional:
            longer = []
            for one in found:
                fitting = [row for row in rows[name] if self._within([*one.values(), row])]
                longer += [{**one, name: row} for row in fitting]
                if not fitting and bounds[name] > self._last(one):
                    longer.append(one)
            found = longer
        return found

    def _last(self, chosen: Mapping[str, Row]) -> int:
        """The latest time of a row that fits."""
        return 0 if self.window is None else min(row[1] for row in chosen.values()) + self.window

    def _row(self, combination: Mapping[str, Row]) -> Row:
        """The key, then the payload of every input."""
        parts = (combination[name][1:] if name in combination else self.nothing for name in self.inputs)
        return (combination[self.required[0]][0], *itertools.chain.from_iterable(parts))


@dataclass(eq=False)
class Held:
    """A row that has come, and whether it has matched."""

    row: Row
    time: int = 0
    key: Row = ()  # as the operator sees it
    matched: bool = False
    met: bool = False  # a row came that could have matched it, whether or not the condition held


class BinaryOracle:
    """A join of two inputs of any type, batch by batch: every pair when its later row comes, and every unmatched row in
    the first batch after which no row still to come can match it.

    A family says which rows join, what a batch tells about the future, and for which rows it is then certain that
    nothing more can match them. `width` is how many payload values a row has, `where` a condition on pairs, and `one`
    are the inputs on which each key comes once.
    """

    sides = ("left", "right")

    def __init__(
        self,
        how: str = "inner",
        width: int = 2,
        where: Callable[[Row, Row], bool] = lambda left, right: True,
        one: Collection[str] = (),
    ) -> None:
        self.where, self.one = where, one
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

    def drops(self, side: str, row: Held) -> bool:
        """Whether a row is dropped before it is joined."""
        return False

    def learn(self, number: int, arrival: Arrival, new: Mapping[str, Sequence[Held]]) -> None:
        """What a batch tells about the future, after its rows have been joined."""

    def certain(self, side: str, row: Held) -> bool:
        """Whether no row still to come on the other input can match a row."""
        other = self.other(side)
        return other in self.ended or (other in self.one and row.met)

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
                one
                for row, key in zip(rows, seen, strict=True)
                if not self.is_null(row)
                if not self.drops(side, one := Held(row, self.time_of(row, arrival), key))
            ]
            if self.preserved[side]:
                found.update(self._alone(side, row) for row in rows if self.is_null(row))
        for lefts, rights in ((new, self.held), (self.held, new), (new, new)):
            for left, right in itertools.product(lefts["left"], rights["right"]):
                if not self.joins(left, right):
                    continue
                left.met = right.met = True
                if self.where(left.row, right.row):
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
