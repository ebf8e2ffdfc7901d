"""Another number of partitions at a restart, on real queries: the answer is that of Spark's batch join."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.feed import Feed, rows, run
from typer.testing import CliRunner

import watersmeet as wm
from watersmeet.cli import app

Join = Callable[[DataFrame, DataFrame, Path, int], DataFrame]

JOINS: dict[str, Join] = {
    "progressive": lambda left, right, at, n: wm.progressive_join(
        left, right, "k", state_dir=at, partitions=n, how="full"
    ),
    "budget": lambda left, right, at, n: wm.progressive_join(
        left, right, "k", state_dir=at, partitions=n, memory="64 kB", page_rows=16
    ),
    "window": lambda left, right, at, n: wm.window_join(
        left, right, "k", state_dir=at, window="1 h", time=("at", "bt"), partitions=n, how="left"
    ),
    "multiway": lambda left, right, at, n: wm.multiway_join(
        {"left": left, "right": right}, "k", state_dir=at, partitions=n, optional="right"
    ),
    "punctuated": lambda left, right, at, n: wm.punctuated_join(left, right, "k", state_dir=at, partitions=n),
}
HOW = {"progressive": "full", "window": "left", "multiway": "left"}


def send(left: Feed, right: Feed, number: int) -> None:
    left.send(*({"k": k, "a": f"{number}-{k}", "at": f"2024-05-17T12:{number:02d}:00"} for k in range(0, 60, 2)))
    right.send(*({"k": k, "b": f"{number}-{k}", "bt": f"2024-05-17T12:{number:02d}:30"} for k in range(0, 60, 3)))


@pytest.mark.every_session
@pytest.mark.parametrize("name", JOINS)
def test_restarts_with_other_numbers(spark: SparkSession, tmp_path: Path, name: str) -> None:
    left = Feed(spark, tmp_path / "left", "k long, a string, at timestamp")
    right = Feed(spark, tmp_path / "right", "k long, b string, bt timestamp")
    state = tmp_path / "state"
    for number, partitions in enumerate([2, 4, 3]):
        send(left, right, number)
        run(JOINS[name](left.stream, right.stream, state, partitions), tmp_path)
        held = wm.read_rows(spark, state, "left").select("k", "a")
        assert rows(held) <= rows(left.batch.select("k", "a"))
        assert {row[0] for row in wm.read_state(spark, state).select("partition").collect()} <= set(range(partitions))
    for side in ("left", "right"):
        wm.end_input(state, side)
    run(JOINS[name](left.stream, right.stream, state, 3), tmp_path)
    answer = left.batch.join(right.batch, "k", HOW.get(name, "inner"))
    assert rows(spark.read.parquet(str(tmp_path / "out")).select(*answer.columns)) == rows(answer)
    metrics = wm.read_metrics(spark, state)
    came = metrics.selectExpr("sum(rows_in['left'])", "sum(rows_in['right'])", "sum(rows_out)").first()
    assert came is not None
    assert tuple(came) == (90, 60, answer.count())


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "left", "k long, a string, at timestamp")
    right = Feed(spark, tmp_path / "right", "k long, b string, bt timestamp")
    state = tmp_path / "state"
    send(left, right, 0)
    run(wm.progressive_join(left.stream, right.stream, "k", state_dir=state, partitions=2), tmp_path)
    result = CliRunner().invoke(app, ["rescale", str(state), "--partitions", "5"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "2 partitions have become 5: 50 rows after batch 0\n"
    assert wm.read_state(spark, state).selectExpr("sum(rows)", "count(distinct partition)").first() == (50, 5)
    send(left, right, 1)
    run(
        wm.progressive_join(left.stream, right.stream, "k", state_dir=state), tmp_path
    )  # the number is that of the state
    answer = left.batch.join(right.batch, "k")
    assert rows(spark.read.parquet(str(tmp_path / "out")).select(*answer.columns)) == rows(answer)
    assert sorted(path.name for path in state.glob("part-*.1")) == [f"part-{n:05d}.1" for n in range(5)]


@pytest.mark.parametrize("policy", ["aligned", "ssbj"])
def test_a_semi_stream_join_and_its_table_have_their_own_numbers(
    spark: SparkSession, tmp_path: Path, policy: str
) -> None:
    stream = Feed(spark, tmp_path / "stream", "k long, a string")
    table = spark.range(0, 60, 3).selectExpr("id as k", "concat('row ', id) as b")
    wm.prepare_master(table, "k", tmp_path / "master", partitions=4, chunk_rows=2)
    state = tmp_path / "state"
    for number, partitions in enumerate([4, 3, 8, None]):
        stream.send(*({"k": k, "a": f"{number}-{k}"} for k in range(0, 60, 2)))
        if number == 3:
            wm.end_input(state, "stream")
        joined = wm.semi_stream_join(
            stream.stream, tmp_path / "master", "k", "left", state_dir=state, policy=policy, max_delay=3,
            partitions=partitions, idle="sleep",
        )  # fmt: skip
        run(joined, tmp_path)
        waiting = wm.read_rows(spark, state, "stream").count()
        assert (waiting > 0) == (number < 3)
    assert len(list(state.glob("part-*.2"))) == 8
    answer = stream.batch.join(table, "k", "left")
    assert rows(spark.read.parquet(str(tmp_path / "out")).select(*answer.columns)) == rows(answer)
