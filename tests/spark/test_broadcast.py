"""A stream and a small table in `wm.join`: Spark's own broadcast join, with the answer, the columns and the refusals of
a semi-stream join, and told of as one that keeps nothing. (Keys and payload of every type are in `test_types`.)"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, rows, run
from typer.testing import CliRunner

import watersmeet as wm
from watersmeet.chooser.table_size import SETTING
from watersmeet.cli import app
from watersmeet.errors import (
    ColumnError,
    KeyTypeError,
    OptionError,
    PlanError,
    StateDirError,
    StateMismatchError,
)
from watersmeet.spark import broadcast
from watersmeet.spark.explaining import stories

HOWS = ("inner", "left", "left_semi", "left_anti")
START = datetime(2026, 1, 1)


class Trial:
    """Sales and their parts: some sales have no part, some a null, and some parts come twice."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.state = spark, folder, folder / "state"
        self.sales = Feed(spark, folder / "in", "part int, sale long, at timestamp")
        self.send(2)
        self.write("parts", 40)

    def send(self, batches: int) -> None:
        for _ in range(batches):
            first = self.sales.sent * 30
            self.sales.send(
                *(
                    {"part": None if n % 11 == 0 else n % 50, "sale": n, "at": START + timedelta(seconds=n)}
                    for n in range(first, first + 30)
                )
            )

    def write(self, name: str, parts: int) -> None:
        ids = F.when(F.col("id") % 13 == 0, None).otherwise(F.col("id") % (parts - 7)).alias("part")
        table = self.spark.range(parts).select(
            ids, F.concat(F.lit("p"), "id").alias("name"), (F.col("id") * 2).alias("most")
        )
        table.coalesce(1).write.parquet(str(self.folder / name))

    @property
    def parts(self) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / "parts"))

    def join(self, how: str = "inner", on: Any = "part", table: Any = None, **options: Any) -> DataFrame:
        table = self.parts if table is None else table
        return wm.join(self.sales.stream, table, on, how, **{"state_dir": self.state, **options})

    def result(self, joined: DataFrame) -> Any:
        run(joined, self.folder)
        return rows(self.spark.read.schema(joined.schema).parquet(str(self.folder / "out")))


@pytest.fixture
def trial(spark: SparkSession, tmp_path: Path) -> Trial:
    return Trial(spark, tmp_path)


def family(joined: DataFrame) -> str:
    ((story, _),) = stories(joined)
    return story.family


def why(joined: DataFrame) -> str:
    return wm.explain(joined).choices[0].why


@contextmanager
def threshold(spark: SparkSession, value: str) -> Iterator[None]:
    before = spark.conf.get(SETTING)
    spark.conf.set(SETTING, value)
    try:
        yield
    finally:
        spark.conf.set(SETTING, before)


# -- the answer


@pytest.mark.parametrize("how", HOWS)
def test_the_answer_and_the_columns_of_the_batch_join_over_a_restart(trial: Trial, how: str) -> None:
    first = trial.join(how)
    assert family(first) == "broadcast"
    trial.result(first)
    trial.send(2)
    found = trial.result(trial.join(how))
    wanted = trial.sales.batch.join(trial.parts, "part", how)
    assert first.schema == wanted.schema
    assert found == rows(wanted)
    assert any(row[0] is None for row in found) == (how in ("left", "left_anti")), "null keys match nothing"
    assert len(found) > 0


@pytest.mark.parametrize("how", HOWS)
def test_a_condition_and_pairs_of_names(trial: Trial, how: str) -> None:
    """The condition is written as for a semi-stream join, and may name columns that no output has."""
    table = trial.parts.withColumnRenamed("part", "id").withColumn("unused", F.lit("x"))
    condition = "stream.sale <= master.most * 3 and name <> 'p7' and sale + 1 > 0"
    options: dict[str, Any] = {"where": condition}
    if how in ("inner", "left"):
        options["master_columns"] = ["name"]
    joined = trial.join(how, [("part", "id")], table, **options)
    assert family(joined) == "broadcast"
    left, right = trial.sales.batch.alias("stream"), table.alias("master")
    wanted = left.join(right, F.expr(f"stream.part = master.id and {condition}"), how)
    wanted = wanted.drop("most", "unused") if how in ("inner", "left") else wanted
    assert joined.schema == wanted.schema
    assert trial.result(joined) == rows(wanted)
    pinned = trial.join(
        how, [("part", "id")], table, operator="semi-stream", state_dir=trial.folder / "other", **options
    )
    assert pinned.schema == joined.schema
    assert f"where {condition}" in str(wm.explain(joined))


