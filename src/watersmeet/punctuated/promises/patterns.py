"""Patterns on the key, and the layout in which punctuations reach the operator.

A punctuation says of every key column that it is a value, lies in a range, or may be anything. It travels as one row:

    _hash                 hash of the key; means something only if every key column is a value
    _k0 ..                the value; null if the column is not fixed
    _low0, _high0         the range's ends, null if it has none   \\
    _low_closed0,         whether an end belongs to the range      > all absent if the punctuations are values only
    _high_closed0 ..                                              /
    _part, _parts         set when a punctuation holds for one partition of `_parts` (see `propagation`)

Columns are known by their position, so that the layer above may name them as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import HASH, hash_keys, key_name, numpy_of, one_chunk
from watersmeet.columns.grouping import group_ids
from watersmeet.errors import OptionError
from watersmeet.punctuated.promises.codes import Codes, concatenated, either
from watersmeet.punctuated.promises.ordering import Ordering

ENDS = ("_low", "_high", "_low_closed", "_high_closed")


@dataclass(frozen=True)
class Pattern:
    """What a punctuation says of one key column.

    >>> Pattern.between(1, 5, closed="left")
    Pattern(low=1, high=5, low_closed=True, high_closed=False)
    >>> Pattern.value(3).is_value
    True
    """

    low: Any = None
    high: Any = None
    low_closed: bool = True
    high_closed: bool = True

    @classmethod
    def value(cls, value: Any) -> Pattern:
        """Exactly this value."""
        return cls(value, value)

    @classmethod
    def between(cls, low: Any, high: Any, closed: str = "both") -> Pattern:
        """A range; an end that is None is open to that side."""
        return cls(low, high, closed in ("both", "left"), closed in ("both", "right"))

    @classmethod
    def anything(cls) -> Pattern:
        """The wildcard."""
        return cls()

    @property
    def is_value(self) -> bool:
        """Whether only one value fits."""
        return self.low is not None and self.low == self.high and self.low_closed and self.high_closed


def punctuation_schema(kinds: Sequence[pa.DataType]) -> pa.Schema:
    """The full layout for keys of these types."""
    fields = [pa.field(HASH, pa.uint64())]
    fields += [pa.field(key_name(i), kind) for i, kind in enumerate(kinds)]
    for i, kind in enumerate(kinds):
        types = (kind, kind, pa.bool_(), pa.bool_())
        fields += [pa.field(f"{name}{i}", end) for name, end in zip(ENDS, types, strict=True)]
    return pa.schema([*fields, pa.field("_part", pa.int32()), pa.field("_parts", pa.int32())])


def pattern_ids(table: pa.Table) -> npt.NDArray[np.int64]:
    """For each row the number of its pattern, whichever part has emitted it."""
    names = [name for name in table.column_names if name not in (HASH, "_part", "_parts")]
    columns = (table.column(name).combine_chunks().dictionary_encode(null_encoding="encode").indices for name in names)
    return group_ids([pa.chunked_array([codes]) for codes in columns])


def punctuation_table(kinds: Sequence[pa.DataType], rows: Sequence[Sequence[Pattern]]) -> pa.Table:
    """Punctuations in the operator's layout, hashed as `arrow.hash_keys` does: for runs without Spark.

    >>> table = punctuation_table([pa.int64()], [[Pattern.value(3)], [Pattern.between(None, 9)]])
    >>> table.select(["_k0", "_low0", "_high0"]).to_pylist()
    [{'_k0': 3, '_low0': None, '_high0': None}, {'_k0': None, '_low0': None, '_high0': 9}]
    """
    columns: dict[str, pa.Array] = {}
    for i, kind in enumerate(kinds):
        cells = [row[i] for row in rows]
        fixed = [cell.is_value for cell in cells]
        columns[key_name(i)] = _exact([c.low if f else None for c, f in zip(cells, fixed, strict=True)], kind)
        for name, end in zip(ENDS, (kind, kind, pa.bool_(), pa.bool_()), strict=True):
            ends = [None if f else getattr(c, name[1:]) for c, f in zip(cells, fixed, strict=True)]
            columns[f"{name}{i}"] = _exact(ends, end)
    columns[HASH] = pa.array(hash_keys([columns[key_name(i)] for i in range(len(kinds))]))
    columns["_part"] = columns["_parts"] = pa.nulls(len(rows), pa.int32())
    return pa.table([columns[name] for name in punctuation_schema(kinds).names], schema=punctuation_schema(kinds))


def _exact(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as an array; an error for one that is not a value of the type (Arrow would take 2.5 for the integer 2)."""
    for value in values:
        if not _is_exact(value, kind):
            raise OptionError(
                "punctuations",
                expected=f"values of type {kind}",
                found=repr(value),
                hint="Correct the pattern, or convert its values.",
            )
    return pa.array(values, kind)


