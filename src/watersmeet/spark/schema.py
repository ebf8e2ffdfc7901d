"""Columns of DataFrames: resolving names, comparing key types, Spark types as Arrow types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.errors import ColumnError, KeyTypeError, NotStreamingError, OptionError

_ATOMIC: dict[type[T.DataType], pa.DataType] = {
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.StringType: pa.string(),
    T.VarcharType: pa.string(),
    T.CharType: pa.string(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", "UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
    T.TimeType: pa.time64("ns"),
    T.NullType: pa.null(),
    # Spark knows these structs by the metadata of a child.
    T.VariantType: pa.struct(
        [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {"variant": "true"})]
    ),
}
# Spark's estimate of a value's size where it is not 8 bytes.
_SIZES: dict[type[T.DataType], int] = {
    T.NullType: 1, T.BooleanType: 1, T.ByteType: 1, T.ShortType: 2, T.IntegerType: 4, T.FloatType: 4, T.DateType: 4,
    T.YearMonthIntervalType: 4, T.StringType: 20, T.BinaryType: 100, T.CalendarIntervalType: 16, T.VariantType: 2048,
}  # fmt: skip
_INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_KEYS = (
    *_INTEGRAL, T.BooleanType, T.FloatType, T.DoubleType, T.DecimalType, T.StringType, T.BinaryType, T.DateType,
    T.TimestampType, T.TimestampNTZType, T.TimeType, T.DayTimeIntervalType, T.YearMonthIntervalType,
)  # fmt: skip


def arrow_type(kind: T.DataType) -> pa.DataType:
    """The Arrow type in which Spark sends a value of this type to Python (time zones normalised to UTC)."""
    if type(kind) in _ATOMIC:
        return _ATOMIC[type(kind)]
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, T.MapType):
        value = pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull)
        return pa.map_(pa.field("key", arrow_type(kind.keyType), nullable=False), value)
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType), f.nullable) for f in kind.fields])
    if isinstance(kind, (T.GeometryType, T.GeographyType)):
        tag = "geometry" if isinstance(kind, T.GeometryType) else "geography"
        well_known_binary = pa.field("wkb", pa.binary(), False, {tag: "true", "srid": str(kind.srid)})
        return pa.struct([pa.field("srid", pa.int32(), False), well_known_binary])
    if isinstance(kind, T.UserDefinedType):
        return arrow_type(kind.sqlType())
    raise TypeError(f"Arrow has no type for {kind.simpleString()}")


def is_hashable(kind: T.DataType) -> bool:
    """Whether Spark hashes values of this type by their bytes, wherever it runs."""
    return isinstance(kind, _KEYS) and getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"


@dataclass
class Source:
    """A stream that a join reads: the rows of an input, or its punctuations.

    `keys` and `payload` are positions of columns. `marker` is the position of a boolean column that marks the
    punctuations among the rows of an input; their own columns are the last `marked` ones of the payload. With
    `keep_null_keys` the operator gets the rows without a key too, apart from the others. `nulls_match` are the numbers
    of the keys of which nulls match: each travels as a value that is never null, and a further key, whether it is null.
    """

    name: str
    frame: DataFrame
    keys: list[int]
    payload: list[int]
    kind: str = "rows"
    marker: int | None = None
    marked: int = 0
    keep_null_keys: bool = False
    nulls_match: tuple[int, ...] = ()

    @property
    def fields(self) -> list[T.StructField]:
        """The columns of the DataFrame."""
        return self.frame.schema.fields

    def payload_types(self) -> list[T.DataType]:
        """The Spark types of the payload, that of marked punctuations included."""
        return [self.fields[i].dataType for i in self.payload]

    @property
    def row_payload(self) -> list[int]:
        """The payload of the input's rows."""
        return self.payload[: len(self.payload) - self.marked]


def quoted(name: str) -> Column:
    """The column of that name, whatever characters it has."""
    return F.col("`" + name.replace("`", "``") + "`")


def check_frame(who: str, option: str, frame: object) -> None:
    """Refuse what is not a DataFrame at all."""
    if not isinstance(frame, DataFrame):
        raise OptionError(
            who,
            expected=f"{option} = a DataFrame",
            found=repr(frame),
            hint="Give the DataFrame itself, not its name or path.",
            option=option,
        )


def check_streaming(who: str, name: str, frame: DataFrame, option: str | None = None) -> None:
    """Refuse what is not a streaming DataFrame; `option` is the parameter, if it has another name than the input."""
    check_frame(who, option or name, frame)
    if not frame.isStreaming:
        raise NotStreamingError(
            who,
            expected=f"a streaming DataFrame as input {name!r}",
            found="a batch DataFrame",
            hint="Read it with spark.readStream; for a table that does not change use semi_stream_join or a plain "
            "join.",
            option=option or name,
            input=name,
        )


