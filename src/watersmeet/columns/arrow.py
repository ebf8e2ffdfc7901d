"""Rows as Arrow tables: hashing keys, ordering by hash, gathering.

Inside the operators a table's columns have positional names, so no name that a user gives a column can clash
with ours:

    _hash   uint64   hash of the key (xxhash64, computed by Spark; `hash_keys` in process)
    _k0..   the key columns, in the types both inputs are compared in
    _p0..   the payload columns

Everything here is vectorised; nothing loops over rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.saturating import Times, scaled
from watersmeet.errors import OverloadError

HASH = "_hash"

Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

DAY = 86_400_000_000
MANY_COLUMNS = 6


def key_name(index: int) -> str:
    """Internal name of the index-th key column."""
    return f"_k{index}"


def payload_name(index: int) -> str:
    """Internal name of the index-th payload column."""
    return f"_p{index}"


def key_names(schema: pa.Schema) -> list[str]:
    """The internal key columns of a table, in order."""
    return [name for name in schema.names if name.startswith("_k")]


def hashes_of(table: pa.Table) -> Hashes:
    """The hash column as a NumPy array, without a copy when it is one chunk."""
    return numpy_of(table.column(HASH))


def numpy_of(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[Any]:
    """A fixed-width column without nulls as a NumPy array (a view where it can be)."""
    if isinstance(column, pa.ChunkedArray):
        column = one_chunk(column)
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A chunked array as one array; no copy when it has one chunk already."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    try:
        return column.combine_chunks()
    except pa.ArrowInvalid as error:
        raise OverloadError(
            "the rows of one partition",
            expected="less than 2 GiB in one column of the rows that are handled at once",
            found=f"more in a column of type {column.type}",
            hint="Make micro-batches smaller (maxFilesPerTrigger, maxOffsetsPerTrigger), or give the join more "
            "partitions.",
        ) from error


def python_value(scalar: pa.Scalar) -> Any:
    """A value for people to read, as Python has it. Of times beyond the years that Python knows it is their text.

    >>> python_value(pa.scalar(7)), python_value(pa.scalar(4_000_000, pa.date32()))
    (7, '12921-08-18')
    """
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if isinstance(scalar, pa.StructScalar):
            return {name: python_value(scalar[name]) for name in scalar}
        if isinstance(scalar, pa.ListScalar):
            return [python_value(one) for one in scalar.values]
        return scalar.cast(pa.string()).as_py()


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column, likewise."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [python_value(one) for one in column]


def sort_order(hashes: Hashes) -> Indices:
    """Indices that sort `hashes`.

    NumPy sorts 16-bit values by counting, in linear time on every processor; its comparison sorts take longer, most of
    all their AVX-512 form on processors that have it in microcode. So rows are put in the order of bits 32 to 47 and
    then, stably, of bits 48 to 63; the rare rows that agree in these are put right by a stable pass over sorted data.
    """
    if len(hashes) < 2:
        return np.arange(len(hashes), dtype=np.int64)
    digits = hashes.astype("<u8", copy=False).view("<u2").reshape(-1, 4)
    order = np.argsort(digits[:, 2], kind="stable")
    order = order.take(np.argsort(digits[:, 3].take(order), kind="stable"))
    ordered = hashes.take(order)
    if np.any(ordered[1:] < ordered[:-1]):
        order = order.take(np.argsort(ordered, kind="stable"))
    return order


def sort_by_hash(table: pa.Table) -> pa.Table:
    """The table's rows in the order of their hashes."""
    hashes = hashes_of(table)
    if bool(np.all(hashes[1:] >= hashes[:-1])):
        return table
    return take(table, sort_order(hashes))


def merge_by_hash(
    tables: Sequence[pa.Table], time: str | None = None, chosen: Sequence[Indices | None] | None = None
) -> pa.Table:
    """One hash-sorted table out of several; linear, because a stable sort of sorted stretches is a merge.

    With the name of a time column, rows of equal hash are in the order of their times. `chosen` are the rows that are
    wanted of each table, ascending (None: all of them); they are gathered once.
    """
    wanted = [
        (table, rows) for table, rows in zip(tables, chosen or [None] * len(tables), strict=True) if table.num_rows
    ]
    if not wanted:
        return tables[0]
    if len(wanted) == 1 and time is None:
        table, rows = wanted[0]
        return table if rows is None else take(table, rows)
    hashes = np.concatenate([hashes_of(table) if rows is None else hashes_of(table)[rows] for table, rows in wanted])
    if time is None:
        order = np.argsort(hashes, kind="stable")
    else:
        times = [times_of(table, time) if rows is None else times_of(table, time)[rows] for table, rows in wanted]
        order = merge_order(hashes, np.concatenate(times))
    if any(rows is not None for _, rows in wanted):
        starts = np.cumsum([0, *(table.num_rows for table, _ in wanted)])
        numbers = [
            start + (np.arange(table.num_rows) if rows is None else rows)
            for (table, rows), start in zip(wanted, starts[:-1], strict=True)
        ]
        order = np.concatenate(numbers)[order]
    return take(pa.concat_tables([table for table, _ in wanted]), order)


