"""Buckets: ranges of the hash, so that a bucket is one contiguous slice of every sorted run.

    hash      0 ............................................ 2**64
    buckets   |    0    |    1    |    2    |    3    |    4    |      count = 5
    run       aab        bbcc      d                   eefff
    offsets   0          3         7         8    8             13      bucket 3 is empty

The papers' partitions R[j] are these buckets. Only the top 32 bits decide, so any count up to 2**31 works.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from watersmeet.columns.arrow import Hashes, Indices


class Buckets:
    """`count` equal ranges of the 64-bit hash.

    >>> buckets = Buckets(4)
    >>> buckets.of(np.array([0, 2**62, 2**64 - 1], dtype=np.uint64)).tolist()
    [0, 1, 3]
    >>> buckets.offsets(np.array([0, 2**62, 2**64 - 1], dtype=np.uint64)).tolist()
    [0, 1, 2, 2, 3]
    """

    def __init__(self, count: int) -> None:
        self.count = count
        numbers = np.arange(1, count, dtype=np.uint64)
        # The smallest hash of bucket j is the smallest x with (x >> 32) * count >= j << 32.
        top = ((numbers << np.uint64(32)) + np.uint64(count - 1)) // np.uint64(count)
        self.bounds: Hashes = top << np.uint64(32)

    def of(self, hashes: Hashes) -> Indices:
        """The bucket of each hash."""
        return (((hashes >> np.uint64(32)) * np.uint64(self.count)) >> np.uint64(32)).astype(np.int64)

    def span(self, bucket: int) -> tuple[int, int]:
        """The smallest hash of a bucket, and that of the next one.

        >>> Buckets(2).span(1) == (2**63, 2**64)
        True
        """
        low = int(self.bounds[bucket - 1]) if bucket else 0
        return low, int(self.bounds[bucket]) if bucket < self.count - 1 else 1 << 64

    def offsets(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """For sorted hashes, where each bucket begins; one more entry than buckets."""
        inner = np.searchsorted(hashes, self.bounds, side="left")
        return np.concatenate(([0], inner, [len(hashes)])).astype(np.int64)

    def counts(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """For sorted hashes, how many fall in each bucket."""
        return np.diff(self.offsets(hashes))
