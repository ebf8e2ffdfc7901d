"""Punctuations in other types than the key's: never more is promised than was said, with ANSI mode on and off."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.errors import ColumnError, KeyTypeError, OptionError, PunctuationError
from watersmeet.spark.promises import Promised

ANSI = "spark.sql.ansi.enabled"
MIDNIGHT, MORNING = "timestamp_ntz'2024-02-29 00:00:00'", "timestamp_ntz'2024-02-29 10:00:00'"

EXACT: list[tuple[str, str, Any]] = [
    ("tinyint", "127L", 127),
    ("smallint", "-32768", -32768),
    ("int", "2.0D", 2),
    ("int", "2.00", 2),
    ("int", "'2'", 2),
    ("int", "cast(null as double)", None),
    ("int", "null", None),
    ("bigint", "2", 2),
    ("bigint", "cast(9223372036854774784 as double)", 9223372036854774784),
    ("double", "3", 3.0),
    ("double", "0.1", 0.1),
    ("float", "0.5D", 0.5),
    ("decimal(10,2)", "2.5D", Decimal("2.50")),
    ("decimal(10,2)", "7", Decimal("7.00")),
    ("date", MIDNIGHT, date(2024, 2, 29)),
    ("date", "'2024-02-29'", date(2024, 2, 29)),
    ("timestamp_ntz", "date'2024-02-29'", datetime(2024, 2, 29)),
    ("string", "'a'", "a"),
    ("string", "'a' collate UTF8_LCASE", "a"),
    ("binary", "'a'", b"a"),
    ("boolean", "'true'", True),
]
INEXACT = [
    ("tinyint", "128"),
    ("tinyint", "'128'"),
    ("smallint", "32768L"),
    ("int", "2.5D"),
    ("int", "2.5"),
    ("int", "'abc'"),
    ("int", "'2.5'"),
    ("int", "''"),
    ("int", "4294967298L"),
    ("int", "double('NaN')"),
    ("int", "double('Infinity')"),
    ("bigint", "9.3e18D"),
    ("bigint", "9223372036854775808"),
    ("bigint", "9223372036854775808D"),
    ("float", "0.1D"),
    ("double", "9007199254740993L"),
    ("double", "9223372036854775807L"),
    ("decimal(10,2)", "2.345"),
    ("decimal(4,2)", "100"),
    ("date", MORNING),
    ("date", "'2024-02-29 10:00'"),
    ("date", "'2024-02-30'"),
    ("timestamp_ntz", "'soon'"),
]
FOREIGN = [
    ("string", "2"),
    ("int", "true"),
    ("int", "date'2024-02-29'"),
    ("date", "1"),
    ("binary", "2"),
    ("int", "array(1)"),
]


@pytest.fixture(params=["true", "false"], ids=["ansi", "no ansi"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    before = spark.conf.get(ANSI)
    spark.conf.set(ANSI, request.param)
    yield spark
    spark.conf.set(ANSI, before)  # type: ignore[arg-type]


def promised(key_type: str) -> Promised:
    return Promised("punctuated_join", "right.k", T.DataType.fromDDL(key_type))


def column_of(session: SparkSession, given: Column) -> tuple[DataFrame, T.DataType]:
    frame = session.range(1).select(given.alias("k"))
    return frame, frame.schema["k"].dataType


def value(session: SparkSession, key_type: str, given: Column) -> Any:
    frame, kind = column_of(session, given)
    return frame.select(promised(key_type).value(F.col("k"), kind)).collect()[0][0]


def pattern(session: SparkSession, key_type: str, given: Column) -> tuple[Any, ...]:
    """The value, the ends and which of them are closed."""
    frame, kind = column_of(session, given)
    assert isinstance(kind, T.StructType)
    single, ends = promised(key_type).pattern(F.col("k"), kind)
    return tuple(frame.select(single, *ends).collect()[0])


def test_a_value_is_one_of_the_key_or_an_error(session: SparkSession) -> None:
    for key_type, given, expected in EXACT:
        found = value(session, key_type, F.expr(given))
        assert (found, type(found)) == (expected, type(expected)), (key_type, given)
    for key_type, given in INEXACT:
        with pytest.raises(PySparkException) as raised:
            value(session, key_type, F.expr(given))
        assert f"expected punctuations of right.k with values of type {key_type}, found " in str(raised.value), given
        with pytest.raises(PySparkException, match="with values of type"):
            pattern(session, key_type, wm.patterns.value(F.expr(given)))
    for key_type, given in FOREIGN:
        with pytest.raises(KeyTypeError, match=f"punctuations of right.k in its type, {key_type}, found "):
            value(session, key_type, F.expr(given))


def test_the_message_names_the_value(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as raised:
        value(spark, "int", F.expr("2.5D"))
    cause = wm.error(raised.value)
    assert isinstance(cause, PunctuationError)
    assert str(cause) in str(raised.value)
    assert str(cause) == (
        "punctuated_join: expected punctuations of right.k with values of type int, found 2.5 (double). "
        "Correct the punctuation, or cast it so that it promises what the source keeps."
    )


def test_ends_of_ranges_promise_what_was_said(session: SparkSession) -> None:
    for end in (-3, -2.5, -2.0, 2, 2.5, 2.9):
        decimal = F.lit(Decimal(str(end)))
        for given in (F.lit(end), decimal):
            for name, holds in (
                ("less_than", lambda key, end=end: key < end),
                ("at_most", lambda key, end=end: key <= end),
                ("at_least", lambda key, end=end: key >= end),
                ("greater_than", lambda key, end=end: key > end),
            ):
                _, low, high, low_closed, high_closed = pattern(session, "int", getattr(wm.patterns, name)(given))
                covered = {
                    key
                    for key in range(-6, 7)
                    if (low is None or key > low or (low_closed and key == low))
                    and (high is None or key < high or (high_closed and key == high))
                }
                assert covered == {key for key in range(-6, 7) if holds(key)}, (name, end)
    assert pattern(session, "int", wm.patterns.between(2, 2.0)) == (2, None, None, None, None)
    assert pattern(session, "int", wm.patterns.between(2, 2.5)) == (None, 2, 2, True, True)
    assert pattern(session, "date", wm.patterns.less_than(F.expr(MORNING)))[2:] == (date(2024, 2, 29), True, True)
    assert pattern(session, "date", wm.patterns.at_least(F.expr(MORNING)))[1:4:2] == (date(2024, 2, 29), False)
    assert pattern(session, "decimal(4,1)", wm.patterns.at_most(F.expr("2.25")))[2:] == (Decimal("2.3"), True, False)
    assert pattern(session, "string", wm.patterns.less_than("b"))[2:] == ("b", True, False)
    assert pattern(session, "int", wm.patterns.anything()) == (None, None, None, True, True)
    for key_type, said in (("int", 2**40), ("tinyint", -129), ("int", "abc"), ("int", "2.5")):
        for name in ("less_than", "at_least"):
            with pytest.raises(PySparkException, match=f"with values of type {key_type}"):
                pattern(session, key_type, getattr(wm.patterns, name)(said))


def test_a_pattern_of_ones_own_must_say_which_ends_belong_to_it(spark: SparkSession) -> None:
    given = "named_struct('low', 1, 'high', 2, 'low_closed', true, 'high_closed', cast(null as boolean))"
    with pytest.raises(PySparkException, match=r"right.k with high_closed true or false, found null. Build them"):
        pattern(spark, "int", F.expr(given))


def test_null_is_no_argument_of_a_pattern(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match=r"patterns.at_most: expected high = a value, found null. Filter"):
        wm.patterns.at_most(None)
    with pytest.raises(OptionError, match=r"patterns.one_of: expected values = a value"):
        wm.patterns.one_of(1, None)
    for made in (wm.patterns.less_than, wm.patterns.value, lambda end: wm.patterns.between(1, end)):
        with pytest.raises(PySparkException, match="= a value, found null"):
            pattern(spark, "int", made(F.expr("cast(null as int)")))


def test_sets_of_values_on_a_stream(session: SparkSession, tmp_path: Path) -> None:
    left = Feed(session, tmp_path / "left", "k int, a string")
    right = Feed(session, tmp_path / "right", "k int, b string")
    ends = Feed(session, tmp_path / "ends", "k array<double>")
    ends.send({"k": []}, {"k": [2.0, 4.0]}, {"k": []})
    for number in range(2):
        left.send(*({"k": k, "a": f"a{number}"} for k in (1, 2, 3)))
        right.send(*({"k": k, "b": f"b{number}"} for k in (1, 3)))

    def joined() -> DataFrame:
        return wm.punctuated_join(
            left.stream, right.stream, on="k", state_dir=tmp_path / "state", punctuations={"right": ends.stream}
        )

    run(joined(), tmp_path)
    assert rows(session.read.parquet(str(tmp_path / "out"))) == rows(left.batch.join(right.batch, "k"))
    for problem, message in (
        ([1.0, None], "values in a set of punctuations of right.k, found a null"),
        ([2.5], "found 2.5"),
    ):
        ends.send({"k": problem})
        with pytest.raises(StreamingQueryException, match=message) as caught:
            run(joined(), tmp_path)
        cause = wm.error(caught.value)
        assert isinstance(cause, PunctuationError)
        assert message in str(cause)
        ends.sent -= 1  # the file is written anew


def test_types_of_punctuations_are_checked_at_once(spark: SparkSession, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load()
    left, right = (rate.select(F.col("value").cast("int").alias("k"), F.lit(1).alias(name)) for name in "ab")

    def join(punctuations: DataFrame) -> DataFrame:
        return wm.punctuated_join(left, right, "k", state_dir=tmp_path / "state", punctuations={"right": punctuations})

    with pytest.raises(KeyTypeError, match=r"punctuations of right.k in its type, int, found boolean. Cast"):
        join(rate.select(F.lit(True).alias("k")))
    with pytest.raises(KeyTypeError, match="found array<int>"):
        join(rate.select(F.array(F.array(F.lit(1))).alias("k")))
    with pytest.raises(ColumnError, match="a pattern for 'k'"):
        join(rate.select(F.struct(F.lit(1).alias("low")).alias("k")))
    join(rate.select(wm.patterns.one_of().alias("k")))
