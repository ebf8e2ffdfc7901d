"""Times at the ends of what Spark holds: years 1 and 9999, which it can print, and the first and last microsecond."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm

SECOND = 1_000_000
YEAR_1, YEAR_9999 = -62_135_596_800 * SECOND, 253_402_300_799 * SECOND
EARLIEST, LATEST = -(2**63), 2**63 - 1
# In the order in which they arrive, one micro-batch each.
EDGES = [EARLIEST, YEAR_1, YEAR_9999, LATEST - 6 * SECOND]
WINDOW = 3 * SECOND


def rows_of(edge: int) -> list[tuple[int, int]]:
    """Keys and times: six seconds from the edge on, the last one at the very end of time."""
    times = [edge + step * SECOND for step in range(6)] + ([LATEST] if edge == EDGES[-1] else [])
    return [(key, time) for time in times for key in (1, 2)]


def stream(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    (folder / name).mkdir()
    for number, edge in enumerate(EDGES):
        keys, times = zip(*rows_of(edge), strict=True)
        table = pa.table({"k": pa.array(keys, pa.int64()), "micros": pa.array(times, pa.int64())})
        file = folder / name / f"{number}.parquet"
        pq.write_table(table, file)
        # Spark takes the oldest file first, by the millisecond: two of the same one would come in any order.
        os.utime(file, (1_000_000_000 + number,) * 2)
    frame = spark.readStream.schema("k long, micros long").option("maxFilesPerTrigger", 1).parquet(str(folder / name))
    return frame.select("k", F.timestamp_micros("micros").alias(name))


@pytest.mark.parametrize("family", ["window", "multiway"])
def test_equals_arithmetic_without_bounds(spark: SparkSession, tmp_path: Path, family: str) -> None:
    left, right = stream(spark, tmp_path, "l"), stream(spark, tmp_path, "r")
    arguments: dict[str, Any] = {"window": "3 s", "lateness": "10 s", "state_dir": tmp_path / "state"}
    if family == "window":
        joined = wm.window_join(left, right, "k", time=("l", "r"), **arguments)
    else:
        joined = wm.multiway_join([left, right], "k", time=["l", "r"], **arguments)
    micros = joined.select("k", F.unix_micros("l").alias("l"), F.unix_micros("r").alias("r"))
    micros.writeStream.format("parquet").option("path", str(tmp_path / "out")).option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    ).trigger(availableNow=True).start().awaitTermination()
    rows = [row for edge in EDGES for row in rows_of(edge)]
    expected = Counter((k, a, b) for k, a in rows for other, b in rows if other == k and abs(b - a) <= WINDOW)
    assert Counter(tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()) == expected
