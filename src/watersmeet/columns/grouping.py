"""Equal keys get equal numbers: exact grouping of rows, composite keys included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import HASH, hashes_of, key_names, numpy_of, one_chunk, sort_by_hash, take
from watersmeet.columns.matching import equal_keys


def group_ids(columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.int64]:
    """For every row the number of its group; NaN equals NaN and -0.0 equals 0.0.

    >>> group_ids([pa.chunked_array([[7, 3, 7]]), pa.chunked_array([["a", "a", "a"]])]).tolist()
    [0, 1, 0]
    """
    result: npt.NDArray[np.int64] | None = None
    for column in columns:
        if pa.types.is_floating(column.type):
            # Arrow tells NaNs apart by their bits, and adding 0.0 turns -0.0 into 0.0.
            nan, zero = (pa.scalar(value, column.type) for value in (np.nan, 0.0))
            column = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
        codes = numpy_of(one_chunk(column).dictionary_encode().indices).astype(np.int64)
        if result is None:
            result = codes
        else:
            pairs = result * (int(codes.max(initial=0)) + 1) + codes
            result = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    if result is None:
        raise ValueError("group_ids needs at least one column")
    return result


def key_columns(table: pa.Table) -> list[pa.ChunkedArray]:
    """The key columns of a table."""
    return [table.column(name) for name in key_names(table.schema)]


def first_of_each(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The position of the first row of every group, ascending."""
    return np.sort(np.unique(ids, return_index=True)[1]).astype(np.int64)


def distinct_keys(table: pa.Table) -> pa.Table:
    """The different keys of a table, sorted by hash."""
    keys = table.select([HASH, *key_names(table.schema)])
    hashes = hashes_of(keys)
    if bool(np.all(hashes[1:] > hashes[:-1])):
        return keys
    return sort_by_hash(take(keys, first_of_each(group_ids(key_columns(keys)))))


def repeats(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Rows of a hash-sorted table whose key an earlier row has.

    >>> repeats(pa.table({"_hash": pa.array([1, 4, 4, 4, 9], pa.uint64()), "_k0": ["a", "b", "c", "b", "d"]})).tolist()
    [False, False, False, True, False]
    """
    hashes = hashes_of(table)
    found = np.zeros(len(hashes), np.bool_)
    rows = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    if len(rows):
        same = equal_keys(table, rows - 1, table, rows)
        found[rows] = same
        if not same.all():  # different keys of one hash stand in any order
            rows = np.unique(np.concatenate([rows - 1, rows]))
            ids = group_ids([table.column(name).take(pa.array(rows)) for name in key_names(table.schema)])
            found[rows] = True
            found[rows[np.unique(ids, return_index=True)[1]]] = False
    return found
