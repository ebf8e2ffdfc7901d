"""Hot keys on real queries: the answer is that of Spark's batch join, and the work is spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.engine.rescale import rescale
from watersmeet.errors import OptionError, StateMismatchError
from watersmeet.plan.hot_table import HotTable
from watersmeet.spark import hot_routing
from watersmeet.spark.planning import planned
from watersmeet.state.directory import StateDir
from watersmeet.state.store import PartitionStore

PARTITIONS, BATCHES = 4, 6
HOT = 7


def send(left: Feed, right: Feed, number: int) -> None:
    """Most left rows have one key; two right rows of it come with every batch."""
    keys = [HOT if i % 10 < 6 else i for i in range(2000)]
    left.send(*({"k": k, "a": f"{number}-{i}"} for i, k in enumerate(keys)))
    right.send(*({"k": k, "b": f"{number}-{i}"} for i, k in enumerate([HOT, HOT, *range(0, 2000, 20)])))


def joined(left: Feed, right: Feed, state: Path, how: str, hot_keys: str = "auto") -> DataFrame:
    return wm.join(
        left.stream, right.stream, on="k", how=how, state_dir=state, partitions=PARTITIONS, hot_keys=hot_keys
    )  # fmt: skip


def kept_table(state: Path, batch: int) -> HotTable:
    """The hot keys of a batch that is done."""
    return HotTable.from_json(PartitionStore(StateDir(state), 0).manifest(batch).hot["table"])


def test_a_hot_key_is_spread_and_the_answer_exact(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "left", "k long, a string")
    right = Feed(spark, tmp_path / "right", "k long, b string")
    state = tmp_path / "state"
    for part in range(3):  # two restarts
        for number in range(2):
            send(left, right, 2 * part + number)
        run(joined(left, right, state, "left"), tmp_path)
    [key] = kept_table(state, BATCHES - 1).keys.values()
    assert (key.split, key.text) == ("left", str(HOT))
    assert len(key.holders) > 1
    held = wm.read_rows(spark, state, "left")
    assert rows(held.select("k", "a")) == rows(left.batch)
    assert held.where(f"k = {HOT}").select("_state.partition").distinct().count() > 1
    assert rows(wm.read_rows(spark, state, "right").select("k", "b")) == rows(right.batch)
    for side in ("left", "right"):
        wm.end_input(state, side)
    run(joined(left, right, state, "left"), tmp_path)
    answer = left.batch.join(right.batch, "k", "left")
    assert rows(spark.read.parquet(str(tmp_path / "out")).select(*answer.columns)) == rows(answer)
    metrics = wm.read_metrics(spark, state)
    last = metrics.where(f"batch = {BATCHES - 1}").selectExpr("rows_in['left']").collect()
    assert max(row[0] for row in last) < 1.4 * 2000 / PARTITIONS
    came = metrics.selectExpr("sum(rows_in['left'])", "sum(rows_in['right'])", "sum(counters['rows_copied.right'])")
    assert tuple(came.first() or ())[:2] == (left.batch.count(), right.batch.count())
    events = [row[0] for row in metrics.selectExpr("explode(events)").collect()]
    assert any('"hot_key"' in event for event in events)


def checksum(frame: DataFrame) -> tuple[object, ...]:
    """The number of rows and the sum of their hashes, for answers of millions of rows."""
    hashes = F.xxhash64(*frame.columns).cast("decimal(38, 0)")
    return tuple(frame.select(F.count(F.lit(1)), F.sum(hashes)).first() or ())


@pytest.mark.parametrize("partitions", [4, 6])
def test_a_key_that_both_inputs_have_often_is_divided_by_both(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    left = Feed(spark, tmp_path / "left", "k long, a string")
    right = Feed(spark, tmp_path / "right", "k long, b string")
    state = tmp_path / "state"

    def joined() -> DataFrame:
        return wm.join(left.stream, right.stream, on="k", state_dir=state, partitions=partitions, hot_keys="auto")

    for part in range(3):  # two restarts
        for number in range(2):
            keys = [HOT if i % 10 < 4 else i for i in range(600)]
            left.send(*({"k": k, "a": f"{part}-{number}-{i}"} for i, k in enumerate(keys)))
            right.send(*({"k": k, "b": f"{part}-{number}-{i}"} for i, k in enumerate(keys)))
        run(joined(), tmp_path)
    [key] = kept_table(state, 5).keys.values()
    assert (len(key.grid), len(key.grid[0])) == (partitions // 2, 2)
    assert key.shape == (partitions // 2, 2)
    assert f"left and right divided by {partitions // 2} x 2 of {partitions} partitions" in str(wm.explain(joined()))
    for feed, side, column in ((left, "left", "a"), (right, "right", "b")):
        held = wm.read_rows(spark, state, side)
        assert rows(held.select("k", column)) == rows(feed.batch)
        assert held.where(f"k = {HOT}").select("_state.partition").distinct().count() > 1
    answer = left.batch.join(right.batch, "k")
    assert checksum(spark.read.parquet(str(tmp_path / "out")).select(*answer.columns)) == checksum(answer)
    metrics = wm.read_metrics(spark, state)
    names = ("rows_in['left']", "rows_in['right']", "counters['rows_copied.left']", "counters['rows_copied.right']")
    came_left, came_right, *copied = metrics.selectExpr(*(f"sum({name})" for name in names)).first() or ()
    assert (came_left, came_right) == (left.batch.count(), right.batch.count())
    assert min(copied) > 0
    last = metrics.where("batch = 5").selectExpr("rows_out").collect()
    assert max(row[0] for row in last) < 1.5 * sum(row[0] for row in last) / partitions
    events = [row[0] for row in metrics.selectExpr("explode(events)").collect()]
    assert any('"hot_key"' in event and '"columns": 2' in event for event in events)


def test_the_copied_input_is_told_of_once(spark: SparkSession, tmp_path: Path) -> None:
    """The hot key is one of the right input, whose rows have no part in what is emitted of the left by itself."""
    left = Feed(spark, tmp_path / "left", "k long, a string")
    right = Feed(spark, tmp_path / "right", "k long, b string")
    for number in range(4):
        send(right=left, left=right, number=number)
    run(joined(left, right, tmp_path / "state", "full"), tmp_path)
    [key] = kept_table(tmp_path / "state", 3).keys.values()
    assert (key.split, len(key.holders) > 1) == ("right", True)
    for side in ("left", "right"):
        wm.end_input(tmp_path / "state", side)
    run(joined(left, right, tmp_path / "state", "full"), tmp_path)
    answer = left.batch.join(right.batch, "k", "full")
    assert rows(spark.read.parquet(str(tmp_path / "out")).select(*answer.columns)) == rows(answer)


@pytest.mark.parametrize(
    ("how", "told"),
    [("inner", {}), ("left", {"within": "1 hour", "time": ("at", "seen")})],
    ids=["punctuated", "window"],
)
def test_what_is_promised_of_a_hot_key_reaches_all_that_have_it(
    spark: SparkSession, tmp_path: Path, how: str, told: dict[str, Any]
) -> None:
    left = Feed(spark, tmp_path / "left", "k long, a string, at timestamp, over boolean")
    right = Feed(spark, tmp_path / "right", "k long, b string, seen timestamp")
    state = tmp_path / "state"

    def promised(hot_keys: str = "auto", **more: Any) -> DataFrame:
        return wm.join(
            left.stream, right.stream, on="k", how=how, state_dir=state, partitions=PARTITIONS, hot_keys=hot_keys,
            ends={"left": wm.PunctuationRows("over")}, **told, **more,
        )  # fmt: skip

    def send_rights(number: int) -> None:
        keys = [HOT, HOT, *range(0, 2000, 20)]
        time = f"2024-05-17 12:{number:02}:00"
        right.send(*({"k": k, "b": f"{number}-{i}", "seen": time} for i, k in enumerate(keys)))

    for part in range(2):  # a restart
        for number in (2 * part, 2 * part + 1):
            keys = [HOT if i % 10 < 6 else i for i in range(2000)]
            time = f"2024-05-17 12:{number:02}:00"
            left.send(*({"k": k, "a": f"{number}-{i}", "at": time, "over": False} for i, k in enumerate(keys)))
            send_rights(number)
        run(promised(), tmp_path)
    [key] = kept_table(state, 3).keys.values()
    assert (key.split, key.text) == ("left", str(HOT))
    assert len(key.holders) > 1
    held = wm.read_rows(spark, state, "right").where(f"k = {HOT}")
    assert held.count() == 8
    assert wm.read_rows(spark, state, "left").where(f"k = {HOT}").select("_state.partition").distinct().count() > 1
    left.send({"k": HOT, "over": True})
    send_rights(4)
    run(promised(), tmp_path)
    assert wm.read_rows(spark, state, "right").where(f"k = {HOT}").count() == 0
    metrics = wm.read_metrics(spark, state)
    names = ("rows_in['right']", "counters['rows_copied.right']", "counters['left.right.punctuation']")
    came, copied, purged = metrics.selectExpr(*(f"sum({name})" for name in names)).first() or ()
    assert came == right.batch.count()
    assert copied > 0
    assert purged == 10 + copied, "its rows, and their copies wherever they are"
    for side in ("left", "right"):
        wm.end_input(state, side)
    run(promised(), tmp_path)
    answer = left.batch.where("not over").drop("over").join(right.batch, "k", how)
    assert rows(spark.read.parquet(str(tmp_path / "out")).select(*answer.columns)) == rows(answer)
    divided = {"inner": "left or right are divided, those of the other input copied", "left": "left are divided"}
    assert f"rows of {divided[how]}" in str(wm.explain(promised()))
    with pytest.raises(StateMismatchError, match="hot_keys was 'auto'"):
        promised("off")
    with pytest.raises(OptionError, match=r"hot_keys=\"auto\" with on_violation='keep'.*taken back in the partition"):
        promised(on_violation="keep")


@pytest.mark.parametrize(
    ("how", "options", "found"),
    [
        ("full", {}, r"how='full'.*cannot be emitted once"),
        ("inner", {"propagate": "said"}, r"propagate='said'.*A promise holds for the output when no partition"),
        ("inner", {"on_violation": "keep"}, r"on_violation='keep'.*would be taken back"),
        ("left", {"unique": "left"}, r"how='left' and keys that are unique on the left input.*has one of them at most"),
        ("inner", {"unique": ["left", "right"]}, r"keys that are unique on both inputs.*is not hot"),
        ("inner", {"unique": "right", "on_violation": "drop"}, r"on_violation='drop' and constraints.*differently"),
        ("full", {"within": "1 hour"}, r"how='full'.*cannot be emitted once"),
        ("right", {"within": "1 hour", "unique": "right"}, r"how='right' and its other options.*times of arrival"),
    ],
    ids=str,
)
def test_promises_with_which_nothing_can_be_spread(
    spark: SparkSession, tmp_path: Path, how: str, options: dict[str, Any], found: str
) -> None:
    left = Feed(spark, tmp_path / "left", "k long, a string, over boolean")
    right = Feed(spark, tmp_path / "right", "k long, b string")
    with pytest.raises(OptionError, match=f'expected hot_keys="off" for this join, found hot_keys="auto" with {found}'):
        wm.join(
            left.stream, right.stream, on="k", how=how, state_dir=tmp_path / "state", hot_keys="auto",
            ends={"left": wm.PunctuationRows("over")}, **options,
        )  # fmt: skip
    assert not list((tmp_path / "state").glob("join.json"))


@pytest.mark.classic("Connect's server cannot ask the client while it plans")
def test_without_hot_keys_there_is_nothing_to_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    found = hot_routing.entries
    monkeypatch.setattr(hot_routing, "entries", lambda job, batch: asked.append(batch) or found(job, batch))
    left = Feed(spark, tmp_path / "left", "k long, a string")
    right = Feed(spark, tmp_path / "right", "k long, b string")
    plans = []
    for number in range(3):
        send(left, right, number)
        results = joined(left, right, tmp_path / "state", "inner").writeStream.format("noop")
        query = results.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination()
        plans.append(query._jsq.explainInternal(False))
    assert asked == [0, 1, 2]
    generates = [[line for line in plan.splitlines() if "Generate" in line] for plan in plans]  # one of each stream
    nothing = [["explode(null)" in line for line in lines] for lines in generates]
    assert nothing == [[True] * 2, [False] * 2, [False] * 2]
    assert not any(word in plan for plan in plans for word in ("Broadcast", "hot_keys("))  # no job, and no task
    for manifest in tmp_path.glob("state/part-00001/v-*.json"):
        manifest.unlink()
    send(left, right, 3)
    results = joined(left, right, tmp_path / "state", "inner").writeStream.format("noop")
    query = results.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination()
    error = wm.error(failed.value)
    assert error is not None
    assert "state directory" in error.who


@pytest.mark.classic("it changes a session of this process")
def test_a_driver_that_is_not_asked_leaves_it_to_a_task(spark: SparkSession) -> None:
    rules = "org.apache.spark.sql.catalyst.optimizer.ConstantFolding"
    assert planned(spark, lambda batch: b"") is not None
    spark.conf.set("spark.sql.optimizer.excludedRules", rules)
    try:
        assert planned(spark, lambda batch: b"") is None
    finally:
        spark.conf.unset("spark.sql.optimizer.excludedRules")


def test_what_cannot_be_spread_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "left", "k long, a string")
    right = Feed(spark, tmp_path / "right", "k long, b string")
    with pytest.raises(
        OptionError,
        match=r'expected hot_keys="off" for this join, found hot_keys="auto" with how=.full.*cannot be emitted once',
    ):
        wm.join(
            left.stream, right.stream, on="k", how="full", clustered="left", state_dir=tmp_path / "full",
            hot_keys="auto",
        )  # fmt: skip
    with pytest.raises(OptionError, match=r"known in one partition alone\. Leave hot_keys out"):
        wm.multiway_join(
            {"a": left.stream, "b": right.stream}, on="k", optional=["b"], state_dir=tmp_path / "optional",
            hot_keys="auto",
        )  # fmt: skip
    with pytest.raises(OptionError, match="hot_keys"):
        joined(left, right, tmp_path / "word", "inner", hot_keys="always")
    send(left, right, 0)
    run(joined(left, right, tmp_path / "state", "inner"), tmp_path)
    with pytest.raises(StateMismatchError, match="hot_keys was 'auto'"):
        joined(left, right, tmp_path / "state", "inner", hot_keys="off")
    with pytest.raises(StateMismatchError, match=r'found hot_keys="auto".*keep their number of partitions'):
        rescale(StateDir(tmp_path / "state"), 2)


@pytest.mark.parametrize(
    ("how", "policy", "layout"),
    [("left", "aligned", "hash"), ("left_anti", "ssbj", "arrival")],
)
def test_a_hot_key_of_a_stream_beside_a_table(
    spark: SparkSession, tmp_path: Path, how: str, policy: str, layout: str
) -> None:
    """Each partition that gets rows of the key finds the table's rows of it, in every version."""
    stream = Feed(spark, tmp_path / "stream", "k long, a string")
    table = spark.range(0, 2000, 2).selectExpr("id AS k", "concat('b', id) AS b")
    table = table.union(spark.sql(f"SELECT {HOT}L, 'one'")).union(spark.sql(f"SELECT {HOT}L, 'two'"))
    path, state = tmp_path / "master", tmp_path / "state"
    wm.prepare_master(table, "k", path, partitions=PARTITIONS, chunk_rows=50, layout=layout)
    for part in range(3):  # two restarts, and a new version of the table in between
        for number in range(2):
            keys = [(HOT if i % 2 else 9) if i % 10 < 6 else i for i in range(2000)]
            stream.send(*({"k": k, "a": f"{part}-{number}-{i}"} for i, k in enumerate(keys)))
        joined = wm.join(
            stream.stream, wm.master(path), on="k", how=how, state_dir=state, hot_keys="auto", policy=policy,
            max_delay=2,
        )  # fmt: skip
        run(joined, tmp_path)
        wm.refresh_master(table, path, chunk_rows=70 + part)
    hot = kept_table(state, 5).keys.values()
    assert {key.text for key in hot if key.is_spread} == {str(HOT), "9"}
    last = wm.read_metrics(spark, state).where("batch = 5").selectExpr("rows_in['stream']").collect()
    assert max(row[0] for row in last) < 1.5 * 2000 / PARTITIONS
    assert "those of the table read where they are" in str(wm.explain(joined))
    wm.end_input(state, "stream")
    run(joined, tmp_path)
    answer = stream.batch.join(table, "k", how)
    assert rows(spark.read.parquet(str(tmp_path / "out")).select(*answer.columns)) == rows(answer)
    with pytest.raises(StateMismatchError, match="hot_keys was 'auto'"):
        wm.semi_stream_join(stream.stream, path, on="k", how=how, state_dir=state, policy=policy, max_delay=2)
