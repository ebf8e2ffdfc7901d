"""Hot keys on real queries: the answer is that of Spark's batch join, and the work is spread."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.engine.guests import hot_table
from watersmeet.engine.rescale import rescale
from watersmeet.errors import OptionError, StateMismatchError
from watersmeet.state.directory import StateDir

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


def test_a_hot_key_is_spread_and_the_answer_exact(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "left", "k long, a string")
    right = Feed(spark, tmp_path / "right", "k long, b string")
    state = tmp_path / "state"
    for part in range(3):  # two restarts
        for number in range(2):
            send(left, right, 2 * part + number)
        run(joined(left, right, state, "left"), tmp_path)
    table = hot_table(StateDir(state), BATCHES)
    [key] = table.keys.values()
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


def test_what_cannot_be_spread_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "left", "k long, a string")
    right = Feed(spark, tmp_path / "right", "k long, b string")
    with pytest.raises(
        OptionError, match=r'expected hot_keys="off" for this join, found hot_keys="auto" with how=.full'
    ):
        joined(left, right, tmp_path / "full", "full")
    with pytest.raises(OptionError, match="hot_keys"):
        joined(left, right, tmp_path / "word", "inner", hot_keys="always")
    send(left, right, 0)
    run(joined(left, right, tmp_path / "state", "inner"), tmp_path)
    with pytest.raises(StateMismatchError, match="hot_keys was 'auto'"):
        joined(left, right, tmp_path / "state", "inner", hot_keys="off")
    with pytest.raises(StateMismatchError, match=r'found hot_keys="auto".*keep their number of partitions'):
        rescale(StateDir(tmp_path / "state"), 2)
