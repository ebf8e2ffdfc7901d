"""The wire in both directions: what Spark encodes, a task reads back, whatever the names and types."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed

import watersmeet as wm
from watersmeet.columns.arrow import HASH
from watersmeet.join.operator import Batch
from watersmeet.plan import InputSpec, JoinPlan
from watersmeet.spark.encoding import encoded_type
from watersmeet.spark.schema import Source, arrow_type, common_key_types
from watersmeet.spark.wire import INPUT, Job, Kind, Wire, code, numbered

# Names that the wire or the operators use themselves, with dots and quotes; types that share slots, that are carried as
# others, that cannot be hashed.
LEFT = {
    "_input": "string", "_s0": "string", "a.b": "double", "`q`": "map<string, int>", "_k0": "interval year to month",
    "_hash": "array<struct<x: int>>", "_marked": "decimal(38, 2)",
}  # fmt: skip
RIGHT = {"c0": "double", "_copy": "string", "_p0": "timestamp", "_time": "string"}


def frame(spark: SparkSession, keys: dict[str, str], payload: dict[str, str]) -> DataFrame:
    """60 rows: every third has a null in its last key column; payload columns are null now and then."""
    columns = [F.when(F.col("id") % 3 > 0, F.col("id") % 7).cast(kind).alias(name) for name, kind in keys.items()]
    made = {
        "string": "concat('é', id)", "double": "id / 3", "map<string, int>": "map('m', cast(id as int))",
        "interval year to month": "make_ym_interval(1, cast(id % 12 as int))",
        "decimal(38, 2)": "cast(id as decimal(38, 2))",
        "array<struct<x: int>>": "array(named_struct('x', cast(id as int)))", "timestamp": "timestamp_seconds(id)",
    }  # fmt: skip
    others = [
        F.when(F.col("id") % (n + 2) > 0, F.expr(made[kind])).alias(name)
        for n, (name, kind) in enumerate(payload.items())
    ]
    return spark.range(60).select(*columns, *others)


def round_trip(spark: SparkSession, sources: list[Source], partitions: int = 4) -> tuple[Batch, pa.Table, Job]:
    key_types = common_key_types("test", [source for source in sources if source.kind == "rows"])
    specs = tuple(
        InputSpec(
            source.name,
            tuple(arrow_type(encoded_type(kind)) for kind in key_types),
            tuple(arrow_type(encoded_type(source.fields[i].dataType)) for i in source.row_payload),
            source.keep_null_keys,
        )
        for source in sources
        if source.kind == "rows"
    )
    plan = JoinPlan("symmetric", specs, (), partitions=partitions)
    wire = Wire(plan, sources, key_types, clock=False)
    job = Job.from_json(Job("test", "id", "unused", plan, wire.layout, []).to_json())
    union = reduce(DataFrame.unionByName, wire.streams()).toArrow().combine_chunks()
    return job.batch(0, union), union, job


def values(source: Source, *, has_key: bool = True) -> Counter[str]:
    """The rows of a source with a key, or those without, in the types in which they travel; keys as text."""
    frame = source.frame.toDF(*(f"c{i}" for i in range(len(source.fields))))
    condition = " and ".join(f"c{i} is not null" for i in source.keys)
    types = {i: encoded_type(source.fields[i].dataType) for i in source.row_payload}
    columns = [F.col(f"c{i}").cast(types.get(i, "string")) for i in (*source.keys, *source.row_payload)]
    return lines(frame.where(condition if has_key else f"not ({condition})").select(*columns).toArrow())


def read(table: pa.Table, keys: int) -> Counter[str]:
    columns = [c.cast(pa.string()) if i < keys else c for i, c in enumerate(table.columns[1:])]
    return lines(pa.Table.from_arrays(columns, names=table.column_names[1:]))


def lines(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))


@pytest.mark.parametrize("keys", [{"k": "long"}, {"k": "int"}, {"a.k": "string", "K2": "int"}], ids=str)
@pytest.mark.parametrize("kept", [frozenset(), frozenset({"left"})], ids=str)
def test_rows_of_hostile_names_and_types(spark: SparkSession, keys: dict[str, str], kept: frozenset[str]) -> None:
    count = len(keys)
    left, right = (
        Source(name, made, list(range(count)), list(range(count, len(made.columns))), keep_null_keys=name in kept)
        for name, made in (("left", frame(spark, keys, LEFT)), ("right", frame(spark, keys, RIGHT)))
    )
    batch, union, job = round_trip(spark, [left, right])
    assert ("_k0" in union.column_names) is (keys != {"k": "long"})  # an integer travels as its hash, kept or not
    assert sum(name.startswith("_s") for name in union.column_names) < len(LEFT) + len(RIGHT)  # they share slots
    for source in (left, right):
        found = batch.rows[source.name]
        assert found.schema == job.plan.input(source.name).schema
        assert read(found, count) == values(source)
        assert found.column(HASH).to_pylist() == sorted(found.column(HASH).to_pylist())
    assert batch.null_keys == ({"right": 20} if kept else {"left": 20, "right": 20})
    assert batch.null_rows.keys() == ({"left"} if kept else set())
    if kept:
        assert batch.null_rows["left"].schema == job.plan.input("left").schema
        assert read(batch.null_rows["left"], count) == values(left, has_key=False)
    partitions = union.filter(pc.equal(union.column(INPUT), code(Kind.NULL_KEY))).column(HASH).to_pylist()
    assert set(partitions) == {0, 1, 2, 3}  # spread by their content


def test_bare_rows_have_nothing_but_their_partition(spark: SparkSession) -> None:
    made = frame(spark, {"k": "int"}, LEFT)
    source = Source("left", made, [0], list(range(1, len(made.columns))))
    _, union, _ = round_trip(spark, [source, replace(source, name="right")])
    bare = union.filter(pc.equal(union.column(INPUT), code(Kind.NULL_KEY)))
    assert bare.num_rows == 20
    assert all(column.null_count == 20 for column in bare.columns[2:])


def test_one_column_may_be_two_keys(spark: SparkSession) -> None:
    left = spark.createDataFrame([(1, "x"), (2, "y"), (None, "z")], "k int, a string")
    right = spark.createDataFrame([(1, 1, "b"), (1, None, "c")], "i int, j int, a string")
    batch, _, _ = round_trip(spark, [Source("left", left, [0, 0], [1]), Source("right", right, [0, 1], [2])])
    assert sorted(map(str, batch.rows["left"].drop_columns(HASH).to_pylist())) == [
        "{'_k0': 1, '_k1': 1, '_p0': 'x'}",
        "{'_k0': 2, '_k1': 2, '_p0': 'y'}",
    ]
    assert batch.null_keys == {"left": 1, "right": 1}


@pytest.mark.parametrize("kind", ["long", "string"])
def test_punctuations_marked_and_of_their_own(spark: SparkSession, kind: str) -> None:
    marked = spark.createDataFrame(
        [("1", False, "row", None), ("2", True, "said", 5), (None, True, "of all", 6), (None, False, "no key", None)],
        "k string, m boolean, a string, end int",
    ).withColumn("k", F.col("k").cast(kind))
    own = spark.createDataFrame([("3", 7), (None, 8)], "k string, end int").withColumn("k", F.col("k").cast(kind))
    left = Source("left", marked, [0], [2, 3], marker=1, marked=1)
    right = Source("right", marked.where("not m"), [0], [2])
    said = Source("right", own, [0], [1], kind="punctuations")
    batch, union, _ = round_trip(spark, [left, right, said], partitions=3)
    assert ("_k0" in union.column_names) is (kind == "string")
    one, two, three = (1, 2, 3) if kind == "long" else ("1", "2", "3")
    assert [(r["_k0"], r["_p0"]) for r in batch.rows["left"].to_pylist()] == [(one, "row")]
    assert batch.null_keys == {"left": 1, "right": 1}
    said_left = [(r["_k0"], r["_p0"]) for r in batch.punctuations["left"].to_pylist()]
    assert said_left == [(two, 5), (None, 6), (None, 6), (None, 6)]  # of all keys: a copy for every partition
    assert [(r["_k0"], r["_p0"]) for r in batch.punctuations["right"].to_pylist()] == [(three, 7), *[(None, 8)] * 3]
    assert sorted(batch.punctuations["right"].column(HASH).to_pylist()[1:]) == [0, 1, 2]


def test_reports_number_the_streams_as_the_wire_does(spark: SparkSession, tmp_path: Path) -> None:
    left, right = Feed(spark, tmp_path / "l", "k long"), Feed(spark, tmp_path / "r", "k long, b long")
    said = Feed(spark, tmp_path / "said", "k long")
    left.send({"k": 1})
    right.send({"k": 1, "b": 2})
    said.send({"k": 5})
    joined = wm.punctuated_join(
        left.stream,
        right.stream,
        "k",
        state_dir=tmp_path / "state",
        punctuations={"right": said.stream},
        memory="64 MB",
    )
    writer = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    sources = query.recentProgress[0]["sources"]
    for name, number in numbered(["l", "r", "said", "l"]).items():
        assert f"/{name}]" in sources[number]["description"]
    assert "/control]" in sources[0]["description"]
    assert len(sources) == 5
