"""Which rows have equal keys: candidates by hash, then the keys themselves.

    filter    a bitmap over the top bits of the hashes drops most rows that have no partner
    search    the others find their range of equal hashes by bisection, which costs many times as much a row
    expand    ranges become pairs, in blocks of bounded size
    compare   the keys decide: equal hashes are only a hint

Both sides are sorted by hash; the shorter one is looked up in the longer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import Hashes, Indices, gather, hashes_of, key_names, numpy_of, one_chunk
from watersmeet.columns.pieces import pieces

# Matches are produced in blocks of this many pairs, so that a skewed key cannot fill the memory at once.
BLOCK_ROWS = 1 << 18
# Filters have 32 times as many bits as keys, so that 3 % of the others pass, and stay within the processor's cache.
FILTER_SPARE_BITS, FILTER_MIN_BITS, FILTER_MAX_BITS = 5, 10, 20
# Below this, a binary search of every row is cheaper than making a filter.
FILTER_WORTHWHILE = 256
# A filter is filled with all rows of the longer side: with more of them than this per row looked up, it does not pay.
FILTER_REACH = 4
# Rows that are filtered at a time: what is made of them on the way stays within the processor's cache, too.
FILTER_BLOCK = 1 << 15
# So many rows of one key are found one by one, in memory that has just been touched.
STEPS = 3


class KeyFilter:
    """Tells which hashes may be among those of some keys: all that are, and few others."""

    def __init__(self, wanted: Hashes) -> None:
        bits = min(max(len(wanted).bit_length() + FILTER_SPARE_BITS, FILTER_MIN_BITS), FILTER_MAX_BITS)
        self.shift = np.uint64(64 - bits)
        self.present = np.zeros(1 << bits, dtype=np.bool_)
        self.present[(wanted >> self.shift).view(np.int64)] = True

    def among(self, hashes: Hashes) -> Indices:
        """The positions of those that may be."""
        if len(hashes) <= FILTER_BLOCK:
            return np.flatnonzero(self.present.take((hashes >> self.shift).view(np.int64)))
        starts = range(0, len(hashes), FILTER_BLOCK)
        return np.concatenate([start + self.among(hashes[start : start + FILTER_BLOCK]) for start in starts])


def known_among(needles: Hashes, hay: Hashes) -> Indices | None:
    """The needles that a search is worth while for, or None for all of them."""
    if len(needles) <= FILTER_WORTHWHILE or len(hay) > FILTER_REACH * len(needles):
        return None
    known = KeyFilter(hay).among(needles)
    return known if len(known) < len(needles) // 2 else None


def equal_ranges(needles: Hashes, hay: Hashes) -> tuple[Indices, Indices, Indices]:
    """For sorted inputs: which needles occur in `hay`, where they begin there, and how often they occur.

    A key seldom occurs often in a run: its end is looked for step by step, and by bisection only beyond `STEPS`.
    """
    start = np.searchsorted(hay, needles, side="left")
    hit = np.flatnonzero(hay.take(start, mode="clip") == needles)
    start, wanted = start[hit], needles[hit]
    counts = np.ones(len(hit), dtype=np.int64)
    going, at = np.arange(len(hit)), start + 1
    for _ in range(STEPS):
        same = np.flatnonzero((hay.take(at, mode="clip") == wanted) & (at < len(hay)))
        if not len(same):
            return hit, start, counts
        going, at, wanted = going[same], at[same] + 1, wanted[same]
        counts[going] += 1
    counts[going] = np.searchsorted(hay, wanted, side="right") - start[going]
    return hit, start, counts


def ranges(starts: Indices, ends: Indices) -> Indices:
    """All positions of the ranges [start, end), one range after the other.

    >>> ranges(np.array([2, 7]), np.array([4, 10])).tolist()
    [2, 3, 7, 8, 9]
    """
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(starts - before, lengths))


def expand(
    rows: Indices, start: Indices, counts: Indices, block_rows: int = BLOCK_ROWS
) -> Iterator[tuple[Indices, Indices]]:
    """All pairs (rows[n], start[n] + c) for c < counts[n], in blocks."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    if 0 < total == len(rows) <= block_rows and bool(np.all(counts == 1)):
        yield rows, start
        return
    for low in range(0, total, block_rows):
        high = min(low + block_rows, total)
        first, last = np.searchsorted(ends, (low, high - 1), side="right")
        some = slice(int(first), int(last) + 1)
        begins = ends[some] - counts[some]  # flat position of each row's first pair
        taken = np.minimum(ends[some], high) - np.maximum(begins, low)
        yield np.repeat(rows[some], taken), np.arange(low, high) + np.repeat(start[some] - begins, taken)