def test_aliases_and_names_that_are_hard_to_tell_apart(trial: Trial) -> None:
    """Inputs by their own aliases, a column called as an input, names with dots and ticks, and another case."""
    sales = trial.sales.stream.withColumn("right", F.struct(F.lit(3).alias("most"))).alias("s")
    table = trial.parts.selectExpr("part as `pa.rt`", "name as `na``me`", "most").alias("p")
    joined = wm.join(
        sales, table, [("PART", "pa.rt")], "left", state_dir=trial.state, where="s.sale < p.most and p.`na``me` <> 'p9'"
    )
    plain = trial.sales.batch.withColumn("right", F.struct(F.lit(3).alias("most"))).alias("s")
    other = trial.parts.selectExpr("part as `pa.rt`", "name as `na``me`", "most").alias("p")
    wanted = plain.join(other, F.expr("s.part = p.`pa.rt` and s.sale < p.most and p.`na``me` <> 'p9'"), "left")
    assert joined.schema == wanted.schema
    assert trial.result(joined) == rows(wanted)


@pytest.mark.parametrize("how", ["left", "left_semi"])
def test_nulls_match_where_that_is_wanted(trial: Trial, how: str) -> None:
    joined = trial.join(how, nulls_match=["part"])
    assert family(joined) == "broadcast"
    wanted = (
        trial.sales.batch.alias("l")
        .join(trial.parts.alias("r"), F.expr("l.part <=> r.part"), how)
        .select("l.*", *(["r.name", "r.most"] if how == "left" else []))
    )
    found = trial.result(joined)
    assert found == rows(wanted)
    assert any(row[0] is None for row in found)
    assert "a null in part matches a null" in str(wm.explain(joined))


# -- the choice


def test_the_size_of_the_table_decides(trial: Trial) -> None:
    spark = trial.spark
    joined = trial.join()
    assert why(joined).startswith("the table is small, 40 rows, ")
    assert "(up to 5.2 MB, half of spark.sql.autoBroadcastJoinThreshold, are broadcast)" in why(joined)
    with threshold(spark, "2000"):  # 40 rows of 44 bytes each
        large = trial.join(state_dir=trial.folder / "large")
        assert family(large) == "semi-stream"
        assert re.search(r"it is not broadcast at (about 1\.\d kB by Spark's estimate|more than 22 rows)", why(large))
        keys = trial.join("left_semi", state_dir=trial.folder / "keys")
        assert family(keys) == "broadcast", "of the table the keys alone are needed"
        narrow = trial.join(state_dir=trial.folder / "narrow", master_columns=[])
        assert family(narrow) == "broadcast"
    with threshold(spark, "-1"):
        never = trial.join(state_dir=trial.folder / "never")
        assert family(never) == "semi-stream"
        assert "(spark.sql.autoBroadcastJoinThreshold is -1: nothing is to be broadcast)" in why(never)


def test_a_table_of_which_spark_knows_nothing_is_counted(trial: Trial) -> None:
    spark = trial.spark
    made = spark.createDataFrame([(n, f"p{n}") for n in range(40)], "part long, name string")
    assert "the table is small, 40 rows, 1.4 kB" in why(trial.join(table=made))
    # Spark's estimate of a join is the product of its inputs, two megabytes each here.
    two = spark.range(50_000).withColumnRenamed("id", "part").hint("merge")
    both = two.join(two, "part").where("part < 30")
    assert "the table is small, 30 rows, 480 bytes" in why(trial.join(table=both, state_dir=trial.folder / "both"))
    with threshold(spark, "600"):
        counted = trial.join(table=both, state_dir=trial.folder / "counted")
        assert "it is not broadcast at more than 18 rows of about 16 bytes" in why(counted)


def test_a_table_in_files_that_are_compressed_is_counted(trial: Trial) -> None:
    """A million equal rows take a few kilobytes on disk."""
    rows_of_ones = trial.spark.range(1_000_000).select(F.lit(1).alias("part"), F.lit("a name").alias("name"))
    rows_of_ones.coalesce(1).write.parquet(str(trial.folder / "ones"))
    joined = trial.join(table=trial.spark.read.parquet(str(trial.folder / "ones")))
    assert family(joined) == "semi-stream"
    assert "it is not broadcast at more than 163,840 rows of about 32 bytes" in why(joined)


