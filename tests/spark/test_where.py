"""Conditions on pairs: the answer of Spark's batch join in every family and type, and Spark's own evaluation of random
conditions over awkward values."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from tests.spark.feed import Feed, diagonal, rows, run
from tests.spark.test_join_types import FAMILIES, KEYS, TYPES, Streams

import watersmeet as wm
from watersmeet.errors import ColumnError, ConditionError, OptionError, StateMismatchError
from watersmeet.join.condition import Condition
from watersmeet.spark.conditions import Where
from watersmeet.spark.schema import Source, arrow_type, common_key_types


@pytest.mark.parametrize(("how", "family"), diagonal(TYPES, list(FAMILIES)))
def test_each_type_in_each_family(spark: SparkSession, tmp_path: Path, family: str, how: str) -> None:
    """The right input's columns are in no output of a semi or anti join, and travel all the same."""
    streams = Streams(spark, tmp_path)
    text = "l.a - 8 < 4 and right.b <= 'b5' and (right.seen > l.at - interval 5 seconds or coalesce(j, 'x') = 'x')"

    def joined() -> DataFrame:
        left = streams.left.stream.alias("l")
        right = streams.right.stream.withColumnRenamed("j", "jj")
        on = [("k", "k2"), ("j", "jj")]
        options = {"how": how, "state_dir": tmp_path / "state", "where": text}
        return FAMILIES[family](left, right.withColumnRenamed("k", "k2"), on, **options)

    found = joined()
    other = streams.right.batch.withColumnsRenamed({"j": "jj", "k": "k2"}).alias("right")
    on = F.expr(f"k = k2 and j = jj and {text}")
    wanted = streams.left.batch.alias("l").join(other, on, how)
    assert [(f.name, f.dataType) for f in found.schema] == [(f.name, f.dataType) for f in wanted.schema]
    run(found, tmp_path)
    for name in ("left", "right"):
        wm.end_input(tmp_path / "state", name)
    run(joined(), tmp_path)
    answer = rows(streams.result(found.schema))
    assert answer == rows(wanted)
    plain = streams.left.batch.join(other, F.expr("k = k2 and j = jj"), how)
    assert answer != rows(plain)
    assert not any(row.rows for row in wm.read_state(spark, tmp_path / "state").collect())


# -- random conditions

SCHEMA = (
    "id int, b byte, s short, i int, l long, f float, d double, m decimal(10,2), n decimal(38,0), t string, x binary, "
    "day date, ts timestamp, nz timestamp_ntz, iv interval day to second, yes boolean"
)
BIG = {"b": 127, "s": 32767, "i": 2**31 - 1, "l": 2**63 - 1}
NAN, INF = float("nan"), float("inf")
EPOCH = datetime(1970, 1, 1)


def values(rng: random.Random, number: int, *, hostile: bool) -> tuple[Any, ...]:
    """A row of awkward values; those that can overflow only if it is to be."""

    def maybe(*choices: Any) -> Any:
        return None if rng.random() < 0.15 else rng.choice(choices)

    def whole(name: str) -> Any:
        ends = (BIG[name], -BIG[name] - 1) if hostile else (7, -7)
        if number < 2:
            return ends[number]
        return maybe(0, 1, -1, 2, *ends)

    floats = (0.0, -0.0, 1.5, -1.5, NAN, INF, -INF, 2.0, 16777217.0, 1e-40)
    return (
        number,
        *(whole(name) for name in "bsil"),
        maybe(*floats),
        maybe(*floats, 0.1, 9007199254740993.0),
        maybe(Decimal("0.00"), Decimal("1.50"), Decimal("-1.50"), Decimal("99999999.99")),
        maybe(Decimal(0), Decimal(2), Decimal(10**37)),
        maybe("", "a", "A", "ab", "ä", "\uffff", "\U0001f600", "a%b", "a_b", "a\nb"),
        maybe(b"", b"\x00", b"\x7f", b"\x80", b"\xff\x00"),
        maybe(date(1970, 1, 1), date(1969, 12, 31), date(9999, 12, 31)),
        maybe(*(EPOCH + timedelta(microseconds=us) for us in (0, 1, -1, 10**14))),
        maybe(*(EPOCH + timedelta(microseconds=us) for us in (0, 1, -1, 10**14))),
        maybe(timedelta(0), timedelta(microseconds=1), timedelta(days=-3), timedelta(hours=5)),
        maybe(True, False),
    )


