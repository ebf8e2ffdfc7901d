"""Windows together with punctuations and constraints through Structured Streaming."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.errors import PlanError
from watersmeet.spark.event_time import DELAY

START = datetime(2026, 1, 1)
LEFT, RIGHT = "k string, a long, at timestamp", "k string, b long, seen timestamp, last boolean"


def key(number: int) -> str:
    return f"a common beginning of keys/{number:04d}"


class Streams:
    """Orders and payments; the payments say when an order gets no more of them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        self.left, self.right = Feed(spark, folder / "l", LEFT), Feed(spark, folder / "r", RIGHT)
        self.result: Any = lambda schema: spark.read.schema(schema).parquet(str(folder / "out"))

    def orders(self, *numbers_and_minutes: tuple[int, int]) -> None:
        self.left.send(
            *({"k": key(n), "a": n, "at": START + timedelta(minutes=minute)} for n, minute in numbers_and_minutes)
        )

    def payments(self, *numbers_and_minutes: tuple[int, int], last: bool = False) -> None:
        self.right.send(
            *(
                {"k": key(n), "b": n, "seen": START + timedelta(minutes=minute), "last": last}
                for n, minute in numbers_and_minutes
            )
        )

    def joined(self, how: str, **options: Any) -> DataFrame:
        facts: dict[str, Any] = {
            "punctuations": {"right": wm.PunctuationRows("last")},
            "window": "1 hour",
            "time": ("at", "seen"),
            **options,
        }
        return wm.window_join(
            self.left.stream, self.right.stream, "k", how, state_dir=self.folder / "state", partitions=2, **facts
        )

    def wanted(self, how: str) -> DataFrame:
        hour = F.expr("interval 1 hour")
        left, right = self.left.batch, self.right.batch.where("not last").drop("last")
        pairs = left.alias("l").join(
            right.alias("r"),
            (F.col("l.k") == F.col("r.k")) & F.col("r.seen").between(F.col("l.at") - hour, F.col("l.at") + hour),
            how,
        )
        return pairs.select("l.*") if how in ("left_semi", "left_anti") else pairs.select("l.k", "a", "at", "b", "seen")


@pytest.mark.parametrize("how", ["inner", "left", "left_semi", "left_anti"])
def test_the_answer_is_that_of_the_windows_alone(spark: SparkSession, tmp_path: Path, how: str) -> None:
    streams = Streams(spark, tmp_path)
    for first in (0, 15):
        numbers = range(first, first + 15)
        streams.orders(*((n, 10 * n) for n in numbers))
        streams.payments(*((n, 10 * n + (90 if n % 5 == 0 else 20)) for n in numbers if n % 3))
        streams.payments(*((n, 0) for n in numbers if n % 2), last=True)
    joined = streams.joined(how, lateness="10 days")
    run(joined, tmp_path)
    for name in ("left", "right"):
        wm.end_input(tmp_path / "state", name)
    run(streams.joined(how, lateness="10 days"), tmp_path)
    assert rows(streams.result(joined.schema)) == rows(streams.wanted(how))


def test_promises_in_a_stream_of_their_own_have_no_time(spark: SparkSession, tmp_path: Path) -> None:
    """Neither as many columns as the input has, nor its time in the same place."""
    streams = Streams(spark, tmp_path)
    over = Feed(spark, tmp_path / "over", "noted timestamp, k string")
    streams.orders((1, 0), (2, 0), (3, 0))
    streams.payments((1, 10), (2, 90), (3, 20))
    over.send({"noted": START, "k": key(1)}, {"noted": START, "k": key(2)})
    ends = over.stream.withWatermark("noted", "1 minute")

    def joined(how: str = "inner") -> DataFrame:
        return streams.joined(how, punctuations={"right": ends})

    plain = joined()
    watermarked = [field.name for field in plain.schema if DELAY in (field.metadata or {})]
    assert watermarked == ["at", "seen"]
    run(plain, tmp_path)
    wanted = streams.wanted("inner").withColumn("last", F.lit(False))
    assert rows(streams.result(plain.schema)) == rows(wanted)
    left = wm.read_rows(spark, tmp_path / "state", "left").select("a")
    assert {row.a for row in left.collect()} == {3}  # no payment of the others will come


