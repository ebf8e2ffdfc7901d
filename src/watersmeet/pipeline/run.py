"""Runs a pipeline: builds it, starts the query, follows it, finishes the join once its sources are read.

A run with `finish: when_drained` has two phases, and each can be interrupted and taken up again:

    reading      micro-batches by the pipeline's trigger. A trigger that ends by itself has read its sources when it
                 ends; with `processing_time` they count as read once a trigger found nothing new in any of them and
                 none has given anything for `drained_after`.
    finishing    every input is declared ended (`wm.end_input`), which goes through the stream like a row; the batch
                 that sees the last end emits all that is owed, and the run ends when Spark has committed that batch.

After a crash the end markers tell that reading was complete: the run goes on with finishing. An end that a run has
declared is final, and the markers say that it was the pipeline: a later run with new data is told to start over.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from watersmeet.errors import EndedInputError, WatersmeetError, without_line
from watersmeet.pipeline.build import build, first_lines
from watersmeet.pipeline.config import LoadedPipeline
from watersmeet.pipeline.display import Display, make_display
from watersmeet.pipeline.drain import DrainWatch
from watersmeet.pipeline.failures import record_failure
from watersmeet.pipeline.lag import FILE_FORMATS, FileLag, committed_batch, has_file_lag, reported_lag
from watersmeet.pipeline.lock import RunLock
from watersmeet.pipeline.models import TriggerConfig
from watersmeet.pipeline.names import InputNames, record_names
from watersmeet.pipeline.problems import PipelineError
from watersmeet.pipeline.progress import ProgressTracker, Report, Snapshot
from watersmeet.spark.control import declare_end, declared_ends
from watersmeet.spark.explaining import stories
from watersmeet.spark.failure import error as cause_of
from watersmeet.spark.plans import is_classic
from watersmeet.spark.wire import numbered
from watersmeet.state.directory import StateDir
from watersmeet.storage.uri import local_path

POLL_SECONDS = 0.25
# Listing a source's folder is not free; nobody needs its lag more often.
LAG_SECONDS = 2.0
# How long a stop waits for the micro-batch that is under way.
STOP_SECONDS = 15.0
# Stands in the end markers that a pipeline sends.
PIPELINE = {"by": "pipeline"}


class RunFailedError(WatersmeetError):
    """The query failed; `detail` has everything that Spark says about it. If the join failed, the message is the
    join's, and `__cause__` its own exception."""

    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: str  # "done", or "stopped" when it was asked to stop before
    finished: bool  # the join has ended: nothing more will come of it
    snapshot: Snapshot


