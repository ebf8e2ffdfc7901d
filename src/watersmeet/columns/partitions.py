"""Which partition a key belongs to: Spark's pmod of its hash, as a signed number."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

from watersmeet.columns.arrow import Hashes

Mask = npt.NDArray[np.bool_]


def partition_of(hashes: Hashes, partitions: int) -> npt.NDArray[np.int64]:
    """The partition of each hash."""
    return np.asarray(hashes.view(np.int64) % partitions)


@dataclass(frozen=True)
class Partition:
    """One of so many partitions, in a division of the state.

    >>> Partition(1, 4).origins(2), Partition(1, 2).origins(4), Partition(0, 3).origins(2)
    ([1], [1, 3], [0, 1])
    """

    number: int
    of: int
    division: int = 0

    def owns(self, hashes: Hashes) -> Mask:
        """Which hashes belong to it."""
        return np.asarray(partition_of(hashes, self.of) == self.number)

    def origins(self, partitions: int) -> list[int]:
        """Those of so many other partitions that can have keys in common with it."""
        step = gcd(partitions, self.of)
        return list(range(self.number % step, partitions, step))

    def is_first_heir(self, origin: Partition) -> bool:
        """Whether it takes over from another one what cannot be divided: exactly one of the heirs does."""
        return self.number == origin.number % gcd(origin.of, self.of)

    @property
    def is_only(self) -> bool:
        """Whether all keys belong to it."""
        return self.of == 1
