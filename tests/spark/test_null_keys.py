"""Rows without a key match nothing, and are counted: none vanishes on the way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.feed import Feed, rows, run

import watersmeet as wm


def accounts(spark: SparkSession, state: Path) -> tuple[Counter[str], Counter[str], set[int]]:
    """Rows that came and rows without a key, by input, and the partitions that saw some of these."""
    came: Counter[str] = Counter()
    null: Counter[str] = Counter()
    partitions = set()
    for row in wm.read_metrics(spark, state).collect():
        came.update(row.rows_in)
        found = {name.split(".")[1]: int(n) for name, n in row.counters.items() if name.endswith(".null_key")}
        null.update(found)
        partitions |= {row.partition} if found else set()
    return came, null, partitions


@pytest.mark.parametrize("kind", ["long", "string"])
def test_null_keys_are_counted_and_a_repeated_batch_counts_alike(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    left, right = Feed(spark, tmp_path / "l", f"k {kind}, a string"), Feed(spark, tmp_path / "r", f"k {kind}, b long")
    left.send(*({"k": i if i % 2 else None, "a": f"row {i}"} for i in range(100)))
    right.send(*({"k": i, "b": i} for i in range(50)))
    (left.folder / "000.json").open("a").write('\n{"k": this is no JSON\n{"k"\n')
    joined = wm.progressive_join(left.stream, right.stream, "k", state_dir=tmp_path / "state")
    run(joined, tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(left.batch.join(right.batch, "k"))
    seen = accounts(spark, tmp_path / "state")
    assert seen == ({"left": 102, "right": 50}, {"left": 52}, {0, 1})

    for log in (tmp_path / "checkpoint" / "commits", tmp_path / "out" / "_spark_metadata"):
        (log / "0").unlink()
        (log / ".0.crc").unlink(missing_ok=True)
    run(joined, tmp_path)
    assert accounts(spark, tmp_path / "state") == seen
    assert {row.repeats for row in wm.read_metrics(spark, tmp_path / "state").collect()} == {0}


def test_keys_of_two_columns_and_every_family(spark: SparkSession, tmp_path: Path) -> None:
    left = Feed(spark, tmp_path / "l", "k long, j string, m boolean")
    right = Feed(spark, tmp_path / "r", "k long, j string, b long")
    left.send(
        *({"k": i, "j": "x", "m": False} for i in range(10)),
        *({"k": i, "j": None, "m": None} for i in range(20)),
        *({"k": i, "j": None, "m": True} for i in range(3)),  # punctuations
    )
    right.send(*({"k": None, "j": "x", "b": i} for i in range(7)), *({"k": i, "j": "x", "b": i} for i in range(20, 30)))
    on = ["k", "j"]
    marked = {"left": wm.PunctuationRows("m")}
    a, b = left.stream, right.stream
    rows_only = a.where("not coalesce(m, false)")
    state = {name: tmp_path / name for name in ("punctuated", "multiway", "window", "inner", "left")}
    table = right.batch
    for name, joined in {
        "punctuated": wm.punctuated_join(a, b, on, state_dir=state["punctuated"], punctuations=marked),
        "multiway": wm.multiway_join({"left": rows_only, "right": b}, on, state_dir=state["multiway"]),
        "window": wm.window_join(rows_only, b, on, state_dir=state["window"], window="1 h"),
        "inner": wm.semi_stream_join(rows_only, table, on, state_dir=state["inner"]),
        "left": wm.semi_stream_join(rows_only, table, on, state_dir=state["left"], how="left"),
    }.items():
        (tmp_path / f"{name}-run").mkdir()
        run(joined, tmp_path / f"{name}-run")
        came, null, _ = accounts(spark, state[name])
        if name in ("inner", "left"):
            assert (came, null) == ({"stream": 30}, {"stream": 20})
        else:
            assert (came, null) == ({"left": 30, "right": 17}, {"left": 20, "right": 7})