def test_an_option_of_the_semi_stream_join_asks_for_it(trial: Trial) -> None:
    joined = trial.join(max_delay=2, partitions=3)
    assert family(joined) == "semi-stream"
    assert why(joined).endswith("; only this join has partitions and max_delay")
    assert wm.explain(joined).story.partitions == 3
    with pytest.raises(OptionError, match="expected options of the broadcast join, which fits these inputs, found max"):
        trial.join(max_delay=2, operator="broadcast", state_dir=trial.folder / "other")
    with pytest.raises(OptionError, match="found memory, an option of the progressive, window, multiway, punctuated"):
        trial.join(memory="64 MB", operator="broadcast", state_dir=trial.folder / "other")
    with pytest.raises(OptionError, match="options of the semi-stream join, which fits these inputs, found lateness"):
        trial.join(lateness="1 s", state_dir=trial.folder / "other")


def test_a_join_that_is_asked_for(trial: Trial) -> None:
    with threshold(trial.spark, "-1"):
        joined = trial.join("left", operator="broadcast")
    assert (family(joined), why(joined)) == ("broadcast", "operator was given")
    assert trial.result(joined) == rows(trial.sales.batch.join(trial.parts, "part", "left"))
    other = trial.join("left", operator="semi-stream", state_dir=trial.folder / "other")
    assert (family(other), why(other)) == ("semi-stream", "operator was given")
    same = trial.join(table=wm.master(trial.parts), state_dir=trial.folder / "same")
    assert family(same) == "broadcast", "a DataFrame is a DataFrame, whatever is around it"


def test_a_prepared_table_is_not_broadcast(trial: Trial) -> None:
    """It has versions, and can be refreshed."""
    wm.prepare_master(trial.parts, "part", trial.folder / "master", partitions=2)
    path = wm.master(trial.folder / "master")
    assert family(trial.join(table=path)) == "semi-stream"
    with pytest.raises(PlanError) as caught:
        trial.join(table=path, operator="broadcast", state_dir=trial.folder / "other")
    assert str(caught.value) == (
        "join: expected what a broadcast join can use: a stream and a batch DataFrame, found a stream and a table, "
        "which was prepared. Leave operator out, and the join is chosen; or leave out what it cannot use."
    )
    with pytest.raises(OptionError, match=r"or broadcast the table, if it fits in memory: wm\.join"):
        trial.join(table=path, nulls_match=True, state_dir=trial.folder / "other")


def test_what_is_refused_is_what_the_other_join_refuses(trial: Trial) -> None:
    def refused(kind: type[PlanError], message: str, **given: Any) -> None:
        for operator in ("broadcast", "semi-stream", None):
            state = trial.folder / f"refused-{operator}-{message}".replace("\\", "")
            with pytest.raises(kind, match=message):
                trial.join(**{"operator": operator, "state_dir": state, **given})
            assert not (state / "explain.json").exists()

    text = trial.parts.withColumn("part", F.col("part").cast("string"))
    refused(KeyTypeError, r"stream\.part: int, master\.part: string", table=text)
    refused(
        KeyTypeError, "key columns of atomic types", table=trial.parts.withColumn("part", F.array("part")), on="part"
    )
    refused(ColumnError, r"found stream\.sale, master\.sale", table=trial.parts.withColumn("sale", F.lit(1)))
    refused(ColumnError, "Did you mean 'part'", on=[("part", "prat")])
    refused(ColumnError, "Did you mean 'name'", master_columns=["nam"])
    refused(OptionError, "a list of column names, found 'name'", master_columns="name")
    refused(OptionError, "no master_columns with how='left_semi'", how="left_semi", master_columns=["name"])
    refused(OptionError, "The table's unmatched rows are not a result of the stream", how="full")
    refused(OptionError, "conditions have nothing like it", where="upper(name) = 'P1'")
    refused(PlanError, "found a streaming DataFrame", table=wm.master(trial.sales.stream.select("part")))


# -- restarts


