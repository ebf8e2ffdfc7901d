"""Join types through Structured Streaming: the answer and the schema of PySpark's batch join of the same data."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from tests.spark.feed import Feed, diagonal, rows, run

import watersmeet as wm
from watersmeet.errors import OptionError, StateMismatchError

TYPES = ["inner", "left", "right", "full", "left_semi", "left_anti"]
PAIRED = ("left", "full", "left_anti")  # types that run with keys of two names; the others run with one
KEYS = ["k", "j"]
START = datetime(2026, 1, 1)

Join = Callable[..., DataFrame]
FAMILIES: dict[str, Join] = {
    "progressive": wm.progressive_join,
    "budget": lambda *args, **options: wm.progressive_join(*args, memory="256 KB", page_rows=16, buckets=3, **options),
    "window": lambda *args, **options: wm.window_join(*args, time=("at", "seen"), window="1 hour", **options),
    "punctuated": wm.punctuated_join,
}


class Streams:
    """Two inputs with null and composite keys, in several files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.left = Feed(spark, folder / "l", "k long, j string, a long, at timestamp")
        self.right = Feed(spark, folder / "r", "k long, j string, b string, seen timestamp")
        for part in range(3):
            self.left.send(*(self._row(3 * i + part, a=i, at=START + timedelta(seconds=i)) for i in range(20)))
            self.right.send(*(self._row(4 * i + part, b=f"b{i}", seen=START + timedelta(seconds=i)) for i in range(20)))

    @staticmethod
    def _row(number: int, **payload: Any) -> dict[str, Any]:
        key = {"k": None if number % 11 == 0 else number % 40, "j": None if number % 13 == 0 else "xyz"[number % 2]}
        return {**key, **payload}

    def joined(self, join: Join, on: Any, how: str) -> DataFrame:
        return join(self.left.stream, self.right.stream, on, how=how, state_dir=self.folder / "state")

    def result(self, schema: T.StructType) -> DataFrame:
        return self.spark.read.schema(schema).parquet(str(self.folder / "out"))


def shape(frame: DataFrame) -> list[tuple[str, T.DataType, bool]]:
    return [(field.name, field.dataType, field.nullable) for field in frame.schema]


@pytest.mark.parametrize(("how", "family"), diagonal(TYPES, list(FAMILIES), times=2))
def test_types_in_families(spark: SparkSession, tmp_path: Path, family: str, how: str) -> None:
    streams = Streams(spark, tmp_path)
    joined = streams.joined(FAMILIES[family], KEYS, how)
    wanted = streams.left.batch.join(streams.right.batch, KEYS, how)
    assert shape(joined) == shape(wanted)
    run(joined, tmp_path)
    for name in ("left", "right"):
        wm.end_input(tmp_path / "state", name)
    run(streams.joined(FAMILIES[family], KEYS, how), tmp_path)  # a restart, which learns of the ends
    assert rows(streams.result(joined.schema)) == rows(wanted)
    held = {row.input: row.rows for row in wm.read_state(spark, tmp_path / "state").collect()}
    assert not any(held.values())


@pytest.mark.parametrize("how", TYPES)
def test_columns_of_pairs_of_names_and_of_keys_of_two_widths(spark: SparkSession, tmp_path: Path, how: str) -> None:
    """Names that differ in case, whole numbers of two widths, columns that are never null."""
    strict = T.StructType([T.StructField("K", T.IntegerType(), False), T.StructField("a", T.StringType(), False)])
    loose = T.StructType([T.StructField("k", T.LongType()), T.StructField("b", T.StringType())])
    left = spark.readStream.schema(strict).json(str(_folder(tmp_path / "l", '{"K": 1, "a": "x"}\n{"K": 2, "a": "y"}')))
    right = spark.readStream.schema(loose).json(str(_folder(tmp_path / "r", '{"k": 2, "b": "z"}\n{"k": 3}\n{}')))
    static = [
        spark.createDataFrame([(1, "x"), (2, "y")], strict),
        spark.createDataFrame([(2, "z"), (3, None), (None, None)], loose),
    ]
    for name, on, wanted in (
        ("shared", "K", static[0].join(static[1], "K", how)),
        ("pairs", [("K", "n")], None),
    ):
        other, other_static = right, static[1]
        if wanted is None:
            other, other_static = right.withColumnRenamed("k", "n"), static[1].withColumnRenamed("k", "n")
            wanted = static[0].join(other_static, F.col("K") == F.col("n"), how)
        state, out = tmp_path / f"state-{name}", tmp_path / f"run-{name}"
        joined = wm.progressive_join(left, other, on, state_dir=state, how=how)
        # A file source makes every column nullable, so only the types and the names can be compared.
        assert [one[:2] for one in shape(joined)] == [one[:2] for one in shape(wanted)]
        if (name == "pairs") != (how in PAIRED):
            continue
        wm.end_input(state, "left")
        wm.end_input(state, "right")
        out.mkdir()
        run(joined, out)
        assert rows(spark.read.schema(joined.schema).parquet(str(out / "out"))) == rows(wanted)


