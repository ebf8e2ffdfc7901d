"""Building output rows."""

import numpy as np
import pyarrow as pa

from watersmeet.join.emitter import Emitter
from watersmeet.plan import OutputColumn

LEFT = pa.table({"_k0": pa.array([1, 2, 3]), "_p0": pa.array(["a", None, "c"])})
RIGHT = pa.table({"_k0": pa.array([3, 1]), "_p0": pa.array([0.5, 1.5])})
SHARE = OutputColumn(pa.field("share", pa.float64()), "right", "_p0")


def test_row_i_is_made_of_the_rows_at_index_i() -> None:
    emitter = Emitter(
        [
            OutputColumn(pa.field("name", pa.string()), "left", "_p0"),
            OutputColumn(pa.field("k", pa.int64()), "left", "_k0"),
            SHARE,
        ]
    )
    result = emitter.rows({"left": (LEFT, np.array([2, 0, 2])), "right": (RIGHT, np.array([0, 1, 1]))})
    assert result.schema == emitter.schema
    assert result.to_pydict() == {"name": ["c", "a", "c"], "k": [3, 1, 3], "share": [0.5, 1.5, 1.5]}


def test_an_input_that_is_not_given_is_null() -> None:
    emitter = Emitter([OutputColumn(pa.field("k", pa.int64()), "left", "_k0"), SHARE])
    result = emitter.rows({"left": (LEFT, np.array([1, 0]))})
    assert result.schema == emitter.schema
    assert result.to_pydict() == {"k": [2, 1], "share": [None, None]}


def test_a_column_that_the_table_lacks_is_null() -> None:
    said = OutputColumn(pa.field("said", pa.list_(pa.int8())), "right", "_said")
    result = Emitter([SHARE, said]).rows({"right": (RIGHT, np.array([1, 1]))})
    assert result.to_pydict() == {"share": [1.5, 1.5], "said": [None, None]}


def test_a_key_compared_in_a_wider_type_returns_to_its_own() -> None:
    emitter = Emitter([OutputColumn(pa.field("k", pa.int16()), "left", "_k0")])
    assert emitter.rows({"left": (LEFT, np.array([1]))}).column("k").type == pa.int16()


def test_no_matches_and_no_columns() -> None:
    emitter = Emitter([OutputColumn(pa.field("k", pa.int64()), "left", "_k0")])
    assert emitter.rows({"left": (LEFT, np.array([], np.int64))}).num_rows == 0
    nothing = Emitter([]).rows({"left": (LEFT, np.array([0, 1]))})
    assert (nothing.num_columns, nothing.num_rows) == (0, 2)
