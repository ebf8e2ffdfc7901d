"""Every error a user can run into: who, what was expected, what was found, what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import watersmeet as wm
from watersmeet.errors import (
    ColumnError,
    KeyTypeError,
    NotStreamingError,
    OptionError,
    StateDirError,
    StateMismatchError,
    WatersmeetError,
    WorkerSetupError,
    find_error,
)
from watersmeet.spark.task import Position, run_task, task_function


@pytest.fixture(scope="module")
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DataFrame]:
    folder = tmp_path_factory.mktemp("source")
    spark.range(0, 40, numPartitions=1).write.mode("append").parquet(str(folder))

    def read(*columns: str) -> DataFrame:
        return spark.readStream.schema("id long").parquet(str(folder)).selectExpr(*columns)

    return read


def message(kind: type[WatersmeetError], build: Callable[[], object]) -> str:
    with pytest.raises(kind) as error:
        build()
    return str(error.value)


def failure(frame: DataFrame, checkpoint: Path) -> str:
    """The error of a query that runs all there is into the noop sink."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    with pytest.raises(StreamingQueryException) as error:
        writer.trigger(availableNow=True).start().awaitTermination()
    return re.sub(r"\s+", " ", str(error.value))


def test_every_join_refuses_keys_with_a_collation(
    source: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    plain, collated = (source(f"collate(string(id), '{name}') as k") for name in ("UTF8_BINARY", "UTF8_LCASE"))
    table = spark.range(1).selectExpr("collate('A', 'UNICODE_CI') as k", "id as name")
    joins: list[Callable[[], object]] = [
        lambda: wm.progressive_join(plain, collated, "k", state_dir=state),
        lambda: wm.punctuated_join(collated, plain, "k", state_dir=state, constraints=[wm.Ordered("left")]),
        lambda: wm.window_join(collated, collated, "k", state_dir=state, window="1 s"),
        lambda: wm.multiway_join([plain, plain, collated], "k", state_dir=state),
        lambda: wm.prepare_master(table, "k", tmp_path / "master"),
    ]
    for join in joins:
        assert "expected string keys with the collation UTF8_BINARY, found" in message(KeyTypeError, join)


def test_errors_of_columns_and_keys(source: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path) -> None:
    left, right = source("id as order_id", "id as amount"), source("id as order_id", "id as fee")

    def joined(left: DataFrame, right: DataFrame, on: object = "order_id", **options: object) -> Callable[[], object]:
        return lambda: wm.progressive_join(left, right, on, state_dir=tmp_path, **options)  # type: ignore[arg-type]

    assert message(ColumnError, joined(left, right, "order_ids")) == (
        "progressive_join: expected one column 'order_ids' in input 'left', found the columns order_id, amount. Did "
        "you mean 'order_id'?"
    )
    assert message(ColumnError, joined(left, right, [("amount", "zzz")])) == (
        "progressive_join: expected one column 'zzz' in input 'right', found the columns order_id, fee. Rename or "
        "correct the column."
    )
    twice = source("id as order_id", "id as order_id")
    assert message(ColumnError, joined(left, twice)) == (
        "progressive_join: expected one column 'order_id' in input 'right', found 2 columns of that name. Rename or "
        "correct the column."
    )
    assert message(ColumnError, joined(left, source("id as order_id", "id as Amount"))) == (
        "progressive_join: expected different names for all columns of the output, found left.amount, right.Amount. "
        "Rename before the join, for example right.withColumnRenamed('Amount', 'right_Amount')."
    )
    assert message(ColumnError, joined(left, right, [("order_id", "order_id")])).startswith(
        "progressive_join: expected different names for all columns of the output, found left.order_id, right.order_id."
    )
    wide = source("id as a", "id as b", "id as `c d`").toDF("a", "b", "c d")
    for on, sentence in (
        ([("order_id", "a"), ("order_id", "b")], "left.order_id in two: ('order_id', 'a') and ('order_id', 'b')"),
        ([("order_id", "a"), ("amount", "a")], "right.a in two: ('order_id', 'a') and ('amount', 'a')"),
    ):
        one, other = on[1]
        assert message(ColumnError, joined(left, wide, on)) == (
            f"progressive_join: expected each column in one pair of on, found {sentence}. Join on one of them, and add "
            f"where='left.{one} = right.{other}'."
        )
    safe = joined(left, wide, [("order_id", "a"), ("order_id", "c d")], nulls_match=True)
    assert message(ColumnError, safe).endswith("add where='left.order_id <=> right.`c d`'.")
    assert message(ColumnError, joined(left, right, ["order_id", "Order_ID"])) == (
        "progressive_join: expected each key once, found ('order_id', 'order_id') twice in on. Leave one out."
    )
    joined(left, wide, [("order_id", "a"), ("amount", "a")], how="left_semi")()  # no column is there twice
    for wrong in ([], [("a",)], [1]):
        assert message(OptionError, joined(left, right, wrong)) == (
            "progressive_join: expected on = a column name, a list of names, or pairs (left name, right name), found "
            f"{wrong!r}. Write for example on='id', on=['a', 'b'] or on=[('order_id', 'id')]."
        )
    batch = spark.range(3).selectExpr("id as order_id")
    assert message(NotStreamingError, joined(left, batch)) == (
        "progressive_join: expected a streaming DataFrame as input 'right', found a batch DataFrame. Read it with "
        "spark.readStream; for a table that does not change use semi_stream_join or a plain join."
    )
    assert message(KeyTypeError, joined(left, source("string(id) as order_id"))) == (
        "progressive_join: expected key columns of one type (whole numbers may differ in width), found left.order_id: "
        "bigint, right.order_id: string. Cast one of them so that the types agree."
    )
    for sql, kind in (("array(id)", "array<bigint>"), ("map(id, id)", "map<bigint,bigint>"), ("null", "void")):
        odd = source(f"{sql} as order_id")
        assert message(KeyTypeError, joined(odd, odd)) == (
            f"progressive_join: expected key columns of atomic types, found left.order_id: {kind}, "
            f"right.order_id: {kind}. Join on a column derived from it."
        )
    collated = source("collate(string(id), 'UTF8_LCASE') as order_id")
    assert message(KeyTypeError, joined(collated, collated)) == (
        "progressive_join: expected string keys with the collation UTF8_BINARY, found left.order_id: string collate "
        "UTF8_LCASE, right.order_id: string collate UTF8_LCASE. Join on a normalised copy of the column, for example "
        "lower(name)."
    )
    for wrong_count in (0, "2", 100_001, 10**9):
        assert message(OptionError, joined(left, right, partitions=wrong_count)) == (
            f"progressive_join: expected partitions from 1 to 100,000, found {wrong_count!r}. Leave it out for the "
            "default."
        )
    assert not list(tmp_path.glob("part-*"))


def test_names_that_differ_in_case_clash_only_where_spark_says_so(
    source: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        joined = wm.progressive_join(
            source("id as k", "id as x"), source("id as k", "id as X"), "k", state_dir=tmp_path
        )
        assert joined.columns == ["k", "x", "X"]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_state_directory_that_cannot_be(source: Callable[..., DataFrame], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "state"
    text = message(
        StateDirError, lambda: wm.progressive_join(source("id as k"), source("id as k"), "k", state_dir=place)
    )
    assert text.startswith(f"state directory {place}: expected a directory that can be created and written, found ")
    assert text.endswith("Not a directory. Give a state_dir on a writable file system, the same for every executor.")


def test_state_and_query_that_do_not_fit(source: Callable[..., DataFrame], tmp_path: Path) -> None:
    def joined(*right: str, **options: int) -> DataFrame:
        return wm.progressive_join(
            source("id as k", "id as x"), source(*right), [("k", "j")], state_dir=tmp_path / "s", **options
        )

    first = joined("id as j", "id as y").writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    first.trigger(availableNow=True).start().awaitTermination()

    place = f"progressive_join, state directory {tmp_path}/s: expected"
    joined("id as j", "id as y", partitions=5)  # the number of partitions may change, and what follows is the same
    # The same columns in the output, but joined on another one.
    assert message(StateMismatchError, lambda: joined("id as y", "id as j")) == (
        f"{place} state of this join, found state of another one: output[2] was 'j: int64 = right._k0', is 'y: int64 = "
        "right._p0'; output[3] was 'y: int64 = right._p0', is 'j: int64 = right._k0'. Build the join as it was, or "
        "give this join a new state directory and a new checkpoint."
    )
    text = message(StateMismatchError, lambda: joined("id as j", "string(id) as y"))
    assert "inputs.right.payload[0] was 'int64', is 'string'" in text

    # A new checkpoint on old state; and old checkpoint, state gone.
    again = failure(joined("id as j", "id as y"), tmp_path / "new checkpoint")
    assert re.search(
        rf"StateMismatchError: progressive_join, state directory {tmp_path}/s, partition \d: expected state of query "
        r"[0-9a-f-]+, found state of query [0-9a-f-]+\. A state directory belongs to one query and its checkpoint: "
        r"restart from that checkpoint, or give this query a new state directory\.",
        again,
    )
    shutil.rmtree(tmp_path / "s")
    wm_again = joined("id as j", "id as y")
    wm.end_input(tmp_path / "s", "left")  # something to make a batch of
    assert re.search(
        rf"MissingVersionError: progressive_join, state directory {tmp_path}/s, partition \d: expected version 0, "
        r"which the next batch starts from, found no version at all\. State and checkpoint must be kept, copied and "
        r"deleted together",
        failure(wm_again, tmp_path / "c"),
    )


def test_operators_right_above_the_join_that_renumber_its_partitions(
    source: Callable[..., DataFrame], tmp_path: Path
) -> None:
    def joined(name: str) -> DataFrame:
        return wm.progressive_join(source("id as k"), source("id as k"), "k", state_dir=tmp_path / name)

    one, two = failure(joined("coalesce").coalesce(1), tmp_path / "c1"), joined("union")
    assert re.search(
        "StateMismatchError: progressive_join(: expected its 2 partitions|, state directory .* one number)", one
    )
    assert "use repartition(n)" in one or "put .repartition(n) between" in one
    assert re.search(
        r"StateMismatchError: progressive_join: expected its 2 partitions to be computed once each, under their own "
        r"numbers, found another numbering \(task partition \d\)\. A union, coalesce or self-join right after the join "
        r"renumbers its partitions: put \.repartition\(n\) between, or write the result to a sink first\.",
        failure(source("id as k").unionByName(two), tmp_path / "c2"),
    )


def test_a_result_outside_a_streaming_query() -> None:
    assert message(WorkerSetupError, lambda: Position.now("progressive_join")) == (
        "progressive_join: expected to run inside a streaming query, found no micro-batch. Start the result with "
        "writeStream; an action inside foreachBatch that runs in a thread of its own needs pyspark.InheritableThread. "
        "In Spark Connect all of them run outside the query: write to a sink there, and use foreachBatch on a stream "
        "that reads it."
    )


def test_another_release_on_the_worker() -> None:
    job = json.dumps({"release": "99.0"})
    assert message(WorkerSetupError, lambda: next(run_task(job, iter([])))) == (
        f"the Spark worker running {sys.executable}: expected Watersmeet 99.0, as on the driver, found Watersmeet "
        f"{wm.__version__}. Install the same release on the driver and on all workers."
    )


def test_a_worker_without_watersmeet() -> None:
    """The function that Spark sends loads where Watersmeet is missing, and says so."""
    program = (
        "import sys; sys.modules['watersmeet'] = None\n"
        "from pyspark import cloudpickle\n"
        "run = cloudpickle.loads(sys.stdin.buffer.read())\n"
        "try: next(run(iter([])))\n"
        "except ImportError as error: print(error, *error.__notes__, sep='\\n')\n"
    )
    sent = cloudpickle.dumps(task_function('{"who": "window_join"}', {}))
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
    sentence, line = done.stdout.decode().strip().splitlines()
    error = find_error(line)
    assert isinstance(error, WorkerSetupError)
    assert str(error) == sentence
    assert re.fullmatch(
        re.escape(f"window_join, the Spark worker running {sys.executable}: expected an installed Watersmeet, found ")
        + r"none that can be loaded \(.*watersmeet.*\)\. Install watersmeet in the workers' Python, or point "
        r"PYSPARK_PYTHON \(spark\.pyspark\.python\) at an environment that has it\.",
        sentence,
    )
