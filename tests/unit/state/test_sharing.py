"""Runs that a partition takes up from a former one, under numbers of its own."""

from __future__ import annotations

from tests.unit.state.row_model import STEP
from tests.unit.state.test_row_store import filled, rows

from watersmeet.columns.partitions import Partition
from watersmeet.state.layouts import HashTiers
from watersmeet.state.sharing import inherit


def test_runs_on_disk_have_their_new_numbers_and_those_in_memory_are_new() -> None:
    other, _ = filled(HashTiers(), rows([i * STEP for i in range(16)]), counts_buckets=True)
    other.spill_buckets([1])
    (spilled,) = other.spilled
    store, _ = filled(HashTiers(), rows([3]), counts_buckets=True)
    numbers = inherit(store, other, Partition(0, 1), Partition(0, 1))
    (taken,) = store.spilled
    assert numbers == {spilled.id: taken.id}
    assert taken.id != spilled.id
    assert (taken.rows, store.rows) == (4, 17)