class Conditions:
    """Random conditions, with and without parentheses."""

    COMPARED = ("=", "<=>", "<>", "!=", "<", "<=", ">", ">=", "==")
    CONSTANTS: ClassVar[dict[str, list[str]]] = {
        "number": ["0", "1", "-1", "2.5", "1.5D", "7L", "3Y", "1e0", "NULL", "-0.0D"],
        "text": ["''", "'a'", "'ab'", "'it\\'s'", "NULL"],
        "binary": ["X'80'"],
        "day": ["DATE '1970-01-01'", "'1969-12-31'", "date '2020-02-29'"],
        "ts": ["TIMESTAMP '1970-01-01 00:00:00'", "'1970-01-01'", "TIMESTAMP '1970-01-01'"],
        "nz": ["TIMESTAMP_NTZ '1970-01-01 00:00:00'", "'1970-01-01 00:00:01'"],
        "iv": ["INTERVAL 5 HOURS", "INTERVAL '1 2:03:04' DAY TO SECOND", "INTERVAL '3' DAYS"],
        "truth": ["true", "FALSE"],
    }

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def pick(self, *choices: str) -> str:
        return self.rng.choice(choices)

    def column(self, *names: str) -> str:
        return f"{self.pick('left', 'right', 'LEFT')}.{self.pick(*names)}"

    def number(self, depth: int) -> str:
        kind = self.rng.random()
        if depth <= 0 or kind < 0.4:
            return self.column(*"bsilfd")
        if kind < 0.5:
            return self.pick("1", "2L", "-3", "1.5D", "2S")
        if kind < 0.6:
            return f"abs({self.number(depth - 1)})"
        if kind < 0.7:
            return f"- {self.number(depth - 1)}" if self.rng.random() < 0.5 else f"(-({self.number(depth - 1)}))"
        if kind < 0.8:
            return f"coalesce({self.number(depth - 1)}, {self.number(0)})"
        text = f"{self.number(depth - 1)} {self.pick('+', '-', '*')} {self.number(depth - 1)}"
        return f"({text})" if self.rng.random() < 0.6 else text

    def operands(self, kind: str) -> tuple[str, str]:
        constant = self.rng.choice(self.CONSTANTS[kind])
        if kind == "number":
            one = self.pick(self.number(2), self.column("m"), self.column("b", "i", "l", "n"))
            other = self.pick(self.number(1), constant, self.column("m")) if ".n" not in one else self.column("n", "i")
            return one, other
        if kind == "ts":
            moved = f"{self.column('ts')} {self.pick('+', '-')} {self.pick('INTERVAL 5 MINUTES', self.column('iv'))}"
            return self.column("ts"), self.pick(moved, constant, self.column("ts"))
        if kind == "iv":
            return self.pick(f"({self.column('ts')} - {self.column('ts')})", self.column("iv")), constant
        name = {"text": "t", "binary": "x", "truth": "yes"}.get(kind, kind)
        return self.column(name), self.pick(self.column(name), constant)

    def atom(self) -> str:
        kind = self.rng.choice([*self.CONSTANTS, "number", "number"])
        one, other = self.operands(kind)
        shape = self.rng.random()
        if shape < 0.6 and other != "NULL":
            return f"{one} {self.pick(*self.COMPARED)} {other}"
        if shape < 0.7:
            return f"({one}) IS {self.pick('', 'NOT')} NULL"
        if kind == "text" and shape < 0.8:
            return f"{one} {self.pick('', 'NOT')} LIKE '{self.pick('a%', '_', '%b', '%')}'"
        if shape < 0.85:
            return f"{one} {self.pick('', 'NOT')} BETWEEN {one} AND {other}"
        listed = ", ".join([other, one] if kind == "number" else [other, self.rng.choice(self.CONSTANTS[kind])])
        return f"{one} {self.pick('', 'NOT')} IN ({listed})"

    def condition(self, depth: int = 2) -> str:
        if depth == 0 or self.rng.random() < 0.2:
            return self.atom()
        if self.rng.random() < 0.2:
            return f"{self.pick('NOT', '!')} ({self.condition(depth - 1)})"
        text = f"{self.condition(depth - 1)} {self.pick('AND', 'OR', 'and')} {self.condition(depth - 1)}"
        return f"({text})" if self.rng.random() < 0.5 else text


