"""Promises after the state has been divided anew: true of the keys that they were made for, and of no others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import HASH, sort_by_hash
from watersmeet.columns.partitions import Partition, partition_of
from watersmeet.columns.spark_hash import hash_of_long
from watersmeet.punctuated.promises.punctuation import PunctuatedRange

KINDS = (pa.int64(),)


def keys(values: np.ndarray) -> pa.Table:
    columns = {HASH: pa.array(hash_of_long(values.astype(np.int64))), "_k0": pa.array(values, pa.int64())}
    return sort_by_hash(pa.table(columns))


def promised_to(partitions: int, division: int, values: np.ndarray) -> dict[Partition, PunctuatedRange]:
    """Each partition hears of its own keys, one by one."""
    found = {}
    for number in range(partitions):
        mine = values[partition_of(hash_of_long(values), partitions) == number]
        found[Partition(number, partitions, division)] = made = PunctuatedRange("left", KINDS, partitions)
        for batch, piece in enumerate(np.array_split(mine, 5)):
            if len(piece):
                made.add_keys(keys(piece), batch, "punctuation")
    return found


def divided(
    former: dict[Partition, PunctuatedRange], partitions: int, division: int
) -> dict[Partition, PunctuatedRange]:
    count = len(former)
    made = {}
    for number in range(partitions):
        heir = Partition(number, partitions, division)
        made[heir] = PunctuatedRange("left", KINDS, partitions)
        made[heir].inherit({one: held for one, held in former.items() if one.number in heir.origins(count)})
        # What is saved is what is there.
        again = PunctuatedRange("left", KINDS, partitions)
        tables, values = made[heir].save()
        again.restore(tables, values)
        assert len(again) == len(made[heir])
        made[heir] = again
    return made


def found_by(ranges: dict[Partition, PunctuatedRange], values: np.ndarray) -> set[int]:
    """The keys that are promised, each asked for where it lives."""
    found: set[int] = set()
    for partition, held in ranges.items():
        mine = keys(values[partition_of(hash_of_long(values), partition.of) == partition.number])
        promised = np.flatnonzero(held.find(mine) > 0)
        found |= set(np.asarray(mine.column("_k0"))[promised].tolist())
    return found


@pytest.mark.parametrize("numbers", [(4, 2), (4, 8), (4, 3), (4, 1, 6, 4), (2, 4, 2, 4, 2), (8, 4, 2, 1), (3, 2, 3, 2)])
def test_no_promise_is_lost_and_none_is_made_up(numbers: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    everything = np.arange(2000)
    # All keys but some: every partition bridges the gaps between its own.
    silent = rng.choice(everything, 60, replace=False)
    first, *rest = numbers
    spoken = np.setdiff1d(np.arange(1000), silent)
    ranges = promised_to(first, 0, spoken)
    assert sum(len(held) for held in ranges.values()) < len(spoken) / 4  # they are bridged
    assert found_by(ranges, everything) == set(spoken.tolist())
    for division, partitions in enumerate(rest, start=1):
        ranges = divided(ranges, partitions, division)
        assert found_by(ranges, everything) == set(spoken.tolist())
        # The source goes on to promise.
        more = np.setdiff1d(np.arange(1000 + 100 * (division - 1), 1000 + 100 * division), silent)
        for partition, held in ranges.items():
            mine = more[partition_of(hash_of_long(more), partition.of) == partition.number]
            held.add_keys(keys(mine), 10 + division, "punctuation")
        spoken = np.union1d(spoken, more)
        assert found_by(ranges, everything) == set(spoken.tolist())


def test_promises_that_were_taken_back_stay_so() -> None:
    ranges = promised_to(4, 0, np.arange(100))
    for partition, held in ranges.items():
        broken = np.array([key for key in (5, 6, 7) if partition.owns(hash_of_long(np.array([key])))[0]], np.int64)
        if len(broken):
            held.void(keys(broken), 9)
    (merged,) = divided(ranges, 1, 1).values()
    assert found_by({Partition(0, 1, 1): merged}, np.arange(100)) == set(range(100)) - {5, 6, 7}
    assert merged.explain(keys(np.array([50]))).startswith("punctuation")
    merged.add_everything("ended", 12)
    assert found_by({Partition(0, 1, 1): merged}, np.arange(200)) == set(range(200))
    assert merged.former == {}
