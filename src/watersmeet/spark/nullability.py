"""Where a type has room for nulls: in elements of arrays, values of maps, fields of structs.

Spark tells types apart by that, and by comments on the fields of structs. Two DataFrames with the same columns often
differ in it, because what is computed is known not to be null and what is read from a file is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import types as T


def loosened(kind: T.DataType) -> T.DataType:
    """The type with room for nulls wherever it can have some, and without comments.

    >>> loosened(T.ArrayType(T.IntegerType(), containsNull=False))
    ArrayType(IntegerType(), True)
    """
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(loosened(kind.elementType), True)
    if isinstance(kind, T.MapType):
        return T.MapType(loosened(kind.keyType), loosened(kind.valueType), True)
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, loosened(f.dataType), True) for f in kind.fields])
    return kind


def holds(kind: T.DataType, other: T.DataType) -> bool:
    """Whether values of a type that differs in nothing else fit: it has no room for nulls where the first has none.

    >>> strict, loose = (T.ArrayType(T.IntegerType(), nulls) for nulls in (False, True))
    >>> holds(loose, strict), holds(strict, loose)
    (True, False)
    """
    return all(room or not wanted for room, wanted in zip(_rooms(kind), _rooms(other), strict=True))


def in_full(kind: T.DataType) -> str:
    """The type as Spark writes it, with what cannot be null.

    >>> in_full(T.MapType(T.StringType(), T.ArrayType(T.IntegerType(), False), False))
    'map<string,array<int not null> not null>'
    """
    if isinstance(kind, T.ArrayType):
        return f"array<{_part(kind.elementType, kind.containsNull)}>"
    if isinstance(kind, T.MapType):
        return f"map<{in_full(kind.keyType)},{_part(kind.valueType, kind.valueContainsNull)}>"
    if isinstance(kind, T.StructType):
        return f"struct<{','.join(f'{f.name}:{_part(f.dataType, f.nullable)}' for f in kind.fields)}>"
    return kind.simpleString()


def _part(kind: T.DataType, nullable: bool) -> str:
    return f"{in_full(kind)}{'' if nullable else ' not null'}"


def _rooms(kind: T.DataType) -> Iterator[bool]:
    parts: list[tuple[T.DataType, bool]] = []
    if isinstance(kind, T.ArrayType):
        parts = [(kind.elementType, kind.containsNull)]
    elif isinstance(kind, T.MapType):
        parts = [(kind.keyType, False), (kind.valueType, kind.valueContainsNull)]
    elif isinstance(kind, T.StructType):
        parts = [(f.dataType, f.nullable) for f in kind.fields]
    for part, room in parts:
        yield room
        yield from _rooms(part)
