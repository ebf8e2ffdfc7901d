"""`punctuated_join` on real Structured Streaming, beside Spark's batch join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.errors import ColumnError, KeyTypeError, OptionError
from watersmeet.state.directory import StateDir
from watersmeet.state.history import metrics_history, newest_manifests

NEWS = "sno long, title string"
ACCESS = "sno long, ip string, is_end boolean"


def metrics(state: Path, name: str) -> float:
    """A counter, summed over all partitions and batches."""
    directory = StateDir(state)
    histories = [metrics_history(directory, manifest) for manifest in newest_manifests(directory)]
    return float(sum(entry["counters"].get(name, 0) for history in histories for entry in history))


def held(state: Path, name: str) -> int:
    """A gauge in the newest version, summed over all partitions."""
    return int(sum(manifest.history[-1]["counters"].get(name, 0) for manifest in newest_manifests(StateDir(state))))


def access(sno: int | None, ip: str | None = None, *, end: bool = False) -> dict[str, Any]:
    return {"sno": sno, "ip": ip, "is_end": end}


def news(sno: int) -> dict[str, Any]:
    return {"sno": sno, "title": f"title {sno}"}


@pytest.fixture
def feeds(spark: SparkSession, tmp_path: Path) -> tuple[Feed, Feed]:
    return Feed(spark, tmp_path / "news", NEWS), Feed(spark, tmp_path / "access", ACCESS)


def test_news_and_access_records(feeds: tuple[Feed, Feed], tmp_path: Path) -> None:
    """The paper's example: ten news items are current at a time, the access records mark the end of each."""
    left, right = feeds
    state = tmp_path / "state"

    def joined() -> DataFrame:
        return wm.punctuated_join(
            left.stream,
            right.stream,
            on="sno",
            state_dir=state,
            constraints=[wm.OneToMany(one="left")],
            punctuations={"right": wm.PunctuationRows("is_end")},
        )

    def send(first: int, batches: int) -> None:
        for number in range(first, first + batches):
            left.send(*(news(sno) for sno in range(number * 5, number * 5 + 5)))
            current = range(max(0, number * 5 - 5), number * 5 + 5)
            records = [access(sno, f"10.0.{number}.{i}") for sno in current for i in range(3)]
            right.send(*records, *(access(sno, end=True) for sno in range(number * 5 - 5, number * 5) if sno >= 0))

    send(0, 4)
    assert joined().columns == ["sno", "title", "ip"]
    run(joined(), tmp_path)
    send(4, 4)  # a restart from the checkpoint
    run(joined(), tmp_path)
    data = right.batch.where("not is_end").drop("is_end")
    assert rows(left.spark.read.parquet(str(tmp_path / "out"))) == rows(left.batch.join(data, "sno"))
    assert held(state, "held_rows.left") == 5  # the items whose end has not come
    assert held(state, "held_rows.right") == 0
    assert held(state, "punctuations_held.right") == 2  # neighbours are one interval, in either partition
    assert metrics(state, "left.right.one_to_many") == data.count()
    assert metrics(state, "left.left.punctuation") == 35