def comparable_name(session: SparkSession, name: str) -> str:
    """A column's name as Spark compares it: by default without regard to case."""
    sensitive = str(session.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    return name if sensitive else name.lower()


def find_column(who: str, name: str, frame: DataFrame, column: Any) -> int:
    """The position of a column; names are compared as Spark does."""
    if not isinstance(column, str):
        raise ColumnError(
            who,
            expected=f"the name of a column of input {name!r}",
            found=repr(column),
            hint="Give its name as text, not the column itself.",
            input=name,
        )
    session = frame.sparkSession
    wanted = comparable_name(session, column)
    found = [i for i, have in enumerate(frame.columns) if comparable_name(session, have) == wanted]
    if len(found) == 1:
        return found[0]
    near = difflib.get_close_matches(column, frame.columns, n=1)
    hint = f"Did you mean {near[0]!r}?" if near and not found else "Rename or correct the column."
    raise ColumnError(
        who,
        expected=f"one column {column!r} in input {name!r}",
        found=f"{len(found)} columns of that name" if found else f"the columns {', '.join(frame.columns)}",
        hint=hint,
        column=column,
        input=name,
    )


def key_pairs(who: str, on: Any) -> tuple[list[tuple[str, str]], bool]:
    """`on` as pairs of names, and whether every key has one name on both sides (then it is one output column)."""
    if isinstance(on, str):
        return [(on, on)], True
    items = list(on) if isinstance(on, Sequence) else []
    twice = next((item for at, item in enumerate(items) if isinstance(on, list) and item in items[:at]), None)
    if isinstance(twice, str | tuple):
        raise OptionError(
            who, expected="each key once", found=f"{twice!r} twice in on", hint="Leave one out.", option="on"
        )
    if len(items) == 2 and isinstance(on, tuple) and _are_text(items):
        return [(str(items[0]), str(items[1]))], False
    if items and _are_text(items):
        return [(str(item), str(item)) for item in items], True
    if items and all(isinstance(item, tuple) and len(item) == 2 and _are_text(item) for item in items):
        return [(str(item[0]), str(item[1])) for item in items], False
    raise OptionError(
        who,
        expected="on = a column name, a list of names, or pairs (left name, right name)",
        found=repr(on),
        hint="Write for example on='id', on=['a', 'b'] or on=[('order_id', 'id')].",
        option="on",
    )


def null_safe_keys(who: str, left: DataFrame, nulls_match: Any, pairs: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    """`nulls_match` as the numbers of the keys of which nulls match each other."""
    if isinstance(nulls_match, bool):
        return tuple(range(len(pairs))) if nulls_match else ()
    named = [nulls_match] if isinstance(nulls_match, str) else nulls_match
    if not isinstance(named, Sequence) or not _are_text(named):
        raise OptionError(
            who,
            expected="nulls_match = True, False, or names of key columns",
            found=repr(nulls_match),
            hint="Write for example nulls_match=True or nulls_match=['region'].",
            option="nulls_match",
        )
    session, found = left.sparkSession, set()
    for name in named:
        wanted = comparable_name(session, name)
        at = [i for i, pair in enumerate(pairs) if wanted in (comparable_name(session, one) for one in pair)]
        if not at:
            raise ColumnError(
                who,
                expected=f"nulls_match to name key columns: {', '.join(pair[0] for pair in pairs)}",
                found=repr(name),
                hint="Name columns that are in on.",
                option="nulls_match",
                column=name,
            )
        found.update(at)
    return tuple(sorted(found))


def _are_text(items: Sequence[object]) -> bool:
    return all(isinstance(item, str) for item in items)


def common_key_types(who: str, sources: Sequence[Source]) -> list[T.DataType]:
    """The type in which each key is compared: the inputs' own, or the widest of whole numbers."""
    result = []
    for position in range(len(sources[0].keys)):
        fields = [source.fields[source.keys[position]] for source in sources]
        kinds = [_plain_string(field.dataType) for field in fields]
        where = ", ".join(
            f"{source.name}.{field.name}: {field.dataType.simpleString()}"
            for source, field in zip(sources, fields, strict=True)
        )
        about = {"column": fields[0].name, "option": "on"}
        if not all(isinstance(kind, _KEYS) for kind in kinds):
            raise KeyTypeError(
                who,
                expected="key columns of atomic types",
                found=where,
                hint="Join on a column derived from it.",
                **about,
            )
        if any(isinstance(kind, T.StringType) and kind.collation != "UTF8_BINARY" for kind in kinds):
            raise KeyTypeError(
                who,
                expected="string keys with the collation UTF8_BINARY",
                found=where,
                hint="Join on a normalised copy of the column, for example lower(name).",
                **about,
            )
        if all(kind == kinds[0] for kind in kinds):
            result.append(kinds[0])
        elif all(isinstance(kind, _INTEGRAL) for kind in kinds):
            result.append(max(kinds, key=lambda kind: _INTEGRAL.index(type(kind))))
        elif all(isinstance(kind, (T.FloatType, T.DoubleType)) for kind in kinds):
            result.append(T.DoubleType())
        else:
            raise KeyTypeError(
                who,
                expected="key columns of one type (whole numbers may differ in width)",
                found=where,
                hint="Cast one of them so that the types agree.",
                **about,
            )
    return result


def _plain_string(kind: T.DataType) -> T.DataType:
    return T.StringType() if isinstance(kind, (T.VarcharType, T.CharType)) else kind


def key_names(sources: Sequence[Source]) -> str:
    """The key columns for people, those with several names as `id = order_id`."""
    keys = (
        dict.fromkeys(source.fields[i].name for source, i in zip(sources, place, strict=True))
        for place in zip(*(source.keys for source in sources), strict=True)
    )
    return ", ".join(" = ".join(names) for names in keys)


def row_bytes(fields: Iterable[T.StructField]) -> int:
    """About what a stored row takes: its columns by Spark's estimate, and the hash of its key."""
    return sum(_default_size(field.dataType) for field in fields) + 8


def _default_size(kind: T.DataType) -> int:
    """Spark's estimate of a value's size, `DataType.defaultSize`, which only a classic session would tell."""
    if isinstance(kind, T.StructType):
        return sum(_default_size(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _default_size(kind.elementType)
    if isinstance(kind, T.MapType):
        return _default_size(kind.keyType) + _default_size(kind.valueType)
    if isinstance(kind, T.DecimalType):
        return 8 if kind.precision <= 18 else 16
    return _SIZES.get(type(kind), 8)
