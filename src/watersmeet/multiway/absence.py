"""Optional inputs: when it is known that a key has no row of one, and which combinations have been reported without.

Without a window, a combination of the required inputs that lacks an optional input is a result once that input has
ended and has no row of the key. Until then nothing is known; afterwards it is known wherever all of the input's rows
can be seen. In memory alone that is always so. Under a budget a bucket's rows lie in generations (see `origins`), and
new rows see those in memory only:

    bucket 5    generation 1    generation 4    in memory        o has ended; its rows of the bucket are in generation 4
                a               a  o            a                a in memory: known when it is merged with generation 4
    bucket 6    a               a               a                it has none: known for every generation

So for an ended input o and a bucket, a generation g has been reported with its combinations that lack o if and only if

    g was written after the end of o    (what is in memory was joined again in the batch of the end), and
    no other generation has rows of o   (an ended input gets no more: once this is so, it stays so).

All that must be remembered is the number of the last generation before the end. Merging generations makes a new one;
what lacks o is known for all its rows if no generation outside has rows of o. And if it was known for one of the merged
generations, it is known for the new one: there is never a generation of which only a part was reported.

When the state is divided anew (`inherit`), a bucket gets generations of several partitions, or loses rows of o to
others, and the rule says nothing of these generations: what has been reported of them is written down. They are merged
with all of the bucket only (`Generations.apart`), because then all of o's rows are in view. Rows in memory become a
generation, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.columns.arrow import Hashes
from watersmeet.join.generations import Generations
from watersmeet.join.operator import Batch
from watersmeet.multiway.hash_table import Mask

MEMORY = 1 << 62  # the number of the generation in memory: younger than all others

Inputs = frozenset[int]


@dataclass(frozen=True)
class Known:
    """For a bucket and the generations of it that are merged: of which inputs it is known what they lack.

    `reported` is what was known for each generation before: the absences that its combinations were reported with.
    """

    lacking: Inputs
    reported: list[Inputs]


class Absence:
    """What is known of the optional inputs, which are numbered as all inputs are."""

    def __init__(self, names: Sequence[str], optional: Sequence[str], generations: Generations) -> None:
        self.names = list(names)
        self.optional = [self.names.index(name) for name in optional]
        self.required = [index for index in range(len(names)) if index not in self.optional]
        self.generations = generations
        self.ended: dict[int, int] = {}  # ended input -> the last generation before its end
        self._elsewhere: dict[int, Mask] = {}  # ended input -> the buckets that have rows of it on disk
        # generations of former partitions -> bucket -> the absences that its combinations were reported with
        self.former: dict[int, dict[int, Inputs]] = {}

    def open(self) -> None:
        """A batch begins: until it makes room, nothing moves between memory and disk."""
        for index in self.optional:
            store = self.generations.stores[self.names[index]]
            self._elsewhere[index] = store.disk_rows() > 0 if store.spilled else np.empty(0, np.bool_)

    def ending(self, batch: Batch) -> list[int]:
        """The optional inputs that end with a batch."""
        return [index for index in self.optional if self.names[index] in batch.ended and index not in self.ended]

    def end(self, index: int) -> None:
        """What lacks an ended input has been reported, as far as all of its rows are in memory."""
        self.ended[index] = self.generations.number

    def may_lack(self, index: int, hashes: Hashes) -> Mask | None:
        """For which keys it is known, if memory has no row of an input, that there is none; None if for no key."""
        return self.in_view(index, hashes) if index in self.ended else None

    def in_view(self, index: int, hashes: Hashes) -> Mask:
        """For which keys all rows of an optional input are in memory."""
        elsewhere = self._elsewhere[index]
        if not len(elsewhere):
            return np.ones(len(hashes), np.bool_)
        return np.asarray(~elsewhere[self.generations.buckets.of(hashes)])

    # -- generations

    def known(self, bucket: int, numbers: Collection[int], *, with_memory: bool) -> Known:
        """Before some generations of a bucket are merged, in ascending order, with what is in memory or without."""
        places = {index: self._places(index, bucket) for index in self.ended}
        merged = {*numbers, *([MEMORY] if with_memory else ())}
        return Known(
            frozenset(index for index, found in places.items() if found <= merged),
            [self._reported(bucket, number, places) for number in (*sorted(numbers), MEMORY)],
        )

    def _reported(self, bucket: int, number: int, places: Mapping[int, set[int]]) -> Inputs:
        if number in self.former:
            return self.former[number].get(bucket, frozenset())
        return frozenset(index for index, found in places.items() if self.ended[index] < number and found <= {number})

    def _places(self, index: int, bucket: int) -> set[int]:
        """The generations of a bucket that have rows of an input."""
        store = self.generations.stores[self.names[index]]
        found = {run.slot for run in store.spilled if bucket in run.places}
        return found | {MEMORY} if store.bucket_rows[bucket] else found

    def is_owed(self, numbers: Collection[int]) -> bool:
        """Whether generations of a bucket may owe combinations that lack an input: some are older than its end."""
        return any(number <= end for number in numbers for end in self.ended.values())

    # -- another division of the state

    def inherit(self, other: Absence, numbers: Mapping[int, int]) -> None:
        """Take up what was known in a former partition of its generations, which have new numbers here."""
        for bucket in range(self.generations.buckets.count):
            places = {index: other._places(index, bucket) for index in other.ended}
            for number, mine in numbers.items():
                known = self.former.setdefault(mine, {})
                if reported := other._reported(bucket, number, places):
                    known[bucket] = reported
        self.ended = dict.fromkeys(other.ended, self.generations.number)
        self._keep_apart()

    def _keep_apart(self) -> None:
        there = {run.slot for store in self.generations.stores.values() for run in store.spilled}
        self.former = {number: known for number, known in self.former.items() if number in there}
        self.generations.apart = frozenset(self.former)

    # -- state

    def save(self) -> dict[str, int]:
        """The inputs that have ended."""
        return {self.names[index]: number for index, number in sorted(self.ended.items())}

    def save_former(self) -> list[Any]:
        """What is written down of the generations of former partitions that are still there."""
        self._keep_apart()
        return [
            [number, [[bucket, sorted(known)] for bucket, known in buckets.items()]]
            for number, buckets in self.former.items()
        ]

    def restore(self, saved: Mapping[str, int], former: Sequence[Any]) -> None:
        """Take up what `save` and `save_former` returned."""
        self.ended = {self.names.index(name): number for name, number in saved.items()}
        self.former = {number: {bucket: frozenset(known) for bucket, known in buckets} for number, buckets in former}
        self.generations.apart = frozenset(self.former)