class Evaluated:
    """Pairs of awkward rows, and conditions evaluated on them here and by Spark."""

    def __init__(self, spark: SparkSession, seed: int, *, hostile: bool) -> None:
        rng = random.Random(seed)
        self.frames = [
            spark.createDataFrame([values(rng, n, hostile=hostile) for n in range(12)], SCHEMA).coalesce(1)
            for _ in range(2)
        ]
        self.sources = [
            Source(name, frame, [0], list(range(1, len(frame.columns))))
            for name, frame in zip(("left", "right"), self.frames, strict=True)
        ]
        self.key_types = common_key_types("test", self.sources)
        self.tables = []
        for frame in self.frames:
            table = frame.toArrow()
            kinds = [arrow_type(field.dataType) for field in frame.schema]
            columns = [column.cast(kind) for column, kind in zip(table.columns, kinds, strict=True)]
            names = ["_k0", *(f"_p{n}" for n in range(len(columns) - 1))]
            self.tables.append(pa.table(dict(zip(names, columns, strict=True))).combine_chunks())

    def here(self, text: str) -> list[bool]:
        sides = {source.name: source for source in self.sources}
        plan = Where("test", text, sides).plan(self.sources, self.key_types)
        i, j = (a.ravel() for a in np.meshgrid(np.arange(12), np.arange(12), indexing="ij"))
        return Condition.of(plan).holds((self.tables[0], i), (self.tables[1], j)).tolist()

    def spark(self, texts: list[str]) -> list[list[bool]]:
        pairs = self.frames[0].alias("left").crossJoin(self.frames[1].alias("right"))
        columns = [F.expr(f"coalesce({text}, false)").alias(f"c{n}") for n, text in enumerate(texts)]
        found = pairs.select(F.col("left.id").alias("i"), F.col("right.id").alias("j"), *columns).orderBy("i", "j")
        table = found.toArrow()
        return [table.column(f"c{n}").to_pylist() for n in range(len(texts))]


