"""Keys of which nulls match, beside Spark's batch joins with `<=>`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, diagonal, rows, run
from tests.spark.test_join_types import FAMILIES, KEYS, TYPES, Streams, shape

import watersmeet as wm
from watersmeet.errors import ColumnError, OptionError, StateMismatchError


def batch_join(left: DataFrame, right: DataFrame, safe: list[str], how: str) -> DataFrame:
    """Spark's join on `KEYS`, with the columns that a join on shared names has."""
    a, b = left.alias("a"), right.alias("b")
    on = None
    for name in KEYS:
        one, other = F.col(f"a.{name}"), F.col(f"b.{name}")
        equal = one.eqNullSafe(other) if name in safe else one == other
        on = equal if on is None else on & equal
    joined = a.join(b, on, how)
    if how in ("left_semi", "left_anti"):
        return joined
    key = {"right": lambda n: F.col(f"b.{n}"), "full": lambda n: F.coalesce(F.col(f"a.{n}"), F.col(f"b.{n}"))}
    chosen = key.get(how, lambda n: F.col(f"a.{n}"))
    return joined.select(*(chosen(name).alias(name) for name in KEYS), "a.a", "a.at", "b.b", "b.seen")


@pytest.mark.parametrize(("how", "family"), diagonal(TYPES, list(FAMILIES)))
def test_each_type_in_each_family(spark: SparkSession, tmp_path: Path, family: str, how: str) -> None:
    safe: Any = True if how in ("inner", "full") else ["J"]
    streams = Streams(spark, tmp_path)

    def joined() -> DataFrame:
        options = {"how": how, "state_dir": tmp_path / "state", "nulls_match": safe}
        return FAMILIES[family](streams.left.stream, streams.right.stream, KEYS, **options)

    found, wanted = joined(), batch_join(streams.left.batch, streams.right.batch, KEYS if safe is True else ["j"], how)
    assert [one[:2] for one in shape(found)] == [one[:2] for one in shape(wanted)]
    run(found, tmp_path)
    for name in ("left", "right"):
        wm.end_input(tmp_path / "state", name)
    run(joined(), tmp_path)
    answer = rows(streams.result(found.schema))
    assert answer == rows(wanted)
    assert answer != rows(streams.left.batch.join(streams.right.batch, KEYS, how))


LITERALS = {
    "boolean": "true", "tinyint": "3", "smallint": "3", "int": "3", "bigint": "3", "float": "float('nan')",
    "double": "-0.0D", "decimal(20,3)": "1.5", "string": "'x'", "binary": "X'00FF'", "date": "DATE '1970-01-01'",
    "timestamp": "TIMESTAMP '2000-01-01 00:00:00'", "timestamp_ntz": "TIMESTAMP_NTZ '2000-01-01'",
    "interval day to second": "INTERVAL 5 DAYS", "interval year to month": "INTERVAL 5 MONTHS",
}  # fmt: skip


def test_every_type_of_key(spark: SparkSession, tmp_path: Path) -> None:
    """A null is no value of its type: not zero, not the empty text, not the epoch."""
    defaults = {
        "boolean": "false", "string": "''", "binary": "X''", "date": "DATE '2000-01-01'",
        "interval day to second": "INTERVAL 0 DAYS", "interval year to month": "INTERVAL 0 MONTHS",
    }  # fmt: skip
    feed = Feed(spark, tmp_path / "in", "id int")
    feed.send(*({"id": i} for i in range(3)))
    columns = []
    for number, (kind, literal) in enumerate(LITERALS.items()):
        default = defaults.get(kind, "0" if kind[0] in "tsbifd" and "stamp" not in kind else literal)
        if kind == "smallint":
            default = "0"
        choice = f"CASE id WHEN 0 THEN NULL WHEN 1 THEN CAST({default} AS {kind}) ELSE CAST({literal} AS {kind}) END"
        columns.append(f"{choice} AS k{number}")
    names = [f"k{number}" for number in range(len(LITERALS))]
    sides = [feed.stream.selectExpr(f"id AS {name}", *columns) for name in ("a", "b")]
    joined = wm.progressive_join(*sides, names, state_dir=tmp_path / "state", nulls_match=True)
    run(joined, tmp_path)
    batch = [feed.batch.selectExpr(f"id AS {name}", *columns) for name in ("a", "b")]
    one, other = batch[0].alias("a"), batch[1].alias("b")
    on = F.expr(" AND ".join(f"a.{name} <=> b.{name}" for name in names))
    wanted = one.join(other, on).select(*(F.col(f"a.{name}") for name in names), "a", "b")
    found = spark.read.schema(joined.schema).parquet(str(tmp_path / "out"))
    assert found.count() == 3
    text = [F.hex(name) if kind == "binary" else F.col(name).cast("string") for name, kind in wanted.dtypes]
    assert rows(found.select(*text)) == rows(wanted.select(*text))
    # The hash is Spark's own: a value that stands for a null in another way here would not be found.
    held = wm.read_rows(spark, tmp_path / "state", key=[None] * len(names))
    assert [row["a"] for row in held.select("a").collect()] == [0]


