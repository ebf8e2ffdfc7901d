"""Gathering output rows."""

import numpy as np
import pyarrow as pa

from watersmeet.plan import OutputColumn, Projection

LEFT = pa.table({"_k0": pa.array([1, 2, 3]), "_p0": pa.array(["a", None, "c"])})
RIGHT = pa.table({"_k0": pa.array([3, 1]), "_p0": pa.array([0.5, 1.5])})


def test_row_i_is_made_of_the_rows_at_index_i() -> None:
    projection = Projection(
        [
            OutputColumn(pa.field("name", pa.string()), "left", "_p0"),
            OutputColumn(pa.field("k", pa.int64()), "left", "_k0"),
            OutputColumn(pa.field("share", pa.float64()), "right", "_p0"),
        ]
    )
    result = projection.gather({"left": (LEFT, np.array([2, 0, 2])), "right": (RIGHT, np.array([0, 1, 1]))})
    assert result.schema == projection.schema
    assert result.to_pydict() == {"name": ["c", "a", "c"], "k": [3, 1, 3], "share": [0.5, 1.5, 1.5]}


def test_a_null_index_gives_nulls() -> None:
    projection = Projection([OutputColumn(pa.field("share", pa.float64()), "right", "_p0")])
    result = projection.gather({"right": (RIGHT, pa.array([1, None]))})
    assert result.column("share").to_pylist() == [1.5, None]


def test_a_key_compared_in_a_wider_type_returns_to_its_own() -> None:
    projection = Projection([OutputColumn(pa.field("k", pa.int16()), "left", "_k0")])
    assert projection.gather({"left": (LEFT, np.array([1]))}).column("k").type == pa.int16()


def test_no_matches_and_no_columns() -> None:
    projection = Projection([OutputColumn(pa.field("k", pa.int64()), "left", "_k0")])
    assert projection.gather({"left": (LEFT, np.array([], np.int64))}).num_rows == 0
    assert Projection([]).gather({"left": (LEFT, np.array([0, 1]))}).num_columns == 0
