"""Rows between the first and the last of their key in a cell of time, against a loop over plain rows."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.grouping import between

Rows = list[tuple[int, str, int]]  # hash, key, time


def table_of(rows: Rows) -> tuple[pa.Table, np.ndarray]:
    hashes, keys, times = zip(*rows, strict=True)
    return pa.table({"_hash": pa.array(hashes, pa.uint64()), "_k0": list(keys)}), np.array(times, np.int64)


def kept(rows: Rows, cell: int) -> Counter[tuple[int, str, int]]:
    table, times = table_of(rows)
    mask = between(table, times, cell)
    return Counter(row for row, gone in zip(rows, mask, strict=True) if not gone)


def first_and_last(rows: Rows, cell: int) -> Counter[tuple[int, str, int]]:
    groups: dict[tuple[int, str, int], list[int]] = {}
    for number, key, time in rows:
        groups.setdefault((number, key, time // cell), []).append(time)
    return Counter((number, key, at) for (number, key, _), times in groups.items() for at in {min(times), max(times)})


@pytest.mark.parametrize("hashes", [1, 2, 50], ids=["one hash", "two keys to a hash", "a hash to a key"])
@pytest.mark.parametrize("cell", [1, 3, 10, 1000])
def test_the_first_and_the_last_time_of_each_key_and_cell_stay(hashes: int, cell: int) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        keys = [(rng.randrange(hashes), f"k{i}") for i in range(4)]
        rows = [(*rng.choice(keys), rng.randrange(-20, 20)) for _ in range(rng.randint(1, 40))]
        rows.sort(key=lambda row: (row[0], row[2], rng.random()))  # keys of one hash and time in any order
        assert kept(rows, cell) == first_and_last(rows, cell)


def test_times_at_both_ends_of_64_bits() -> None:
    ends = [-(2**63), -(2**63) + 1, -(2**63) + 2, 2**63 - 3, 2**63 - 2, 2**63 - 1]
    rows = [(7, "a", time) for time in ends]
    assert kept(rows, 10) == first_and_last(rows, 10)
    assert kept(rows, 2**58) == Counter(rows[i] for i in (0, 2, 3, 5))
