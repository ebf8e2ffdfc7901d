"""Where each output column comes from, and the one place where payload is gathered.

Operators work on index pairs. Only when the matches are known are the payload columns touched, once each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from watersmeet.arrow import Indices, gather


@dataclass(frozen=True)
class OutputColumn:
    """An output column: its field, and the input and internal column that feed it."""

    field: pa.Field
    input: str
    column: str


class Projection:
    """Builds output rows from row numbers of the inputs' tables.

    >>> import numpy as np
    >>> left = pa.table({"_k0": [1, 2], "_p0": ["a", "b"]})
    >>> right = pa.table({"_k0": [2], "_p0": [0.5]})
    >>> projection = Projection(
    ...     [
    ...         OutputColumn(pa.field("k", pa.int64()), "left", "_k0"),
    ...         OutputColumn(pa.field("name", pa.string()), "left", "_p0"),
    ...         OutputColumn(pa.field("share", pa.float64()), "right", "_p0"),
    ...     ]
    ... )
    >>> projection.gather({"left": (left, np.array([1])), "right": (right, np.array([0]))}).to_pylist()
    [{'k': 2, 'name': 'b', 'share': 0.5}]
    """

    def __init__(self, columns: Sequence[OutputColumn]) -> None:
        self.columns = tuple(columns)
        self.schema = pa.schema([column.field for column in columns])

    def gather(self, parts: Mapping[str, tuple[pa.Table, Indices | pa.Array]]) -> pa.Table:
        """Output rows: row i is made of row `indices[i]` of each input's table (a null index gives nulls)."""
        tables = {name: table for name, (table, _) in parts.items()}
        wanted = {name: pa.array(indices, pa.int64()) for name, (_, indices) in parts.items()}
        arrays = []
        for column in self.columns:
            values = gather(tables[column.input].column(column.column), wanted[column.input])
            arrays.append(values if values.type == column.field.type else values.cast(column.field.type))
        if not arrays:  # an output of no columns still has a number of rows
            return pa.table({"_": pa.nulls(len(next(iter(wanted.values()))))}).select([])
        return pa.Table.from_arrays(arrays, schema=self.schema)
