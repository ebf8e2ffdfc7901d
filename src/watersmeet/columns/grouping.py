"""Equal keys get equal numbers: exact grouping of rows, composite keys included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import HASH, Indices, hashes_of, key_names, numpy_of, one_chunk, sort_by_hash, take
from watersmeet.columns.matching import equal_keys
from watersmeet.columns.saturating import Times


def group_ids(columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.int64]:
    """For every row the number of its group; NaN equals NaN, -0.0 equals 0.0 and a null equals a null.

    >>> group_ids([pa.chunked_array([[7, 3, 7]]), pa.chunked_array([["a", "a", "a"]])]).tolist()
    [0, 1, 0]
    """
    result: npt.NDArray[np.int64] | None = None
    for column in columns:
        if pa.types.is_floating(column.type):
            # Arrow tells NaNs apart by their bits, and adding 0.0 turns -0.0 into 0.0.
            nan, zero = (pa.scalar(value, column.type) for value in (np.nan, 0.0))
            column = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
        codes = numpy_of(one_chunk(column).dictionary_encode("encode").indices).astype(np.int64)
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


def repeats(table: pa.Table, beside: Sequence[str] = ()) -> npt.NDArray[np.bool_]:
    """Rows of a hash-sorted table whose key, and columns `beside` it, an earlier row has.

    >>> repeats(pa.table({"_hash": pa.array([1, 4, 4, 4, 9], pa.uint64()), "_k0": ["a", "b", "c", "b", "d"]})).tolist()
    [False, False, False, True, False]
    """
    hashes = hashes_of(table)
    found = np.zeros(len(hashes), np.bool_)
    rows = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    if len(rows):
        same = equal_keys(table, rows - 1, table, rows)
        found[rows] = same
        if beside or not same.all():  # different keys of one hash stand in any order
            rows = np.unique(np.concatenate([rows - 1, rows]))
            columns = dict.fromkeys([*key_names(table.schema), *beside])
            ids = group_ids([table.column(name).take(pa.array(rows)) for name in columns])
            found[rows] = True
            found[rows[np.unique(ids, return_index=True)[1]]] = False
    return found


def between(table: pa.Table, times: Times, cell: int) -> npt.NDArray[np.bool_]:
    """Rows of a table sorted by hash and time that are neither the first nor the last of their key in a cell of time.

    >>> hashes, times = [1, 4, 4, 4, 4, 9], np.array([7, 10, 12, 19, 20, 3])
    >>> rows = pa.table({"_hash": pa.array(hashes, pa.uint64()), "_k0": ["a", "b", "b", "b", "b", "c"]})
    >>> between(rows, times, 10).tolist()
    [False, False, True, False, False, False]
    """
    hashes = hashes_of(table)
    found = np.zeros(len(hashes), np.bool_)
    rows = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    if not len(rows):
        return found
    order: Indices | slice = slice(None)
    goes_on = np.zeros(len(hashes) + 1, np.bool_)  # whether a row has the key and the cell of the one before it
    same = equal_keys(table, rows - 1, table, rows)
    if not same.all():  # different keys of one hash stand in the order of their times
        ids = group_ids(key_columns(table))
        order = np.lexsort((times, ids))
        times = times[order]
        rows = np.flatnonzero(np.diff(ids[order]) == 0) + 1
    goes_on[rows] = times[rows] // cell == times[rows - 1] // cell
    starts = np.flatnonzero(~goes_on[:-1])
    first = np.repeat(times[starts], np.diff(np.append(starts, len(times))))
    # The last row is of no use either if its time is that of the first.
    found[order] = goes_on[:-1] & (goes_on[1:] | (times == first))
    return found
