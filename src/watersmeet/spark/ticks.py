"""The source that makes Spark run a batch when no data comes, and the one that takes its place when none is wanted."""

from __future__ import annotations

import warnings
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from watersmeet.spark.plans import is_classic
from watersmeet.spark.session import AVAILABLE_NOW_WRAPPER


def ticking(who: str, session: SparkSession) -> DataFrame:
    """A source that makes a batch happen every second."""
    _warn_of_one_batch(who, session)
    return _ticks(session)


def silent(session: SparkSession) -> DataFrame:
    """In the place of the ticks a source that never has data, so that options which need ticks can change at a restart.

    Spark finds the sources of a checkpoint by their places. In this one it remembers a number, as for ticks. Connect
    cannot make such a source: there it ticks.
    """
    if not is_classic(session):
        return _ticks(session)
    java: Any = session._jvm
    streams = java.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
    stream = streams.apply(session._jsparkSession, 1, java.org.apache.spark.sql.Encoders.LONG())
    return DataFrame(stream.toDF(), session)


def _ticks(session: SparkSession) -> DataFrame:
    return session.readStream.format("rate").option("rowsPerSecond", 1).load()


def _warn_of_one_batch(who: str, session: SparkSession) -> None:
    if session.conf.get(AVAILABLE_NOW_WRAPPER, "false") != "true":
        warnings.warn(
            f"{who} uses a clock of its own, a source for which Spark reads everything in one single micro-batch under "
            f'trigger(availableNow=True), whatever maxFilesPerTrigger says: set {AVAILABLE_NOW_WRAPPER} to "true" in '
            "the session (watersmeet.local_session does) before the query starts",
            stacklevel=5,
        )
