"""The picture of when unmatched rows are emitted: up to date, and true of this join and of Spark's."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timeline
from tests.spark.feed import Feed
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, advance
from watersmeet.state.space import MemorySpace
from watersmeet.testing.arrivals import make_plan, table_of

MINUTE = 60_000_000
NOON = datetime(2026, 1, 1, 12)
every_scene = pytest.mark.parametrize("scene", timeline.SCENES, ids=lambda scene: scene.title)


def key(side: str, minute: int) -> int:
    """Keys that match nothing: that of the row in the picture is 0."""
    return minute if side == "left" else 1000 + minute


def test_the_picture_is_up_to_date() -> None:
    picture = Path(__file__).resolve().parents[2] / "docs" / "join-types.svg"
    assert picture.read_text() == timeline.picture(), "the script has changed: run `make reference`"


@every_scene
def test_the_row_is_emitted_here_when_the_picture_says(scene: timeline.Scene) -> None:
    options = {"window": [timeline.WINDOW * MINUTE, 0], "lateness": timeline.LATENESS * MINUTE}
    timeout = None if scene.idle_timeout is None else scene.idle_timeout * MINUTE
    plan = make_plan(
        "window",
        options=options | {"time_columns": ["_p0", "_p0"]},
        tuning={"idle_timeout": timeout},
        payload=(pa.int64(),),
        how="left",
    )
    operator, emitted = build(plan, MemorySpace()), None
    for number, minute in enumerate(timeline.BATCHES):
        rows = {
            side: table_of(plan.input(side), [(key(side, minute), minute * MINUTE)] * (minute in scene.rows(side)))
            for side in ("left", "right")
        }
        ended = frozenset({"right"} if minute == scene.right_ends else ())
        batch = Batch(number, (1000 + minute) * MINUTE, rows, ended=ended)
        if any(0 in table.column("k0").to_pylist() for table in advance(operator, batch)):
            assert emitted is None
            emitted = minute
    assert emitted == scene.emitted_here()


@every_scene
def test_the_row_is_emitted_by_spark_when_the_picture_says(
    scene: timeline.Scene, spark: SparkSession, tmp_path: Path
) -> None:
    sides = {}
    for side in ("left", "right"):
        feed = Feed(spark, tmp_path / side, f"{side} long, {side}_time timestamp")
        for minute in scene.rows(side):
            feed.send({side: key(side, minute), f"{side}_time": NOON + timedelta(minutes=minute)})
        sides[side] = feed.stream.withWatermark(f"{side}_time", f"{timeline.LATENESS} minutes")
    reach = F.expr(f"right_time between left_time and left_time + interval {timeline.WINDOW} minutes")
    joined = sides["left"].join(sides["right"], (F.col("left") == F.col("right")) & reach, "left_outer")
    found: dict[int, int] = {}  # keys of left rows, and the minute of the batch that emitted them

    def note(rows: DataFrame, batch: int) -> None:
        found.update({row.left: 2 * batch for row in rows.collect()})

    query = joined.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert found.get(0) == scene.emitted_by_spark()
