"""From a pipeline to DataFrames: sources, their columns, the join, the columns of the result."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from watersmeet.errors import PlanError
from watersmeet.pipeline.config import Columns, LoadedPipeline, SourceConfig
from watersmeet.pipeline.names import InputNames
from watersmeet.pipeline.problems import Path, PipelineError
from watersmeet.pipeline.wiring import Site


@dataclass(frozen=True)
class Built:
    """The DataFrames of a pipeline."""

    sources: dict[str, DataFrame]
    joined: DataFrame
    result: DataFrame


def build(loaded: LoadedPipeline, session: SparkSession, *, rehearsal: str | None = None) -> Built:
    """Build everything; nothing is started. What Spark refuses is a `PipelineError` with its line.

    A rehearsal is built in a directory of its own, which it names, and touches nothing else.
    """
    pipeline = loaded.pipeline
    tables = pipeline.join.wiring.tables()
    frames = {
        name: _source(loaded, session, name, source, streaming=name not in tables)
        for name, source in pipeline.sources.items()
    }
    with _blamed_on(loaded, ("join",)):
        joined = pipeline.join.build(
            Site(frames, rehearsal or loaded.state_dir, session, loaded.resolve, rehearsal=rehearsal is not None)
        )
    result = _columns(loaded, joined, pipeline.result, ("result",))
    if pipeline.sink.format is not None:
        with _blamed_on(loaded, ("sink", "format")):
            _find_connector(session, pipeline.sink.format)
    for index, column in enumerate(pipeline.sink.partition_by):
        with _blamed_on(loaded, ("sink", "partition_by", index)):
            result.select(column)
    return Built(frames, joined, result)


def _source(
    loaded: LoadedPipeline, session: SparkSession, name: str, source: SourceConfig, *, streaming: bool
) -> DataFrame:
    place = ("sources", name)
    with _blamed_on(loaded, place):
        reader = session.readStream if streaming else session.read
        reader = reader.options(**dict(source.options))
        if source.table is not None:
            return _columns(loaded, reader.table(source.table), source, place)
        reader = reader.format(str(source.format))
        if source.ddl is not None:
            with _blamed_on(loaded, (*place, "schema")):
                StructType.fromDDL(source.ddl)
                reader = reader.schema(source.ddl)
        frame = reader.load(loaded.resolve(source.path)) if source.path else reader.load()
    return _columns(loaded, frame, source, place)


def _columns(loaded: LoadedPipeline, frame: DataFrame, columns: Columns, place: Path) -> DataFrame:
    """Apply with_columns, where and select; an expression that Spark cannot analyse is blamed on its line."""
    for name, expression in columns.with_columns.items():
        with _blamed_on(loaded, (*place, "with_columns", name)):
            frame = frame.withColumn(name, F.expr(expression))
    for index, condition in enumerate(columns.where):
        with _blamed_on(loaded, (*place, "where", index)):
            frame = frame.where(condition)
    if columns.select:
        for index, expression in enumerate(columns.select):
            with _blamed_on(loaded, (*place, "select", index)):
                frame.selectExpr(expression)
        frame = frame.selectExpr(*columns.select)
    return frame


def _find_connector(session: SparkSession, name: str) -> None:
    """Fail now, and not when the query starts, if Spark has no connector of this name."""
    java: Any = session.sparkContext._jvm
    settings = session._jsparkSession.sessionState().conf()
    java.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(name, settings)


@contextmanager
def _blamed_on(loaded: LoadedPipeline, place: Path) -> Iterator[None]:
    """Turn what Spark or Watersmeet says while building into a problem at a place of the file."""
    try:
        yield
    except PipelineError:
        raise
    except PlanError as error:
        names = InputNames(loaded.pipeline.join.wiring.sources())
        problem = loaded.problem(names.in_text(str(error)), _place_named(loaded, place, str(error)))
        raise PipelineError([problem]) from error
    except (PySparkException, Py4JJavaError) as error:
        raise PipelineError([loaded.problem(first_lines(error), place)]) from error


def _place_named(loaded: LoadedPipeline, place: Path, message: str) -> Path:
    """An error about an option or a column names it: blame the line that says it."""
    if loaded.document is None:
        return place
    if (option := re.search(r"a valid value for ([a-z_]+)", message)) and (*place, option[1]) in loaded.document.lines:
        return (*place, option[1])
    column = re.search(r"one column '([^']+)'", message)
    return loaded.document.find(column[1], place) if column else place


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
