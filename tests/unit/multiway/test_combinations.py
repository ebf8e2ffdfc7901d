"""N-ary expansion against itertools, in blocks that never exceed their size."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.multiway.combinations import combinations
from watersmeet.multiway.probe import Matches

units = st.integers(1, 4).flatmap(
    lambda inputs: st.lists(st.lists(st.integers(1, 4), min_size=inputs, max_size=inputs), min_size=0, max_size=6).map(
        lambda found: (inputs, found)
    )
)


@given(shape=units, block_rows=st.integers(1, 50))
def test_all_combinations_once_and_in_bounded_blocks(shape: tuple[int, list[list[int]]], block_rows: int) -> None:
    inputs, counts = shape
    matches, rows_of = [], []
    for place in range(inputs):
        of_input = np.array([unit[place] for unit in counts], np.int64)
        begins = np.cumsum(of_input) - of_input
        rows = np.arange(int(of_input.sum())) * 3 + place  # any numbers that tell inputs and rows apart
        matches.append(Matches(pa.table({}), rows, begins, of_input))
        rows_of.append([rows[b : b + c].tolist() for b, c in zip(begins, of_input, strict=True)])
    expected = Counter(
        combination
        for unit in range(len(counts))
        for combination in itertools.product(*(of_input[unit] for of_input in rows_of))
    )
    found: Counter[tuple[int, ...]] = Counter()
    for block in combinations(matches, block_rows):
        assert 0 < len(block[0]) <= block_rows
        found.update(zip(*(rows.tolist() for rows in block), strict=True))
    assert found == expected
