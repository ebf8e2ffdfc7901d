"""The page of a query: its join is found by its sources, and the numbers are those of `read_metrics`."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.feed import Feed

import watersmeet as wm
from watersmeet.spark.explaining import places_of
from watersmeet.view.embed import printed_plan


def test_a_query_leads_to_the_page_of_its_join(spark: SparkSession, tmp_path: Path) -> None:
    left, right = (Feed(spark, tmp_path / name, "k long, v long") for name in ("a", "b"))
    for number in range(3):
        left.send(*({"k": key, "v": number} for key in [7, 7, 7, number]))
        right.send({"k": 7, "v": number})
    joined = wm.progressive_join(
        left.stream, right.stream.withColumnRenamed("v", "w"), on="k", state_dir=str(tmp_path / "state of a join")
    )
    query = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = query.trigger(processingTime="100 milliseconds").start()
    try:
        running.processAllAvailable()
        with wm.ui(running) as page, urllib.request.urlopen(f"{page.url}api/joins/state%20of%20a%20join") as answer:
            shown = json.load(answer)
            running.stop()
            with urllib.request.urlopen(f"{page.url}api/joins/state%20of%20a%20join") as answer_after:
                assert json.load(answer_after)["status"] == "stopped"
        # Where there are no files of markers (state in an object store), it is found by its name in the plan.
        assert places_of(printed_plan(running)) == [str(tmp_path / "state of a join")]
    finally:
        running.stop()
    metrics = wm.read_metrics(spark, str(tmp_path / "state of a join")).collect()
    assert {one["name"]: one["rows"] for one in shown["inputs"]} == {"left": 12, "right": 3}
    assert shown["status"] == "running"
    assert shown["delay"]["batch_seconds"] > shown["delay"]["join_seconds"] > 0
    assert shown["results"]["rows"] == sum(row["rows_out"] for row in metrics) == 27
    assert {row["run"] for row in metrics} == {running.runId}
    first = min(row["batch"] for row in metrics if row["rows_out"])
    assert any("fan_out_max" in row["estimates"] for row in metrics if row["batch"] == first)
    assert shown["keys"]["hot"][0]["key"] == "7"