def test_patterns_reach_all_partitions_and_ranges_purge(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "left", "k long, day long, a string")
    right = Feed(spark, tmp_path / "right", "k long, day long, b string")
    ends = Feed(spark, tmp_path / "ends", "day long, keys array<long>")
    left.send(*({"k": k, "day": d, "a": f"a{k}.{d}"} for k in range(20) for d in range(4)))
    right.send(*({"k": k, "day": d, "b": f"b{k}.{d}"} for k in range(20) for d in range(4)))
    ends.send()
    run_of = {"state_dir": tmp_path / "state", "on": ["k", "day"]}

    def joined() -> DataFrame:
        patterns = ends.stream.select(F.col("keys").alias("k"), wm.patterns.less_than(F.col("day")).alias("day"))
        return wm.punctuated_join(left.stream, right.stream, punctuations={"right": patterns}, **run_of)  # type: ignore[arg-type]

    run(joined(), tmp_path)
    assert held(tmp_path / "state", "held_rows.left") == 80
    ends.send({"day": 2, "keys": None}, {"day": 3, "keys": [3, 4]})
    left.send({"k": 7, "day": 0, "a": "late"}, {"k": 7, "day": 3, "a": "late"})
    run(joined(), tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(left.batch.join(right.batch, ["k", "day"]))
    assert held(tmp_path / "state", "held_rows.left") == 80 - 40 - 2 + 1
    assert held(tmp_path / "state", "held_rows.right") == 80


LONG = "customer/europe/dep/"
NUMBERED = {f"{LONG}{number:02d}{end}" for number in range(12) for end in ("", "\0", "é" * 20)}
STRINGS = sorted({"", "\0", "a", LONG, f"{LONG}\uffff", f"{LONG}\U00010000"} | NUMBERED)


@pytest.mark.parametrize(
    ("on_violation", "constraints"),
    [("drop", []), ("keep", []), ("raise", []), ("raise", [wm.Ordered("right")])],
    ids=["drop", "keep", "raise", "ordered"],
)
def test_ranges_of_long_strings(
    spark: SparkSession, tmp_path: Path, on_violation: Any, constraints: list[wm.Ordered]
) -> None:
    """A promise that grows with every batch and is always kept: nothing is dropped, everything before it is purged."""
    left = Feed(spark, tmp_path / "left", "k string, a long")
    right = Feed(spark, tmp_path / "right", "k string, b long")
    ends = Feed(spark, tmp_path / "ends", "k string")
    step = len(STRINGS) // 3
    for number in range(3):
        part = STRINGS[number * step : (number + 1) * step]
        late = STRINGS[: number * step]  # for rows of the other input that came earlier
        left.send(*({"k": key, "a": number} for key in part + late))
        right.send(*({"k": key, "b": number} for key in part))
        ends.send({"k": STRINGS[(number + 1) * step - 1]})
    patterns = ends.stream.select(wm.patterns.less_than(F.col("k")).alias("k"))
    joined = wm.punctuated_join(
        left.stream,
        right.stream,
        on="k",
        state_dir=tmp_path / "state",
        constraints=constraints,
        punctuations={} if constraints else {"right": patterns},
        on_violation=on_violation,
    )
    run(joined, tmp_path)
    found = rows(spark.read.parquet(str(tmp_path / "out")))
    assert found == rows(left.batch.join(right.batch, "k"))
    assert sum(found.values()) == step * 6
    assert held(tmp_path / "state", "held_rows.right") == step * 3
    # Each partition knows the order of its own keys only; the punctuations reach both.
    assert held(tmp_path / "state", "held_rows.left") in ((1, 2) if constraints else (1,))


def test_propagated_punctuations_feed_the_next_join(feeds: tuple[Feed, Feed], tmp_path: Path) -> None:
    left, right = feeds
    third = Feed(left.spark, tmp_path / "third", "sno long, note string")
    left.send(*(news(sno) for sno in range(10)))
    right.send(*(access(sno, f"ip{sno}") for sno in range(10)))
    third.send(*({"sno": sno, "note": f"note {sno}"} for sno in range(12)))
    right.send(*(access(sno, end=True) for sno in range(8)))
    left.send()
    third.send()
    right.send(access(None, end=True))  # the wildcard: nothing more will come
    left.send()
    third.send()

    def joined() -> DataFrame:
        first = wm.punctuated_join(
            left.stream,
            right.stream,
            on="sno",
            state_dir=tmp_path / "first",
            punctuations={"right": wm.PunctuationRows("is_end")},
            constraints=[wm.OneToMany(one="left")],
            propagate="_punctuation",
        )
        return wm.punctuated_join(
            first,
            third.stream,
            on="sno",
            state_dir=tmp_path / "second",
            punctuations={"left": wm.PunctuationRows("_punctuation")},
        )

    run(joined(), tmp_path)
    expected = left.batch.join(right.batch.where("not is_end").drop("is_end"), "sno").join(third.batch, "sno")
    assert rows(left.spark.read.parquet(str(tmp_path / "out"))) == rows(expected)
    assert metrics(tmp_path / "first", "punctuations_out") == 8 + 2  # and the wildcard, once per partition
    assert held(tmp_path / "second", "held_rows.right") == 0


def test_a_broken_promise_stops_the_query_and_says_why(feeds: tuple[Feed, Feed], tmp_path: Path) -> None:
    left, right = feeds
    left.send(news(1))
    right.send(access(1, "a"), access(1, end=True))
    left.send()
    right.send(access(1, "too late"))
    joined = wm.punctuated_join(
        left.stream,
        right.stream,
        on="sno",
        state_dir=tmp_path / "state",
        punctuations={"right": wm.PunctuationRows("is_end")},
    )
    with pytest.raises(StreamingQueryException) as raised:
        run(joined, tmp_path)
    assert "no row of input 'right' with a key in punctuation 1 (batch 0)" in str(raised.value)
    assert "in batch 1, among them key 1" in str(raised.value)


def test_clusters_by_sequence_and_a_memory_budget(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "left", NEWS)
    right = Feed(spark, tmp_path / "right", "sno long, at long, ip string")
    at = 0
    for number in range(4):
        left.send(*(news(sno) for sno in range(number * 50, number * 50 + 50)))
        records = []
        for sno in range(number * 40, number * 40 + 40):
            for _ in range(5):
                at += 1
                records.append({"sno": sno, "at": at, "ip": "x" * 50})
        right.send(*records)
    state = tmp_path / "state"

    def joined() -> DataFrame:
        return wm.punctuated_join(
            left.stream,
            right.stream,
            on="sno",
            state_dir=state,
            constraints=[wm.OneToMany(one="left"), wm.Clustered("right", sequence="at")],
            memory="4 KB",
        )

    run(joined(), tmp_path)
    assert metrics(state, "left.left.clustered") == 160 - 2  # all but the open cluster of each partition have ended
    for name in ("left", "right"):
        wm.end_input(state, name)
    run(joined(), tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(left.batch.join(right.batch, "sno"))
    assert held(state, "held_rows.left") == 0


def test_options_are_checked_before_anything_runs(feeds: tuple[Feed, Feed], tmp_path: Path) -> None:
    left, right = (feed.stream for feed in feeds)

    def join(**options: Any) -> DataFrame:
        return wm.punctuated_join(left, right, on="sno", state_dir=tmp_path / "state", **options)

    with pytest.raises(OptionError, match="'left' and 'right'"):
        join(punctuations={"news": wm.PunctuationRows("is_end")})
    with pytest.raises(ColumnError, match="boolean column"):
        join(punctuations={"right": wm.PunctuationRows("ip")})
    with pytest.raises(OptionError, match="goal 'memory' means purge='immediate'"):
        join(goal="memory", purge="batch")
    with pytest.raises(OptionError, match="sequence column"):
        join(constraints=[wm.Clustered("right", sequence="ip")])
    with pytest.raises(ColumnError, match="key column"):
        join(constraints=[wm.Ordered("right", key="ip")])
    with pytest.raises(OptionError, match="twice"):
        join(constraints=[wm.Ordered("right"), wm.Ordered("right", "descending")])
    with pytest.raises(ColumnError, match="a name that no column of the output has, found propagate='Title'"):
        join(propagate="Title")
    ends = right.select(wm.patterns.at_most(F.col("sno")).alias("sno"))
    left, right = (frame.withColumn("sno", F.col("sno").cast("decimal(38,0)")) for frame in (left, right))
    with pytest.raises(KeyTypeError, match="has no order"):
        join(punctuations={"left": ends})
