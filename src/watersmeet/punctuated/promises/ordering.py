"""Orders of key values: a column as sortable codes, so that ranges are searched and never compared row by row.

A code is an int64 for every type of up to 64 bits (whole numbers, booleans, dates, timestamps, decimals of up to 18
digits, floats by their bit pattern) and the bytes themselves for strings (in UTF-8) and binary. Every code has a
*successor* with nothing in between (+1, or one more zero byte), so an interval with any mix of open and closed ends is
one half-open interval:

    v        [v, next(v))            a < v <= b       [next(a), next(b))
    v < b    [lowest, b)             v >= a           [a, endless)
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import numpy_of, one_chunk, python_value
from watersmeet.punctuated.promises.codes import Bytes, Codes, Mask, Numbers

_SIGN = np.int64(-(2**63))
_LONG_DECIMAL = 18


def is_ordered(kind: pa.DataType) -> bool:
    """Whether ranges over keys of this type are supported."""
    if pa.types.is_decimal(kind):
        return bool(pa.types.is_decimal128(kind) and kind.precision <= _LONG_DECIMAL)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_temporal(kind)
        or is_text(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether keys of this type are ordered by their bytes."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


class Ordering:
    """The order of one key type.

    >>> order = Ordering(pa.int64())
    >>> codes = order.codes(pa.array([3, 6]))
    >>> order.describe(codes[:1], codes[1:], endless=False)
    'from 3 to 5'
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.is_text = is_text(kind)
        self.storage = kind if self.is_text else pa.int64()

    @property
    def lowest(self) -> Codes:
        """The code below which there is none, as an array of one."""
        return Bytes(pa.array([b""])) if self.is_text else np.array([_SIGN])

    def codes(self, column: pa.Array | pa.ChunkedArray) -> Codes:
        """The codes of a column without nulls."""
        array = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
        kind = self.kind
        if self.is_text:
            return Bytes(array)
        if pa.types.is_floating(kind):
            return _float_codes(numpy_of(array.cast(pa.float64())))
        if pa.types.is_decimal(kind):
            # A decimal128 is two 64-bit words, the low one first; up to 18 digits it is a sign-extended int64.
            words = np.frombuffer(array.buffers()[1], np.int64)
            return words[2 * array.offset : 2 * (array.offset + len(array)) : 2].copy()
        if pa.types.is_uint64(kind):
            return np.asarray(numpy_of(array).view(np.int64) ^ _SIGN)
        if pa.types.is_temporal(kind):
            array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
        return numpy_of(array.cast(pa.int64()))

    def successor(self, codes: Codes) -> tuple[Codes, Mask]:
        """The next codes, and where there is none (the last value of the type)."""
        if isinstance(codes, Bytes):
            return codes.followed_by(b"\0"), np.zeros(len(codes), np.bool_)
        numbers = cast(Numbers, codes)
        last = numbers == np.iinfo(np.int64).max
        return np.where(last, numbers, numbers + 1 - last), last

    def to_arrow(self, codes: Codes) -> pa.Array:
        """Codes in the form in which they are stored."""
        if isinstance(codes, Bytes):
            # Not checked to be UTF-8 on the way: Spark lets a string hold any bytes.
            wide = pa.large_string() if pa.types.is_string(self.storage) else pa.large_binary()
            return codes.array.view(wide).cast(self.storage)
        return pa.array(codes, self.storage)

    def from_arrow(self, column: pa.ChunkedArray) -> Codes:
        """The codes that `to_arrow` stored."""
        array = one_chunk(column)
        return Bytes(array) if self.is_text else numpy_of(array)

    def describe(self, low: Codes, high: Codes, *, endless: bool) -> str:
        """A half-open interval of codes (arrays of one) in words."""
        first = self._value(low) if (self.lowest < low)[0] else None
        last, end = None, ""
        if not endless and isinstance(high, Bytes):
            whole = high.array[0].as_py()
            last = self._text(whole.removesuffix(b"\0"))
            end = f"to {last!r}" if whole.endswith(b"\0") else f"below {last!r}"
        elif not endless:
            last = self._value(cast(Numbers, high) - 1)
            end = f"to {last!r}"
        if first is None and last is None:
            return "everything"
        if first is None:
            return end.removeprefix("to ") if end.startswith("below") else f"up to {end.removeprefix('to ')}"
        if last is None:
            return f"from {first!r} on"
        return f"{first!r}" if end == f"to {first!r}" else f"from {first!r} {end}"

    def _text(self, value: bytes) -> str | bytes:
        """A string as text; one that is not UTF-8 with its odd bytes escaped."""
        return value.decode(errors="backslashreplace") if pa.types.is_string(self.kind) else value

    def _value(self, codes: Codes) -> Any:
        """The value behind a code (an array of one), for messages."""
        kind = self.kind
        if isinstance(codes, Bytes):
            return self._text(codes.array[0].as_py())
        code = int(codes[0])
        if pa.types.is_floating(kind):
            bits = np.array([code], np.int64)
            return float(np.where(bits < 0, ~bits ^ _SIGN, bits).view(np.float64)[0])
        if pa.types.is_uint64(kind):
            return code + 2**63
        if pa.types.is_decimal(kind):
            return code if kind.scale == 0 else code / 10**kind.scale
        if pa.types.is_temporal(kind):
            width = pa.int64() if kind.bit_width == 64 else pa.int32()
            return str(python_value(pa.array([code], width).view(kind)[0]))
        return bool(code) if pa.types.is_boolean(kind) else code


def _float_codes(values: npt.NDArray[Any]) -> Codes:
    """Bit patterns that sort as the floats do: -0.0 as 0.0, every NaN the same and above everything."""
    values = values + 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64)
    return np.where(bits < 0, ~bits ^ _SIGN, bits)