def test_a_broadcast_join_stays_one_when_the_table_has_grown(trial: Trial) -> None:
    trial.result(trial.join("left"))
    shutil.rmtree(trial.folder / "parts")
    trial.write("parts", 60)
    trial.send(1)
    with threshold(trial.spark, "100"):
        again = trial.join("left")
        assert family(again) == "broadcast"
        assert why(again).startswith("the state directory was made by such a join")
        found = trial.result(again)
    later = trial.sales.batch.where("sale >= 60").join(trial.parts, "part", "left")
    kept = {row for row in found if row[1] >= 60}
    assert kept == set(rows(later)), "the table is read anew at a restart"


def test_a_semi_stream_join_stays_one(trial: Trial) -> None:
    with threshold(trial.spark, "-1"):
        trial.result(trial.join("left"))
    trial.send(1)
    again = trial.join("left")
    assert family(again) == "semi-stream"
    assert why(again).startswith("the state directory was made by such a join")
    assert trial.result(again) == rows(trial.sales.batch.join(trial.parts, "part", "left"))
    with pytest.raises(StateMismatchError, match="operator was 'semi_stream', is 'broadcast'"):
        trial.join("left", operator="broadcast")


def test_the_state_directory_of_a_broadcast_join_is_no_others(trial: Trial) -> None:
    trial.join()
    for options in ({"operator": "semi-stream"}, {"max_delay": 3}):
        with pytest.raises(StateMismatchError) as caught:
            trial.join(**options)
        assert "expected state of this join, found that of a broadcast join, which may have run" in str(caught.value)
        assert str(caught.value).endswith("or give this join a new state directory and a new checkpoint.")
    assert not (trial.state / "master").exists(), "no table is prepared for a join that cannot be"
    with pytest.raises(StateMismatchError, match="that of a broadcast join"):
        wm.join(trial.sales.stream, trial.sales.stream.select("part"), "part", state_dir=trial.state)
    trial.join("left_anti")  # what keeps nothing may become anything that keeps nothing


def test_a_semi_stream_join_that_never_ran_may_change_hands(trial: Trial) -> None:
    trial.join(operator="semi-stream")
    assert family(trial.join()) == "semi-stream", "its query may have begun, with sources that belong to it"
    assert family(trial.join(operator="broadcast")) == "broadcast"
    with pytest.raises(StateDirError, match="a broadcast join"):
        wm.read_rows(trial.spark, trial.state)


# -- what is told of it


def test_explain(trial: Trial) -> None:
    joined = trial.join("left", where="sale < most")
    text = str(wm.explain(joined))
    assert text.splitlines()[0] == "broadcast join of stream and a table on part, how='left'"
    assert "stream: none: every row is joined in its own micro-batch" in text
    assert "stream: at once, in their own micro-batch" in text
    assert "what other programs change in it is read at the next start" in text
    assert "wm.prepare_master, wm.master(path) as right input, and wm.refresh_master" in text
    assert not wm.explain(joined).warnings
    assert str(wm.explain(trial.state)) == text
    trial.result(joined)
    assert str(wm.explain(trial.state)) == text, "a run leaves nothing behind"
    made = joined.select("part", "name").where("part > 3").withColumn("more", F.lit(1))
    assert str(wm.explain(made)) == text
    assert "watersmeet_" not in str(joined.schema.jsonValue())
    with pytest.raises(OptionError, match=r"The inputs are left, right\.$"):
        wm.progressive_join(joined, trial.sales.stream, "part", state_dir=trial.folder / "other", where="x.sale < 3")


def test_explain_finds_joins_above_and_below(trial: Trial) -> None:
    first = wm.join(trial.sales.stream, trial.sales.stream.select("part"), "part", state_dir=trial.folder / "first")
    second = wm.join(first, trial.parts, "part", state_dir=trial.folder / "second")
    names = trial.sales.stream.select(F.concat(F.lit("p"), "sale").alias("name"))
    third = wm.join(second, names, "name", state_dir=trial.folder / "third")
    assert [story.family for story, _ in stories(third)] == ["progressive", "broadcast", "progressive"]
    assert wm.explain(second).story.family == "broadcast"
    sales, parts = trial.sales.batch, trial.parts
    wanted = sales.join(sales.select("part"), "part").join(parts, "part")
    wanted = wanted.join(sales.select(F.concat(F.lit("p"), "sale").alias("name")), "name")
    assert trial.result(third) == rows(wanted.select(*third.columns))
    assert len(rows(wanted)) > 0


