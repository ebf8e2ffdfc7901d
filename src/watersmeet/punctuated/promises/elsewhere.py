"""Keys that can never come to this partition, because their hash sends them to another one.

    keys         40 41 42 43 44 45 46      promised, one by one
    partition     0  1  1  0  1  0  0
    held by 0   [40 ------ 43] .. [45 46]  becomes [40 ------------ 46]: 41, 42 and 44 are never sent to it

Of keys that are promised one after the other every partition gets only its own, and would hold them one by one for
ever. With the gaps between them bridged, it holds a single interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from watersmeet.columns.arrow import Hashes
from watersmeet.columns.partitions import partition_of
from watersmeet.columns.spark_hash import hash_of_int, hash_of_long
from watersmeet.punctuated.promises.codes import Codes

# Gaps of up to so many times the number of partitions are looked at; with random hashes a wider one between two keys of
# a partition, all of it foreign, has a chance of e**-16.
REACH = 16


@dataclass(frozen=True)
class Elsewhere:
    """The other partitions, seen from one of them."""

    hash_of: Callable[[npt.NDArray[np.int64]], Hashes]
    partitions: int
    here: int

    @property
    def reach(self) -> int:
        """The widest gap that is worth a look."""
        return REACH * self.partitions

    def has(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which keys belong to other partitions."""
        return np.asarray(partition_of(self.hash_of(codes), self.partitions) != self.here)


def elsewhere(hashes: Hashes, codes: Codes, partitions: int) -> Elsewhere | None:
    """What follows from keys that are here, or None if these hashes do not follow from the keys in Spark's way."""
    if partitions == 1 or not len(codes) or not isinstance(codes, np.ndarray):
        return None
    here = partition_of(hashes, partitions)
    for hash_of in (hash_of_long, hash_of_int):
        if np.array_equal(hash_of(codes), hashes) and bool(np.all(here == here[0])):
            return Elsewhere(hash_of, partitions, int(here[0]))
    return None
