"""Spark's hash of one key of any type, to find its rows without looking at the others.

Spark's xxhash64 of several columns is a chain: the hash of a column is the seed of the next. Of a value it takes the
bytes that it holds in memory: four for what fits in an int, eight for a long, all of them for text.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import xxhash

SEED = 42  # Spark's
DIGITS = Context(prec=76)  # more than any decimal has; Python's own context rounds to 28
LONG_DIGITS = 18  # decimals of up to so many digits are longs


def hash_of_key(key: Sequence[pa.Scalar]) -> int | None:
    """xxhash64 of a key, without its sign; None if a column is of a type that is not known here.

    >>> hash_of_key([pa.scalar(1, pa.int64())]) == -7001672635703045582 % 2**64
    True
    >>> hash_of_key([pa.scalar(1, pa.int32())]) == -6698625589789238999 % 2**64
    True
    """
    found = SEED
    for scalar in key:
        content = _bytes_of(scalar)
        if content is None:
            return None
        found = xxhash.xxh64_intdigest(content, seed=found)
    return found


def stands_for_null(kind: pa.DataType) -> pa.Array:
    """The value that a key column has in place of a null where nulls match: nothing in its type. A flag beside it says
    that it is none. `spark/wire.py` writes the same.

    >>> stands_for_null(pa.int64())[0], stands_for_null(pa.date32())[0]
    (<pyarrow.Int64Scalar: 0>, <pyarrow.Date32Scalar: datetime.date(1970, 1, 1)>)
    """
    if pa.types.is_temporal(kind):
        return pa.array([0], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([b""], pa.binary()).cast(kind)
    return pa.array(["0"]).cast(kind)


def _bytes_of(scalar: pa.Scalar) -> bytes | None:
    kind = scalar.type
    if pa.types.is_boolean(kind):
        return struct.pack("<i", int(scalar.as_py()))
    if pa.types.is_integer(kind):
        return struct.pack("<q" if kind.bit_width == 64 else "<i", scalar.as_py())
    if pa.types.is_floating(kind):
        return _float_bytes(scalar.as_py(), kind)
    if pa.types.is_decimal(kind):
        return _decimal_bytes(scalar.as_py(), kind)
    if pa.types.is_date32(kind):
        return struct.pack("<i", _plain(scalar, pa.int32()))
    if pa.types.is_temporal(kind) and kind.bit_width == 64:
        return struct.pack("<q", _plain(scalar, pa.int64()))
    if pa.types.is_string(kind):
        return str(scalar.as_py()).encode()
    return bytes(scalar.as_py()) if pa.types.is_binary(kind) else None


def _plain(scalar: pa.Scalar, kind: pa.DataType) -> Any:
    return pa.array([scalar.as_py()] if scalar.type == kind else [scalar], scalar.type).view(kind)[0].as_py()


def _float_bytes(value: float, kind: pa.DataType) -> bytes:
    value = math.nan if math.isnan(value) else value + 0.0  # -0.0 is 0.0, and there is one NaN
    return struct.pack("<d" if pa.types.is_float64(kind) else "<f", value)


def _decimal_bytes(value: Decimal, kind: pa.DataType) -> bytes:
    whole = int(value.scaleb(kind.scale, DIGITS))
    if kind.precision <= LONG_DIGITS:
        return struct.pack("<q", whole)
    # As Java writes a BigInteger: the shortest that still shows the sign.
    length = (whole if whole >= 0 else ~whole).bit_length() // 8 + 1
    return whole.to_bytes(length, "big", signed=True)