def _is_exact(value: Any, kind: pa.DataType) -> bool:
    try:
        taken = pa.scalar(value, kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return bool(value == taken or (value != value and taken != taken))  # NaN is the only value unlike itself


def normalised(table: pa.Table, kinds: Sequence[pa.DataType]) -> pa.Table:
    """A table of punctuations under the names of the full layout, missing columns filled with nulls."""
    schema = punctuation_schema(kinds)
    columns = [column.cast(field.type) for column, field in zip(table.columns, schema, strict=False)]
    columns += [pa.chunked_array([pa.nulls(table.num_rows, field.type)]) for field in schema][len(columns) :]
    columns[0] = columns[0].fill_null(0)
    return pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class Shaped:
    """The punctuations of one shape: key columns that are values, key columns that are ranges; the rest is free."""

    values: tuple[int, ...]
    ranges: tuple[int, ...]
    table: pa.Table

    def bounds(self, column: int, ordering: Ordering) -> tuple[Codes, Codes, np.ndarray[Any, Any]]:
        """A column's constraint as half-open intervals of codes: low, high, endless."""
        count = self.table.num_rows
        if column in self.values:
            low = ordering.codes(self.table.column(key_name(column)))
            high, endless = ordering.successor(low)
            return low, high, endless
        low, low_open, _ = self._end(column, ordering, "_low")
        high, high_open, unbounded = self._end(column, ordering, "_high")
        above, none_above = ordering.successor(low)
        low = either(low_open, above, low)
        after, beyond = ordering.successor(high)
        endless = unbounded | (~high_open & beyond)
        high = either(high_open, high, after)
        empty = low_open & none_above
        return either(empty, high, low), high, np.asarray(endless & ~empty).reshape(count)

    def _end(self, column: int, ordering: Ordering, name: str) -> tuple[Codes, Any, Any]:
        ends = one_chunk(self.table.column(f"{name}{column}"))
        present = numpy_of(ends.is_valid()).astype(np.bool_)
        closed = numpy_of(one_chunk(self.table.column(f"{name}_closed{column}")).fill_null(True)).astype(np.bool_)
        # The lowest code stands for a low end that is not there; a high end that is not there is masked.
        codes = concatenated([ordering.lowest, ordering.codes(ends.drop_null())])
        return codes[np.where(present, np.cumsum(present), 0)], present & ~closed, ~present


def shapes(table: pa.Table, kinds: Sequence[pa.DataType]) -> Iterator[Shaped]:
    """The punctuations of a normalised table, sorted by shape."""
    form = np.zeros(table.num_rows, np.int64)
    for i in range(len(kinds)):
        is_value = pc.is_valid(table.column(key_name(i)))
        is_range = pc.or_(pc.is_valid(table.column(f"_low{i}")), pc.is_valid(table.column(f"_high{i}")))
        digit = np.where(numpy_of(is_value), 1, np.where(numpy_of(is_range), 2, 0))
        form += digit * 3**i
    for code in np.unique(form).tolist():
        digits = [code // 3**i % 3 for i in range(len(kinds))]
        chosen = table.filter(pa.array(form == code))
        values = tuple(i for i, digit in enumerate(digits) if digit == 1)
        yield Shaped(values, tuple(i for i, digit in enumerate(digits) if digit == 2), chosen)