@contextmanager
def ansi(spark: SparkSession, value: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", value)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


@pytest.mark.parametrize(("mode", "hostile"), [("true", False), ("false", True)], ids=["ANSI", "wrapping around"])
def test_random_conditions_mean_what_they_mean_for_spark(spark: SparkSession, mode: str, hostile: bool) -> None:
    """What is refused is refused for a reason that is known; all else has Spark's answer for each pair."""
    with ansi(spark, mode):
        pairs, made = Evaluated(spark, 5, hostile=hostile), Conditions(11)
        answers: dict[str, list[bool]] = {}
        refused: list[str] = []
        while len(answers) < 120:
            text = made.condition()
            try:
                answers[text] = pairs.here(text)
            except OptionError as error:
                refused.append(str(error))
        assert len(refused) < len(answers)
        assert [one for one in refused if "it compares" not in one and "its parts are of types" not in one] == []
        for text, found in zip(answers, pairs.spark(list(answers)), strict=True):
            assert answers[text] == found, text
        assert sum(0 < sum(found) < 144 for found in answers.values()) > 50


def test_an_overflow_is_an_error_as_for_spark(spark: SparkSession) -> None:
    pairs = Evaluated(spark, 5, hostile=True)
    for text in ("left.i + right.i > 0", "abs(left.l) > 1", "- left.b = 3", "left.l * right.s = 1"):
        with pytest.raises(ConditionError, match="overflow"):
            pairs.here(text)
    # What Spark does not evaluate cannot overflow.
    for text in ("left.i < 100 and left.i > -100 and right.i between -9 and 9 and left.i + right.i > 0",):
        assert pairs.here(text) == pairs.spark([text])[0]
    with ansi(spark, "false"):
        assert any(pairs.here("left.i + right.i < left.i and right.i > 0"))


REFUSED = {
    "left.t = 1": "it compares string and int",
    "left.day = right.ts": "it compares date and timestamp",
    "left.i % 2 = 0": "conditions have nothing like it",
    "upper(left.t) = 'A'": "conditions have nothing like it",
    "rand() < 0.5": "conditions have nothing like it",
    "left.i": "it is of type int",
    "left.i > 1 and left.i": "it is of type int",
    "left.m + right.m > 1": "its parts are of types decimal",
    "left.i * 1.5 > 1": "its parts are of types int and decimal",
    "left.t like right.t": "LIKE needs text and a constant pattern",
    "left.t like 'a\\\\%'": "the pattern has an escape",
    "left.day + 1 > right.day": "its parts are of types date and int",
    "left.ts > right.ts + interval 1 month": "it is of type interval month",
    "left.i in (select 1)": "it is no list of values",
    "left.i is true": "only IS NULL is known",
    "other.i > 1": "no input is called 'other'.*The inputs are left, right",
    "i > 1": "both inputs have a column 'i'",
    "nothing > 1": "no input has a column 'nothing'",
    "left.a.b > 1": "it is a field of a column",
    "left.i >": "a condition in Spark's SQL",
    "left.i > 1; drop table x": "conditions have nothing like it",
    "left.n = right.m": "it compares decimal",
    "left.ts = TIMESTAMP 'nonsense'": "nonsense",
    "": "a SQL condition as text",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_evaluated_is_refused_with_the_reason(spark: SparkSession, text: str) -> None:
    pairs = Evaluated(spark, 5, hostile=False)
    with pytest.raises(OptionError, match=f"(?s){REFUSED[text]}") as caught:
        pairs.here(text)
    assert caught.value.option == "where"


def test_days_of_a_zone(spark: SparkSession) -> None:
    """A day of Spark's is one of the calendar, which has 23 hours once a year in most zones."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    pairs = Evaluated(spark, 5, hostile=False)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        for text in (
            "left.ts < right.ts + interval 1 day",
            "left.ts - right.ts > interval 1 hour",
            "left.ts + right.iv > left.ts",
        ):
            with pytest.raises(
                OptionError, match="days have different lengths in the session's time zone, Europe/Berlin"
            ):
                pairs.here(text)
        for text in ("left.ts < right.ts + interval 23 hours", "left.nz < right.nz + interval 9 days"):
            assert pairs.here(text) == pairs.spark([text])[0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


@pytest.mark.classic("it sets the time zone of Spark's machine")
def test_a_zone_that_is_not_set_is_that_of_the_machine(spark: SparkSession) -> None:
    zone, java = spark.conf.get("spark.sql.session.timeZone"), spark._jvm.java.util.TimeZone
    machine, pairs = java.getDefault(), Evaluated(spark, 5, hostile=False)
    spark.conf.unset("spark.sql.session.timeZone")
    java.setDefault(java.getTimeZone("Europe/Berlin"))
    try:
        with pytest.raises(OptionError, match="days have different lengths in the session's time zone, Europe/Berlin"):
            pairs.here("left.ts < right.ts + interval 1 day")
    finally:
        java.setDefault(machine)
        spark.conf.set("spark.sql.session.timeZone", str(zone))


@pytest.mark.parametrize(
    "text", ["left.v = 'a'", "left.v and left.a = 'a'", "left.v is null", "coalesce(left.v, left.a) = 'a'"]
)
@pytest.mark.every_session
def test_a_column_without_a_type_is_refused(spark: SparkSession, text: str) -> None:
    """Of type void, as `F.lit(None)` is."""
    sides = {
        name: Source(name, spark.sql("SELECT 1L AS k, 'a' AS a, NULL AS v"), [0], [1, 2]) for name in ("left", "right")
    }
    where = Where("test", text, sides)
    with pytest.raises(OptionError, match=r"it is of type void\. Cast the column before the join\."):
        where.plan(list(sides.values()), [T.LongType()])


def test_keys_of_two_widths_and_keys_that_are_null(spark: SparkSession, tmp_path: Path) -> None:
    """A condition sees a key as its input has it: of its own width, and null where it is null."""
    left, right = Feed(spark, tmp_path / "l", "k int, a int"), Feed(spark, tmp_path / "r", "k long, b int")
    left.send({"k": None, "a": 1}, {"k": 2, "a": 2}, {"k": 3, "a": 3})
    right.send({"k": None, "b": 1}, {"k": 2, "b": 2}, {"k": 3, "b": 1})
    text = "left.k is null or left.k + 0 <= b"
    options: dict[str, Any] = {"how": "left", "nulls_match": True, "where": text, "state_dir": tmp_path / "state"}
    joined = wm.progressive_join(left.stream, right.stream, "k", **options)
    for name in ("left", "right"):
        wm.end_input(tmp_path / "state", name)
    run(joined, tmp_path)
    found = spark.read.schema(joined.schema).parquet(str(tmp_path / "out"))
    assert rows(found) == {(None, 1, 1): 1, (2, 2, 2): 1, (3, 3, None): 1}


def test_the_condition_belongs_to_the_state(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    left, right = streams.left.stream, streams.right.stream
    options: dict[str, Any] = {"on": KEYS, "state_dir": tmp_path / "state"}
    run(wm.progressive_join(left, right, where="left.a > 3", **options), tmp_path)
    metrics = wm.read_metrics(spark, tmp_path / "state").agg(F.sum(F.col("counters")["pairs_rejected"])).first()
    assert metrics is not None
    assert metrics[0] > 0
    with pytest.raises(StateMismatchError, match="where"):
        wm.progressive_join(left, right, where="left.a > 4", **options)
    with pytest.raises(StateMismatchError, match="where"):
        wm.progressive_join(left, right, **options)
    with pytest.raises(OptionError, match="several names"):
        wm.progressive_join(left.alias("l"), right, where="l.a > 3 and left.a < 9", **options)
    marked = right.withColumn("end", F.col("b") == "b3")
    with pytest.raises(ColumnError, match="which marks punctuations"):
        wm.punctuated_join(
            left, marked, where="right.end", punctuations={"right": wm.PunctuationRows("end")}, **options
        )