def merge_order(hashes: Hashes, times: Times) -> Indices:
    """The order of (hash, time) for stretches that have it already: linear, a stable sort of stretches is a merge."""
    rows = np.argsort(hashes, kind="stable")
    return order_times(rows, hashes[rows], times[rows])


def order_times(rows: Indices, hashes: Hashes, times: Times) -> Indices:
    """`rows`, which are in the order of `hashes`, with rows of equal hash put in the order of their times.

    Streams come almost in the order of time, so only the keys that are out of order are touched.
    """
    same = hashes[1:] == hashes[:-1]
    wrong = same & (times[1:] < times[:-1])
    if not wrong.any():
        return rows
    group = np.concatenate(([0], np.cumsum(~same)))
    unordered = np.zeros(int(group[-1]) + 1, dtype=np.bool_)
    unordered[group[1:][wrong]] = True
    at = np.flatnonzero(unordered[group])
    rows = rows.copy()
    rows[at] = rows[at][np.lexsort((times[at], group[at]))]
    return rows


def times_of(table: pa.Table, column: str) -> Times:
    """A column of times in microseconds: a view where it is in microseconds already. There must be no nulls."""
    array = one_chunk(table.column(column))
    if pa.types.is_timestamp(array.type):
        # To microseconds without a cast of zones: the instant stays, only the unit changes.
        if array.type.unit != "us":
            array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
        array = array.view(pa.int64())
    elif pa.types.is_date(array.type):
        return scaled(numpy_of(array.cast(pa.date32()).view(pa.int32()).cast(pa.int64())), DAY)
    elif array.type != pa.int64():
        array = array.cast(pa.int64())
    return numpy_of(array)


def take(table: pa.Table, indices: Indices) -> pa.Table:
    """The rows at `indices`, every column in one chunk."""
    return pa.Table.from_arrays(gather_all(table, pa.array(indices)), schema=table.schema)


def gather_all(table: pa.Table, indices: pa.Array, places: Sequence[int] | None = None) -> list[pa.Array]:
    """`gather` on all columns, or on those at some places. Many columns are asked for in a single call, where each is
    one chunk: of a few rows it takes longer to ask than to copy."""
    wanted = range(table.num_columns) if places is None else places
    if len(wanted) >= MANY_COLUMNS:
        batches = (table if places is None else table.select(wanted)).to_batches()
        if len(batches) == 1:
            columns: list[pa.Array] = pc.take(batches[0], indices, boundscheck=False).columns
            return columns
    return [gather(table.column(at), indices) for at in wanted]


def gather(column: pa.ChunkedArray, indices: pa.Array) -> pa.Array:
    """`take` on one column; the indices are ours and known to be in range (a null index gives a null)."""
    return pc.take(one_chunk(column), indices, boundscheck=False)


