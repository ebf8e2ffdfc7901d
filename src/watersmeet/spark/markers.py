"""The stream of control markers: files that Spark reads itself, or objects that the driver hands to it.

On a file system the markers are a directory of JSON files, as any other file source. In an object store they have
numbers. The driver reads those there are when a join is built, looks for the next one while queries run, and puts each
into a stream in memory under its number: after a restart the same markers stand at the same offsets, so that a repeated
batch reads the same ones. Spark needs no file system for the store. The server of a Connect session reads them itself
(`server_sources`).
"""

from __future__ import annotations

import threading
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from watersmeet.errors import WatersmeetError
from watersmeet.spark.control import CONTROL_SCHEMA, SENT, marker_name
from watersmeet.spark.java import Py4JError
from watersmeet.spark.plans import is_classic
from watersmeet.spark.server_sources import server_markers
from watersmeet.spark.shared import spark_path
from watersmeet.state.directory import CONTROL, StateDir

POLL_SECONDS = 1.0


def marker_stream(session: SparkSession, directory: StateDir) -> DataFrame:
    """The markers of a join, each with the `file` it came in."""
    if directory.is_local:
        markers = session.readStream.schema(CONTROL_SCHEMA).json(spark_path(directory, CONTROL))
        return markers.select("*", F.col("_metadata.file_path").alias("file"))
    if not is_classic(session):
        return server_markers(session, directory)
    with _LOCK:
        key = (session.sparkContext.applicationId, directory.place)
        feed = _FEEDS[key] = _FEEDS.get(key) or MarkerFeed(session, directory)
    fields = F.from_json(F.element_at(F.split("value", "\n", 2), 2), CONTROL_SCHEMA)
    lines = feed.stream().select(fields.alias("m"), F.element_at(F.split("value", "\n", 2), 1).alias("file"))
    return lines.select("m.*", "file")


class MarkerFeed:
    """The markers of one place, for all joins of a session that are built on it."""

    def __init__(self, session: SparkSession, directory: StateDir) -> None:
        self.session, self.directory = session, directory
        self.lines: list[str] = []
        self.streams: list[Any] = []
        self.lock = threading.Lock()
        threading.Thread(target=self._watch, name=f"markers of {directory.place}", daemon=True).start()

    def stream(self) -> DataFrame:
        """A stream of the markers so far, and of those to come: their files' names and their content."""
        java: Any = self.session._jvm
        streams = java.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        made = streams.apply(self.session._jsparkSession, 1, java.org.apache.spark.sql.Encoders.STRING())
        with self.lock:
            for line in self.lines:
                self._add(made, line)
            self.streams.append(made)
        self.read()
        return DataFrame(made.toDF(), self.session)

    def read(self) -> None:
        """Take up the markers that have come."""
        with self.lock:
            while (line := self._next()) is not None:
                self.lines.append(line)
                for stream in self.streams:
                    self._add(stream, line)

    def _next(self) -> str | None:
        name = f"{CONTROL}/{marker_name(len(self.lines))}"
        try:
            content = self.directory.read(name)
        except FileNotFoundError:
            return None
        return f"{self.directory.path(name)}\n{content.decode(errors='replace')}"

    def _add(self, stream: Any, line: str) -> None:
        java: Any = self.session._jvm
        stream.addData(java.PythonUtils.toSeq([line]))

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            try:
                if self.session.streams.active:
                    self.read()
            except WatersmeetError:
                continue  # the store cannot be reached: the tasks will say so
            except (Py4JError, OSError, AttributeError):
                return  # the session has ended


_FEEDS: dict[tuple[str, str], MarkerFeed] = {}
_LOCK = threading.Lock()


def _sent(place: str) -> None:
    """A marker was sent from this process: whoever builds or starts a query next finds it in the stream."""
    for (_, fed), feed in list(_FEEDS.items()):
        if fed == place:
            try:
                feed.read()
            except (Py4JError, OSError, AttributeError):
                continue  # of a session that has ended


SENT.append(_sent)
