"""Options that may change at a restart are changed there, all of them and both ways, over one checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.errors import StateMismatchError
from watersmeet.multiway.options import MultiwayOptions
from watersmeet.plan.options import Options
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.semistream.options import SemiStreamOptions
from watersmeet.window.options import WindowOptions

LEFT, RIGHT = "k long, a string, at timestamp", "k long, b string, bt timestamp"


class Streams:
    """Two streams, and a join of theirs that is built again and again over one state."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.state = spark, folder, folder / "state"
        self.left, self.right = Feed(spark, folder / "left", LEFT), Feed(spark, folder / "right", RIGHT)

    def send(self) -> None:
        """Sixty rows a side of thirty keys, each key once a micro-batch on the left."""
        number = self.left.sent
        times = [f"2026-01-01T00:{number:02d}:{i % 60:02d}" for i in range(60)]
        self.left.send(*({"k": 30 * number + i, "a": f"{number}-{i}", "at": times[i]} for i in range(30)))
        self.right.send(*({"k": 30 * number + i % 30, "b": f"{number}-{i}", "bt": times[i]} for i in range(60)))

    @property
    def answer(self) -> DataFrame:
        return self.left.batch.join(self.right.batch, "k")


Build = Callable[..., DataFrame]


def progressive(streams: Streams, **options: Any) -> DataFrame:
    return wm.progressive_join(streams.left.stream, streams.right.stream, "k", state_dir=streams.state, **options)


def window(streams: Streams, **options: Any) -> DataFrame:
    return wm.window_join(
        streams.left.stream,
        streams.right.stream,
        "k",
        state_dir=streams.state,
        window="1 h",
        time=("at", "bt"),
        **options,
    )


def multiway(streams: Streams, **options: Any) -> DataFrame:
    return wm.multiway_join([streams.left.stream, streams.right.stream], "k", state_dir=streams.state, **options)


def punctuated(streams: Streams, **options: Any) -> DataFrame:
    one = [wm.OneToMany(one="left")]
    return wm.punctuated_join(
        streams.left.stream, streams.right.stream, "k", state_dir=streams.state, constraints=one, **options
    )


def semi_stream(streams: Streams, **options: Any) -> DataFrame:
    path = streams.folder / "master"
    if not path.exists():  # with the rows that are still to come
        ids = streams.spark.range(240)
        table = ids.selectExpr("id % 120 as k", "concat(id div 60, '-', id) as b")
        wm.prepare_master(table, "k", path, partitions=2, chunk_rows=20)
    return wm.semi_stream_join(streams.left.stream, path, "k", state_dir=streams.state, **options)


@dataclass
class Family:
    """How a join is built, what may change, and two sets of options that differ in all of it."""

    build: Build
    options: type[Options]
    one: dict[str, Any]
    other: dict[str, Any]
    elsewhere: frozenset[str] = frozenset({"scheduling"})  # needs no ticks, and goal sets it