def relabelled(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values under a type that differs in labels only (a time zone, a wider offset), at any depth.

    Arrow's own cast refuses null structs whose children are declared not null; here nested arrays keep their buffers.
    """
    if array.type == kind:
        return array
    if not pa.types.is_nested(kind):
        return array.cast(kind)
    if array.offset:
        array = pc.take(array, pa.array(np.arange(len(array))))
    if pa.types.is_struct(kind):
        heads = 1
        children = [relabelled(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        heads = 2
        columns = [relabelled(array.keys, kind.key_type), relabelled(array.items, kind.item_type)]
        children = [pa.StructArray.from_arrays(columns, fields=[kind.key_field, kind.item_field])]
    else:
        heads = 2
        children = [relabelled(array.values, kind.value_type)]
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:heads], array.null_count, 0, children)


def drop_null_keys(table: pa.Table) -> pa.Table:
    """The rows whose key columns are all present: a null key equals nothing."""
    for name in key_names(table.schema):
        if table.column(name).null_count:
            table = table.filter(pc.is_valid(table.column(name)))
    return table


def data_bytes(table: pa.Table) -> int:
    """The bytes of a table's values: the same for the same rows in any order (Arrow's own count is not)."""
    return sum(_array_bytes(chunk) for column in table.columns for chunk in column.chunks)


def _array_bytes(array: pa.Array) -> int:
    kind, count = array.type, len(array)
    bitmap = (count + 7) // 8 if array.null_count else 0
    if pa.types.is_struct(kind):
        return bitmap + sum(_array_bytes(array.field(i)) for i in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + count + 1]
        low, high = (int(offsets[0]), int(offsets[-1])) if count else (0, 0)
        values = array.keys if pa.types.is_map(kind) else array.values
        inner = _array_bytes(values.slice(low, high - low))
        if pa.types.is_map(kind):
            inner += _array_bytes(array.items.slice(low, high - low))
        return bitmap + 4 * count + inner
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + count + 1]
        return bitmap + 4 * count + (int(offsets[-1]) - int(offsets[0]) if count else 0)
    if pa.types.is_null(kind):
        return 0
    return bitmap + (count * int(kind.bit_width) + 7) // 8


def stretch_bytes(table: pa.Table, bounds: Sequence[int] | Indices) -> Indices:
    """The `data_bytes` of the stretches of a table between every two consecutive bounds, without cutting it up.

    >>> stretch_bytes(pa.table({"a": [1, 2, 3], "b": ["x", "yy", None]}), [0, 1, 1, 3]).tolist()
    [13, 0, 27]
    """
    edges = np.asarray(bounds, np.int64)
    total: Indices = np.zeros(len(edges) - 1, np.int64)
    for column in table.columns:
        total += _stretches(one_chunk(column), edges)
    return total


def _stretches(array: pa.Array, edges: Indices) -> Indices:
    kind, counts = array.type, np.diff(edges)
    if not array.null_count and pa.types.is_primitive(kind):
        return (counts * int(kind.bit_width) + 7) // 8
    if not array.null_count and len(array) and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        return 4 * counts + np.diff(offsets[edges])
    slices = (array.slice(start, count) for start, count in zip(edges[:-1].tolist(), counts.tolist(), strict=True))
    return np.array([_array_bytes(piece) for piece in slices], np.int64)


def concat(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """The tables one after the other; an empty table of `schema` if there are none."""
    present = list(tables)
    return pa.concat_tables(present) if present else empty(schema)


def empty(schema: pa.Schema) -> pa.Table:
    """A table without rows, and without a chunk: Arrow's `empty_table` makes an array for every column, in Python."""
    return pa.Table.from_batches([], schema)


def hash_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """64-bit hashes of composite keys, for runs without Spark (which computes its own).

    Equal keys hash equal under the join's equality: all NaNs alike, -0.0 as 0.0.
    """
    result: Hashes | None = None
    for column in columns:
        array = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
        part = mix(_bits(array))
        result = part if result is None else mix(result * np.uint64(0x9E3779B97F4A7C15) + part)
    if result is None:
        raise ValueError("hash_keys needs at least one column")
    return result


def _bits(array: pa.Array) -> Hashes:
    """A 64-bit image of each value, equal for equal values (bytes are folded by position)."""
    kind = array.type
    if pa.types.is_floating(kind):
        values = numpy_of(array.cast(pa.float64()).fill_null(0)) + 0.0  # -0.0 becomes 0.0
        values[np.isnan(values)] = np.nan
        return values.view(np.uint64)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return numpy_of(array.cast(pa.int64(), safe=False).fill_null(0)).view(np.uint64)
    if pa.types.is_temporal(kind):
        width = pa.int64() if kind.bit_width == 64 else pa.int32()
        integers = array.view(width).fill_null(0).cast(pa.int64())
        return numpy_of(integers).view(np.uint64)
    if pa.types.is_decimal(kind):
        array = array.cast(pa.string())
    return _fold_bytes(array.cast(pa.large_binary()).fill_null(b""))


def _fold_bytes(array: pa.Array) -> Hashes:
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    data = array.buffers()[2]
    lengths = np.diff(offsets)
    sums = np.zeros(len(array), dtype=np.uint64)
    if lengths.sum():
        octets = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64) + np.uint64(1)
        place = np.arange(len(octets), dtype=np.int64) - np.repeat(offsets[:-1] - offsets[0], lengths)
        weighted = mix(octets * np.uint64(0x100000001B3) + place.view(np.uint64))
        filled = lengths > 0
        sums[filled] = np.add.reduceat(weighted, (offsets[:-1] - offsets[0])[filled])
    return sums + lengths.astype(np.uint64)


def mix(values: Hashes) -> Hashes:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
