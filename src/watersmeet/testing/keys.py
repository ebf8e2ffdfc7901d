"""Keys of every type for scripts whose keys are small whole numbers.

Scripts, promises and oracles speak of the keys 0, 1, 2, ... A `Keys` turns them into values of a type that rise with
them, chosen to be hard to compare, and the operator sees only those:

    script        key 3, promise (2, 5)        ->  operator    "customer/europe/dep\\0", promise ("a", "customer/...")
    oracle        key 3 joins key 3            <-  results     "customer/europe/dep\\0"

So every case of the conformance suite runs with every type, and no oracle knows about types.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa

from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.testing.arrivals import Arrival, Row, Script
from watersmeet.testing.oracle import comparable

Value = tuple[Any, ...]

LARGEST = 10_100  # scripts and tables use no larger key


@dataclass(frozen=True)
class Keys:
    """A type of key. `value` rises with the number (from 0 to 9; beyond, values only differ); `twin` is another form of
    an equal value."""

    name: str
    kinds: tuple[pa.DataType, ...]
    value: Callable[[int], Value]
    twin: Callable[[int], Value] | None = None

    def row(self, row: Row) -> Row:
        """A row of a script as the operator gets it; about half of the rows have the other form of their key."""
        if row[0] is None:
            return (*self.value(0)[:-1], None, *row[1:])
        form = self.twin if self.twin and row[1] % 2 else self.value
        return (*form(row[0]), *row[1:])

    def script(self, script: Script) -> list[Arrival]:
        """A script as the operator gets it."""
        return [
            replace(
                arrival,
                rows={name: [self.row(row) for row in rows] for name, rows in arrival.rows.items()},
                punctuations={name: self._punctuations(table) for name, table in arrival.punctuations.items()},
            )
            for arrival in script
        ]

    def plain(self, script: Script) -> list[Arrival]:
        """The script behind one that an operator gets, without its punctuations, which are those of `seen`."""
        width = len(self.kinds)

        def plain(row: Row) -> Row:
            key = None if None in row[:width] else self._number[_same(row[:width])]
            return (key, *row[width:])

        return [
            replace(
                a,
                rows={name: [plain(row) for row in rows] for name, rows in a.rows.items()},
                punctuations={},
                seen=a,
            )
            for a in script
        ]

    def answer(self, rows: Counter[Row]) -> Counter[Row]:
        """Result rows, key first, as the operator emits them."""
        found: Counter[Row] = Counter()
        for row, count in rows.items():
            found[_same(self.row((row[0], 0, *row[1:]))[: len(self.kinds)]) + row[1:]] += count
        return found

    @cached_property
    def _number(self) -> dict[Value, int]:
        return {_same(self.value(number)): number for number in range(LARGEST)}

    def _punctuations(self, table: pa.Table) -> pa.Table:
        """Promises for keys of this type: of several columns, a range constrains the first."""
        rows = []
        for row in table.select(["_k0", "_low0", "_high0", "_low_closed0", "_high_closed0"]).to_pylist():
            if row["_k0"] is not None:
                rows.append([Pattern.value(value) for value in self.value(row["_k0"])])
                continue
            low, high = (None if row[end] is None else self.value(row[end])[0] for end in ("_low0", "_high0"))
            # The first of several columns may be equal for neighbours: a closed end would promise too much.
            closed = [row[name] is not False and len(self.kinds) == 1 for name in ("_low_closed0", "_high_closed0")]
            rows.append([Pattern(low, high, *closed), *(Pattern.anything() for _ in self.kinds[1:])])
        return punctuation_table(self.kinds, rows)

    def __str__(self) -> str:
        return self.name


def _same(values: Value) -> Value:
    return tuple(comparable(value) for value in values)


PREFIX = "customer/europe/dep/"  # 20 bytes
# Strings of 0 to 64 bytes in the order of their UTF-8 bytes. The last two are the other way round in UTF-16.
_STRINGS = (
    "", "\0", "a", PREFIX, f"{PREFIX}\0", f"{PREFIX}\0\0", f"{PREFIX}a{'b' * 43}", f"{PREFIX}é", f"{PREFIX}\uffff",
    f"{PREFIX}\U00010000",
)  # fmt: skip


def _string(number: int) -> str:
    if number < len(_STRINGS):
        return _STRINGS[number]
    return f"\U0010ffff{'é' * 8}{number:05d}\0{'x' * (number % 37)}"


def _binary(number: int) -> bytes:
    return _string(number).encode() if number < 5 else b"\xff" * 17 + struct.pack(">I", number) + b"\0" * (number % 3)


_FLOATS = (float("-inf"), -1.5e300, -1.5, -5e-324, 0.0, 5e-324, 0.1, 1.5e300, float("inf"), float("nan"))
_OTHER_NAN: float = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0007))[0]


def _float(number: int) -> float:
    return _FLOATS[number] if number < len(_FLOATS) else 1e200 + number * 1e190


def _other_float(number: int) -> float:
    return {4: -0.0, 9: _OTHER_NAN}.get(number, _float(number))


INTEGERS = Keys("integers", (pa.int64(),), lambda number: (number,))
STRINGS = Keys("strings", (pa.string(),), lambda number: (_string(number),))
BINARY = Keys("binary", (pa.binary(),), lambda number: (_binary(number),))
FLOATS = Keys("floats", (pa.float64(),), lambda number: (_float(number),), lambda number: (_other_float(number),))
DECIMALS = Keys("decimals", (pa.decimal128(18, 4),), lambda number: (Decimal(number * 7 - 20) / 10_000,))
DATES = Keys("dates", (pa.date32(),), lambda number: (date(1969, 12, 28) + timedelta(number),))
TIMESTAMPS = Keys(
    "timestamps",
    (pa.timestamp("us", "UTC"),),
    lambda number: (datetime(1969, 12, 31, 23, 59, 59, 999_995, UTC) + timedelta(microseconds=number),),
)
COMPOSITE = Keys(
    "composite",
    (pa.string(), pa.int32(), pa.binary()),
    lambda number: (_string(number // 3), number % 3 - 1, _binary(number)),
)

ALL_KEYS = (INTEGERS, STRINGS, BINARY, FLOATS, DECIMALS, DATES, TIMESTAMPS, COMPOSITE)
