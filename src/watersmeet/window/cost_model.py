"""The unit-time cost of moving window joins, equation by equation as Kang, Naughton and Viglas give it (Evaluating
Window Joins over Unbounded Streams).

A join has two directions that cost and choose independently. Direction "A to B" is everything that touches window B:
A's arrivals probe it, B's arrivals are inserted and invalidated. Costs count the rows touched in one unit of time,
weighted by what one access costs in nested loops (C_n) and in a hash table (C_h); only their ratio matters.

This is the model of a tuple-at-a-time engine. `batch_costs` is the same structure with the costs of our own vectorised
kernels, and is what `algorithm="auto"` decides by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["hash", "loop"]
FullJoin = Literal["HH", "HN", "NH", "NN"]


@dataclass(frozen=True)
class Weights:
    """The cost of one access. The paper's measured ratio is 1.3; 0.5 and 0.65 align its model with its clock."""

    loop: float = 0.5  # C_n
    hash: float = 0.65  # C_h

    @property
    def ratio(self) -> float:
        """C_h / C_n."""
        return self.hash / self.loop


@dataclass(frozen=True)
class Stream:
    """A stream and its window: arrival rate (lambda), window length T, distinct keys in the window (NKey = |B|).

    >>> Stream(rate=10, window=60, keys=10).rows
    600
    """

    rate: float
    window: float
    keys: float

    @property
    def rows(self) -> float:
        """Rows in the window: B = T_b lambda_b."""
        return self.window * self.rate

    @property
    def bucket_rows(self) -> float:
        """Rows in one hash bucket: B / |B|."""
        return self.rows / self.keys

    @property
    def selectivity(self) -> float:
        """sigma_b = 1 / NKey(B)."""
        return 1 / self.keys


def direction_cost(
    probing: Stream, stored: Stream, *, probe: float, insert: float, invalidate: float, weight: float = 1.0
) -> float:
    """Eq. 1: C(A to B) = lambda_a probe(b) + lambda_b (insert(b) + invalidate(b))."""
    return (probing.rate * probe + stored.rate * (insert + invalidate)) * weight


def loop_cost(probing: Stream, stored: Stream, weights: Weights = Weights()) -> float:  # noqa: B008 (immutable)
    """Eq. 2: nested loops scan the whole window for a probe, and touch one row to insert and one to invalidate.

    >>> loop_cost(Stream(10, 60, 10), Stream(10, 60, 10))
    3010.0
    """
    return direction_cost(probing, stored, probe=stored.rows, insert=1, invalidate=1, weight=weights.loop)


def hash_cost(probing: Stream, stored: Stream, weights: Weights = Weights()) -> float:  # noqa: B008
    """Eq. 3: a hash table touches one bucket for a probe, and one to find the expired row in.

    >>> hash_cost(Stream(10, 60, 10), Stream(10, 60, 10))
    786.5
    """
    bucket = stored.bucket_rows
    return direction_cost(probing, stored, probe=bucket, insert=1, invalidate=bucket, weight=weights.hash)


def full_join_costs(left: Stream, right: Stream, weights: Weights = Weights()) -> dict[FullJoin, float]:  # noqa: B008
    """Eq. 4, 5 and 6 (and NH): the structure of the left window comes first, as in the paper.

    >>> costs = full_join_costs(Stream(10, 60, 10), Stream(100, 60, 10))
    >>> min(costs, key=costs.get)
    'HN'
    """
    left_window = {"H": hash_cost(right, left, weights), "N": loop_cost(right, left, weights)}
    right_window = {"H": hash_cost(left, right, weights), "N": loop_cost(left, right, weights)}
    return {
        "HH": left_window["H"] + right_window["H"],
        "HN": left_window["H"] + right_window["N"],
        "NH": left_window["N"] + right_window["H"],
        "NN": left_window["N"] + right_window["N"],
    }


def crossover(keys: float, weights: Weights = Weights()) -> float:  # noqa: B008
    """Eq. 7: from this ratio lambda_b / lambda_a on, nested loops beat the hash join in the direction A to B.

    >>> round(crossover(10), 1)
    6.7
    """
    return (keys - weights.ratio) / weights.ratio


def determinant(probing: Stream, stored: Stream, weights: Weights = Weights()) -> Method:  # noqa: B008
    """Eq. 8: the algorithm for one direction.

    >>> determinant(Stream(5, 60, 10), Stream(45, 60, 10)), determinant(Stream(5, 60, 20), Stream(45, 60, 20))
    ('loop', 'hash')
    """
    return "loop" if stored.rate / probing.rate > crossover(stored.keys, weights) else "hash"


def output_rate(left: Stream, right: Stream) -> float:
    """Eq. 9: results per unit of time, r = sigma lambda_a lambda_b (T_a + T_b) with sigma = min(sigma_a, sigma_b)."""
    sigma = min(left.selectivity, right.selectivity)
    return sigma * left.rate * right.rate * (left.window + right.window)
