"""Keys and payload of every type through real Structured Streaming, against Spark's batch join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import watersmeet as wm
from watersmeet.errors import ColumnError

# Per key type, the values of which the rows have one each; the last row's key is null.
KEYS = {
    "tinyint": "tinyint(-128), tinyint(127), tinyint(0), tinyint(127)",
    "smallint": "smallint(-32768), smallint(0), smallint(0)",
    "int": "int(-2147483648), 2147483647, 2147483647",
    "bigint": "9007199254740993L, 9007199254740992L, bigint(-9223372036854775808), 9007199254740993L",
    "string": "'', 'ü', 'u\u0308', 'ü', ' '",
    "binary": "X'', X'00', X'0000', X'00'",
    "boolean": "true, false, true",
    "date": "date'0001-01-01', date'9999-12-31', date'2024-02-29', date'2024-02-29'",
    "timestamp": "timestamp'1900-01-01 00:00:00.000001', timestamp'2024-03-10 02:30:00', timestamp'1900-01-01'",
    "timestamp_ntz": "timestamp_ntz'1900-01-01 00:00:00.000001', timestamp_ntz'2024-03-10 02:30:00'",
    "decimal": "1.5BD, 1.50BD, cast('-12345678901234567890.123456789012345678' as decimal(38,18)), 0BD, -0.0BD",
    "float": "float('nan'), float(0.0), float('-0.0'), float(1.1), float('infinity'), float('nan')",
    "double": "double('nan'), 0.0D, double('-0.0'), 1.1D, double('-infinity'), double('nan')",
    "day-time interval": "interval '1 02:03:04.5' day to second, interval '0' day, interval '0' day",
    "year-month interval": "interval '1-2' year to month, interval '-100-0' year to month, interval '14' month",
    "time": "time'00:00:00', time'23:59:59.999999', time'00:00:00'",
}

PAYLOAD = {
    **{name: f"try_element_at(array({values}), n)" for name, values in KEYS.items()},
    "not null": "n",
    "metadata": "n",
    "char": "cast('ab' as char(5))",
    "collated": "collate('Ab', 'UTF8_LCASE')",
    "calendar interval": "if(n = 2, null, make_interval(1, -2, 3, n, 5, 6, -7.5))",
    "calendar interval, not null": "make_interval(0, n, 0, 0, 0, 0, 0.000001)",
    "year": "cast(make_ym_interval(n, 0) as interval year)",
    "nested intervals": "if(n = 2, null, array(struct(make_ym_interval(n) as a, map('x', interval '1' year) as b)))",
    "variant": """parse_json('{"a": [1, 2.5, "x", null]}')""",
    "array of variant": "array(parse_json('1'), null)",
    "void": "null",
    "array": "array(1, null, n)",
    "array, not null": "array(n, 2)",
    "array of arrays": "array(array(timestamp'2024-03-10 02:30:00'), null, array())",
    "map": "map('a', n, 'b', null)",
    "map of structs": "map(timestamp'2024-03-10 02:30:00', named_struct('x', if(n = 1, null, n), 'y', X'00'))",
    "struct": "if(n = 2, null, named_struct('x', n, 'y', named_struct('z', 'deep', 't', date'2024-02-29')))",
    "empty struct": "struct()",
    "struct with a name twice": "array(named_struct('a', n, 'a', 'x', 'a', timestamp'2024-03-10 02:30:00'))",
    "geometry": "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')",
    "empty string": "''",
    "wide": "repeat('wide ', 10000)",
}
NAMES = [
    "a.b",
    "`tick`",
    "it's",
    '"quoted"',
    "with space",
    "ключ",
    "_hash",
    "_k0",
    "_p0",
    "_s0",
    "_input",
    "c0",
    "CASE",
]


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    names = {name: name.replace("__", ".") for name in values}
    before = {name: spark.conf.get(names[name], None) for name in values}
    for name, value in values.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(names[name]) if value is None else spark.conf.set(names[name], value)


@pytest.fixture(scope="module")
def numbers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of rows (id, n), read one per micro-batch."""
    folder = tmp_path_factory.mktemp("numbers")
    for first in (0, 7):
        rows = spark.range(first, first + 7).select("id", (F.col("id") % 7 + 1).cast("int").alias("n"))
        rows.coalesce(1).write.mode("append").parquet(str(folder))
    return folder