def test_a_null_time_is_the_same_in_every_zone(spark: SparkSession, tmp_path: Path) -> None:
    """What stands for a null outlives a restart with another zone of the session."""
    sides = [Feed(spark, tmp_path / name, f"k timestamp, {name} int") for name in ("a", "b")]
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for number, other in enumerate(("Asia/Tokyo", "America/Lima")):
            spark.conf.set("spark.sql.session.timeZone", other)
            sides[number].send({"k": None, "ab"[number]: 1})
            streams = [side.stream for side in sides]
            joined = wm.progressive_join(*streams, "k", state_dir=tmp_path / "state", nulls_match=True)
            run(joined, tmp_path)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert rows(spark.read.schema(joined.schema).parquet(str(tmp_path / "out"))) == {(None, 1, 1): 1}


def test_keys_of_two_widths_in_pairs(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "l", "k int, a string")
    right = Feed(spark, tmp_path / "r", "n long, b string")
    left.send({"k": None, "a": "x"}, {"k": 0, "a": "y"}, {"k": 4, "a": "z"})
    right.send({"n": None, "b": "u"}, {"n": 0, "b": "v"}, {"n": 9, "b": "w"})
    options: dict[str, Any] = {"how": "full", "nulls_match": True, "state_dir": tmp_path / "state"}
    joined = wm.progressive_join(left.stream, right.stream, [("k", "n")], **options)
    for name in ("left", "right"):
        wm.end_input(tmp_path / "state", name)
    run(joined, tmp_path)
    wanted = left.batch.join(right.batch, F.expr("k <=> n"), "full")
    assert joined.schema == wanted.schema
    assert rows(spark.read.schema(joined.schema).parquet(str(tmp_path / "out"))) == rows(wanted)


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    left, right = streams.left.stream, streams.right.stream
    options: dict[str, Any] = {"state_dir": tmp_path / "state", "nulls_match": True}
    with pytest.raises(OptionError, match="nulls_match = True, False, or names"):
        wm.progressive_join(left, right, KEYS, state_dir=tmp_path / "x", nulls_match=3)  # type: ignore[arg-type]
    with pytest.raises(ColumnError, match="nulls_match to name key columns: k, j, found 'a'"):
        wm.progressive_join(left, right, KEYS, state_dir=tmp_path / "x", nulls_match=["a"])
    marked = right.withColumn("end", F.col("b") == "b3")
    with pytest.raises(OptionError, match="nulls_match without punctuations"):
        wm.punctuated_join(left, marked, KEYS, punctuations={"right": wm.PunctuationRows("end")}, **options)
    with pytest.raises(OptionError, match="nulls_match without propagate"):
        wm.punctuated_join(left, right, KEYS, propagate="said", **options)
    with pytest.raises(OptionError, match="Ordered on a key of which nulls match nothing"):
        wm.punctuated_join(left, right, KEYS, constraints=[wm.Ordered("right", key="k")], **options)
    run(wm.progressive_join(left, right, KEYS, **options), tmp_path)
    with pytest.raises(StateMismatchError, match="inputs"):
        wm.progressive_join(left, right, KEYS, state_dir=tmp_path / "state")


def test_a_null_is_a_key_for_one_to_many(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "l", "k long, a long")
    right = Feed(spark, tmp_path / "r", "k long, b long, at timestamp")
    left.send({"k": None, "a": 1}, {"k": 2, "a": 2})
    right.send({"k": None, "b": 5, "at": datetime(2026, 1, 1)}, {"k": None, "b": 6}, {"k": 3, "b": 7})
    options: dict[str, Any] = {"constraints": [wm.OneToMany(one="left")], "nulls_match": True}
    joined = wm.punctuated_join(left.stream, right.stream, "k", state_dir=tmp_path / "state", **options)
    run(joined, tmp_path)
    found = spark.read.schema(joined.schema).parquet(str(tmp_path / "out"))
    assert sorted((row.k, row.a, row.b) for row in found.collect()) == [(None, 1, 5), (None, 1, 6)]
    held = {row.input: row.rows for row in wm.read_state(spark, tmp_path / "state").collect()}
    assert held == {"left": 2, "right": 1}  # rows of the null key that have matched are done with


def test_rows_of_a_null_key_are_read_with_a_null(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "l", "k long, a long")
    right = Feed(spark, tmp_path / "r", "k long, b long")
    left.send({"k": None, "a": 1}, {"k": 0, "a": 2})
    right.send({"k": 5, "b": 3})
    options: dict[str, Any] = {"state_dir": tmp_path / "state", "nulls_match": True}
    run(wm.progressive_join(left.stream, right.stream, "k", **options), tmp_path)
    held = wm.read_rows(spark, tmp_path / "state")
    assert sorted((row.a, row.k) for row in held.collect()) == [(1, None), (2, 0)]
    assert [row.a for row in wm.read_rows(spark, tmp_path / "state", key=0).collect()] == [2]
