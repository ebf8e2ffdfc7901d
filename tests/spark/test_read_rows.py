"""`read_rows` and `why` on real queries: the inputs' own columns and types, while they run and after a restart."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, rows, run
from typer.testing import CliRunner

import watersmeet as wm
from watersmeet.cli import app
from watersmeet.columns.arrow import hashes_of
from watersmeet.engine.held_rows import as_key, open_rows
from watersmeet.engine.why import why
from watersmeet.errors import MissingVersionError, OptionError, StateDirError
from watersmeet.state.description import recorded_inputs
from watersmeet.state.directory import StateDir

ALL = (
    "b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f float, d double, small decimal(10, 2), "
    "large decimal(38, 4), s string, raw binary, day date, ts timestamp, ntz timestamp_ntz, dt interval day to second, "
    "ym interval year to month"
)
VALUES = [
    f"true, 1Y, 2S, {n}, {n + 1}L, {f}, {d}, 1234.5BD, {big}BD, '{text}', X'00ff{n:02x}', date'2024-05-17', "
    f"timestamp'2024-05-17 12:00:00.5', timestamp_ntz'2024-05-17 12:00:00', interval '1 02:03:04' day to second, "
    f"interval '{n}-2' year to month"
    for n, f, d, big, text in (
        (1, "1.5F", "-0.0D", "123456789012345678901234567890.1234", "a"),
        (2, "float('nan')", "double('nan')", "-1.5", "grüße, 世界"),
        (3, "-0.0F", "1e300D", "-170000000000000000000000000000.0", ""),
    )
]


def typed(spark: SparkSession, folder: Path) -> DataFrame:
    selects = " union all ".join(f"select {values}" for values in VALUES)
    frame = spark.sql(selects).toDF(*(part.split()[0] for part in ALL.split(", ") if " " in part))
    frame.write.parquet(str(folder / "typed"))
    return spark.readStream.schema(frame.schema).parquet(str(folder / "typed"))


def names() -> list[str]:
    return ["b", "i8", "i16", "i32", "i64", "f", "d", "small", "large", "s", "raw", "day", "ts", "ntz", "dt", "ym"]


def test_columns_and_types_of_the_input(spark: SparkSession, tmp_path: Path) -> None:
    stream = typed(spark, tmp_path)
    right = stream.withColumnRenamed("i64", "key").select(F.col("key"), F.lit("r").alias("_state"))
    left = stream.withColumn("nested", F.struct(F.array("i32").alias("many"), F.create_map("s", "day").alias("map")))
    run(wm.progressive_join(left, right, on=[("i32", "key")], state_dir=tmp_path / "state", partitions=2), tmp_path)
    found = wm.read_rows(spark, tmp_path / "state", "left")
    assert [(f.name, f.dataType) for f in found.schema][:-1] == [(f.name, f.dataType) for f in left.schema]
    expected = spark.read.parquet(str(tmp_path / "typed")).withColumn(
        "nested", F.struct(F.array("i32").alias("many"), F.create_map("s", "day").alias("map"))
    )
    assert texts(found.drop("_state")) == texts(expected)
    taken = wm.read_rows(spark, tmp_path / "state", "right")
    assert taken.columns == ["key", "_state", "_state_"]
    assert dict(taken.dtypes)["key"] == "bigint"
    assert taken.select("_state_.tier", "_state_.waits_for", "_state_.inputs").distinct().collect() == [
        ("resident", "end", ["left"])
    ]


def texts(frame: DataFrame) -> Counter[str]:
    """Rows as JSON text, in which NaN is NaN."""
    return Counter(row[0] for row in frame.select(F.to_json(F.struct("*"))).collect())


@pytest.mark.parametrize("column", names())
def test_a_key_of_every_type_is_found_by_its_hash(spark: SparkSession, tmp_path: Path, column: str) -> None:
    stream = typed(spark, tmp_path)
    joined = wm.progressive_join(
        stream.select(column), stream.select(column), on=column, state_dir=tmp_path / "state", partitions=1
    )
    run(joined, tmp_path)
    directory = StateDir(tmp_path / "state")
    description = recorded_inputs(directory)
    found = 0
    for held in open_rows(directory, description, 0, "left"):
        for at, value in enumerate(held.table.column("_k0")):
            key = as_key("test", description, [value.as_py()] if column != "dt" else [value])
            assert key.hash == int(hashes_of(held.table)[at])
            found += 1
    assert found == 3


def test_composite_keys_and_the_command(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path / "left", "id int, c string, v double")
    feed.send({"id": 17, "c": "EUR", "v": 1.5}, {"id": 17, "c": "USD", "v": 2.5})
    feed.send({"id": 17, "c": "EUR", "v": 3.5})
    other = Feed(spark, tmp_path / "right", "id long, c string")
    other.send({"id": 99, "c": "EUR"})
    joined = wm.progressive_join(
        feed.stream, other.stream, on=["id", "c"], state_dir=tmp_path / "state", how="left", partitions=3
    )
    run(joined, tmp_path)
    found = wm.read_rows(spark, tmp_path / "state", key=[17, "EUR"])
    assert dict(found.dtypes)["id"] == "int"
    assert rows(
        found.select("id", "c", "v", "_state.oldest_batch", "_state.newest_batch", "_state.matched")
    ) == Counter([(17, "EUR", 1.5, 0, 0, False), (17, "EUR", 3.5, 1, 1, False)])
    result = CliRunner().invoke(app, ["why", str(tmp_path / "state"), "--key", "17", "--key", "EUR"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "left row of batch 0, in memory, not matched yet, waits until right ends",
        "left row of batch 1, in memory, not matched yet, waits until right ends",
    ]
    result = CliRunner().invoke(app, ["why", str(tmp_path / "state"), "--key", "17"])
    assert result.exit_code == 2
    assert "expected a value for each key column (id: int64, c: string), found 1 of them" in result.stderr
    result = CliRunner().invoke(app, ["why", str(tmp_path / "state"), "--key", "18", "--key", "EUR"])
    assert result.stdout == "no row with the key 18, EUR is held: none has come, or all have left\n"


def test_until_when_and_versions(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "left", "k long, at timestamp_ntz")
    right = Feed(spark, tmp_path / "right", "k long, bt timestamp_ntz")
    left.send({"k": 1, "at": "2024-05-17T12:00:00"})
    right.send({"k": 2, "bt": "2024-05-17T11:59:00"})
    left.send({"k": 3, "at": "2024-05-17T12:00:30"})
    right.send({"k": 4, "bt": "2024-05-17T12:00:31"})
    joined = wm.window_join(
        left.stream, right.stream, on="k", time=("at", "bt"), window="10 min", lateness="5 s",
        state_dir=tmp_path / "state", partitions=1, how="left",
    )  # fmt: skip
    run(joined, tmp_path)
    state = "_state.version, _state.until, _state.now, _state.matched, _state.waits_for"
    found = wm.read_rows(spark, tmp_path / "state")
    times: list[Any] = [datetime(2024, 5, 17, 12, 10, 5), datetime(2024, 5, 17, 12, 0, 31)]
    assert rows(found.where("k = 1").selectExpr(*state.split(", "))) == Counter([(1, *times, False, "time")])
    before = wm.read_rows(spark, tmp_path / "state", version=0)
    assert rows(before.selectExpr("k", "_state.version", "_state.now")) == Counter(
        [(1, 0, datetime(2024, 5, 17, 11, 59))]
    )
    (reason,) = why(str(tmp_path / "state"), 1)
    assert reason.sentence == (
        "left row of batch 0, in memory, not matched yet, waits until right passes 2024-05-17 12:10:05 "
        "(now 2024-05-17 12:00:31)"
    )
    with pytest.raises(
        MissingVersionError, match="expected version 7 of all 1 partitions, found version 1 as the newest"
    ):
        wm.read_rows(spark, tmp_path / "state", version=7)


def test_rows_on_disk_and_a_query_that_runs(spark: SparkSession, tmp_path: Path) -> None:
    left, right = (Feed(spark, tmp_path / name, "k long, v string") for name in ("left", "right"))
    for number in range(4):
        left.send(*({"k": n, "v": f"{number} {n}" + "x" * 50} for n in range(300)))
        right.send(*({"k": n + 150, "v": f"{number} {n}" + "x" * 50} for n in range(300)))
    renamed = right.stream.withColumnRenamed("v", "w")
    joined = wm.progressive_join(
        left.stream, renamed, on="k", state_dir=tmp_path / "state", partitions=2, memory="64 kB", page_rows=32
    )
    query = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        found = wm.read_rows(spark, tmp_path / "state")  # ticks go on meanwhile
        assert rows(found.select("k", "v")) == rows(left.batch)
        assert {row[0] for row in found.select("_state.tier").distinct().collect()} >= {"spilled"}
        one = wm.read_rows(spark, tmp_path / "state", "right", key=170)
        assert rows(one.select("k", "w")) == rows(right.batch.where("k = 170"))
        assert len(why(str(tmp_path / "state"), 170)) == 8
    finally:
        query.stop()


def test_arguments(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StateDirError, match=r"no join\.json"):
        wm.read_rows(spark, tmp_path)
    feed = Feed(spark, tmp_path / "left", "k long, v string")
    wm.progressive_join(feed.stream, feed.stream.select("k"), on="k", state_dir=tmp_path / "state")
    assert wm.read_rows(spark, tmp_path / "state").count() == 0
    with pytest.raises(OptionError, match="expected input 'left' or 'right', found 'orders'"):
        wm.read_rows(spark, tmp_path / "state", "orders")
    with pytest.raises(OptionError, match="expected version >= 0, found -1"):
        wm.read_rows(spark, tmp_path / "state", version=-1)
    with pytest.raises(OptionError, match=r"expected a key \(k: int64\), found 'x'"):
        wm.read_rows(spark, tmp_path / "state", key="x")
    with pytest.raises(OptionError, match="Did you mean 'input'"):
        wm.read_rows(spark, tmp_path / "state", inputs="left")  # type: ignore[call-arg]
