"""Delta and Iceberg: tables as sources, as masters and as sinks, exactly once by appending and by MERGE."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm
from tests.connectors.streams import equal, forget_newest_commit, joined, numbers, run, was_repeated

FORMATS = ("delta", "iceberg")
# One file a micro-batch.
SLOWLY = {"delta": {"maxFilesPerTrigger": "1"}, "iceberg": {"streaming-max-files-per-micro-batch": "1"}}


class Table:
    """A table in the format's catalog, new for every test."""

    def __init__(self, spark: SparkSession, format: str, test: Path, name: str, columns: str) -> None:
        self.spark, self.format = spark, format
        database = ("lake." if format == "iceberg" else "") + test.name.replace("-", "_")
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
        self.name = f"{database}.{name}"
        spark.sql(f"CREATE TABLE {self.name} ({columns}) USING {format}")

    def append(self, rows: DataFrame) -> None:
        """One commit of one file."""
        rows.coalesce(1).writeTo(self.name).append()

    @property
    def stream(self) -> DataFrame:
        """The table as a stream, a file a micro-batch."""
        return self.spark.readStream.format(self.format).options(**SLOWLY[self.format]).table(self.name)

    @property
    def batch(self) -> DataFrame:
        """The newest snapshot. A session's catalog keeps Iceberg tables as it has last seen them, for half a minute."""
        self.spark.sql(f"REFRESH TABLE {self.name}")
        return self.spark.table(self.name)


def inputs(spark: SparkSession, format: str, test: Path) -> tuple[Table, Table]:
    """Two tables of three commits each."""
    left, right = (
        Table(spark, format, test, "lefts", "k long, x long"),
        Table(spark, format, test, "rights", "k long, y long"),
    )
    for first in (0, 80, 160):
        left.append(numbers(spark, "x", first, 80))
        right.append(numbers(spark, "y", first, 80, keys=40))
    return left, right


@pytest.mark.parametrize("format", FORMATS)
def test_tables_as_sources_and_appending_once(spark: SparkSession, tmp_path: Path, format: str) -> None:
    left, right = inputs(spark, format, tmp_path)
    result = Table(spark, format, tmp_path, "results", "k long, x long, y long")

    def read() -> None:
        run(joined(left.stream, right.stream, tmp_path).writeStream.format(format), tmp_path, result.name)

    read()
    left.append(numbers(spark, "x", 240, 80))
    right.append(numbers(spark, "y", 240, 80, keys=40))
    read()
    before = result.batch.count()
    repeated = forget_newest_commit(tmp_path)
    read()
    assert was_repeated(tmp_path, repeated)
    assert repeated > 2  # a micro-batch per file
    assert result.batch.count() == before
    assert equal(result.batch, left.batch.join(right.batch, "k"))


@pytest.mark.parametrize("format", FORMATS)
def test_merging_once(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """MERGE in `foreachBatch` leaves out what a batch has written before it was repeated."""
    left, right = inputs(spark, format, tmp_path)
    result = Table(spark, format, tmp_path, "results", "k long, x long, y long")
    offered: list[tuple[int, int]] = []

    def merge(batch: DataFrame, number: int) -> None:
        batch.persist()  # MERGE reads its source more than once
        offered.append((number, batch.count()))
        batch.createOrReplaceTempView("results_of_batch")
        batch.sparkSession.sql(
            f"MERGE INTO {result.name} AS known USING results_of_batch AS new ON known.x = new.x AND known.y = new.y "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        batch.unpersist()

    def read() -> None:
        run(joined(left.stream, right.stream, tmp_path).writeStream.foreachBatch(merge), tmp_path)

    read()
    repeated = forget_newest_commit(tmp_path)
    read()
    assert Counter(number for number, _ in offered)[repeated] == 2  # the batch was written twice
    assert dict(offered)[repeated] > 0
    assert equal(result.batch, left.batch.join(right.batch, "k"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_as_master_and_its_newest_snapshot(spark: SparkSession, tmp_path: Path, format: str) -> None:
    sales = Table(spark, format, tmp_path, "sales", "part long, sale long")
    parts = Table(spark, format, tmp_path, "parts", "part long, price long")
    parts.append(spark.range(100).selectExpr("id AS part", "id AS price"))
    path, state = tmp_path / "master", tmp_path / "state"
    wm.prepare_master(parts.batch, "part", path, partitions=2, chunk_rows=30)

    def sell(first: int) -> None:
        sales.append(spark.range(first, first + 60).selectExpr("id % 120 AS part", "id AS sale"))

    def read() -> None:
        frame = wm.semi_stream_join(sales.stream, path, "part", state_dir=state, max_delay=2, idle="sleep")
        run(frame.writeStream.format("parquet").option("path", str(tmp_path / "out")), tmp_path)

    sell(0)
    sell(60)
    read()
    old = {row.part: row.price for row in parts.batch.collect()}
    spark.sql(f"UPDATE {parts.name} SET price = price + 1000")
    assert wm.refresh_master(parts.batch, path) == 2
    for first in range(120, 420, 60):
        sell(first)
    read()
    wm.end_input(state, "stream")
    read()

    new = {row.part: row.price for row in parts.batch.collect()}
    assert new == {part: price + 1000 for part, price in old.items()}
    found = {row.sale: (row.part, row.price) for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(found)
    expected = {row.sale: row.part for row in sales.batch.join(parts.batch, "part").collect()}
    assert {sale: part for sale, (part, _) in found.items()} == expected
    assert all(price in (old[part], new[part]) for part, price in found.values())
    assert all(price == old[part] for sale, (part, price) in found.items() if sale < 120)
    assert all(price == new[part] for sale, (part, price) in found.items() if sale >= 360)


def test_from_delta_into_iceberg_and_on(spark: SparkSession, tmp_path: Path) -> None:
    """Formats mix in one session, and a join's result is a source for the next one."""
    left, right = inputs(spark, "delta", tmp_path)
    third = Table(spark, "iceberg", tmp_path, "thirds", "k long, z long")
    third.append(numbers(spark, "z", 0, 50))
    result = Table(spark, "iceberg", tmp_path, "results", "k long, x long, y long")
    first, second = tmp_path / "first", tmp_path / "second"
    run(joined(left.stream, right.stream, first).writeStream.format("iceberg"), first, result.name)
    writer = joined(result.stream, third.stream, second).writeStream.format("delta")
    run(writer.option("path", str(tmp_path / "all")), second)
    expected = left.batch.join(right.batch, "k").join(third.batch, "k")
    assert equal(spark.read.format("delta").load(str(tmp_path / "all")), expected, ("k", "x", "y", "z"))
    assert expected.select(F.max("z")).first()[0] > 0
