"""Who a row is, by what it contains: 128 bits for all of its columns.

Two rows with different contents have the same 128 bits with a probability of 2^-128 for each pair of them, unless
somebody looks for such rows: the hash is not one of cryptography. They are two hashes of 64 bits that have nothing in
common but the values: all columns count, nulls differ from every value, and so do numbers by their bits (0.0 is not
-0.0). Lists, maps and structs are hashed by what is inside of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, mix, numpy_of, one_chunk

SEEDS = (0x51_7C_C1_B7_27_22_0A_95, 0xA2_1D_6F_3B_94_E8_C0_57)
STEP = np.uint64(0x9E3779B97F4A7C15)
NOTHING = np.uint64(0xD6E8FEB86659FD93)


def identities(columns: Iterable[pa.Array | pa.ChunkedArray]) -> tuple[Hashes, Hashes]:
    """Both halves of the identity of each row.

    >>> first, second = identities([pa.array([1, 1, None]), pa.array([["a", "b"], ["ab"], None])])
    >>> len(set(zip(first.tolist(), second.tolist())))
    3
    """
    arrays = [one_chunk(column) if isinstance(column, pa.ChunkedArray) else column for column in columns]
    first, second = (_chained(arrays, np.uint64(seed)) for seed in SEEDS)
    return first, second


def _chained(arrays: Iterable[pa.Array], seed: np.uint64) -> Hashes:
    """One hash of several values, in their order."""
    found: Hashes | None = None
    for array in arrays:
        image = _images(array, seed)
        found = mix(image + seed) if found is None else mix(found * STEP + image)
    return np.empty(0, np.uint64) if found is None else found


def _images(array: pa.Array, seed: np.uint64) -> Hashes:
    """A hash of each value."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), mix_one(NOTHING ^ seed), np.uint64)
    if pa.types.is_struct(kind):
        # A struct without fields is there, or is not.
        found = _chained(array.flatten(), seed) if kind.num_fields else np.zeros(len(array), np.uint64)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        found = _elements(array, seed)
    elif pa.types.is_boolean(kind) or pa.types.is_primitive(kind):
        found = mix(_bits(array) * STEP + seed)
    else:
        found = _octets(array.cast(pa.string()) if pa.types.is_decimal(kind) else array, seed)
    if array.null_count:
        found = np.where(numpy_of(array.is_null()), mix_one(NOTHING ^ seed), found)
    return found


def _bits(array: pa.Array) -> Hashes:
    """The bits of values of a fixed width."""
    if pa.types.is_boolean(array.type):
        return numpy_of(array.cast(pa.uint8()).fill_null(0)).astype(np.uint64)
    width = array.type.bit_width
    kind = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[width]
    return numpy_of(array.view(kind).fill_null(0)).astype(np.uint64)


def _octets(array: pa.Array, seed: np.uint64) -> Hashes:
    """Texts and bytes."""
    array = array.cast(pa.large_binary()).fill_null(b"")
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    data = array.buffers()[2]
    inside = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    return _folded(inside.astype(np.uint64), np.diff(offsets), seed)


def _elements(array: pa.Array, seed: np.uint64) -> Hashes:
    """Lists, and maps as lists of their entries; where one is null nothing is in it."""
    offsets = np.asarray(array.offsets.to_numpy(zero_copy_only=False), np.int64)
    lengths = np.diff(offsets)
    # Spark leaves nothing behind a null, and other writers may.
    lengths = np.where(numpy_of(array.is_null()), 0, lengths) if array.null_count else lengths
    if pa.types.is_map(array.type):
        inside = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    else:
        inside = array.values
    places = np.arange(int(lengths.sum())) + np.repeat(offsets[:-1] - np.cumsum(lengths) + lengths, lengths)
    return _folded(_images(inside.take(pa.array(places)), seed), lengths, seed)


def _folded(values: Hashes, lengths: np.ndarray[tuple[int, ...], np.dtype[np.int64]], seed: np.uint64) -> Hashes:
    """One hash for each stretch of values, by the place of each in its stretch."""
    sums = np.zeros(len(lengths), np.uint64)
    if len(values):
        starts = np.cumsum(lengths) - lengths
        place = (np.arange(len(values), dtype=np.int64) - np.repeat(starts, lengths)).view(np.uint64)
        weighted = mix((values + np.uint64(1)) * STEP + mix(place + seed))
        filled = lengths > 0
        sums[filled] = np.add.reduceat(weighted, starts[filled])
    return mix(sums + lengths.astype(np.uint64) * STEP + seed)


def mix_one(number: np.uint64) -> np.uint64:
    """`mix` of a single number."""
    return np.uint64(mix(np.array([number], np.uint64))[0])
