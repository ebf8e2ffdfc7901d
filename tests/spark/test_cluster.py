"""Two executors and tasks that fail: the answer and the state are those of one quiet machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.state.directory import StateDir
from watersmeet.state.history import newest_manifests

CLUSTER = Path(__file__).parent / "cluster"


@pytest.mark.classic("starts a cluster of its own")
@pytest.mark.long
def test_failing_tasks_on_two_executors_leave_the_same_answer_and_state(spark: SparkSession, tmp_path: Path) -> None:
    batches = 3
    for number in range(batches):
        for side, offset in (("l", 0), ("r", 500)):
            rows = spark.range(number * 1000 + offset, number * 1000 + offset + 300, numPartitions=1)
            rows = rows.select((F.xxhash64("id") % 40).alias("k"), F.col("id").alias(side))
            rows.write.mode("append").parquet(str(tmp_path / side))
    (tmp_path / "failed").mkdir()
    environment = os.environ | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(CLUSTER),
    }
    job = [sys.executable, str(CLUSTER / "job.py"), str(tmp_path)]
    done = subprocess.run(job, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(list((tmp_path / "failed").iterdir())) == 2 * batches

    left, right = (spark.read.parquet(str(tmp_path / side)) for side in "lr")
    answer = Counter(left.join(right, "k").collect())
    assert Counter(spark.read.parquet(str(tmp_path / "out")).collect()) == answer

    streams = [
        spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / side))
        for side, frame in (("l", left), ("r", right))
    ]
    quiet = wm.progressive_join(*streams, "k", state_dir=tmp_path / "quiet")
    quiet.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    states = [newest_manifests(StateDir(tmp_path / name)) for name in ("state", "quiet")]
    assert [(m.version, m.repeats) for m in states[0]] == [(batches - 1, 0)] * 2
    assert [m.digest for m in states[0]] == [m.digest for m in states[1]]
