"""The source that makes Spark run a batch when no data comes, and the one that takes its place when none is wanted.

Options that need ticks may come and go at a restart, and Spark finds the sources of a checkpoint by their places: there
is always one in this place.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from watersmeet.errors import warn
from watersmeet.spark.plans import is_classic
from watersmeet.spark.server_sources import server_ticks
from watersmeet.spark.session import AVAILABLE_NOW_WRAPPER
from watersmeet.spark.shared import spark_path
from watersmeet.state.directory import StateDir

TICKED = "ticked"  # there if the join has ever had ticks
SILENCE = "silence"


def ticking(who: str, session: SparkSession, directory: StateDir) -> DataFrame:
    """A source that makes a batch happen every second."""
    _warn_of_one_batch(who, session)
    if _of_server(session, directory):
        return server_ticks(session, ticking=True)
    if directory.is_local:
        directory.publish_new(TICKED, b"")
    return _ticks(session)


def silent(session: SparkSession, directory: StateDir) -> DataFrame:
    """A source that never has data.

    In a session of this process Spark remembers a number for it, as for ticks. Connect cannot make that one: there it
    is a folder without files, for which Spark remembers nothing as long as it is empty. It cannot follow ticks in the
    same checkpoint, so a join that had them keeps them. With state in an object store the server runs a source of ours,
    ticking or not: it costs a start of Python whenever the plan is looked at, so only there.
    """
    if _of_server(session, directory):
        return server_ticks(session, ticking=False)
    if not is_classic(session):
        if directory.size(TICKED) is not None:
            return _ticks(session)
        directory.make(SILENCE)
        return session.readStream.text(spark_path(directory, SILENCE))
    java: Any = session._jvm
    streams = java.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
    stream = streams.apply(session._jsparkSession, 1, java.org.apache.spark.sql.Encoders.LONG())
    return DataFrame(stream.toDF(), session)


def _of_server(session: SparkSession, directory: StateDir) -> bool:
    return not is_classic(session) and not directory.is_local


def _ticks(session: SparkSession) -> DataFrame:
    return session.readStream.format("rate").option("rowsPerSecond", 1).load()


def _warn_of_one_batch(who: str, session: SparkSession) -> None:
    if session.conf.get(AVAILABLE_NOW_WRAPPER, "false") != "true":
        warn(
            f"{who} uses a clock of its own, a source for which Spark reads everything in one single micro-batch under "
            f'trigger(availableNow=True), whatever maxFilesPerTrigger says: set {AVAILABLE_NOW_WRAPPER} to "true" in '
            "the session (watersmeet.local_session does) before the query starts"
        )
