"""Too little memory for both windows: how to divide it (section 4.3).

Results come at the rate sigma (A lambda_b + B lambda_a), for windows of A and B rows (Eq. 9). A row kept in window A
is worth lambda_b rows a second that may find it; so with constant rates (Eq. 12 and 13) the slower stream's window is
served first, up to its full length, and the other gets the rest. With regulated rates (Eq. 14) rates and windows
are chosen together. Unlike the paper's text, T' <= T is kept: windows never grow beyond what was asked for, and then a
split in between can be the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

# Rates this close to each other are equal: which of two windows is cut should not change with every estimate.
SAME_RATE = 1.1


@dataclass(frozen=True)
class Demand:
    """What one input brings: its arrival rate, the length of its window, and the size of a row."""

    rate: float
    window: float
    row_bytes: float

    @property
    def bytes(self) -> float:
        """What the whole window needs."""
        return self.rate * self.window * self.row_bytes


def slower_first(left_rate: float, right_rate: float, before: str | None = None) -> str:
    """Which window is served first (Eq. 13); between about equal rates, the one that was before."""
    if before and max(left_rate, right_rate) <= SAME_RATE * min(left_rate, right_rate):
        return before
    return "left" if left_rate <= right_rate else "right"


def split(
    strategy: str, first: str, rates: tuple[float, float], wanted: tuple[float, float], memory: float
) -> tuple[float, float]:
    """Bytes for the left and the right window, which want so many. What one does not need goes to the other.

    >>> split("optimal", "left", (10, 50), (900, 900), 1000), split("equal", "left", (10, 50), (100, 5000), 1000)
    ((900.0, 100.0), (100.0, 900.0))
    """
    match strategy:
        case "optimal":
            share = 1.0 if first == "left" else 0.0
        case "left":
            share = 1.0
        case "right":
            share = 0.0
        case "rate" | "inverse_rate":
            total = rates[0] + rates[1]
            proportional = rates[0] / total if total else 0.5
            share = proportional if strategy == "rate" else 1 - proportional
        case _:
            share = 0.5
    left = min(wanted[0], memory * share)
    right = min(wanted[1], memory - left)
    return float(min(wanted[0], memory - right)), float(right)


@dataclass(frozen=True)
class Regulation:
    """Rates and window bytes chosen together (Eq. 14)."""

    rates: tuple[float, float]
    bytes: tuple[float, float]


def regulate(left: Demand, right: Demand, service_rate: float, memory: float) -> Regulation:
    """The rates and the split of the memory that give the most results (Eq. 14, with lambda' <= lambda and T' <= T).

    For given rates the best split is that of constant rates. So the output is a function of lambda_a' alone: quadratic
    between the points where a window stops to fit or the slower stream changes, hence largest at such a point or at
    the vertex between two of them.

    >>> best = regulate(Demand(10, 100, 1), Demand(10, 100, 1), service_rate=10, memory=100)
    >>> best.bytes[0] + best.bytes[1]
    100.0
    """
    total = min(service_rate, left.rate + right.rate)
    lowest, highest = max(0.0, total - right.rate), min(left.rate, total)

    def result(x: float) -> tuple[float, Regulation]:
        rates = (x, total - x)
        wanted = (x * left.window * left.row_bytes, (total - x) * right.window * right.row_bytes)
        # A byte of the left window is worth the right rate per row size, and the other way round.
        first = "left" if rates[1] * right.row_bytes >= rates[0] * left.row_bytes else "right"
        given = split("optimal", first, rates, wanted, memory)
        output = given[0] / left.row_bytes * rates[1] + given[1] / right.row_bytes * rates[0]
        return output, Regulation(rates, given)

    points = {lowest, highest}
    a, b = left.window * left.row_bytes, right.window * right.row_bytes
    for numerator, denominator in (
        (memory, a),  # the left window alone fills the memory
        (total * b - memory, b),  # the right window alone does
        (memory - total * b, a - b),  # both together do
        (total * right.row_bytes, left.row_bytes + right.row_bytes),  # both streams are equally worth serving
    ):
        if denominator and lowest < numerator / denominator < highest:
            points.add(numerator / denominator)
    ascending = sorted(points)
    for low, high in pairwise(ascending):
        points.add(_vertex(lambda x: result(x)[0], low, high))
    return max((result(x) for x in sorted(points)), key=lambda found: found[0])[1]


def _vertex(f: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that is quadratic from `low` to `high` has its maximum there."""
    inset = (high - low) * 1e-6  # the ends belong to two pieces at once
    x0, x2 = low + inset, high - inset
    x1 = (x0 + x2) / 2
    y0, y1, y2 = f(x0), f(x1), f(x2)
    curvature = y0 - 2 * y1 + y2
    if curvature >= 0:
        return x0 if y0 >= y2 else x2
    vertex = x1 - (x2 - x0) / 4 * (y2 - y0) / curvature
    return min(max(vertex, low), high)
