"""The Spark session of a pipeline: any master, or the one that `spark-submit` has already started."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.pipeline.config import LoadedPipeline
from watersmeet.pipeline.connectors import CONNECTORS, coordinates, misfit
from watersmeet.pipeline.jars import connector_settings, listed
from watersmeet.pipeline.problems import PipelineError, Problem
from watersmeet.pipeline.remote import connect
from watersmeet.spark.java import check_java, java_runs
from watersmeet.spark.plans import is_classic
from watersmeet.spark.session import JOIN_SETTINGS, local_session

# What Spark itself must not print: the names that Watersmeet takes for secrets, in Java's regular expressions.
_REDACTION = r"(?i)pass(word|wd|phrase)?|pwd|secret|token|credential|jaas|signature|private|[._-]?key\b"
# A report at least every second while nothing comes: that is how a pipeline learns that its sources are read.
# Spark's own progress bars would be drawn into the live view.
_STREAMING = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
    "spark.sql.streaming.numRecentProgressUpdates": "16",
}


def under_spark_submit() -> bool:
    """Whether `spark-submit` runs this process: then it has the master and the settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def start_session(
    loaded: LoadedPipeline,
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    verbose: bool = False,
) -> SparkSession:
    """Start (or get) the session for a pipeline. What is given here wins over what the file says; with `remote`, the
    address of a Spark Connect server, the master is that server's.

    What Spark prints while it starts is shown if it does not start, or if `verbose` is set.
    """
    pipeline = loaded.pipeline
    _report_once()
    defaults = {"spark.redaction.regex": _REDACTION, "spark.sql.redaction.options.regex": _REDACTION, **_STREAMING}
    if remote is not None:
        return connect(loaded, remote, {**JOIN_SETTINGS, **defaults}, conf or {})
    if problems := package_problems(loaded):
        raise PipelineError(problems)
    check_java(f"pipeline {pipeline.name}", "give --remote sc://host")
    settings = {**defaults, **pipeline.conf, **(conf or {})}
    settings = _with_packages(pipeline.packages, settings)
    chosen = master or pipeline.master or settings.pop("spark.master", None)
    loud = verbose or under_spark_submit() or java_runs()
    try:
        with nullcontext() if loud else _quiet_start():
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
    if not under_spark_submit() and is_classic(session):
        # Spark logs a failed query with all its options; the pipeline reports the failure itself, without secrets.
        session.sparkContext.setLogLevel("OFF")
    return session


def _report_once() -> None:
    """PySpark logs what it raises for a wrong expression, with the whole trace of Java. The pipeline reports it."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Hold back what the Java process prints to stderr until the session is there: its log level cannot be set before.

    The process keeps the pipe for its lifetime; what comes later (warnings of the workers, say) is passed on.
    """
    reading, writing = os.pipe()
    terminal = os.dup(2)
    os.dup2(writing, 2)
    held: list[bytes] = []
    started = threading.Event()

    def pass_on() -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if started.is_set():
                    os.write(2, line)
                else:
                    held.append(line)

    reader = threading.Thread(target=pass_on, name="spark-stderr", daemon=True)
    reader.start()

    def restore() -> None:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(writing)

    try:
        yield
    except BaseException:
        restore()
        reader.join(timeout=2)  # to the end of what a process that has ended had to say
        os.write(2, b"".join(held))
        raise
    restore()
    started.set()


def package_problems(loaded: LoadedPipeline, spark_version: str = pyspark.__version__) -> list[Problem]:
    """The packages that do not fit the running Spark; nothing is fetched or started to know it."""
    wrong = [(index, misfit(package, spark_version)) for index, package in enumerate(loaded.pipeline.packages)]
    return [loaded.problem(text, ("packages", index)) for index, text in wrong if text]


def package_notes(loaded: LoadedPipeline, spark_version: str = pyspark.__version__) -> list[str]:
    """What the names of connectors among the packages stand for, on the running Spark."""
    known = [(package, coordinates(package, spark_version)) for package in loaded.pipeline.packages]
    return [f"{package} for Spark {spark_version} is {' '.join(jars)}" for package, jars in known if jars]


def _with_packages(packages: Sequence[str], settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with the connectors, and with the other packages for Spark to fetch."""
    merged = connector_settings(*(package for package in packages if package in CONNECTORS), config=settings)
    return listed(merged, "spark.jars.packages", [package for package in packages if package not in CONNECTORS])


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
