"""Hashing, sorting, matching and comparing keys, against brute force."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.columns.arrow import (
    MANY_COLUMNS,
    concat,
    data_bytes,
    drop_null_keys,
    gather_all,
    hash_keys,
    hashes_of,
    merge_by_hash,
    one_chunk,
    relabelled,
    sort_by_hash,
    sort_order,
    take,
)
from watersmeet.columns.matching import equal_keys, match_blocks, matches
from watersmeet.errors import OverloadError

few_hashes = st.lists(st.integers(0, 12), max_size=40)
any_hashes = st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1]), max_size=60)

# Per key type, three different values (the last two extreme), in the type's plain Python form.
KEY_VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [1, -128, 127]),
    "int16": (pa.int16(), [1, -(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [1, -(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [2**53, 2**53 + 1, -(2**63)]),
    "float32": (pa.float32(), [1.5, math.inf, -math.inf]),
    "float64": (pa.float64(), [1.5, 2.0**-1074, -math.inf]),
    "string": (pa.string(), ["", "é", "e\u0301"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x00\x00"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, 2**53, 2**53 + 1]),
    "timestamp_ntz": (pa.timestamp("us"), [0, 2**53, -(2**53) - 1]),
    "time": (pa.time64("ns"), [0, 1, 86_399_999_999_999]),
    "duration": (pa.duration("us"), [0, 2**53, 2**53 + 1]),
    "decimal": (pa.decimal128(38, 18), [Decimal("0"), Decimal("1E-18"), Decimal("12345678901234567890.5")]),
}
every_key_type = pytest.mark.parametrize("kind", KEY_VALUES)


def keyed(hashes: list[int], *keys: pa.Array) -> pa.Table:
    return pa.table({"_hash": pa.array(hashes, pa.uint64()), **{f"_k{i}": key for i, key in enumerate(keys)}})


@given(any_hashes)
def test_sort_order_sorts(values: list[int]) -> None:
    hashes = np.array(values, np.uint64)
    order = sort_order(hashes)
    assert sorted(order.tolist()) == list(range(len(values)))
    assert hashes[order].tolist() == sorted(values)


@given(few_hashes, st.integers(50, 63))
def test_sort_order_when_all_high_bits_agree(values: list[int], shift: int) -> None:
    hashes = np.array(values, np.uint64) | np.uint64(1 << shift)
    assert hashes[sort_order(hashes)].tolist() == sorted(hashes.tolist())


@given(few_hashes, few_hashes, st.integers(1, 9))
def test_match_blocks_finds_all_pairs_in_blocks_of_bounded_size(
    left: list[int], right: list[int], block_rows: int
) -> None:
    left, right = sorted(left), sorted(right)
    found: list[tuple[int, int]] = []
    for i, j in match_blocks(np.array(left, np.uint64), np.array(right, np.uint64), block_rows):
        assert 0 < len(i) == len(j) <= block_rows
        found += zip(i.tolist(), j.tolist(), strict=True)
    wanted = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b]
    assert sorted(found) == wanted


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), st.integers(1, 7))
def test_matches_compares_keys_and_not_hashes(rows: list[tuple[int, int]], block_rows: int) -> None:
    half = len(rows) // 2
    sides = []
    for part in (rows[:half], rows[half:]):
        part = sorted(part)  # (hash, key): equal hashes with other keys are collisions
        sides.append(keyed([h for h, _ in part], pa.array([k for _, k in part], pa.int64())))
    found = [pair for i, j in matches(*sides, block_rows) for pair in zip(i.tolist(), j.tolist(), strict=True)]
    left, right = (list(zip(*(c.to_pylist() for c in side.columns), strict=True)) for side in sides)
    assert sorted(found) == [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b]


@every_key_type
def test_equal_keys_of_every_type(kind: str) -> None:
    arrow_type, values = KEY_VALUES[kind]
    values = [*values, None]
    column = pa.array(values, arrow_type)
    table = keyed([7] * len(values), column)
    i, j = (grid.ravel() for grid in np.meshgrid(range(len(values)), range(len(values)), indexing="ij"))
    wanted = [a == b and values[a] is not None for a, b in zip(i, j, strict=True)]
    assert equal_keys(table, i, table, j).tolist() == wanted
    without = table.slice(0, len(values) - 1)  # and with no null in the column
    rows = np.arange(len(values) - 1)
    assert equal_keys(without, rows, without, rows).all()


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_floats_are_equal_as_spark_has_it(kind: pa.DataType) -> None:
    odd_nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    column = pa.array([0.0, -0.0, math.nan, odd_nan, None], kind, from_pandas=False)
    table = keyed([7] * 5, column)
    i, j = (grid.ravel() for grid in np.meshgrid(range(5), range(5), indexing="ij"))
    groups = [0, 0, 1, 1, None]
    wanted = [groups[a] is not None and groups[a] == groups[b] for a, b in zip(i, j, strict=True)]
    assert equal_keys(table, i, table, j).tolist() == wanted


def test_composite_keys_are_equal_when_all_columns_are() -> None:
    left = keyed([7, 7, 7], pa.array([1, 1, 2]), pa.array(["a", "b", None]))
    right = keyed([7, 7], pa.array([1, 2]), pa.array(["b", None]))
    i, j = np.array([0, 1, 2]), np.array([0, 0, 1])
    assert equal_keys(left, i, right, j).tolist() == [False, True, False]


@every_key_type
def test_equal_keys_have_equal_hashes_and_different_ones_differ(kind: str) -> None:
    arrow_type, values = KEY_VALUES[kind]
    hashes = hash_keys([pa.array(values * 2, arrow_type)])
    assert hashes[: len(values)].tolist() == hashes[len(values) :].tolist()
    assert len(set(hashes.tolist())) == len(values)


def test_hashes_follow_the_equality_of_floats() -> None:
    assert len(set(hash_keys([pa.array([0.0, -0.0])]).tolist())) == 1
    assert len(set(hash_keys([pa.array([math.nan, -math.nan], pa.float32())]).tolist())) == 1


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(-5, 5)), unique=True, max_size=50))
def test_hashes_of_composite_keys_do_not_depend_on_the_other_rows(rows: list[tuple[str, int]]) -> None:
    columns = [pa.array([s for s, _ in rows], pa.string()), pa.array([n for _, n in rows], pa.int64())]
    hashes = hash_keys(columns)
    assert len(set(hashes.tolist())) == len(rows)
    alone = [hash_keys([column.slice(i, 1) for column in columns])[0] for i in range(len(rows))]
    assert hashes.tolist() == alone


def test_hash_keys_needs_a_key() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        hash_keys([])


def test_merge_by_hash_is_sorted_and_complete() -> None:
    tables = [sort_by_hash(keyed(hashes, pa.array(hashes))) for hashes in ([5, 1, 3], [], [2, 3], [9])]
    assert all(sort_by_hash(table) is table for table in tables)  # no copy of what is sorted
    merged = merge_by_hash(tables)
    assert hashes_of(merged).tolist() == [1, 2, 3, 3, 5, 9]
    assert merged.column("_k0").to_pylist() == [1, 2, 3, 3, 5, 9]
    assert all(column.num_chunks == 1 for column in merged.columns)
    assert merge_by_hash(tables[1:2]).num_rows == 0


def test_merge_by_hash_takes_the_chosen_rows() -> None:
    tables = [
        keyed(hashes, pa.array(times)).rename_columns(["_hash", "_p0"])
        for hashes, times in (([1, 3, 3, 8], [4, 5, 9, 1]), ([], []), ([3, 7], [6, 2]), ([2], [0]))
    ]
    tables[1] = tables[0].slice(0, 0)
    chosen = [np.array([1, 2, 3]), np.array([], np.int64), None, np.array([], np.int64)]
    for time, expected in ((None, [5, 9, 6, 2, 1]), ("_p0", [5, 6, 9, 2, 1])):
        merged = merge_by_hash(tables, time, chosen)
        assert hashes_of(merged).tolist() == [3, 3, 3, 7, 8]
        assert merged.column("_p0").to_pylist() == expected
    assert merge_by_hash(tables[:1], None, chosen[:1]).column("_p0").to_pylist() == [5, 9, 1]
    assert merge_by_hash(tables[3:], "_p0", chosen[3:]).num_rows == 0


@pytest.mark.parametrize("columns", [1, MANY_COLUMNS - 1, MANY_COLUMNS, MANY_COLUMNS + 5])
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_columns_are_gathered_alike_one_by_one_and_together(columns: int, chunks: int) -> None:
    values = [[None, "b", ["c"], {"d": 1}, 0.5][place % 5] for place in range(columns)]
    piece = pa.table({f"c{place}": [value, None, value] for place, value in enumerate(values)})
    table = pa.concat_tables([piece] * chunks) if chunks else piece.schema.empty_table()
    last = table.num_rows - 1
    indices = pa.array([last, 0, None, last, last - 1] if chunks else [None, None], pa.int64())
    rows = indices.to_pylist()
    expected = [[None if i is None else column[i].as_py() for i in rows] for column in table.columns]
    found = gather_all(table, indices)
    assert [column.to_pylist() for column in found] == expected
    assert [column.type for column in found] == table.schema.types
    places = [*range(columns)][::-2]
    assert [column.to_pylist() for column in gather_all(table, indices, places)] == [expected[at] for at in places]


def test_drop_null_keys_looks_at_keys_only() -> None:
    table = keyed([1, 2, 3], pa.array([1, None, 3]), pa.array(["a", "b", None]))
    table = table.append_column("_p0", pa.array([None, 1, 2]))
    assert drop_null_keys(table).column("_p0").to_pylist() == [None]


def test_concat_of_nothing_has_the_schema() -> None:
    schema = pa.schema({"a": pa.int64()})
    assert concat([], schema).schema == schema
    assert concat([pa.table({"a": [1]}), pa.table({"a": [2]})], schema).num_rows == 2


NESTED = {
    "string": pa.array(["a", None, "", "wide " * 9], pa.string()),
    "binary": pa.array([b"a", None, b"", b"xyz"], pa.binary()),
    "list": pa.array([[1, None], None, [], [3, 4, 5]], pa.list_(pa.int64())),
    "list of lists": pa.array([[["a"], None], None, [], [["b", "cc"], []]], pa.list_(pa.list_(pa.string()))),
    "map": pa.array([[("a", 1)], None, [], [("b", None), ("c", 3)]], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "bb"}, {"x": 2, "y": None}]),
    "empty struct": pa.array([{}, None, {}, {}], pa.struct([])),
    "null": pa.nulls(4),
    "bool": pa.array([True, None, False, True]),
    "decimal": pa.array([Decimal("1.5"), None, Decimal("2.5"), Decimal("0.5")], pa.decimal128(38, 18)),
    "timestamp": pa.array([1, None, 2, 3], pa.timestamp("us", "UTC")),
    "time": pa.array([1, None, 2, 3], pa.time64("ns")),
}


@pytest.mark.parametrize("kind", NESTED)
def test_data_bytes_depends_on_rows_and_not_on_their_order(kind: str) -> None:
    table = pa.table({"_p0": NESTED[kind]})
    size = data_bytes(table)
    assert size >= 0
    for order in ([3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]):
        permuted = take(table, np.array(order))
        assert data_bytes(permuted) == size
    twice = pa.concat_tables([table, table]).combine_chunks()
    assert data_bytes(twice.slice(4, 4)) == data_bytes(twice.slice(0, 4)) == size
    assert data_bytes(table.slice(0, 0)) == 0
    assert data_bytes(table.schema.empty_table()) == 0


def test_relabelling_at_any_depth_keeps_values_and_nulls() -> None:
    def kind(zone: str, text: pa.DataType) -> pa.DataType:
        moment = pa.field("t", pa.timestamp("us", zone), nullable=False)
        inner = pa.struct([moment, pa.field("s", text)])
        return pa.struct(
            [
                pa.field("list", pa.list_(pa.field("element", inner))),
                pa.field("map", pa.map_(pa.timestamp("us", zone), pa.field("value", inner))),
                moment.with_name("alone"),
            ]
        )

    here, there = kind("America/New_York", pa.large_string()), kind("UTC", pa.string())
    values = [
        {"list": [{"t": 1, "s": "a"}, None], "map": [(5, None), (6, {"t": 7, "s": None})], "alone": 1},
        None,
        {"list": None, "map": [], "alone": 3},
        {"list": [], "map": None, "alone": 4},
    ]
    array = pa.array(values, here)
    found = relabelled(array, there)
    found.validate(full=True)
    assert found.type == there
    assert found.to_pylist() == pa.array(values, there).to_pylist()
    assert relabelled(array.slice(1, 2), there).to_pylist() == found.to_pylist()[1:3]
    assert relabelled(array.slice(0, 0), there).to_pylist() == []
    assert relabelled(found, there) is found


def test_more_than_an_array_can_hold_is_an_error_that_says_what_to_do() -> None:
    """The values are pages that nobody has touched, so that they take no memory."""
    half = 1_100_000_000
    values = pa.py_buffer(np.zeros(half, np.uint8))
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, half], np.int32)), values])
    for array in (text, pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), text)):
        with pytest.raises(OverloadError) as caught:
            one_chunk(pa.chunked_array([array, array]))
        assert str(caught.value) == (
            "the rows of one partition: expected less than 2 GiB in one column of the rows that are handled at once, "
            f"found more in a column of type {array.type}. Make micro-batches smaller (maxFilesPerTrigger, "
            "maxOffsetsPerTrigger), or give the join more partitions."
        )
