"""Rows that are gathered, in pieces of bounded size."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns import pieces
from watersmeet.columns.arrow import Indices
from watersmeet.columns.matching import equal_keys
from watersmeet.columns.pieces import chosen_bytes, most_often
from watersmeet.join.condition import Condition, constants

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", None, "", "bbb" * 9, "é"]),
    "binary": (pa.binary(), [b"a", None, b"", b"bbb" * 9, b"cc"]),
    "list": (pa.list_(pa.string()), [["x"], None, [], ["yy", None, "z" * 20], [""]]),
    "list of lists": (pa.list_(pa.list_(pa.int32())), [[[1], None], None, [], [[], [2, 3, 4, 5, 6]], [[7]]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, [], [("b" * 20, None), ("c", 3)], []]),
    "struct": (
        pa.struct({"n": pa.int32(), "s": pa.string()}),
        [{"n": 1, "s": "x"}, None, {"n": 2, "s": None}, {"n": 3, "s": "z" * 20}, {"n": None, "s": ""}],
    ),
}


def size(kind: pa.DataType, value: Any) -> int:
    """The bytes of a value, without those of offsets."""
    if pa.types.is_struct(kind):
        return sum(size(field.type, None if value is None else value[field.name]) for field in kind)
    if pa.types.is_list(kind):
        return sum(size(kind.value_type, one) for one in value or [])
    if pa.types.is_map(kind):
        return sum(size(kind.key_type, key) + size(kind.item_type, item) for key, item in value or [])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return len(value.encode() if isinstance(value, str) else value or b"")
    return int(kind.bit_width) // 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [0, 2])
def test_pieces_are_all_rows_and_none_is_too_large(kind: str, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 50)
    rng = random.Random(start)
    of, values = KINDS[kind]
    array = pa.array([values[0], *values, *values], of).slice(start)
    column = pa.chunked_array([array])
    sizes = [size(of, value) for value in array.to_pylist()]
    for count in (0, 1, 2, 7, 40):
        rows = np.array([rng.randrange(-1, len(array)) for _ in range(count)], np.int64)
        wanted = [0 if row < 0 else sizes[row] for row in rows]
        assert chosen_bytes(array, rows).tolist() == wanted
        found = pieces.pieces([(column, rows)], count)
        assert [at for one in found for at in range(one.start, one.stop)] == list(range(count))
        assert all(sum(wanted[one]) <= 50 or one.stop - one.start == 1 for one in found)
        assert len(found) <= 2 * sum(wanted) // 50 + 1


def test_lists_of_which_none_has_a_value() -> None:
    """As they come from a file, which has no buffers for what is empty."""
    for values in (pa.array([[], None, []], pa.list_(pa.string())), pa.nulls(3, pa.map_(pa.string(), pa.binary()))):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([pa.field("a", values.type)])) as writer:
            writer.write_table(pa.table({"a": values}))
        array = pa.ipc.open_stream(sink.getvalue()).read_all().column("a").chunk(0)
        assert chosen_bytes(array, np.array([0, 1, 2, -1])).tolist() == [0, 0, 0, 0]


def test_the_widest_column_cuts_and_fixed_widths_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 10)
    numbers, narrow = pa.chunked_array([pa.array([1, 2])]), pa.chunked_array([["a", ""]])
    wide = pa.chunked_array([["bbbb", "cccccc"]])
    rows = np.array([0, 1, 0, 1, 0, 0])
    assert pieces.pieces([(numbers, rows), (narrow, rows)], 6) == [slice(0, 6)]
    assert pieces.pieces([(numbers, rows), (wide, rows), (narrow, rows)], 6) == [
        slice(0, 1),
        slice(1, 2),
        slice(2, 3),
        slice(3, 4),
        slice(4, 6),
    ]


@pytest.mark.parametrize(
    "rows", [[0, 2, 3], [0, 0, 0, 1], [1, 1, 2, 2, 2, 2], [4], [2, 1, 2, 1], [3, 3, 3, 0], [-1, -1, 0]]
)
def test_no_row_is_there_more_often_than_is_told(rows: list[int]) -> None:
    told, counted = most_often(np.array(rows)), max(Counter(rows).values())
    assert told >= counted
    assert told == counted or rows != sorted(rows)


def test_rows_are_measured_only_where_they_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that fits into a piece does so in any choice of different rows: mostly nobody looks at their sizes."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 50)
    measured: list[int] = []

    def measuring(array: pa.Array, rows: Indices) -> Indices:
        measured.append(len(rows))
        return chosen_bytes(array, rows)

    monkeypatch.setattr(pieces, "chosen_bytes", measuring)
    column = pa.chunked_array([["a" * 12, "b" * 12]])
    assert pieces.pieces([(column, np.array([0, 1])), (column, np.array([0, 1]))], 2) == [slice(0, 2)]
    assert not measured
    again, apart = np.array([0, 0, 0, 0, 0, 1]), np.array([0, 1, 0, 1, 0, 1])
    for rows in (again, apart):
        found = pieces.pieces([(column, np.array([0, 1, 1, 1, 1, 1])), (column, rows)], 6)
        assert found == [slice(0, 4), slice(4, 5), slice(5, 6)]
    assert measured == [6] * 4


def test_keys_and_conditions_are_compared_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    left = pa.table({"_k0": ["a" * 30, "b" * 30, None], "_p0": ["x" * 40, "y", None]})
    right = pa.table({"_k0": ["b" * 30, "a" * 30], "_p0": ["x" * 40, "z" * 9]})
    i, j = (at.ravel() for at in np.meshgrid(np.arange(3), np.arange(2), indexing="ij"))
    tree = ["<=", ["column", "left", "_p0"], ["column", "right", "_p0"]]
    condition = Condition.of({"text": "l <= r", "tree": tree, "ansi": True, **constants({})})
    expected = [False, True, True, False, False, False], [True, True, False, True, False, False]
    for limit in (pieces.PIECE_BYTES, 50):
        monkeypatch.setattr(pieces, "PIECE_BYTES", limit)
        assert equal_keys(left, i, right, j).tolist() == expected[0]
        assert condition.holds((left, i), (right, j)).tolist() == expected[1]
