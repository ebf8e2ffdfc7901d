"""Orders of key values: a column as sortable codes, so that ranges are searched and never compared row by row.

A code is an int64 for every type of up to 64 bits (whole numbers, booleans, dates, timestamps, decimals of up to 18
digits, floats by their bit pattern) and the string itself for strings. Every code has a *successor* with nothing in
between (+1, or one more zero character), so an interval with any mix of open and closed ends is one half-open interval:

    v        [v, next(v))            a < v <= b       [next(a), next(b))
    v < b    [lowest, b)             v >= a           [a, endless)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.arrow import numpy_of, one_chunk

Codes = npt.NDArray[Any]  # int64, or NumPy's variable-width strings

_TEXT = np.dtypes.StringDType()
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
        or pa.types.is_string(kind)
    )


class Ordering:
    """The order of one key type.

    >>> order = Ordering(pa.int64())
    >>> order.codes(pa.array([3, 5])).tolist(), order.describe(3, 6, endless=False)
    ([3, 5], 'from 3 to 5')
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.is_text = bool(pa.types.is_string(kind))
        self.storage = pa.string() if self.is_text else pa.int64()
        self.dtype: np.dtype[Any] = _TEXT if self.is_text else np.dtype(np.int64)

    @property
    def lowest(self) -> Any:
        """The code below which there is none."""
        return "" if self.is_text else int(_SIGN)

    def codes(self, column: pa.Array | pa.ChunkedArray) -> Codes:
        """The codes of a column without nulls."""
        array = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
        kind = self.kind
        if self.is_text:
            return np.asarray(array.to_numpy(zero_copy_only=False).astype(_TEXT))
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

    def successor(self, codes: Codes) -> tuple[Codes, npt.NDArray[np.bool_]]:
        """The next codes, and where there is none (the last value of the type)."""
        if self.is_text:
            return np.strings.add(codes, np.array(["\0"], dtype=_TEXT)), np.zeros(len(codes), np.bool_)
        last = codes == np.iinfo(np.int64).max
        return np.where(last, codes, codes + 1 - last), last

    def to_arrow(self, codes: Codes) -> pa.Array:
        """Codes in the form in which they are stored."""
        return pa.array(codes.astype(object) if self.is_text else codes, self.storage)

    def from_arrow(self, column: pa.ChunkedArray) -> Codes:
        """The codes that `to_arrow` stored."""
        array = one_chunk(column)
        return array.to_numpy(zero_copy_only=False).astype(_TEXT) if self.is_text else numpy_of(array)

    def describe(self, low: Any, high: Any, *, endless: bool) -> str:
        """A half-open interval of codes in words."""
        first = None if low == self.lowest else self._value(low)
        last = None if endless else self._value(high if self.is_text else high - 1)
        if self.is_text and last is not None:
            end = f"to {last[:-1]!r}" if last.endswith("\0") else f"below {last!r}"
        else:
            end = f"to {last!r}"
        if first is None and last is None:
            return "everything"
        if first is None:
            return end.removeprefix("to ") if end.startswith("below") else f"up to {end.removeprefix('to ')}"
        if last is None:
            return f"from {first!r} on"
        return f"{first!r}" if end == f"to {first!r}" else f"from {first!r} {end}"

    def _value(self, code: Any) -> Any:
        """The value behind a code, for messages."""
        kind = self.kind
        if self.is_text:
            return str(code)
        if pa.types.is_floating(kind):
            bits = np.array([code], np.int64)
            return float(np.where(bits < 0, ~bits ^ _SIGN, bits).view(np.float64)[0])
        if pa.types.is_uint64(kind):
            return int(code) + 2**63
        if pa.types.is_decimal(kind):
            return int(code) if kind.scale == 0 else int(code) / 10**kind.scale
        if pa.types.is_temporal(kind):
            width = pa.int64() if kind.bit_width == 64 else pa.int32()
            return str(pa.array([int(code)], width).view(kind)[0])
        return bool(code) if pa.types.is_boolean(kind) else int(code)


def _float_codes(values: npt.NDArray[Any]) -> Codes:
    """Bit patterns that sort as the floats do: -0.0 as 0.0, every NaN the same and above everything."""
    values = values + 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64)
    return np.where(bits < 0, ~bits ^ _SIGN, bits)
