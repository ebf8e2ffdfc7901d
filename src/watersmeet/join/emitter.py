"""The one place that builds output rows, and the one place where payload is gathered.

Operators work on row numbers. Only when the matches are known are the payload columns touched, once each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from watersmeet.columns.arrow import Indices, gather
from watersmeet.plan import OutputColumn

Taken = tuple[pa.Table, Indices]  # a table, and the numbers of its rows


class Emitter:
    """Builds output rows from row numbers of the inputs' tables. A column that no table given here has is null.

    >>> import numpy as np
    >>> left = pa.table({"_k0": [1, 2], "_p0": ["a", "b"]})
    >>> right = pa.table({"_k0": [2], "_p0": [0.5]})
    >>> emitter = Emitter(
    ...     [
    ...         OutputColumn(pa.field("k", pa.int64()), "left", "_k0"),
    ...         OutputColumn(pa.field("name", pa.string()), "left", "_p0"),
    ...         OutputColumn(pa.field("share", pa.float64()), "right", "_p0"),
    ...     ]
    ... )
    >>> emitter.rows({"left": (left, np.array([1])), "right": (right, np.array([0]))}).to_pylist()
    [{'k': 2, 'name': 'b', 'share': 0.5}]
    >>> emitter.rows({"left": (left, np.array([0]))}).to_pylist()
    [{'k': 1, 'name': 'a', 'share': None}]
    """

    def __init__(self, columns: Sequence[OutputColumn]) -> None:
        self.columns = tuple(columns)
        self.schema = pa.schema([column.field for column in columns])

    def rows(self, taken: Mapping[str, Taken]) -> pa.Table:
        """Output rows: row i is made of row `numbers[i]` of each input's table."""
        wanted = {name: pa.array(numbers, pa.int64()) for name, (_, numbers) in taken.items()}
        count = len(next(iter(wanted.values())))
        arrays = []
        for column in self.columns:
            table = taken[column.input][0] if column.input in taken else None
            at = -1 if table is None else table.schema.get_field_index(column.column)
            if table is None or at < 0:
                arrays.append(pa.nulls(count, column.field.type))
                continue
            values = gather(table.column(at), wanted[column.input])
            arrays.append(values if values.type == column.field.type else values.cast(column.field.type))
        if not arrays:  # an output of no columns still has a number of rows
            return pa.table({"_": pa.nulls(count)}).select([])
        return pa.Table.from_arrays(arrays, schema=self.schema)
