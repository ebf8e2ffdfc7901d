"""A local Spark with settings that suit stream joins."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession


def local_session(
    app_name: str = "watersmeet",
    cores: int | None = None,
    partitions: int | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start (or get) a Spark session on this machine.

    Workers use the running interpreter, Arrow batches are large, progress bars and log noise are off. `partitions` is
    the number of key partitions of a join, by default the number of cores.

    >>> import watersmeet as wm
    >>> spark = wm.local_session(cores=2)  # doctest: +SKIP
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    java_home = Path(sys.prefix, "java_home")  # left by the project's own set-up
    if "JAVA_HOME" not in os.environ and java_home.is_file():
        os.environ["JAVA_HOME"] = java_home.read_text().strip()
    count = cores or os.cpu_count() or 1
    settings = {
        "spark.sql.shuffle.partitions": str(partitions or count),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
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