def _folder(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "0.json").write_text(text)
    return folder


def test_nullable_columns_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A rate source has columns that are never null."""
    rate = spark.readStream.format("rate").load()
    left = rate.select(F.col("value").alias("k"), F.col("value").alias("a"))
    right = rate.select(F.col("value").alias("k"), F.col("value").alias("b"))
    static = spark.range(3).select(F.col("id").alias("k"), F.col("id").alias("a"))
    other = spark.range(3).select(F.col("id").alias("k"), F.col("id").alias("b"))
    not_null = [all(not field.nullable for field in frame.schema) for frame in (static, other)]
    assert not_null == [True, True]
    strict = [_never_null(frame, spark) for frame in (left, right)]
    for how in TYPES:
        joined = wm.progressive_join(*strict, "k", state_dir=tmp_path / how, how=how)
        assert shape(joined) == shape(static.join(other, "k", how)), how
        pairs = wm.progressive_join(
            strict[0], strict[1].withColumnRenamed("k", "n"), [("k", "n")], state_dir=tmp_path / f"{how}-pairs", how=how
        )
        named = other.withColumnRenamed("k", "n")
        assert shape(pairs) == shape(static.join(named, static.k == named.n, how)), how


def _never_null(frame: DataFrame, spark: SparkSession) -> DataFrame:
    return frame.select(*(F.coalesce(F.col(name), F.lit(0).cast("long")).alias(name) for name in frame.columns))


def test_a_left_join_with_itself_and_a_chain_of_joins(spark: SparkSession, tmp_path: Path) -> None:
    people = Feed(spark, tmp_path / "p", "id long, boss long, name string")
    people.send({"id": 1, "boss": None, "name": "Ada"}, {"id": 2, "boss": 1, "name": "Bob"})
    people.send({"id": 3, "boss": 2, "name": "Cid"}, {"id": 4, "boss": 9, "name": "Dot"})
    bosses = people.stream.select(F.col("id").alias("boss_id"), F.col("name").alias("boss_name"))
    first = wm.progressive_join(people.stream, bosses, [("boss", "boss_id")], state_dir=tmp_path / "first", how="left")
    run(first, tmp_path)
    for name in ("left", "right"):
        wm.end_input(tmp_path / "first", name)
    run(first, tmp_path)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert {row.name: row.boss_name for row in found.collect()} == {
        "Ada": None,
        "Bob": "Ada",
        "Cid": "Bob",
        "Dot": None,
    }
    # A join of joins: one on either side, and ends of all of them, which travel through the union of the last.
    (tmp_path / "chain").mkdir()
    plain, same = (
        wm.progressive_join(people.stream, bosses, [("boss", "boss_id")], state_dir=tmp_path / name, how="left")
        for name in ("third", "fourth")
    )
    again = same.select(F.col("id").alias("n"), F.col("boss_name").alias("again"))
    chained = wm.progressive_join(plain, again, [("boss", "n")], state_dir=tmp_path / "fifth", how="full")
    run(chained, tmp_path / "chain")
    for state in ("third", "fourth", "fifth"):
        for name in ("left", "right"):
            wm.end_input(tmp_path / state, name)
    run(chained, tmp_path / "chain")
    found = spark.read.parquet(str(tmp_path / "chain" / "out"))
    assert {(row.name, row.boss_name, row.again) for row in found.collect()} == {
        ("Ada", None, None),
        ("Bob", "Ada", None),
        ("Cid", "Bob", "Ada"),
        ("Dot", None, None),
        (None, None, "Bob"),
        (None, None, None),
    }


def test_metrics_tell_why_rows_are_unmatched(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    run(streams.joined(FAMILIES["window"], KEYS, "left"), tmp_path)
    wm.end_input(tmp_path / "state", "right")
    run(streams.joined(FAMILIES["window"], KEYS, "left"), tmp_path)
    counters: dict[str, float] = {}
    for row in wm.read_metrics(spark, tmp_path / "state").collect():
        for name, value in row.counters.items():
            if name.startswith("unmatched."):
                counters[name] = counters.get(name, 0) + value
    wanted = streams.left.batch.join(streams.right.batch, KEYS, "left_anti")
    assert sum(counters.values()) == wanted.count()
    assert counters["unmatched.left.null_key"] == wanted.where("k is null or j is null").count()
    assert set(counters) == {"unmatched.left.null_key", "unmatched.left.ended"}


def test_a_silent_input_does_not_hold_unmatched_rows_back(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "l", "k long, a long, at timestamp")
    right = Feed(spark, tmp_path / "r", "k long, b long, seen timestamp")
    left.send(*({"k": i, "a": i, "at": START + timedelta(seconds=i)} for i in range(10)))
    right.send({"k": 0, "b": 0, "seen": START})
    joined = wm.window_join(
        left.stream,
        right.stream,
        "k",
        state_dir=tmp_path / "state",
        how="left",
        time=("at", "seen"),
        window="10 s",
        lateness="0 s",
        idle_timeout="1 s",
        partitions=1,
    )
    query = (
        joined.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        left.send(*({"k": i, "a": i, "at": START + timedelta(seconds=i)} for i in range(100, 102)))
        for _ in range(200):
            if query.exception() is not None:
                raise query.exception()
            query.processAllAvailable()
            out = tmp_path / "out"
            found = rows(spark.read.schema(joined.schema).parquet(str(out))) if list(out.glob("*.parquet")) else {}
            if len(found) == 10:
                break
        assert sorted(row[0] for row in found) == list(range(10))  # those of 100 s and later still wait
    finally:
        query.stop()


def test_bad_input(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    with pytest.raises(
        OptionError, match=r"expected how 'inner', 'left'.*found 'lefft'.*Did you mean 'left'\?"
    ) as caught:
        streams.joined(wm.progressive_join, KEYS, "lefft")
    assert caught.value.option == "how"
    for wrong in (None, 7, "cross"):
        with pytest.raises(OptionError, match="expected how 'inner'"):
            streams.joined(wm.progressive_join, KEYS, wrong)
    for overload, more in (("shed", {}), ("shrink", {"memory": "64 MB"})):
        with pytest.raises(OptionError, match=r"on_overload='keep' with how='full'.*absence could not be proved"):
            wm.window_join(
                streams.left.stream,
                streams.right.stream,
                "k",
                state_dir=tmp_path / "w",
                how="outer",
                window="1 s",
                time=("at", "seen"),
                on_overload=overload,
                **more,
            )
    with pytest.raises(OptionError, match="propagate with how"):
        wm.punctuated_join(
            streams.left.stream, streams.right.stream, "k", state_dir=tmp_path / "p", how="semi", propagate="said"
        )


def test_a_changed_type_is_refused_and_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    run(streams.joined(wm.progressive_join, KEYS, "left_outer"), tmp_path)
    with pytest.raises(StateMismatchError, match="how"):
        streams.joined(wm.progressive_join, KEYS, "full")
    for name in ("left", "right"):
        wm.end_input(tmp_path / "state", name)
    joined = streams.joined(wm.progressive_join, KEYS, "leftOuter")
    run(joined, tmp_path)
    assert rows(streams.result(joined.schema)) == rows(streams.left.batch.join(streams.right.batch, KEYS, "left"))


def test_semi_and_anti_joins_keep_less(spark: SparkSession, tmp_path: Path) -> None:
    """Few keys that come often: a semi join keeps some of their times, and no payload."""
    left = Feed(spark, tmp_path / "l", "k long, a long, at timestamp")
    right = Feed(spark, tmp_path / "r", "k long, b string, seen timestamp")
    for part in range(6):
        moments = [START + timedelta(seconds=60 * part + i) for i in range(60)]
        left.send(*({"k": i % 4 + 3, "a": i, "at": at} for i, at in enumerate(moments)))
        right.send(*({"k": i % 4, "b": "b" * 50, "seen": at} for i, at in enumerate(moments)))
    held: dict[str, dict[str, tuple[int, int]]] = {}
    for how in ("inner", "left_semi", "left_anti"):
        state = tmp_path / how
        state.mkdir()
        joined = wm.window_join(
            left.stream,
            right.stream,
            "k",
            how,
            state_dir=state / "state",
            time=("at", "seen"),
            window="1 hour",
            partitions=1,
        )
        run(joined, state)
        found = wm.read_state(spark, state / "state").groupBy("input").agg(F.sum("rows"), F.sum("bytes")).collect()
        held[how] = {name: (rows, size) for name, rows, size in found}
    assert held["inner"]["left"][0] == held["inner"]["right"][0] == 360
    for how in ("left_semi", "left_anti"):
        # Left rows of key 3 match and leave. Of each key the right input keeps two times per cell and run.
        assert held[how]["left"][0] == 270
        assert held[how]["right"][0] <= 40
        assert 20 * held[how]["right"][1] < held["inner"]["right"][1]
