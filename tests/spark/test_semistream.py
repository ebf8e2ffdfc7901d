"""`semi_stream_join` on real Structured Streaming, beside Spark's own batch join."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.errors import ColumnError, KeyTypeError, OptionError, PlanError, StateDirError
from watersmeet.semistream.master_table import MasterTable


def write_stream(folder: Path, batches: int, rows: int, first: int = 0) -> None:
    """One parquet file per micro-batch; a third of the rows on ten hot keys, some keys null, some not in the table."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + batches):
        rng = random.Random(number)
        ids = range(number * rows, (number + 1) * rows)
        keys = [None if i % 31 == 0 else rng.randrange(10 if i % 3 == 0 else 1500) for i in ids]
        table = pa.table({"part_id": pa.array(keys, pa.int32()), "sale": pa.array(ids, pa.int64())})
        pq.write_table(table, folder / f"{number:03d}.parquet")


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("part_id int, sale long").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def parts(spark: SparkSession, factor: int = 1) -> DataFrame:
    """Up to three rows per key, and none for every seventh."""
    return (
        spark.range(3000)
        .filter("id % 7 != 0")
        .select(
            (F.col("id") % 1000).alias("part_id"),
            F.concat(F.lit("supplier "), F.col("id")).alias("supplier"),
            (F.col("id") * factor).cast("decimal(12,2)").alias("price"),
        )
    )


def run(joined: DataFrame, folder: Path) -> None:
    joined.writeStream.format("parquet").option("path", str(folder / "out")).option(
        "checkpointLocation", str(folder / "checkpoint")
    ).trigger(availableNow=True).start().awaitTermination()


