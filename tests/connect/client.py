"""What a client of Spark Connect does: every join, against the answer of Spark's batch join. Run as a program.

python client.py sc://localhost:15002 FOLDER
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import watersmeet as wm

LEFT, RIGHT = "k long, a string, at timestamp", "k long, b string, bt timestamp"


def main(remote: str, folder: Path) -> None:
    """Run all of them; prints a line for each, and fails with the first that is wrong."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    time = "2026-01-01T00:00:{:02d}"
    sent = {
        "left": [{"k": i % 5 if i % 4 else None, "a": f"x{i}", "at": time.format(i)} for i in range(20)],
        "right": [{"k": i % 7, "b": f"y{i}", "bt": time.format(i)} for i in range(20)],
    }
    for name, rows in sent.items():
        (folder / name).mkdir()
        (folder / name / "0.json").write_text("\n".join(map(json.dumps, rows)))
    left, right = (spark.readStream.schema(s).json(str(folder / n)) for n, s in (("left", LEFT), ("right", RIGHT)))
    all_left, all_right = (spark.read.schema(s).json(str(folder / n)) for n, s in (("left", LEFT), ("right", RIGHT)))
    inner = all_left.join(all_right, "k")
    wm.prepare_master(all_right, "k", folder / "master", chunk_rows=5, partitions=2)

    def state(name: str) -> Path:
        return folder / f"{name}-state"

    joins: dict[str, tuple[Callable[[Path], DataFrame], DataFrame]] = {
        "progressive": (lambda at: wm.progressive_join(left, right, "k", state_dir=at), inner),
        "budget": (lambda at: wm.progressive_join(left, right, "k", state_dir=at, memory="64 MB", partitions=2), inner),
        "window": (
            lambda at: wm.window_join(
                left.withWatermark("at", "5 seconds"), right.withColumn("x", right.b), "k", state_dir=at,
                window="1 h", time=("at", "bt"),
            ).drop("x"),
            inner,
        ),
        "shed": (lambda at: wm.window_join(left, right, "k", state_dir=at, window="1 h", on_overload="shed"), inner),
        "redeclared": (
            lambda at: wm.progressive_join(
                left.withWatermark("at", "5 seconds"), right, "k", state_dir=at
            ).withWatermark("at", "1 hour"),
            inner,
        ),
        "chosen": (
            lambda at: wm.join(left, right, "k", state_dir=at, within="1 h", time=("at", "bt")).where("k > -1"),
            inner,
        ),
        "multiway": (lambda at: wm.multiway_join({"left": left, "right": right}, "k", state_dir=at), inner),
        "punctuated": (lambda at: wm.punctuated_join(left, right, "k", state_dir=at), inner),
        "semi_stream": (
            lambda at: wm.semi_stream_join(left, folder / "master", "k", state_dir=at, how="left", max_delay=1),
            all_left.join(all_right, "k", "left"),
        ),
    }  # fmt: skip
    for name, (build, answer) in joins.items():
        joined = build(state(name))
        told = wm.explain(joined)
        assert told.story == wm.explain(state(name)).story, name
        assert (told.choices[0].why == f"{told.story.who} was called") == (name != "chosen"), name
        run(joined, folder / name)
        found = rows_of(spark.read.parquet(str(folder / name / "out")).select(*answer.columns))
        assert found == rows_of(answer), name
        print(name)
    window = joins["window"][0](state("window"))
    assert {f.name: f.metadata.get("spark.watermarkDelayMs") for f in window.schema if "t" in f.name} == {
        "at": 10_000 + 3_600_000 + 1,  # lateness, window, and what makes a row not late
        "bt": 10_000 + 3_600_000 + 1,
    }
    assert wm.refresh_master(all_right, folder / "master") == 2
    for side in ("left", "right"):
        wm.end_input(state("progressive"), side)
    run(joins["progressive"][0](state("progressive")), folder / "progressive")
    assert wm.read_state(spark, state("progressive")).count() == 0
    assert wm.read_metrics(spark, state("progressive")).count() > 0
    assert wm.read_state(spark, state("multiway")).selectExpr("sum(rows)").first() == (35,)
    held = wm.read_rows(spark, state("multiway"), "left")
    assert rows_of(held.drop("_state")) == rows_of(all_left.where("k is not null"))
    print("control")


def run(joined: DataFrame, folder: Path) -> None:
    """All that there is, in one query."""
    writer = joined.writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def rows_of(frame: DataFrame) -> Counter[tuple[object, ...]]:
    """The rows of a batch DataFrame."""
    return Counter(map(tuple, frame.collect()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
