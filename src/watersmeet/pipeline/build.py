"""From a pipeline to DataFrames: sources, their columns, the join, the columns of the result."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from watersmeet.errors import PlanError
from watersmeet.pipeline.config import LoadedPipeline
from watersmeet.pipeline.connectors import advice
from watersmeet.pipeline.models import Columns, SinkConfig, SourceConfig
from watersmeet.pipeline.names import InputNames
from watersmeet.pipeline.problems import Path, PipelineError, Problem
from watersmeet.pipeline.wiring import Site
from watersmeet.spark.java import Py4JJavaError
from watersmeet.spark.plans import is_classic
from watersmeet.spark.schema import find_column

_NO_CONNECTOR = re.compile("failed to find (the )?data source", re.IGNORECASE)


@dataclass(frozen=True)
class Built:
    """The DataFrames of a pipeline."""

    sources: dict[str, DataFrame]
    joined: DataFrame
    result: DataFrame


def build(loaded: LoadedPipeline, session: SparkSession, *, rehearsal: str | None = None) -> Built:
    """Build everything; nothing is started. All that Spark refuses is in one `PipelineError`, each with its line.

    A rehearsal is built in a directory of its own, which it names, and touches nothing else. Of a draft only the parts
    that are right are built, and its problems come with those found here.
    """
    found = Findings(loaded, remote=not is_classic(session))
    parts = loaded.parts
    tables = parts.wiring.tables() if parts.wiring else frozenset()
    frames: dict[str, DataFrame] = {}
    for name, source in parts.sources.items():
        frame = _source(found, session, name, source, streaming=name not in tables)
        if frame is not None:
            frames[name] = frame
    joined = result = None
    has_columns = _has_columns(found, frames)
    if parts.join is not None and has_columns and frames.keys() >= parts.join.wiring.reads():
        with found.at(("join",)):
            joined = parts.join.build(
                Site(
                    frames,
                    rehearsal or loaded.state_dir,
                    session,
                    loaded.resolve,
                    rehearsal=rehearsal is not None,
                    real_state=loaded.state_dir,
                    cache=loaded.cache,
                )
            )
    if joined is not None and parts.result is not None:
        result = _columns(found, joined, parts.result, ("result",))
    if parts.sink is not None:
        _sink(found, session, parts.sink, result)
    problems = sorted([*loaded.problems, *found.problems], key=lambda problem: problem.line)
    if problems or joined is None or result is None:
        raise PipelineError(problems)
    return Built(frames, joined, result)


class Findings:
    """What Spark or Watersmeet says while a pipeline is built, as problems at places of the file."""

    def __init__(self, loaded: LoadedPipeline, *, remote: bool) -> None:
        self.loaded, self.remote = loaded, remote
        self.problems: list[Problem] = []

    @contextmanager
    def at(self, place: Path) -> Iterator[None]:
        """Note what goes wrong inside, and go on after it."""
        try:
            yield
        except PlanError as error:
            wiring = self.loaded.parts.wiring
            names = InputNames(wiring.sources() if wiring else {})
            self.add(names.in_text(str(error)), self._place_of(error, place))
        except (PySparkException, Py4JJavaError) as error:
            message = first_lines(error)
            if self.remote and "PATH_NOT_FOUND" in message:
                message += " The Spark Connect server looks for it in its own file systems."
            self.add(message, place)

    def add(self, message: str, place: Path) -> None:
        """Note a problem."""
        self.problems.append(self.loaded.problem(message, place))

    def _place_of(self, error: PlanError, place: Path) -> Path:
        """The line that says the option or the column which the error is about."""
        document = self.loaded.document
        if document is None:
            return place
        if error.option is not None and (*place, error.option) in document.lines:
            place = (*place, error.option)
        return document.find(error.column, place) if error.column is not None else place


def _source(
    found: Findings, session: SparkSession, name: str, source: SourceConfig, *, streaming: bool
) -> DataFrame | None:
    place, frame, before = ("sources", name), None, len(found.problems)
    reader = (session.readStream if streaming else session.read).options(**dict(source.options))
    if source.ddl is not None:
        with found.at((*place, "schema")):
            StructType.fromDDL(source.ddl)
            reader = reader.schema(source.ddl)
    if source.format is not None and advice(source.format, session.version):
        _find_connector(found, session, source.format, (*place, "format"))
    if len(found.problems) == before:
        with found.at(place):
            if source.table is not None:
                frame = reader.table(source.table)
            else:
                path = found.loaded.resolve(source.path) if source.path else None
                frame = reader.format(str(source.format)).load(path)
            analysed(frame)
    return None if frame is None or len(found.problems) > before else _columns(found, frame, source, place)


def _columns(found: Findings, frame: DataFrame, columns: Columns, place: Path) -> DataFrame | None:
    """Apply with_columns, where and select; None if Spark cannot analyse all of them."""
    before = len(found.problems)
    for name, expression in columns.with_columns.items():
        changed = frame.withColumn(name, F.lit(None))  # what comes later may still use it
        with found.at((*place, "with_columns", name)):
            changed = analysed(frame.withColumn(name, F.expr(expression)))
        frame = changed
    for index, condition in enumerate(columns.where):
        with found.at((*place, "where", index)):
            frame = analysed(frame.where(condition))
    for index, expression in enumerate(columns.select):
        with found.at((*place, "select", index)):
            analysed(frame.selectExpr(expression))
    if len(found.problems) > before:
        return None
    return frame.selectExpr(*columns.select) if columns.select else frame


def _has_columns(found: Findings, frames: Mapping[str, DataFrame]) -> bool:
    """Look for all columns that the join names, in those inputs that are there."""
    parts, before = found.loaded.parts, len(found.problems)
    if parts.wiring is None:
        return False
    options = parts.join.options if parts.join is not None else None
    for option, source, column in parts.wiring.columns(options):
        if source in frames:
            with found.at(("join", option)):
                find_column(parts.wiring.FUNCTION, source, frames[source], column)
    return len(found.problems) == before


def _sink(found: Findings, session: SparkSession, sink: SinkConfig, result: DataFrame | None) -> None:
    if sink.format is not None:
        _find_connector(found, session, sink.format, ("sink", "format"))
    if result is not None:
        for index, column in enumerate(sink.partition_by):
            with found.at(("sink", "partition_by", index)):
                analysed(result.select(column))


def _find_connector(found: Findings, session: SparkSession, name: str, place: Path) -> None:
    """Fail now, and not when the query starts, if Spark has no connector of this name."""
    try:
        if found.remote:
            # To read with it lacks a path or options, perhaps; that is no matter here.
            _ = session.read.format(name).load().schema
        else:
            java: Any = session.sparkContext._jvm
            settings = session._jsparkSession.sessionState().conf()
            java.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(name, settings)
    except (PySparkException, Py4JJavaError) as error:
        if not found.remote or _NO_CONNECTOR.search(str(error)):
            what_to_do = advice(name, session.version, remote=found.remote)
            found.add(" ".join(filter(None, (first_lines(error), what_to_do))), place)


def analysed(frame: DataFrame) -> DataFrame:
    """The DataFrame after Spark has looked at it: in Spark Connect nothing is wrong until something is asked.

    Not for its columns, which the client takes from another DataFrame where it knows that they are the same.
    """
    _ = frame.isStreaming
    return frame


def first_lines(error: BaseException) -> str:
    """What a Spark exception says, without the plan and the trace below it."""
    text = str(getattr(error, "java_exception", None) or error) if isinstance(error, Py4JJavaError) else str(error)
    kept = []
    for line in text.strip().splitlines():
        if line.startswith(("'", "+-", "JVM stacktrace", "\tat ", "=== ")) or not line.strip():
            break
        kept.append(line.strip())
    message = " ".join(kept) or type(error).__name__
    return re.sub(r";?\s*(line \d+ pos \d+;?)?\s*SQLSTATE: \w+", "", message).rstrip(";, ")
