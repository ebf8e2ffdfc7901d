"""The filter before a search: it lets all wanted rows pass, few others, and grows with what is wanted."""

import tracemalloc

import numpy as np
import pytest

from watersmeet.columns.matching import KeyFilter, match_blocks


@pytest.mark.parametrize("wanted", [1, 20, 3000])
def test_a_filter_lets_few_rows_pass_and_is_no_larger_than_it_must_be(wanted: int) -> None:
    rng = np.random.default_rng(wanted)
    hashes = rng.integers(0, 1 << 64, 2000, dtype=np.uint64)
    looked_for = np.sort(np.concatenate((hashes[:5], rng.integers(0, 1 << 64, wanted, dtype=np.uint64))))
    tracemalloc.start()
    found = KeyFilter(looked_for).among(hashes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(range(5)) <= set(found.tolist())
    assert len(found) < 5 + 2000 / 8  # one bit in 16 or fewer is set
    assert peak < 64_000 + 64 * wanted  # a bit map of a megabyte for a few keys would cost more than it saves


@pytest.mark.parametrize("block_rows", [1, 3, 1000])
def test_pairs_come_in_blocks_whichever_side_is_longer(block_rows: int) -> None:
    rng = np.random.default_rng(block_rows)
    for left_rows, right_rows in ((700, 300), (300, 700), (300, 5000), (0, 5), (5, 0)):
        left, right = (np.sort(rng.integers(0, 900, count).astype(np.uint64)) for count in (left_rows, right_rows))
        if block_rows == 1 and left_rows * right_rows > 300_000:
            continue
        pairs = []
        for i, j in match_blocks(left, right, block_rows):
            assert 0 < len(i) == len(j) <= block_rows
            pairs += zip(i.tolist(), j.tolist(), strict=True)
        expected = {(int(i), int(j)) for i in range(left_rows) for j in np.flatnonzero(right == left[i])}
        assert len(pairs) == len(expected)
        assert set(pairs) == expected
