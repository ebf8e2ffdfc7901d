"""Which rows leave memory when it is full.

A policy sees how much each input holds in each bucket and how probable arrivals there are, and names victims until
the wanted amount is reached. Amounts are in the unit of the budget (bytes, or rows).

    optimal     (RPJ, Fig. 4)  the bucket opposite to the smallest arrival probability first; the last one partially
    long-run    (ours)         the order of `optimal`, but only buckets that make a long run on disk
    classes     (ours)         `optimal` by classes of about equal probability, the largest bucket of a class first
    largest     (XJoin)        the largest bucket
    smallest                   the smallest bucket
    all                        everything
    adaptive    (HMJ)          the pair of buckets that is large and balanced

HMJ flushes concurrently: with a bucket goes the same bucket of the other input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np
import numpy.typing as npt

Flush = Literal["optimal", "long-run", "classes", "largest", "smallest", "all", "adaptive"]

# The flush policies that each policy of the progressive joins knows, its own first.
FLUSHES: dict[str, tuple[Flush, ...]] = {
    "rpj": ("optimal", "long-run", "classes", "largest", "smallest", "all"),
    "xjoin": ("largest", "optimal", "long-run", "classes", "smallest", "all"),
    "hmj": ("adaptive", "all", "largest", "smallest"),
}

LEAST_RUN = 0.3  # of n_flush: shorter runs are not worth a seek
ALIKE = 1.25  # arrival probabilities of one class differ by no more than this factor

Sizes = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Victim:
    """A bucket to flush: all of it, or its oldest rows up to `amount`."""

    input: int
    bucket: int
    amount: int | None = None


class FlushPolicy(ABC):
    """Chooses victims."""

    def __init__(self, concurrent: bool = False) -> None:
        self.concurrent = concurrent

    def choose(self, sizes: Sizes, probabilities: Probabilities, amount: int) -> list[Victim]:
        """Victims, in order, that free `amount` (or all there is)."""
        chosen: list[Victim] = []
        taken: set[tuple[int, int]] = set()
        for victim in self.order(sizes, probabilities):
            if amount <= 0:
                break
            for index in (0, 1) if self.concurrent else (victim.input,):
                size = int(sizes[index, victim.bucket])
                if size and (index, victim.bucket) not in taken:
                    taken.add((index, victim.bucket))
                    chosen.append(self.cut(Victim(index, victim.bucket), size, amount))
                    amount -= size
        return chosen

    def cut(self, victim: Victim, size: int, amount: int) -> Victim:
        """The victim, reduced where the policy flushes a bucket partially."""
        return victim

    @abstractmethod
    def order(self, sizes: Sizes, probabilities: Probabilities) -> Iterator[Victim]:
        """All buckets, the first victim first."""


class OptimalFlush(FlushPolicy):
    """Maximises the expected results of the rows that stay (Eq. 3 and 4, Lemma 1).

    >>> policy, sizes = OptimalFlush(), np.full((2, 2), 10)
    >>> for victim in policy.choose(sizes, np.array([[0.35, 0.25], [0.10, 0.30]]), 15):
    ...     print(victim)
    Victim(input=0, bucket=0, amount=None)
    Victim(input=1, bucket=1, amount=5)
    """

    def order(self, sizes: Sizes, probabilities: Probabilities) -> Iterator[Victim]:
        """By arrival probability; the rows that leave are those of the other input."""
        for flat in np.argsort(probabilities, axis=None, kind="stable"):
            index, bucket = divmod(int(flat), sizes.shape[1])
            yield Victim(1 - index, bucket)

    def cut(self, victim: Victim, size: int, amount: int) -> Victim:
        """The last bucket is flushed only as far as needed."""
        return victim if size <= amount else Victim(victim.input, victim.bucket, amount)


class LongRunFlush(OptimalFlush):
    """Optimal flush without short runs: in its order, but a bucket leaves only if it makes a run of LEAST_RUN n_flush.

    Optimal flush empties the same few buckets again and again, each time of the few rows that came since: many short
    runs, each of which costs a seek to write and a seek in every task that reads it. Here a bucket collects rows until
    they are worth a run. What that costs are the rows that stay instead: less likely to match, and few. The last run
    is not shorter either. If no bucket is long enough, the largest ones leave.

    >>> policy, sizes = LongRunFlush(), np.array([[2, 10], [10, 10]])
    >>> for victim in policy.choose(sizes, np.array([[0.35, 0.25], [0.10, 0.30]]), 12):
    ...     print(victim)
    Victim(input=1, bucket=1, amount=None)
    Victim(input=0, bucket=1, amount=4)
    """

    def choose(self, sizes: Sizes, probabilities: Probabilities, amount: int) -> list[Victim]:
        """Victims that free `amount`: long runs in the optimal order, then whatever is largest."""
        least = ceil(LEAST_RUN * amount)
        chosen: list[Victim] = []
        ranked = list(self.order(sizes, probabilities))
        long = [victim for victim in ranked if sizes[victim.input, victim.bucket] >= least]
        short = [victim for victim in ranked if 0 < sizes[victim.input, victim.bucket] < least]
        for victim in (*long, *sorted(short, key=lambda one: -int(sizes[one.input, one.bucket]))):
            if amount <= 0:
                break
            size = int(sizes[victim.input, victim.bucket])
            chosen.append(self.cut(victim, size, max(amount, least)))
            amount -= size
        return chosen


class ClassFlush(OptimalFlush):
    """Optimal flush that tells probabilities apart only where it matters, and flushes whole buckets.

    Where keys are spread evenly, all buckets of an input are about equally likely to be probed, and optimal flush
    follows the noise of the counts: it empties the same few buckets again and again, of few rows each, and cuts the
    last one. That costs more processor time than flushing the largest, and gives no more results. Where keys
    are skewed the order is worth its price. Here buckets are in one class if their probabilities are within a factor
    ALIKE of the least; classes go in the order of `optimal`, and in a class the largest bucket leaves first, whole.

    >>> policy, sizes = ClassFlush(), np.array([[10, 12], [40, 11]])
    >>> for victim in policy.choose(sizes, np.array([[0.35, 0.25], [0.19, 0.21]]), 15):
    ...     print(victim)
    Victim(input=0, bucket=1, amount=None)
    Victim(input=0, bucket=0, amount=None)
    """

    def order(self, sizes: Sizes, probabilities: Probabilities) -> Iterator[Victim]:
        """By class of arrival probability, then by size."""
        ranked = list(super().order(sizes, probabilities))
        least, number, keys = 0.0, 0, []
        for victim in ranked:
            probability = probabilities[1 - victim.input, victim.bucket]
            if probability > ALIKE * least:
                least, number = probability, number + 1
            keys.append((number, -int(sizes[victim.input, victim.bucket])))
        for at in sorted(range(len(ranked)), key=keys.__getitem__):
            yield ranked[at]

    def cut(self, victim: Victim, size: int, amount: int) -> Victim:
        """What leaves is one run of the whole bucket."""
        return victim


class FlushLargest(FlushPolicy):
    """The bucket with the most rows or bytes."""

    def order(self, sizes: Sizes, probabilities: Probabilities) -> Iterator[Victim]:
        """Descending sizes."""
        yield from _in_order(-sizes)


class FlushSmallest(FlushPolicy):
    """The bucket with the least, if it has anything."""

    def order(self, sizes: Sizes, probabilities: Probabilities) -> Iterator[Victim]:
        """Ascending sizes."""
        yield from _in_order(sizes)


class FlushAll(FlushPolicy):
    """Everything, however little is wanted."""

    def choose(self, sizes: Sizes, probabilities: Probabilities, amount: int) -> list[Victim]:
        """All buckets."""
        return super().choose(sizes, probabilities, int(sizes.sum()))

    def order(self, sizes: Sizes, probabilities: Probabilities) -> Iterator[Victim]:
        """Bucket by bucket."""
        yield from _in_order(np.broadcast_to(np.arange(sizes.shape[1]), sizes.shape))


class AdaptiveFlush(FlushPolicy):
    """The pair whose sizes differ little and add up to much: the largest sum less difference, then the largest sum."""

    def order(self, sizes: Sizes, probabilities: Probabilities) -> Iterator[Victim]:
        """Pairs; `concurrent` adds the second of each."""
        balance, whole = sizes.min(axis=0), sizes.sum(axis=0)
        for bucket in np.lexsort((-whole, -balance)):
            yield Victim(0, int(bucket))


def _in_order(key: npt.NDArray[np.int64]) -> Iterator[Victim]:
    for flat in np.argsort(key, axis=None, kind="stable"):
        index, bucket = divmod(int(flat), key.shape[1])
        yield Victim(index, bucket)


POLICIES: dict[str, type[FlushPolicy]] = {
    "optimal": OptimalFlush,
    "long-run": LongRunFlush,
    "classes": ClassFlush,
    "largest": FlushLargest,
    "smallest": FlushSmallest,
    "all": FlushAll,
    "adaptive": AdaptiveFlush,
}
