"""Building output rows."""

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns import pieces
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
    (result,) = emitter.rows({"left": (LEFT, np.array([2, 0, 2])), "right": (RIGHT, np.array([0, 1, 1]))})
    assert result.schema == emitter.schema
    assert result.to_pydict() == {"name": ["c", "a", "c"], "k": [3, 1, 3], "share": [0.5, 1.5, 1.5]}


def test_an_input_that_is_not_given_is_null() -> None:
    emitter = Emitter([OutputColumn(pa.field("k", pa.int64()), "left", "_k0"), SHARE])
    (result,) = emitter.rows({"left": (LEFT, np.array([1, 0]))})
    assert result.schema == emitter.schema
    assert result.to_pydict() == {"k": [2, 1], "share": [None, None]}


def test_a_column_that_the_table_lacks_is_null() -> None:
    said = OutputColumn(pa.field("said", pa.list_(pa.int8())), "right", "_said")
    (result,) = Emitter([SHARE, said]).rows({"right": (RIGHT, np.array([1, 1]))})
    assert result.to_pydict() == {"share": [1.5, 1.5], "said": [None, None]}


def test_a_key_compared_in_a_wider_type_returns_to_its_own() -> None:
    emitter = Emitter([OutputColumn(pa.field("k", pa.int16()), "left", "_k0")])
    (result,) = emitter.rows({"left": (LEFT, np.array([1]))})
    assert result.column("k").type == pa.int16()


def test_no_matches_and_no_columns() -> None:
    emitter = Emitter([OutputColumn(pa.field("k", pa.int64()), "left", "_k0")])
    (empty,) = emitter.rows({"left": (LEFT, np.array([], np.int64))})
    assert empty.num_rows == 0
    (nothing,) = Emitter([]).rows({"left": (LEFT, np.array([0, 1]))})
    assert (nothing.num_columns, nothing.num_rows) == (0, 2)


def test_values_that_do_not_fit_into_one_array_come_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen decides, not what the tables have: one wide row may have many partners."""
    emitter = Emitter(
        [
            OutputColumn(pa.field("doc", pa.string()), "left", "_p0"),
            OutputColumn(pa.field("k", pa.int64()), "right", "_k0"),
            OutputColumn(pa.field("of", pa.list_(pa.string())), "other", "_p0"),
        ]
    )
    left = pa.table({"_p0": ["d" * 60, "", None, "e" * 30]})
    other = pa.table({"_p0": [["f"], ["g" * 70]]})
    numbers = np.array([3, 0, 0, 1, 1, 0, 2, 3])
    taken = {
        "left": (left, numbers),
        "right": (RIGHT, np.array([0, 1] * 4)),
        "other": (other, np.array([0, -1, 1, 1, 0, 0, 0, 0])),
    }
    (whole,) = emitter.rows(taken, {"other"})
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)
    found = list(emitter.rows(taken, {"other"}))
    assert pa.concat_tables(found).to_pylist() == whole.to_pylist()
    assert max(sum(map(len, filter(None, piece.column("doc").to_pylist()))) for piece in found) <= 100
    assert 3 <= len(found) <= 6
    (few,) = emitter.rows({"left": (left, np.array([0, 1, 3])), "right": (RIGHT, np.array([0, 0, 0]))})
    assert few.num_rows == 3