def streamed(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("id long, n int").option("maxFilesPerTrigger", 1).parquet(str(folder))


def batch(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.schema("id long, n int").parquet(str(folder))


def run(joined: DataFrame, name: str) -> DataFrame:
    writer = joined.writeStream.format("memory").queryName(name).trigger(availableNow=True)
    writer.start().awaitTermination()
    return joined.sparkSession.table(name)


def texts(frame: DataFrame) -> Counter[tuple[str, ...]]:
    """Every column as text: exact for all types, those too that Spark does not compare."""

    def text(f: T.StructField) -> Column:
        quoted = F.col(f"`{f.name.replace('`', '``')}`")
        return (
            F.hex(F.call_function("st_asbinary", quoted))
            if isinstance(f.dataType, T.GeometryType)
            else quoted.cast("string")
        )

    return Counter(tuple(row) for row in frame.select(*map(text, frame.schema.fields)).collect())


def test_keys_of_every_type_match_as_in_a_batch_join(spark: SparkSession, numbers: Path, tmp_path: Path) -> None:
    """One join on a composite key of all types: each row varies one key column and has the others' first values."""
    kinds = [*KEYS, "int with long", "float with double"]
    values = KEYS | {"int with long": "2147483647, int(-1), 0, 0", "float with double": KEYS["float"]}
    wider = {"int with long": "bigint", "float with double": "double"}

    def side(read: DataFrame, label: str) -> DataFrame:
        rows = read.select("id", "n", F.posexplode(F.array(*map(F.lit, kinds))).alias("place", "kind"))
        columns = []
        for kind in kinds:
            choice = f"try_element_at(array({values[kind]}), if(kind = '{kind}', n, 1))"
            cast = f"cast({choice} as {wider[kind]})" if label == "r" and kind in wider else choice
            columns.append(F.expr(cast).alias(f"{label} {kind}"))
        return rows.select(F.concat_ws(" ", "kind", "id").alias(label), *columns)

    def answers(joined: DataFrame) -> Counter[tuple[str, ...]]:
        return Counter(tuple(row) for row in joined.select("l", "r").collect())

    with settings(spark, spark__sql__timeType__enabled="true", spark__sql__session__timeZone="America/New_York"):
        left, right = side(batch(spark, numbers), "l"), side(batch(spark, numbers), "r")
        wanted = answers(left.join(right, [left[f"l {kind}"] == right[f"r {kind}"] for kind in kinds]))
        streams = side(streamed(spark, numbers), "l"), side(streamed(spark, numbers), "r")
        on = [(f"l {kind}", f"r {kind}") for kind in kinds]
        found = answers(run(wm.progressive_join(*streams, on, state_dir=tmp_path / "streams"), "keys"))
        table = wm.join(streams[0], right, on, state_dir=tmp_path / "table", operator="broadcast")
        with_table = answers(run(table, "keys_of_a_table"))
    assert len(wanted) > 14 * len(kinds)
    assert found == wanted
    assert with_table == wanted


def test_payload_of_every_type_and_the_schema_of_a_batch_join(
    spark: SparkSession, numbers: Path, tmp_path: Path
) -> None:
    def both(read: DataFrame) -> tuple[DataFrame, DataFrame]:
        def columns(side: str) -> list[Column]:
            typed = [F.expr(sql).alias(f"{side} {name}") for name, sql in PAYLOAD.items()]
            return typed + [F.col("n").alias(f"{name} {side}", metadata={"side": side}) for name in NAMES]

        # The key of the left is never null, that of the right may be.
        left = read.select(*columns("l"), (F.col("n") + F.lit(0)).alias("k.e`y"), F.lit("x").alias("second"))
        right = read.select(F.lit("x").alias("second"), *columns("r"), F.expr("nullif(n, 3)").alias("k.e`y"))
        return left, right

    with settings(
        spark,
        spark__sql__timeType__enabled="true",
        spark__sql__geospatial__enabled="true",
        spark__sql__session__timeZone="America/New_York",
    ):
        left, right = both(batch(spark, numbers))
        # Spark's own join by name does not take names with dots: the same columns by hand.
        plain = [
            left.toDF(*(f"l{i}" for i in range(len(left.columns)))),
            right.toDF(*(f"r{i}" for i in range(len(right.columns)))),
        ]
        at = [[frame.columns.index(name) for name in ("k.e`y", "second")] for frame in (left, right)]
        matched = plain[0].join(plain[1], [plain[0][f"l{i}"] == plain[1][f"r{j}"] for i, j in zip(*at, strict=True)])
        fields = [left.schema[i] for i in at[0]]
        chosen = [f"l{i}" for i in at[0]]
        for side, frame, keys in (("l", left, at[0]), ("r", right, at[1])):
            others = [i for i in range(len(frame.columns)) if i not in keys]
            fields += [frame.schema[i] for i in others]
            chosen += [f"{side}{i}" for i in others]
        joined = wm.progressive_join(*both(streamed(spark, numbers)), ["k.e`y", "second"], state_dir=tmp_path / "state")
        assert joined.schema.jsonValue() == T.StructType(fields).jsonValue()
        found, wanted = texts(run(joined, "payload")), texts(matched.select(*chosen))
        stream, keys = both(streamed(spark, numbers))[0], ["k.e`y", "second"]
        table = wm.join(stream, right, keys, state_dir=tmp_path / "table", operator="broadcast")
        assert table.schema.jsonValue() == joined.schema.jsonValue()
        with_table = texts(run(table, "payload_of_a_table"))
    assert sum(wanted.values()) == 6 * 4
    assert found == wanted
    assert with_table == wanted


def test_schema_is_that_of_spark_for_names_pairs_and_widths(spark: SparkSession, numbers: Path, tmp_path: Path) -> None:
    def check(name: str, left: list[str], right: list[str], on: str | list[str] | list[tuple[str, str]]) -> None:
        plain, streams = (
            [read(spark, numbers).selectExpr(*columns) for columns in (left, right)] for read in (batch, streamed)
        )
        if isinstance(on, list) and isinstance(on[0], tuple):
            expected = plain[0].join(plain[1], [plain[0][a] == plain[1][b] for a, b in on])
        else:
            expected = plain[0].join(plain[1], on)
        joined = wm.progressive_join(*streams, on, state_dir=tmp_path / name)
        assert joined.schema.jsonValue() == expected.schema.jsonValue()

    check("one", ["id as x", "n as k"], ["id as y", "n as k"], "k")
    check("nullability", ["id as x", "1 as k"], ["coalesce(id, 1L) as y", "n as k"], "k")
    check("widths", ["id as x", "cast(n as smallint) as k"], ["id as y", "bigint(n) as k"], ["k"])
    check("pairs", ["id as x", "n as k"], ["n as j", "id as y"], [("k", "j"), ("x", "y")])
    check("no payload", ["n as k"], ["n as k"], "k")
    check("case", ["n as K"], ["n as k", "id as y"], "k")


def test_many_columns_on_one_side_and_none_on_the_other(spark: SparkSession, numbers: Path, tmp_path: Path) -> None:
    def both(read: DataFrame) -> tuple[DataFrame, DataFrame]:
        many = [F.expr(f"n * {i}" if i % 3 else f"repeat('x', n + {i} % 5)").alias(f"c{i}") for i in range(300)]
        return read.select("id", *many), read.select((F.col("id") % 5).alias("id"))

    stream = spark.readStream.schema("id long, n int").parquet(str(numbers))
    # Spark can be told to compare names and nullability of what Python returns.
    with settings(spark, spark__sql__execution__arrow__pyspark__validateSchema__enabled="true"):
        found = run(wm.progressive_join(*both(stream), "id", state_dir=tmp_path), "many").collect()
    left, right = both(batch(spark, numbers))
    wanted = left.join(right, "id").collect()
    assert len(found) == 14
    assert Counter(found) == Counter(wanted)


@pytest.mark.parametrize(
    ("sql", "kind"),
    [("array(make_interval(1))", "array<interval>"), ("named_struct('v', array())", "struct<v:array<void>>")],
)
def test_what_cannot_be_carried_is_refused(
    spark: SparkSession, numbers: Path, tmp_path: Path, sql: str, kind: str
) -> None:
    left = streamed(spark, numbers).select("id", F.expr(sql).alias("odd"))
    with pytest.raises(ColumnError) as error:
        wm.progressive_join(left, streamed(spark, numbers).select("id"), "id", state_dir=tmp_path)
    assert str(error.value) == (
        f"progressive_join: expected columns of types that Spark can hand to Python, found left.odd: {kind}. Cast the "
        "column to another type before the join (an interval inside another type to string)."
    )