@pytest.mark.parametrize("look", ["read_state", "read_metrics", "read_rows"])
def test_there_is_no_state_to_look_at(trial: Trial, look: str) -> None:
    trial.result(trial.join())
    with pytest.raises(StateDirError) as caught:
        getattr(wm, look)(trial.spark, trial.state)
    assert "expected a join that keeps state, found a broadcast join, which is Spark's own" in str(caught.value)
    assert "query.lastProgress" in str(caught.value)


def test_the_end_of_its_input_is_no_news_to_it(trial: Trial) -> None:
    joined = trial.join()
    wm.end_input(trial.state, "stream")
    assert not (trial.state / "control").exists()
    with pytest.raises(OptionError, match="one of the join's inputs: stream, found 'left'"):
        wm.end_input(trial.state, "left")
    assert trial.result(joined) == rows(trial.sales.batch.join(trial.parts, "part"))


def test_commands_say_that_there_is_nothing_to_show(trial: Trial) -> None:
    trial.join()
    state = str(trial.state)
    for command in (
        ["state", state],
        ["metrics", state],
        ["why", state, "--key", "3"],
        ["rescale", state, "--partitions", "4"],
        ["ui", state],
        ["report", state],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2, command
        assert "found a broadcast join, which is Spark's own and keeps none" in done.stderr
        assert "Traceback" not in done.output


# -- event time, the cache, a table that changes


def test_an_aggregation_after_it_sees_the_watermark(trial: Trial) -> None:
    trial.sales.send({"part": 1, "sale": 999, "at": START + timedelta(days=1)})  # closes the windows before it

    def counted(joined: DataFrame) -> DataFrame:
        return joined.groupBy(F.window("at", "20 seconds")).count().select("window.start", "count")

    stream = trial.sales.stream.withWatermark("at", "5 seconds")
    joined = wm.join(stream, trial.parts, "part", "left", state_dir=trial.state)
    assert family(joined) == "broadcast"
    run(counted(joined), trial.folder)
    found = rows(trial.spark.read.parquet(str(trial.folder / "out")))
    wanted = rows(counted(trial.sales.batch.where("sale < 999").join(trial.parts, "part", "left")))
    assert found == wanted
    assert len(found) == 3


def cached(frame: DataFrame) -> bool:
    level = frame.storageLevel
    return bool(level.useMemory or level.useDisk)


def test_the_copy_in_the_cache_is_nobody_elses_and_given_back(trial: Trial) -> None:
    joined = trial.join()
    place = str(trial.state)
    first = broadcast._KEPT[place]
    assert cached(first)
    trial.result(joined)
    assert not cached(trial.parts), "another query reads the files"
    again = trial.join()
    assert not cached(first)
    assert cached(broadcast._KEPT[place])
    trial.send(1)
    assert trial.result(again) == rows(trial.sales.batch.join(trial.parts, "part"))
    mine = trial.parts.cache()
    trial.join(table=mine)
    assert place not in broadcast._KEPT, "the user has cached it"
    assert cached(mine)
    mine.unpersist()


def test_a_table_that_changes_while_the_query_runs(trial: Trial) -> None:
    """Another program replaces the files: the query goes on with the table as it was, and reads the new one when it is
    built again."""
    joined = trial.join("left")
    writer = joined.writeStream.format("parquet").option("path", str(trial.folder / "out"))
    query = writer.option("checkpointLocation", str(trial.folder / "checkpoint")).start()
    try:
        query.processAllAvailable()
        old = trial.parts.collect()
        trial.write("others", 60)
        shutil.rmtree(trial.folder / "parts")
        shutil.move(trial.folder / "others", trial.folder / "parts")
        trial.send(1)
        query.processAllAvailable()
    finally:
        query.stop()
    table = trial.spark.createDataFrame(old, joined.sparkSession.read.parquet(str(trial.folder / "parts")).schema)
    found = rows(trial.spark.read.parquet(str(trial.folder / "out")))
    assert found == rows(trial.sales.batch.join(table, "part", "left"))
    trial.send(1)
    found = trial.result(trial.join("left"))
    newest = trial.sales.batch.where("sale >= 90").join(trial.parts, "part", "left")
    assert {row for row in found if row[1] >= 90} == set(rows(newest))
    assert set(rows(newest)) != set(rows(trial.sales.batch.where("sale >= 90").join(table, "part", "left")))