def counted(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


@pytest.mark.parametrize(
    ("policy", "how", "layout"),
    [
        ("aligned", "left", "hash"),
        ("aligned", "left_semi", "hash"),
        ("aligned", "left_anti", "hash"),
        ("ssbj", "inner", "arrival"),
        ("ssbj", "semi", "arrival"),
        ("ssbj", "leftOuter, without the supplier", "arrival"),
        ("mesh", "inner", "hash"),
        ("mesh", "anti", "hash"),
    ],
)
def test_equals_the_batch_join_over_restarts(
    spark: SparkSession, tmp_path: Path, policy: str, how: str, layout: str
) -> None:
    path, state = tmp_path / "master", tmp_path / "state"
    wm.prepare_master(parts(spark), "part_id", path, partitions=2, chunk_rows=150, layout=layout)
    how, _, narrow = how.partition(", ")
    chosen = {"master_columns": ["price"]} if narrow else {}
    table = parts(spark).drop("supplier") if narrow else parts(spark)

    def joined() -> DataFrame:
        source = stream_of(spark, tmp_path / "in")
        return wm.semi_stream_join(
            source, path, "part_id", state_dir=state, policy=policy, how=how, max_delay=4, idle="sleep", **chosen
        )

    write_stream(tmp_path / "in", 4, 600)
    run(joined(), tmp_path)
    write_stream(tmp_path / "in", 3, 600, first=4)
    run(joined(), tmp_path)
    wm.end_input(state, "stream")
    run(joined(), tmp_path)

    expected = spark.read.parquet(f"{tmp_path}/in").join(table, "part_id", how)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert joined().schema == expected.select(*found.columns).schema
    assert found.columns == expected.columns
    assert counted(found) == counted(expected)
    counters = [row.counters for row in wm.read_metrics(spark, state).collect()]
    assert max(counter.get("delay_max", 0) for counter in counters) <= 3
    assert (sum(counter.get("cache_hits", 0) for counter in counters) > 0) == (policy != "mesh")


def test_a_refresh_reaches_a_join_and_every_row_meets_one_version(spark: SparkSession, tmp_path: Path) -> None:
    path, state = tmp_path / "master", tmp_path / "state"
    wm.prepare_master(parts(spark), "part_id", path, partitions=2, chunk_rows=200)

    def joined() -> DataFrame:
        return wm.semi_stream_join(
            stream_of(spark, tmp_path / "in"), path, "part_id", state_dir=state, max_delay=3, idle="sleep"
        )

    write_stream(tmp_path / "in", 3, 500)
    run(joined(), tmp_path)
    assert wm.refresh_master(parts(spark, factor=1000), path) == 2
    assert (path / "v-000001.json").exists()  # rows still wait for it
    write_stream(tmp_path / "in", 5, 500, first=3)
    run(joined(), tmp_path)
    wm.end_input(state, "stream")
    run(joined(), tmp_path)

    found = spark.read.parquet(str(tmp_path / "out"))
    by_version = [
        spark.read.parquet(f"{tmp_path}/in").join(parts(spark, factor), "part_id").select(*found.columns)
        for factor in (1, 1000)
    ]
    whole = [counted(frame.drop("price")) for frame in by_version]
    assert counted(found.drop("price")) == whole[0] == whole[1]
    # All results of one stream row come from one version: the old one in the first batches, the new one in the last.
    kinds = found.withColumn("new", F.col("price") >= 1000 * F.substring("supplier", 10, 9).cast("long")).filter(
        "price > 0"
    )
    per_row = kinds.groupBy("sale").agg(F.countDistinct("new").alias("versions"), F.min("new").alias("new"))
    assert per_row.filter("versions > 1").count() == 0
    assert per_row.filter("sale < 1500 and new").count() == 0
    assert per_row.filter("sale >= 3500 and not new").count() == 0
    versions = {row.counters["version"] for row in wm.read_metrics(spark, state).collect() if "version" in row.counters}
    assert versions == {1.0, 2.0}
    wm.refresh_master(parts(spark), path)  # version 2 is kept: Spark may repeat the last batch
    assert [file.name for file in sorted(path.glob("v-*.json"))] == ["v-000002.json", "v-000003.json"]


def rows_of_version(path: Path, version: int) -> int:
    """How many rows a version has, every chunk read."""
    table = MasterTable(str(path))
    parts = [table.partition(version, partition) for partition in range(table.description.partitions)]
    return sum(part.read(chunk).num_rows for part in parts for chunk in range(part.count))


def test_refreshes_at_the_same_time_each_write_a_version(spark: SparkSession, tmp_path: Path) -> None:
    """While a join reads the table; in the end it has come to the newest version."""
    path, state = tmp_path / "master", tmp_path / "state"
    wm.prepare_master(parts(spark), "part_id", path, partitions=2, chunk_rows=200)
    write_stream(tmp_path / "in", 6, 400)

    def joined() -> DataFrame:
        return wm.semi_stream_join(
            stream_of(spark, tmp_path / "in"), path, "part_id", state_dir=state, max_delay=2, idle="sleep"
        )

    query = (
        joined()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        barrier = threading.Barrier(3, timeout=120)

        def refresh(factor: int) -> list[int]:
            numbers = []
            for _ in range(2):
                barrier.wait()
                numbers.append(wm.refresh_master(parts(spark, factor), path))
            return numbers

        with ThreadPoolExecutor(3) as pool:
            numbers = [number for found in pool.map(refresh, (10, 100, 1000)) for number in found]
        assert sorted(numbers) == [2, 3, 4, 5, 6, 7]
        for version in MasterTable(str(path)).versions():
            assert rows_of_version(path, version) == parts(spark).count()
        query.processAllAvailable()
    finally:
        query.stop()
    write_stream(tmp_path / "in", 1, 400, first=6)
    run(joined(), tmp_path)
    wm.end_input(state, "stream")
    run(joined(), tmp_path)
    expected = spark.read.parquet(f"{tmp_path}/in").join(parts(spark), "part_id").drop("price")
    found = spark.read.parquet(str(tmp_path / "out")).drop("price")
    assert counted(found) == counted(expected.select(*found.columns))
    versions = [row.counters["version"] for row in wm.read_metrics(spark, state).collect() if "version" in row.counters]
    assert max(versions) == 7
    assert wm.refresh_master(parts(spark), path) == 8
    assert MasterTable(str(path)).versions() == [7, 8]  # Spark may repeat the last batch, which read version 7


def test_of_two_preparations_at_the_same_time_one_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path, barrier = tmp_path / "master", threading.Barrier(2, timeout=120)

    def prepare(frame: DataFrame) -> int | StateDirError:
        barrier.wait()
        try:
            return wm.prepare_master(frame, "part_id", path, partitions=2)
        except StateDirError as error:
            return error

    frames = [parts(spark), parts(spark).drop("price").filter("part_id < 10")]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(prepare, frames))
    (error,) = (one for one in found if isinstance(one, StateDirError))
    assert "a directory without a master table, found version 1 at" in str(error)
    winner = frames[found.index(1)]
    assert MasterTable(str(path)).description.columns == winner.columns[1:]
    assert rows_of_version(path, 1) == winner.count()
    assert len(list(path.glob("rows-*"))) == 1


def test_a_refresh_whose_job_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "master"
    wm.prepare_master(parts(spark), "part_id", path, partitions=2)
    wrong = parts(spark).withColumn(
        "supplier",
        F.when(F.col("price") < 2000, F.col("supplier")).otherwise(F.raise_error(F.lit("no supplier")).cast("string")),
    )
    with pytest.raises(Exception, match="no supplier"):
        wm.refresh_master(wrong, path)
    assert MasterTable(str(path)).versions() == [1]
    assert len(list(path.glob("rows-*"))) == 1


def test_a_bare_dataframe_is_prepared_into_the_state_directory(spark: SparkSession, tmp_path: Path) -> None:
    write_stream(tmp_path / "in", 2, 300)
    assert (
        wm.prepare_master(spark.createDataFrame([], "part_id long"), "part_id", tmp_path / "empty", partitions=3) == 1
    )
    table = parts(spark).withColumnRenamed("part_id", "id")
    for _ in range(2):  # the second time it is there
        joined = wm.semi_stream_join(
            stream_of(spark, tmp_path / "in"),
            table,
            [("part_id", "id")],
            state_dir=tmp_path / "state",
            max_delay=1,
            idle="sleep",
        )
    run(joined, tmp_path)
    source = spark.read.parquet(f"{tmp_path}/in")
    expected = source.join(table, source.part_id == table.id)
    assert (tmp_path / "state" / "master" / "v-000001.json").exists()
    assert joined.columns == expected.columns
    assert counted(spark.read.parquet(str(tmp_path / "out"))) == counted(expected)


TAGS = "array<struct<a:int{0}>{0}>"


def tagged(spark: SparkSession, nulls: bool, comment: str = "") -> DataFrame:
    """Ten keys with nested tags, which have nulls, or which Spark knows to have none."""
    tag = F.col("id").cast("int")
    inner = F.struct((F.when(tag != 3, tag) if nulls else tag).alias("a", metadata={"comment": comment}))
    tags = F.array(inner, F.when(tag != 5, inner)) if nulls else F.array(inner)
    return spark.range(10).select(F.col("id").alias("part_id"), tags.alias("tags"))


def test_a_refresh_may_have_nulls_within_a_column_that_had_none(spark: SparkSession, tmp_path: Path) -> None:
    """What is computed is known not to be null; what is read from a file is not."""
    path = tmp_path / "master"
    wm.prepare_master(tagged(spark, nulls=False), "part_id", path, partitions=2)
    assert MasterTable(str(path)).description.fields[1]["type"]["containsNull"] is True
    write_stream(tmp_path / "in", 1, 300)
    for number, frame in enumerate((tagged(spark, nulls=True), tagged(spark, nulls=False, comment="new")), start=2):
        assert wm.refresh_master(frame, path) == number
        joined = wm.semi_stream_join(
            stream_of(spark, tmp_path / "in"), path, "part_id",
            state_dir=tmp_path / f"{number}" / "state", max_delay=1, idle="sleep",
        )  # fmt: skip
        assert joined.schema["tags"].dataType.simpleString() == TAGS.format("")
        run(joined, tmp_path / f"{number}")
        expected = spark.read.parquet(f"{tmp_path}/in").join(frame, "part_id").select("part_id", "sale", "tags")
        found = spark.read.schema(joined.schema).parquet(str(tmp_path / f"{number}" / "out"))
        assert counted(found.withColumn("tags", F.to_json("tags"))) == counted(
            expected.withColumn("tags", F.to_json("tags"))
        )


def test_a_table_that_has_no_room_for_nulls_says_where(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "master"
    with monkeypatch.context() as before:
        before.setattr("watersmeet.spark.master.loosened", lambda kind: kind)  # tables were as strict as that
        wm.prepare_master(tagged(spark, nulls=False, comment="old"), "part_id", path, partitions=2)
    assert wm.refresh_master(tagged(spark, nulls=False), path) == 2
    write_stream(tmp_path / "in", 1, 300)
    joined = wm.semi_stream_join(
        stream_of(spark, tmp_path / "in"), path, "part_id", state_dir=tmp_path / "state", max_delay=1, idle="sleep"
    )
    run(joined, tmp_path)
    expected = spark.read.parquet(f"{tmp_path}/in").join(tagged(spark, nulls=False), "part_id")
    assert spark.read.parquet(str(tmp_path / "out")).count() == expected.count() > 0
    with pytest.raises(ColumnError) as refused:
        wm.refresh_master(tagged(spark, nulls=True), path)
    assert "no nulls where the table has none: " + TAGS.format(" not null") in str(refused.value)
    assert "found " + TAGS.format("") in str(refused.value)
    assert MasterTable(str(path)).newest == 2


def test_waiting_rows_finish_while_the_stream_is_silent(spark: SparkSession, tmp_path: Path) -> None:
    wm.prepare_master(parts(spark), "part_id", tmp_path / "master", partitions=2, chunk_rows=50)
    write_stream(tmp_path / "in", 1, 300)
    joined = wm.semi_stream_join(
        stream_of(spark, tmp_path / "in"),
        tmp_path / "master",
        "part_id",
        state_dir=tmp_path / "state",
        max_delay=20,
        idle_chunks=9,
    )
    query = joined.writeStream.format("memory").queryName("silent").start()
    expected = spark.read.parquet(f"{tmp_path}/in").join(parts(spark), "part_id").count()
    try:
        for _ in range(120):
            if spark.table("silent").count() == expected:
                break
            query.awaitTermination(0.5)
        assert spark.table("silent").count() == expected
    finally:
        query.stop()


def test_mistakes_are_named_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    stream = stream_of(spark, tmp_path)
    path, state = tmp_path / "master", tmp_path / "state"
    with pytest.raises(StateDirError, match="Prepare it first"):
        wm.semi_stream_join(stream, path, "part_id", state_dir=state)
    with pytest.raises(ColumnError, match="Did you mean 'part_id'"):
        wm.prepare_master(parts(spark), "part_ids", path)
    with pytest.raises(OptionError, match="chunk_rows >= 1"):
        wm.prepare_master(parts(spark), "part_id", path, chunk_rows=0)
    wm.prepare_master(parts(spark), "part_id", path, partitions=2, layout="arrival")
    with pytest.raises(StateDirError, match="refresh_master"):
        wm.prepare_master(parts(spark), "part_id", path)
    with pytest.raises(ColumnError, match="the columns of the table"):
        wm.refresh_master(parts(spark).drop("price"), path)
    with pytest.raises(PlanError, match="layout='hash'"):
        wm.semi_stream_join(stream, path, "part_id", state_dir=state)
    with pytest.raises(OptionError, match="The table's unmatched rows are not a result of the stream"):
        wm.semi_stream_join(stream, parts(spark), "part_id", state_dir=state, how="right")
    assert not (state / "master").exists()
    with pytest.raises(OptionError, match="Did you mean 'left_anti'"):
        wm.semi_stream_join(stream, path, "part_id", state_dir=state, policy="mesh", how="left_ant")
    with pytest.raises(OptionError, match="max_delay"):
        wm.semi_stream_join(stream, path, "part_id", state_dir=state, policy="mesh", max_delay=0)
    mesh: dict[str, Any] = {"on": "part_id", "state_dir": state, "policy": "mesh"}
    with pytest.raises(ColumnError, match="Did you mean 'price'"):
        wm.semi_stream_join(stream, path, master_columns=["prise"], **mesh)
    with pytest.raises(OptionError, match="a list of column names, found 'price'"):
        wm.semi_stream_join(stream, path, master_columns="price", **mesh)
    with pytest.raises(OptionError, match="of the table only keys are cached"):
        wm.semi_stream_join(stream, path, how="left_semi", master_columns=["price"], **mesh)
    with pytest.raises(PlanError, match="a join on part_id"):
        wm.semi_stream_join(stream, path, [("sale", "supplier")], state_dir=state, policy="mesh")
    text = stream.withColumn("part_id", F.col("part_id").cast("string"))
    with pytest.raises(KeyTypeError, match=r"stream.part_id: string, master.part_id: bigint"):
        wm.semi_stream_join(text, path, "part_id", state_dir=state, policy="mesh")
    with pytest.raises(PlanError, match="a streaming"):
        wm.semi_stream_join(stream, stream, "part_id", state_dir=state)
    with pytest.raises(OptionError, match="partitions from 1 to 100,000, found 0"):
        wm.semi_stream_join(stream, path, "part_id", state_dir=state, policy="mesh", partitions=0)


def test_a_table_prepared_by_the_join_has_the_partitions_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    stream = stream_of(spark, tmp_path)
    wm.semi_stream_join(stream, parts(spark), "part_id", state_dir=tmp_path / "state", partitions=3)
    assert MasterTable(str(tmp_path / "state" / "master")).description.partitions == 3


def test_names_are_compared_as_spark_compares_them(spark: SparkSession, tmp_path: Path) -> None:
    stream, path = stream_of(spark, tmp_path).withColumnRenamed("part_id", "PART_ID"), tmp_path / "master"
    wm.prepare_master(parts(spark), "part_id", path, partitions=2)
    wm.semi_stream_join(stream, path, "PART_ID", state_dir=tmp_path / "state")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(PlanError, match="a join on part_id, which the table was prepared for, found on PART_ID"):
            wm.semi_stream_join(stream, path, "PART_ID", state_dir=tmp_path / "other")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
