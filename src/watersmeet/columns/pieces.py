"""Rows that are gathered, in pieces of bounded size.

An array of strings (or of bytes, or of lists of them) holds at most 2 GiB, and blocks of matches are bounded by their
rows: where a wide row has many partners, what is gathered for one block is more. What is gathered is measured before,
by the offsets alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Indices, one_chunk

PIECE_BYTES = 256 << 20  # of one column


def has_offsets(kind: pa.DataType) -> bool:
    """Whether values of a type differ in size."""
    if pa.types.is_struct(kind):
        return any(has_offsets(kind.field(i).type) for i in range(kind.num_fields))
    return any(is_it(kind) for is_it in (pa.types.is_string, pa.types.is_binary, pa.types.is_list, pa.types.is_map))


def pieces(columns: Iterable[tuple[pa.ChunkedArray, Indices]], count: int) -> list[slice]:
    """The stretches of `count` rows in which no column gets more than `PIECE_BYTES`, or one row alone.

    Of each column the numbers of its rows are given; a negative one stands for no row.

    >>> pieces([(pa.chunked_array([["a", "b"]]), np.array([0, 0, 1]))], 3)
    [slice(0, 3, None)]
    """
    cuts: npt.NDArray[np.bool_] | None = None
    known: Indices | None = None  # the numbers of rows looked at last, which columns of one table share
    often = 0
    for column, rows in columns:
        if not (count and len(column) and has_offsets(column.type)):
            continue
        array = one_chunk(column)
        nbytes = array.nbytes
        if nbytes * count <= PIECE_BYTES:
            continue
        if rows is not known:
            known, often = rows, most_often(rows)
        if nbytes * often <= PIECE_BYTES:
            continue
        sizes = chosen_bytes(array, rows)
        if int(sizes.sum()) <= PIECE_BYTES:
            continue
        # A row lies in the stretches of PIECE_BYTES that its first and its last byte are in.
        ends = np.cumsum(sizes)
        first, last = (ends - sizes) // PIECE_BYTES, ends // PIECE_BYTES
        here = (first[1:] != first[:-1]) | (last[1:] != last[:-1])
        cuts = here if cuts is None else cuts | here
    if cuts is None:
        return [slice(0, count)]
    edges = [0, *(np.flatnonzero(cuts) + 1).tolist(), count]
    return [slice(low, high) for low, high in pairwise(edges)]


def most_often(rows: Indices) -> int:
    """How often a row is there at most, told by looking at neighbours alone: where rows do not ascend, by their number.

    >>> most_often(np.array([2, 5, 5, 5, 7, 7])), most_often(np.array([2, 5, 3])), most_often(np.array([4, 8]))
    (3, 3, 1)
    """
    steps = np.diff(rows)
    if not len(steps) or int(steps.min()) > 0:
        return 1
    if int(steps.min()) < 0:
        return len(rows)
    firsts = np.concatenate(([0], np.flatnonzero(steps) + 1, [len(rows)]))
    return int(np.diff(firsts).max())


def chosen_bytes(array: pa.Array, rows: Indices) -> Indices:
    """The bytes that the values of some rows have, row by row.

    >>> chosen_bytes(pa.array(["x", None, "zzz"]), np.array([2, 0, -1, 1])).tolist()
    [3, 1, 0, 0]
    >>> chosen_bytes(pa.array([["x", "yy"], [], ["zzz"]]).slice(1), np.array([0, 1])).tolist()
    [0, 3]
    """
    if not len(rows) or int(rows.min()) >= 0:
        return _range_bytes(array, rows, rows + 1)
    present = rows >= 0
    low = np.where(present, rows, 0)
    return np.where(present, _range_bytes(array, low, low + 1), 0)


def _range_bytes(array: pa.Array, low: npt.NDArray[np.integer], high: npt.NDArray[np.integer]) -> Indices:
    kind = array.type
    if not len(array):  # of lists that are all empty; it may have no offsets
        return np.zeros(len(low), np.int64)
    if pa.types.is_struct(kind):
        return _sum([array.field(i) for i in range(kind.num_fields)], low, high)
    if has_offsets(kind):
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset :]
        low, high = offsets.take(low), offsets.take(high)
        if pa.types.is_map(kind):
            return _sum([array.keys, array.items], low, high)
        if pa.types.is_list(kind):
            return _sum([array.values], low, high)
        return (high - low).astype(np.int64)
    width = 0 if pa.types.is_null(kind) else int(kind.bit_width)
    return ((high - low).astype(np.int64) * width + 7) // 8


def _sum(children: Iterable[pa.Array], low: npt.NDArray[np.integer], high: npt.NDArray[np.integer]) -> Indices:
    return sum((_range_bytes(child, low, high) for child in children), np.zeros(len(low), np.int64))
