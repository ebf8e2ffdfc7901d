"""What is asked of plans without the JVM agrees with what the JVM says."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from watersmeet.spark.plans import plans
from watersmeet.spark.schema import row_bytes

TYPES = (
    "a boolean, b byte, c short, d int, e long, f float, g double, h decimal(18, 2), i decimal(38, 2), j string, "
    "k binary, l date, m timestamp, n timestamp_ntz, o interval year to month, p interval day to second, q array<int>, "
    "r map<string, long>, s struct<x: int, y: string>, t void, u variant"
)


@pytest.mark.classic("compares with what the JVM says")
def test_the_size_of_a_row_is_sparks_estimate(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], TYPES)
    assert row_bytes(frame.schema.fields) == frame._jdf.schema().defaultSize() + 8
    for field in frame.schema.fields:
        one = frame.select(field.name)
        assert row_bytes(one.schema.fields) == one._jdf.schema().defaultSize() + 8, field.name


def test_watermarks_are_found_changed_and_removed(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    declared = rate.withWatermark("timestamp", "10 minutes").where("value > 1")
    assert not plans(rate).has_watermarks()
    assert plans(declared).has_watermarks()
    assert not plans(declared).hides_watermarks()
    doubled = plans(declared).with_delays(lambda millis: 2 * millis)
    assert doubled.schema["timestamp"].metadata == {"spark.watermarkDelayMs": 1_200_000}
    assert "spark.watermarkDelayMs" not in plans(declared).with_delays(lambda _: None).schema["timestamp"].metadata
    assert plans(declared.dropDuplicates(["value"])).removes_duplicates()
    assert plans(declared.groupBy("timestamp").count()).holds_rows()
    assert plans(declared.join(rate, "value")).holds_rows()
    assert not plans(declared.join(spark.range(3).toDF("value"), "value")).holds_rows()
