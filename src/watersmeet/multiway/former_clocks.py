"""Clocks of the partitions that rows were in before the state was divided anew, until the first batch after that.

What lacks an optional input was reported up to the clock of the partition that it was in. Partitions that become one
have different clocks; the newest counts, because no row is expected that is behind it by more than the lateness. So
the first batch reports what the others have not:

    partition 0 of 2    reported ............|
    partition 1 of 2    reported .....|                         keys of 1: the first batch reports from here on
    partition 0 of 1                         |-----> time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.columns.arrow import Hashes
from watersmeet.columns.partitions import Mask, Partition
from watersmeet.join.clock import Clock


@dataclass(frozen=True)
class FormerClock:
    """The newest times of a former partition. If that was itself new, its keys were in several `partitions`."""

    partitions: tuple[Partition, ...]
    newest: Mapping[str, int]

    def owns(self, hashes: Hashes) -> Mask:
        """Which hashes were in the partition."""
        return np.asarray(np.logical_and.reduce([partition.owns(hashes) for partition in self.partitions]))

    def clock(self, now: Clock) -> Clock:
        """The clock as it was."""
        return Clock(now.waits, now.lateness, dict(self.newest))

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "partitions": [[one.number, one.of, one.division] for one in self.partitions],
            "newest": dict(self.newest),
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> FormerClock:
        """What `to_json` returned."""
        return cls(tuple(Partition(*one) for one in saved["partitions"]), saved["newest"])


def inherited(origin: Partition, clock: Clock, former: Sequence[FormerClock]) -> list[FormerClock]:
    """The clocks of an origin's keys: its own, or those that it has taken over and not used yet."""
    if not former:
        return [FormerClock((origin,), dict(clock.newest))]
    return [FormerClock((*one.partitions, origin), one.newest) for one in former]
