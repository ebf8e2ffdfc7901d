"""A local Spark with settings that suit stream joins."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, StrictStr
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from watersmeet.plan.options import MAX_PARTITIONS, Options, check_partitions, known_names
from watersmeet.spark.java import check_java
from watersmeet.spark.plans import is_classic

AVAILABLE_NOW_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"

# What a join needs of any session to be fast.
JOIN_SETTINGS = {
    # Few enough that what the JVM fills column by column stays in the processor's cache, also where rows are wide.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",
    # Any other limit makes Spark add up the size of the whole batch again after every row it writes.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # Without it the source of ticks turns `availableNow` into one single batch, whatever the limits of the others.
    AVAILABLE_NOW_WRAPPER: "true",
    # Spark would plan each micro-batch again when its shuffle has run, in which a join has nothing to gain.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # Hadoop would write a file of checksums beside each file of a checkpoint on a local disk, and start a process for
    # the permissions of each, which small micro-batches wait for. Spark's own state stores have checksums without it.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # The C library would give every large array back to the system and fault it in again, page by page.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(16 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(32 << 20),
}


class _SessionOptions(Options):
    app_name: StrictStr = Field(min_length=1)
    cores: int | None = Field(ge=1)
    partitions: int | None = Field(ge=1, le=MAX_PARTITIONS)
    config: Mapping[str, str] | None


def default_partitions(who: str, session: SparkSession) -> int:
    """`spark.sql.shuffle.partitions` where it has been set, else one key partition per core.

    Spark's own 200 is meant for large batch jobs: in every micro-batch it would cost 200 tasks, however few the rows.
    """
    name = "spark.sql.shuffle.partitions"
    configured = session.conf.get(name, None)  # None unless somebody has set it
    if not configured:
        return parallelism(session)
    check_partitions(who, int(configured), origin=f" ({name})", hint=f"Give partitions, or set {name} to fewer.")
    return int(configured)


def parallelism(session: SparkSession) -> int:
    """How many tasks Spark runs at once. Connect does not tell, so that a small job has to."""
    if is_classic(session):
        return session.sparkContext.defaultParallelism
    (last,) = session.range(1 << 16).select(F.spark_partition_id().alias("p")).agg(F.max("p")).first() or (0,)
    return int(last) + 1


@known_names
def local_session(
    app_name: str = "watersmeet",
    cores: int | None = None,
    partitions: int | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start (or get) a Spark session on this machine.

    Workers use the running interpreter, Arrow batches are large, progress bars and log noise are off. `partitions` is
    the number of key partitions of a join, by default the number of cores. For rows of more than about 40 KB give
    `config={"spark.sql.execution.arrow.maxBytesPerBatch": "64m"}`, Spark's own default, which costs time per row.

    >>> import watersmeet as wm
    >>> spark = wm.local_session(cores=2)  # doctest: +SKIP
    """
    _SessionOptions.checked("local_session", app_name=app_name, cores=cores, partitions=partitions, config=config)
    check_java("local_session", "use SparkSession.builder.remote(...)")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    java_home = Path(sys.prefix, "java_home")  # left by the project's own set-up
    if "JAVA_HOME" not in os.environ and java_home.is_file():
        os.environ["JAVA_HOME"] = java_home.read_text().strip()
    count = cores or os.cpu_count() or 1
    settings = {
        "spark.sql.shuffle.partitions": str(partitions or count),
        **JOIN_SETTINGS,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "localhost",
        "spark.driver.memory": "2g",
        **(config or {}),
    }
    builder = SparkSession.builder.master(f"local[{count}]").appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
