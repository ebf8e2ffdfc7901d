"""Bytes of single rows: the v_S and v_R of the cache inequality, measured instead of assumed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import data_bytes, numpy_of, one_chunk

Sizes = npt.NDArray[np.float64]


def row_bytes(table: pa.Table) -> Sizes:
    """The bytes of each row. Nested columns count with their mean, everything else with what the row really holds.

    >>> row_bytes(pa.table({"_hash": pa.array([1, 2], pa.uint64()), "_p0": ["", "four"]})).tolist()
    [12.0, 16.0]
    """
    total = np.full(table.num_rows, fixed_bytes(table.schema), dtype=np.float64)
    for column in table.columns:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            total += numpy_of(pc.fill_null(pc.binary_length(one_chunk(column)), 0))
        elif pa.types.is_nested(kind) and table.num_rows:
            # Whole bytes: their sums do not depend on the order in which they are added.
            total += -(-data_bytes(pa.table({"_": column})) // table.num_rows)
    return total


def fixed_bytes(schema: pa.Schema) -> float:
    """What a row takes at least: its fixed-width values, and an offset for every string."""
    return float(sum(_fixed(kind) for kind in schema.types))


def _fixed(kind: pa.DataType) -> float:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4.0
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return 0.0
    return float(kind.bit_width) / 8