FAMILIES = {
    "progressive": Family(
        progressive,
        ProgressiveOptions,
        {"memory": "1 MB"},
        {
            "memory": "4 KB", "flush": "all", "flush_share": 0.5, "page_rows": 16, "idle_after": "0 s",
            "idle_pages": 4, "fan_in": 3, "random_page_cost": 2.0, "sequential_page_cost": 3.0, "decay": 0.1,
            "distinct_keys": 10, "combine_runs": 3,
        },
    ),
    "window": Family(
        window,
        WindowOptions,
        {"memory": "1 MB", "policy": "rpj", "flush": "largest"},
        {"algorithm": "HN", "on_overload": "shrink", "service_rate": 1e9, "memory": "1 GB", "idle_timeout": "1 h",
         "late": "drop"},
    ),
    "multiway": Family(
        multiway,
        MultiwayOptions,
        {},
        {"driver": "timestamp", "slices": 3, "max_results": 10_000, "memory": "2 kB", "page_rows": 16, "idle_pages": 4},
        frozenset({"late"}),  # of use with a window, which goes on from the same clocks as that of two inputs
    ),
    "punctuated": Family(
        punctuated,
        PunctuatedOptions,
        {"purge": "immediate"},
        {
            "purge": "batch", "goal": "throughput", "purge_after": 3, "scheduling": "priority", "quota": 20,
            "memory": "1 MB", "policy": "rpj", "flush": "largest", "idle_pages": 2, "on_violation": "keep",
        },
    ),
    "semi-stream": Family(
        semi_stream,
        SemiStreamOptions,
        {"idle": "sleep"},
        {
            "idle": "work", "memory": "1 MB", "max_delay": 3, "switching_factor": 2.0, "on_overload": "raise",
            "idle_chunks": 2,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_all_that_may_change_changes_both_ways(spark: SparkSession, tmp_path: Path, name: str) -> None:
    family, streams = FAMILIES[name], Streams(spark, tmp_path)
    changed = set(family.one) ^ set(family.other) | {k for k in family.one if family.one[k] != family.other.get(k)}
    assert changed | family.elsewhere >= family.options.TUNING - family.options.INTERNAL
    for options in (family.one, family.other, family.one, family.other):
        streams.send()
        run(family.build(streams, **options), tmp_path)
    for side in wm.read_metrics(spark, streams.state).first().rows_in:
        wm.end_input(streams.state, side)
    run(family.build(streams, **family.one), tmp_path)
    master = spark.range(240).selectExpr("id % 120 as k", "concat(id div 60, '-', id) as b")
    answer = streams.left.batch.join(master, "k") if name == "semi-stream" else streams.answer
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(answer)
    assert answer.count() == 240


def test_a_budget_may_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    """From none to one so small that rows must go to disk, to none again, and back; then both inputs end."""
    streams = Streams(spark, tmp_path)
    for options in ({}, {"memory": "1 KB", "page_rows": 8}, {}, {"memory": "1500 B", "page_rows": 8}):
        streams.send()
        run(progressive(streams, **options), tmp_path)
    assert wm.read_state(spark, streams.state).where("tier = 'spilled'").count()
    for name in ("left", "right"):
        wm.end_input(streams.state, name)
    run(progressive(streams), tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(streams.answer)
    assert not wm.read_state(spark, streams.state).count()


def test_a_budget_of_many_inputs_may_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    """As above; what is on disk comes back while there is no budget."""
    streams, spilled = Streams(spark, tmp_path), []
    small = {"memory": "3 kB", "page_rows": 16, "idle_pages": 0}
    for options in ({}, small, {}, {}, small):
        streams.send()
        run(multiway(streams, **options), tmp_path)
        spilled.append(wm.read_state(spark, streams.state).where("tier = 'spilled'").count())
    assert [bool(rows) for rows in spilled] == [False, True, False, False, True]
    for name in ("input_1", "input_2"):
        wm.end_input(streams.state, name)
    run(multiway(streams), tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(streams.answer)
    assert not wm.read_state(spark, streams.state).count()


def test_a_budget_with_buckets_may_be_taken_away(spark: SparkSession, tmp_path: Path) -> None:
    """`buckets` is fixed for the state, so it stays when the budget goes."""
    streams, spilled = Streams(spark, tmp_path), []
    for options in ({}, {"memory": "1 kB"}, {}, {"memory": "1 kB"}):
        streams.send()
        run(punctuated(streams, buckets=4, **options), tmp_path)
        spilled.append(wm.read_state(spark, streams.state).where("tier = 'spilled'").count())
    assert not spilled[0]
    assert spilled[1]
    with pytest.raises(StateMismatchError, match="buckets"):
        punctuated(streams)
    for name in ("left", "right"):
        wm.end_input(streams.state, name)
    run(punctuated(streams, buckets=4), tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(streams.answer)
    assert not wm.read_state(spark, streams.state).count()


def test_columns_of_no_output_may_not_become_others(spark: SparkSession, tmp_path: Path) -> None:
    """A semi join stores of the right input what it is matched by."""
    left = Feed(spark, tmp_path / "left", "k long, at timestamp")
    right = Feed(spark, tmp_path / "right", "k long, j long, b long, c long, t1 timestamp, t2 timestamp")
    left.send({"k": 1, "at": "2026-01-01T00:00:00"})
    times = {"t1": "2026-01-01T00:00:00", "t2": "2026-01-02T00:00:00"}
    right.send({"k": 1, "j": 2, "b": 3, "c": 4, **times})

    def joined(key: str = "k", time: str = "t1", columns: str = "*", **options: Any) -> DataFrame:
        given = {"window": "1 h", "where": "right.b < right.c", "state_dir": tmp_path / "state", **options}
        other = right.stream.selectExpr(columns) if columns == "*" else right.stream.select(*columns.split())
        return wm.window_join(left.stream, other, [("k", key)], "left_semi", time=("at", time), **given)

    run(joined(), tmp_path)
    for wrong, found in (
        ({"key": "j"}, "right.k was stored where right.j is now"),
        ({"time": "t2"}, "right.t1 was stored where right.t2 is now"),
        ({"columns": "k j c b t1 t2"}, "right.b was stored where right.c is now; right.c was stored where right.b"),
    ):
        with pytest.raises(
            StateMismatchError, match=r"^window_join, state directory .*expected state of this join"
        ) as e:
            joined(**wrong)
        assert found in str(e.value)
    joined(key="K")  # as Spark compares names
    joined(memory="1 MB", partitions=3)  # what may change
    joined(columns="t2 j k b c t1")  # what is stored is the same, in the same order
    left.send({"k": 1, "at": "2026-01-01T00:30:00"})
    run(joined(), tmp_path)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2


def test_nulls_of_a_key_may_not_become_those_of_another(spark: SparkSession, tmp_path: Path) -> None:
    left, right = Feed(spark, tmp_path / "left", "k long, j long"), Feed(spark, tmp_path / "right", "k long, j long")
    left.send({"k": None, "j": 1}, {"k": 1, "j": 1})
    right.send({"k": None, "j": 1})

    def joined(safe: list[str], **options: Any) -> DataFrame:
        given = {"nulls_match": safe, "state_dir": tmp_path / "state", **options}
        return wm.progressive_join(left.stream, right.stream, ["k", "j"], **given)

    run(joined(["k"]), tmp_path)
    for options in ({}, {"memory": "1 MB"}):  # that is another operator
        with pytest.raises(StateMismatchError, match=r"nulls_match was \['k'\], is \['j'\]\. Build the join as it was"):
            joined(["j"], **options)
    joined(["k"], memory="1 MB")


def test_without_ticks_no_batch_runs_without_data(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    streams.send()
    writer = punctuated(streams).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        time.sleep(2.5)  # ticks would come every second
        assert wm.read_metrics(spark, streams.state).agg({"batch": "max"}).first()[0] == 0
    finally:
        query.stop()
