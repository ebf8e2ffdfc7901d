"""The Spark session of a pipeline: any master, or the one that `spark-submit` has already started."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.pipeline.config import LoadedPipeline
from watersmeet.spark.session import JOIN_SETTINGS, local_session

# What Spark itself must not print: the names that Watersmeet takes for secrets, in Java's regular expressions.
_REDACTION = r"(?i)pass(word|wd|phrase)?|pwd|secret|token|credential|jaas|signature|private|[._-]?key\b"
# A report at least every second while nothing comes: that is how a pipeline learns that its sources are read.
_STREAMING = {
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
    "spark.sql.streaming.numRecentProgressUpdates": "16",
}


def under_spark_submit() -> bool:
    """Whether `spark-submit` runs this process: then it has the master and the settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def start_session(
    loaded: LoadedPipeline, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start (or get) the session for a pipeline. What is given here wins over what the file says."""
    pipeline = loaded.pipeline
    settings = {
        "spark.redaction.regex": _REDACTION,
        "spark.sql.redaction.options.regex": _REDACTION,
        **_STREAMING,
        **pipeline.conf,
        **(conf or {}),
    }
    if pipeline.packages:
        given = [text for text in [settings.get("spark.jars.packages")] if text]
        settings["spark.jars.packages"] = ",".join([*given, *pipeline.packages])
    chosen = master or pipeline.master or settings.pop("spark.master", None)
    try:
        session = _session(pipeline.name, chosen, settings)
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        packages = settings.get("spark.jars.packages")
        raise WatersmeetError(
            f"pipeline {pipeline.name}",
            expected=f"a Spark session with {packages}" if packages else "a Spark session",
            found="that Spark ended before it had begun; what it printed above says why",
            hint="Check name, version and Scala version of the packages, and that their repository can be reached "
            "(`spark.jars.repositories` names others)."
            if packages
            else "Check that Java 17 or newer is there and that JAVA_HOME points at it.",
        ) from error
    if not under_spark_submit():
        # Spark logs a failed query with all its options; the pipeline reports the failure itself, without secrets.
        session.sparkContext.setLogLevel("OFF")
    return session


def _session(name: str, chosen: str | None, settings: Mapping[str, str]) -> SparkSession:
    if not under_spark_submit() and (chosen or "local").startswith("local"):
        local = chosen or "local[*]"
        cores = re.match(r"local\[(\d+)", local)
        return local_session(name, int(cores[1]) if cores else None, config={**settings, "spark.master": local})
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**JOIN_SETTINGS, **settings, **({"spark.master": chosen} if chosen else {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