def test_promises_in_a_stream_of_their_own_of_a_join_that_is_chosen(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    over = Feed(spark, tmp_path / "over", "k string")
    streams.orders((1, 0), (2, 0), (3, 0))
    streams.payments((1, 10), (2, 90), (3, 20))
    over.send({"k": key(1)}, {"k": key(2)})
    joined = wm.join(
        streams.left.stream,
        streams.right.stream,
        "k",
        within="1 hour",
        time=("at", "seen"),
        ends={"right": over.stream},
        state_dir=tmp_path / "state",
        partitions=2,
    )
    run(joined, tmp_path)
    wanted = streams.wanted("inner").withColumn("last", F.lit(False))
    assert rows(streams.result(joined.schema)) == rows(wanted)


def test_a_promise_lets_an_unmatched_row_go_before_its_window_has_passed(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    streams.orders(*((n, 0) for n in range(4)))
    streams.payments((0, 1))
    run(streams.joined("left"), tmp_path)
    schema = streams.joined("left").schema
    assert {row.a: row.b for row in streams.result(schema).collect()} == {0: 0}
    streams.payments((1, 0), last=True)
    run(streams.joined("left"), tmp_path)
    assert {row.a: row.b for row in streams.result(schema).collect()} == {0: 0, 1: None}
    streams.payments((9, 100))  # and now the window of all of them has passed
    run(streams.joined("left"), tmp_path)
    found = {row.a for row in streams.result(schema).collect() if row.b is None}
    assert 1 in found
    reasons = wm.read_metrics(spark, tmp_path / "state").select(F.explode("counters").alias("name", "value"))
    counted = {row.name: row["sum(value)"] for row in reasons.groupBy("name").sum("value").collect()}
    assert counted["unmatched.left.punctuation"] == 1
    assert counted["left.left.punctuation"] == 1


def test_a_row_compared_with_its_only_partner_waits_no_longer(spark: SparkSession, tmp_path: Path) -> None:
    """The partner is out of reach, and no other one can come."""
    streams = Streams(spark, tmp_path)
    streams.orders((1, 0), (2, 0))
    streams.payments((1, 200))
    options: dict[str, Any] = {"constraints": [wm.OneToMany(one="right")], "punctuations": None, "lateness": "10 days"}
    joined = streams.joined("left", **options)
    run(joined, tmp_path)
    assert {(row.a, row.b) for row in streams.result(joined.schema).collect()} == {(1, None)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"punctuations": None, "on_violation": "drop"}, "found on_violation='drop' and no promises"),
        (
            {"on_overload": "shed"},
            "expected on_overload='keep' with constraints or punctuations, found on_overload='shed'",
        ),
        (
            {"algorithm": "NH"},
            "expected algorithm='auto' or 'HH' with constraints or punctuations, found algorithm='NH'",
        ),
        ({"punctuations": {"orders": wm.PunctuationRows("last")}}, "punctuations for the inputs 'left' and 'right'"),
        ({"constraints": [wm.Ordered("right", sequence="nope")]}, "nope"),
    ],
)
def test_what_cannot_be_combined(spark: SparkSession, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=r"^window_join: ") as caught:
        Streams(spark, tmp_path).joined("inner", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "state").exists()


def test_a_broken_promise_is_named(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    streams.orders((1, 0))
    streams.payments((1, 0), last=True)
    run(streams.joined("inner"), tmp_path)
    streams.payments((1, 5))
    with pytest.raises(Exception, match="no row of input 'right' with a key in"):
        run(streams.joined("inner"), tmp_path)
