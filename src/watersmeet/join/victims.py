"""Which buckets leave memory under a policy of the progressive joins, in joins that have other facts besides.

A policy needs to know how much each input holds in each bucket and how probable arrivals there are. Where the rows go,
and what they are owed there, is the join's own business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np

from watersmeet.columns.arrow import Hashes
from watersmeet.estimate.arrival_rate import ArrivalRates
from watersmeet.join.flush_policies import FLUSHES, POLICIES, Sizes
from watersmeet.state.buckets import Buckets

Policy = Literal["rpj", "xjoin", "hmj"]
OWN = ("soonest", "largest")  # ways of the window and the punctuated join, which ask no policy

DECAY, UNIT = 0.5, 1_000_000  # of the arrival rates: the defaults of the progressive joins


def check_flush(policy: str, flush: str | None, memory: int | None) -> None:
    """Whether these options go together; a `ValueError` says what does not."""
    if policy not in OWN and memory is None:
        raise ValueError("policy has an effect only with memory=..., the budget that rows are flushed for")
    if flush is None:
        return
    if policy in OWN:
        raise ValueError("flush needs policy 'rpj', 'xjoin' or 'hmj': it says which of its ways to choose is used")
    if flush not in FLUSHES[policy]:
        raise ValueError(f"policy {policy!r} has no flush {flush!r}, only {', '.join(FLUSHES[policy])}")


class Victims:
    """Chooses buckets of two inputs, by what has come so far.

    >>> victims = Victims("rpj", Buckets(2))
    >>> one, other = np.array([0, 1, 2**63], np.uint64), np.array([2**63], np.uint64)
    >>> victims.observe([one, other], time=0)
    >>> victims.choose(np.array([[16, 8], [0, 8]]), 8)
    [[0], []]
    """

    def __init__(self, policy: str, buckets: Buckets, *, flush: str | None = None, together: bool = False) -> None:
        self.buckets = buckets
        self.policy = POLICIES[flush or FLUSHES[policy][0]](concurrent=together or policy == "hmj")
        self.rates = ArrivalRates(2, buckets.count, decay=DECAY, unit=UNIT)

    def observe(self, arrived: Sequence[Hashes], time: int) -> None:
        """Rows of both inputs have come."""
        counts = [np.bincount(self.buckets.of(hashes), minlength=self.buckets.count) for hashes in arrived]
        self.rates.observe(np.stack(counts).astype(np.int64), time)

    def choose(self, sizes: Sizes, amount: int, ended: Collection[int] = ()) -> list[list[int]]:
        """For each input the buckets that leave, so that at least `amount` does (or all there is)."""
        chosen = self.policy.choose(sizes, self.rates.probabilities(ended), amount)
        return [sorted(victim.bucket for victim in chosen if victim.input == index) for index in (0, 1)]

    # -- state

    def save(self) -> dict[str, Any]:
        """What has come so far, in JSON form."""
        return self.rates.save()

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Take up what `save` returned; a join that had no policy so far has nothing."""
        if saved is not None:
            self.rates.restore(saved)

    def inherit(self, former: Sequence[Victims | None]) -> None:
        """Go on from those of former partitions."""
        known = [one.rates for one in former if one is not None]
        if known:
            self.rates.inherit(known)