def run(
    loaded: LoadedPipeline,
    session: SparkSession,
    *,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run a pipeline until it is done, until it fails (`RunFailedError`), or until `stop` is set.

    >>> from watersmeet.pipeline.config import load
    >>> from watersmeet.pipeline.session import start_session
    >>> pipeline = load("pipeline.yaml")  # doctest: +SKIP
    >>> run(pipeline, start_session(pipeline)).status  # doctest: +SKIP
    'done'
    """
    # The paths of a server of Spark Connect are its own, but for the state, which both must see.
    checkpoint = loaded.checkpoint if is_classic(session) else None
    with (
        RunLock(loaded.state_dir, checkpoint) as lock,
        display or make_display("plain", loaded.secrets.redact) as shown,
    ):
        lock.record(_spark_process(session))
        return Run(loaded, session, shown, stop or threading.Event()).outcome()


def _spark_process(session: Any) -> int:
    """The process whose end would end the query: that of Spark's driver, or this one if it is elsewhere."""
    if not is_classic(session):
        return os.getpid()
    return int(session.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


class Run:
    """One run of a pipeline."""

    def __init__(self, loaded: LoadedPipeline, session: SparkSession, display: Display, stop: threading.Event) -> None:
        self.loaded = loaded
        self.pipeline = loaded.pipeline
        self.display = display
        self.stop = stop
        self.inputs = self.pipeline.join.wiring.sources()
        check_sink(loaded)
        built = build(loaded, session)
        self.frame: DataFrame = built.result
        chosen = stories(built.joined)[-1:] if self.pipeline.join.choice is not None else []
        self._choices = [one for story, _ in chosen for one in story.choices]
        self.names = InputNames(self.inputs)
        record_names(StateDir(loaded.state_dir), self.names)
        self._lags = Lags(loaded)
        self.tracker = ProgressTracker(
            self.pipeline.name,
            loaded.state_dir,
            self.inputs,
            budget=self.pipeline.join.memory,
            lags=self._lags.by_input,
        )
        self._drain = DrainWatch(self.pipeline.drained_after / 1_000_000)
        self._reported = -1  # the newest batch that Spark has committed

    def outcome(self) -> Outcome:
        """Run to the end."""
        self._check_not_over()
        for one in self._choices:
            self.display.say(f"{one.what}: {one.value}, because {one.why}")
        finishing = self.pipeline.finish == "when_drained"
        trigger = self.pipeline.trigger
        if not finishing or self._ends_missing():
            self._enter("reading")
            query = self._start(trigger)
            drained = self._follow(query, self._is_drained if finishing and not trigger.ends else _never)
            if drained:
                self._declare_ends()
                self._follow(query, self._is_finished)
                self._stop(query)
            elif finishing and not self.stop.is_set():
                self._declare_ends()
                self._follow(self._start(TriggerConfig(available_now=True)), _never)
        else:
            self.display.say("Reading was complete before: the join is being finished")
            self._enter("finishing")
            self._follow(self._start(TriggerConfig(available_now=True)), _never)
        stopped = self.stop.is_set() and not self.tracker.history.finished
        self.tracker.phase = "stopped" if stopped else "done"
        snapshot = self.tracker.update()
        self.display.show(snapshot)
        return Outcome("stopped" if stopped else "done", self.tracker.history.finished, snapshot)

    def _enter(self, phase: str) -> None:
        self.tracker.phase = phase
        self.display.show(self.tracker.update())

    def _start(self, trigger: TriggerConfig) -> StreamingQuery:
        sink = self.pipeline.sink
        writer = self.frame.writeStream.outputMode(sink.mode).queryName(self.pipeline.name)
        writer = writer.options(**dict(sink.options)).option("checkpointLocation", self.loaded.checkpoint)
        if sink.format is not None:
            writer = writer.format(sink.format)
        if sink.path is not None:
            writer = writer.option("path", self.loaded.resolve(sink.path))
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer = _with_trigger(writer, trigger)
        try:
            return writer.toTable(sink.table) if sink.table is not None else writer.start()
        except Exception as error:
            raise self._failure(error) from error

    def _follow(self, query: StreamingQuery, until: Callable[[], bool]) -> bool:
        """Show what the query does until it ends (False) or `until` holds (True). A failure is raised."""
        while query.isActive:
            self._take(query.recentProgress)
            if self.stop.is_set():
                self._stop(query)
                break
            if until():
                return True
            self.stop.wait(POLL_SECONDS)
        failure = query.exception()
        if failure is not None and not self.stop.is_set():
            raise self._failure(failure) from cause_of(failure)
        if failure is None:
            query.awaitTermination()  # a query that is not active any more keeps its name until it has ended
        self._lags.forget()
        self._take(query.recentProgress)
        return False

    def _take(self, reports: Iterable[Report]) -> None:
        news = [report for report in reports if not self._lags.seen(report)]
        for report in news:
            if "addBatch" in report["durationMs"]:
                self._reported = max(self._reported, int(report["batchId"]))
                self._lags.forget()
            if self._lags.take(report):
                self._drain.saw_news()
            else:
                self._drain.saw_nothing(str(report["timestamp"]))
        before = self.tracker.rows
        self.display.show(self.tracker.update(news))
        if self.tracker.rows != before:
            self._drain.saw_news()

    def _is_drained(self) -> bool:
        return self._drain.drained

    def _is_finished(self) -> bool:
        last = self.tracker.history.finished_in
        return last is not None and self._reported >= last

    def _ends_missing(self) -> bool:
        """Whether some input has not been declared ended yet."""
        return not declared_ends(self.loaded.state_dir).keys() >= self.inputs.keys()

    def _declare_ends(self) -> None:
        self.display.say("All sources are read: declaring the inputs ended")
        for name in self.inputs:
            declare_end(self.loaded.state_dir, name, **PIPELINE)
        self._enter("finishing")

    def _ended_by_pipeline(self) -> bool:
        markers = [marker for found in declared_ends(self.loaded.state_dir).values() for marker in found]
        return any(marker.items() >= PIPELINE.items() for marker in markers)

    def _check_not_over(self) -> None:
        """Refuse to go on with a join that an earlier run has finished, as far as that is known before Spark reads.

        With the same file and no new data there is nothing to refuse: the run finds nothing to do.
        """
        last = self.tracker.history.finished_in
        checkpoint = local_path(self.loaded.checkpoint)
        if last is None or not self._ended_by_pipeline() or checkpoint is None:
            return
        if (committed_batch(checkpoint) or 0) < last:
            return  # its last batch is to be repeated first
        new = [f"{count} in {name!r}" for name, count in self._lags.waiting_files().items() if count]
        if new or self.pipeline.finish == "never":
            found = f", and there are new files: {', '.join(new)}" if new else ""
            message = (
                f"`when_drained` has ended this join in batch {last} of an earlier run{found}. {self._start_over()}"
            )
            raise PipelineError([self.loaded.problem(message, ("finish",))])

    def _start_over(self) -> str:
        return (
            "That end is final: the join holds no rows any more with which new ones could be joined. Start over with "
            f"a new state, checkpoint and sink: another `name` and sink path, or delete {self.loaded.state_dir}, "
            f"{self.loaded.checkpoint} and the output. With `finish: never` every run then goes on with new data."
        )

    def _stop(self, query: StreamingQuery) -> None:
        """Let the micro-batch under way end, for a while; a batch cut short is only repeated at the next start."""
        deadline = time.monotonic() + STOP_SECONDS
        batch = self._reported
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            self._take(query.recentProgress)
            if self._reported != batch:
                break
            time.sleep(POLL_SECONDS)
        query.stop()

    def _failure(self, exception: BaseException) -> RunFailedError:
        said = cause_of(exception) or WatersmeetError(
            f"pipeline {self.pipeline.name}",
            expected="the query to run",
            found=first_lines(exception),
            hint="Starting it again goes on where it stopped.",
        )
        is_over = isinstance(said, EndedInputError) and self._ended_by_pipeline()
        hint = self._start_over() if is_over else said.hint

        def redact(text: str) -> str:
            return self.loaded.secrets.redact(self.names.in_text(text))

        failure = RunFailedError(
            redact(said.who),
            expected=redact(said.expected),
            found=redact(said.found),
            hint=redact(hint),
            option=said.option,
            column=said.column,
            input=None if said.input is None else self.names[said.input],
        )
        failure.detail = redact(without_line(str(exception)))
        record_failure(StateDir(self.loaded.state_dir), str(failure))
        return failure


def check_sink(loaded: LoadedPipeline) -> None:
    """Refuse a folder of results that another query has written.

    Spark's file sink leaves out every batch whose number its log in that folder has, whoever wrote it: a new query
    would lose its first batches without a word.
    """
    sink = loaded.pipeline.sink
    path = loaded.resolve(sink.path) if sink.path and sink.format in FILE_FORMATS else None
    folder, checkpoint = local_path(path or ""), local_path(loaded.checkpoint)
    if not folder or checkpoint is None:
        return
    if Path(folder, "_spark_metadata").exists() and not Path(checkpoint, "metadata").exists():
        message = f"{path} has results of another query; give another path, or move them away"
        raise PipelineError([loaded.problem(message, ("sink", "path"))])


class Lags:
    """What waits at the sources, and whether Spark's reports say that they gave anything."""

    def __init__(self, loaded: LoadedPipeline) -> None:
        wiring = loaded.pipeline.join.wiring
        self._numbers = numbered([*wiring.sources().values(), *wiring.more_streams()])
        self._inputs = wiring.sources()
        self._reported: dict[str, str] = {}
        self._files: dict[str, FileLag] = {}
        self._newest = ""
        self._at = 0.0
        self._known: dict[str, str] = {}
        for name, number in self._numbers.items():
            source = loaded.pipeline.sources[name]
            if has_file_lag(source.format, source.path, source.options, loaded.checkpoint):
                self._files[name] = FileLag(loaded.resolve(str(source.path)), loaded.checkpoint, number)

    def seen(self, report: Report) -> bool:
        """Whether a report was taken before."""
        return str(report["timestamp"]) <= self._newest

    def take(self, report: Report) -> bool:
        """Note a report; returns whether anything came from the pipeline's streams.

        Rows alone do not tell: of a file that is empty, or whose rows a filter in the scan leaves out, none come, and
        other files wait behind it. Where a source stands tells as Spark itself decides whether there is anything new.
        """
        self._newest = str(report["timestamp"])
        sources = report["sources"]
        parts = {name: sources[number] for name, number in self._numbers.items() if number < len(sources)}
        for name, part in parts.items():
            if (lag := reported_lag(part)) is not None:
                self._reported[name] = lag
        return any(int(part["numInputRows"]) or part["startOffset"] != part["endOffset"] for part in parts.values())

    def forget(self) -> None:
        """Look again the next time, however soon that is."""
        self._at = 0.0

    def waiting_files(self) -> dict[str, int | None]:
        """Files that no committed batch has read, by source."""
        return {name: lag.files() for name, lag in self._files.items()}

    def by_input(self) -> Mapping[str, str]:
        """The lag of each input, where it is known."""
        now = time.monotonic()
        if now - self._at >= LAG_SECONDS:
            self._at = now
            waiting = self.waiting_files().items()
            files = {name: f"{count} file{'' if count == 1 else 's'}" for name, count in waiting if count is not None}
            found = {**files, **self._reported}
            self._known = {name: found[source] for name, source in self._inputs.items() if source in found}
        return self._known


def _with_trigger(writer: DataStreamWriter, trigger: TriggerConfig) -> DataStreamWriter:
    if trigger.processing_time is not None:
        return writer.trigger(processingTime=f"{trigger.processing_time // 1000} milliseconds")
    return writer.trigger(once=True) if trigger.once else writer.trigger(availableNow=True)


def _never() -> bool:
    return False