def match_blocks(left: Hashes, right: Hashes, block_rows: int = BLOCK_ROWS) -> Iterator[tuple[Indices, Indices]]:
    """All pairs (i, j) with left[i] == right[j], for sorted inputs, in blocks of bounded size.

    The shorter side is looked up in the longer one: sorted needles make `searchsorted` walk memory forwards.
    """
    if len(left) > len(right):
        for j, i in match_blocks(right, left, block_rows):
            yield i, j
        return
    if not len(left):
        return
    known = known_among(left, right)
    hit, start, counts = equal_ranges(left if known is None else left[known], right)
    yield from expand(hit if known is None else known[hit], start, counts, block_rows)


def equal_keys(left: pa.Table, i: Indices, right: pa.Table, j: Indices) -> npt.NDArray[np.bool_]:
    """Which of the pairs (i, j) have equal keys, as Spark's join compares: NaN equals NaN, -0.0 equals 0.0."""
    same = np.ones(len(i), dtype=np.bool_)
    for name in key_names(left.schema):
        one, other = left.column(name), right.column(name)
        for some in pieces([(one, i), (other, j)], len(i)):
            same[some] &= _equal(one, i[some], other, j[some])
    return same


def with_equal_keys(left: pa.Table, i: Indices, right: pa.Table, j: Indices) -> tuple[Indices, Indices]:
    """The pairs (i, j) less those whose keys only hash alike."""
    same = equal_keys(left, i, right, j)
    return (i, j) if same.all() else (i[same], j[same])


def _equal(left: pa.ChunkedArray, i: Indices, right: pa.ChunkedArray, j: Indices) -> npt.NDArray[np.bool_]:
    if left.null_count or right.null_count:  # a null equals nothing
        present = np.asarray(numpy_of(pc.is_valid(left))[i] & numpy_of(pc.is_valid(right))[j])
        a = pa.chunked_array([gather(left, pa.array(i[present]))])
        b = pa.chunked_array([gather(right, pa.array(j[present]))])
        both = np.arange(len(a))
        result = np.zeros(len(i), dtype=np.bool_)
        result[present] = _equal_present(a, both, b, both)
        return result
    return _equal_present(left, i, right, j)


def _equal_present(left: pa.ChunkedArray, i: Indices, right: pa.ChunkedArray, j: Indices) -> npt.NDArray[np.bool_]:
    kind = left.type
    if pa.types.is_floating(kind):
        a, b = numpy_of(left)[i], numpy_of(right)[j]
        return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        width = pa.int64() if kind.bit_width == 64 else pa.int32() if kind.bit_width == 32 else kind
        return np.asarray(numpy_of(one_chunk(left).view(width))[i] == numpy_of(one_chunk(right).view(width))[j])
    equal = pc.equal(gather(left, pa.array(i)), gather(right, pa.array(j)))
    return numpy_of(equal).astype(np.bool_)


def matches(left: pa.Table, right: pa.Table, block_rows: int = BLOCK_ROWS) -> Iterator[tuple[Indices, Indices]]:
    """All pairs of rows with equal keys in two hash-sorted tables, in blocks of bounded size."""
    for i, j in match_blocks(hashes_of(left), hashes_of(right), block_rows):
        i, j = with_equal_keys(left, i, right, j)
        if len(i):
            yield i, j


def near_matches(left: pa.Table, right: pa.Table) -> Iterator[tuple[Indices, Indices]]:
    """The same for tables of which only small parts may overlap: the rest is not looked at."""
    if not (left.num_rows and right.num_rows):
        return
    i, left = _overlapping(left, right)
    if not left.num_rows:
        return
    j, right = _overlapping(right, left)
    for rows, others in matches(left, right):
        yield rows + i if i else rows, others + j if j else others


def _overlapping(table: pa.Table, other: pa.Table) -> tuple[int, pa.Table]:
    """The rows whose hashes lie within those of another sorted table, and the number of the first."""
    hashes, bounds = hashes_of(table), hashes_of(other)
    start = int(np.searchsorted(hashes, bounds[0], side="left"))
    stop = int(np.searchsorted(hashes, bounds[-1], side="right"))
    return (0, table) if stop - start == len(hashes) else (start, table.slice(start, stop - start))
