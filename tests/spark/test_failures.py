"""Errors that a task raises, as they reach the user: the sentence first, and the exception itself by `wm.error`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.feed import Feed

import watersmeet as wm
from watersmeet.errors import (
    BrokenPromiseError,
    CorruptStateError,
    EndedInputError,
    FanOutError,
    MissingVersionError,
    OptionError,
    OverloadError,
    StateMismatchError,
    WatersmeetError,
    find_error,
)


class Trial:
    """Two streams, and a query over their join."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.left, self.right = Feed(spark, folder / "l", "k long, x long"), Feed(spark, folder / "r", "k long, y long")
        self.state = folder / "state"

    def send(self, *keys: int) -> None:
        for feed, name in ((self.left, "x"), (self.right, "y")):
            feed.send(*({"k": key, name: key} for key in keys))

    def start(self, joined: DataFrame, checkpoint: str = "checkpoint") -> Any:
        writer = joined.writeStream.format("noop").option("checkpointLocation", str(self.folder / checkpoint))
        return writer.trigger(availableNow=True).start()

    def progressive(self) -> DataFrame:
        return wm.progressive_join(self.left.stream, self.right.stream, "k", state_dir=self.state, memory="16 MB")


@pytest.fixture
def trial(spark: SparkSession, tmp_path: Path) -> Trial:
    return Trial(spark, tmp_path)


def broken_promise(trial: Trial) -> DataFrame:
    trial.send(1)
    trial.start(trial.progressive()).awaitTermination()
    wm.end_input(trial.state, "left")
    trial.start(trial.progressive()).awaitTermination()
    trial.send(2)
    return trial.progressive()


def violation(trial: Trial) -> DataFrame:
    trial.send(1, 1)
    one = [wm.OneToMany(one="left")]
    return wm.punctuated_join(trial.left.stream, trial.right.stream, "k", state_dir=trial.state, constraints=one)


def corrupt(trial: Trial) -> DataFrame:
    trial.send(1, 2, 3, 4)
    trial.start(trial.progressive()).awaitTermination()
    for manifest in trial.state.glob("part-*/v-*.json"):
        manifest.write_bytes(manifest.read_bytes()[:-20])
    trial.send(5)
    return trial.progressive()


def missing(trial: Trial) -> DataFrame:
    trial.send(1)
    trial.start(trial.progressive()).awaitTermination()
    shutil.rmtree(trial.state)
    trial.send(2)
    return trial.progressive()


def mismatch(trial: Trial) -> DataFrame:
    trial.send(1)
    trial.start(trial.progressive(), "another checkpoint").awaitTermination()
    return trial.progressive()


def overload(trial: Trial) -> DataFrame:
    trial.send(*range(2000))
    table = str(trial.folder / "master")
    wm.prepare_master(trial.spark.range(10_000).selectExpr("id as k", "id as y"), "k", table, chunk_rows=100)
    return wm.semi_stream_join(
        trial.left.stream, table, "k", state_dir=trial.state, memory=1000, max_delay=50, on_overload="raise"
    )


def fan_out(trial: Trial) -> DataFrame:
    trial.send(*[7] * 20)
    return wm.multiway_join([trial.left.stream, trial.right.stream], "k", state_dir=trial.state, max_results=100)


@pytest.mark.parametrize(
    ("build", "kind", "sentence"),
    [
        (
            broken_promise,
            EndedInputError,
            r"progressive_join, input 'left': expected no rows after its end in batch 1, found 1 rows in batch 2\. .*",
        ),
        (violation, BrokenPromiseError, r"punctuated_join: expected .*"),
        (corrupt, CorruptStateError, r"progressive_join, state file .*v-\d+\.json: expected .*"),
        (
            missing,
            MissingVersionError,
            r"progressive_join, state directory .*, partition \d: expected version 0, which the next batch starts .*",
        ),
        (
            mismatch,
            StateMismatchError,
            r"progressive_join, state directory .*, partition \d: expected state of query .*",
        ),
        (overload, OverloadError, r"semi_stream_join: expected waiting rows and cache within \d+ bytes .*"),
        (fan_out, FanOutError, r"multiway_join: expected .*"),
    ],
)
def test_the_cause_of_a_failed_query(
    trial: Trial, build: Callable[[Trial], DataFrame], kind: type[WatersmeetError], sentence: str
) -> None:
    query = trial.start(build(trial))
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    for failed in (query, caught.value, query.exception()):
        cause = wm.error(failed)
        assert type(cause) is kind
        assert re.fullmatch(sentence, str(cause), re.S)
        assert str(cause) == f"{cause.who}: expected {cause.expected}, found {cause.found}. {cause.hint}"
    # What the task says begins with the sentence; no frame of Python's stands before or after it.
    text = str(caught.value)
    before, after = text.split(str(cause), 1)
    assert "Traceback" not in text
    assert before.endswith(f"watersmeet.errors.{kind.__name__}: ")
    assert len(before) < 500
    assert after.startswith("\nwatersmeet-error: {")


def test_the_input_is_an_attribute(trial: Trial) -> None:
    query = trial.start(broken_promise(trial))
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    cause = wm.error(query)
    assert cause is not None
    assert (cause.input, cause.column, cause.option) == ("left", None, None)


@pytest.mark.classic("foreachBatch runs outside the query there")
def test_the_cause_through_foreach_batch_and_an_exception_of_the_users_own(trial: Trial) -> None:
    def write(frame: DataFrame, _number: int) -> None:
        try:
            frame.collect()
        except Exception as failure:
            raise RuntimeError("cannot write") from failure

    writer = fan_out(trial).writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(trial.folder / "c")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert isinstance(wm.error(caught.value), FanOutError)
    wrapped = RuntimeError("the job failed")
    wrapped.__cause__ = caught.value
    assert isinstance(wm.error(wrapped), FanOutError)


def test_queries_without_a_cause_of_ours(trial: Trial) -> None:
    trial.send(1)
    query = trial.start(trial.progressive())
    query.awaitTermination()
    assert wm.error(query) is None
    alone = trial.left.stream.selectExpr("raise_error('mine')")
    left = trial.left.stream.selectExpr("k", "raise_error('mine') as x")
    around = wm.progressive_join(left, trial.right.stream, "k", state_dir=trial.folder / "2")
    # Spark prints the plan of the join, with all that it could complain about.
    for number, failing in enumerate((alone, around)):
        query = trial.start(failing, f"failing-{number}")
        with pytest.raises(StreamingQueryException, match="mine") as caught:
            query.awaitTermination()
        assert wm.error(query) is None
        assert wm.error(caught.value) is None
    with pytest.raises(OptionError, match="error: expected failed = a streaming query or an exception, found 3"):
        wm.error(3)


def test_another_task_after_a_failure_shows_its_traceback(trial: Trial) -> None:
    """The setting that hides the frames ends with the worker that failed."""

    def wrong(batches: Any) -> Any:
        yield from batches
        raise KeyError("mine")

    with pytest.raises(StreamingQueryException):
        trial.start(fan_out(trial)).awaitTermination()
    with pytest.raises(Exception, match="in wrong"):
        trial.spark.range(8).mapInArrow(wrong, "id long").collect()


def test_prepare_master_raises_the_error_of_its_task(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that the driver can write and that is gone when the tasks come to it."""
    from watersmeet.spark import master

    def task(*arguments: Any) -> Any:
        who = arguments[0]

        def write(batches: Any) -> Any:
            from watersmeet.errors import CorruptStateError
            from watersmeet.spark.failure import reported

            with reported(who):
                raise CorruptStateError("master table x", expected="a", found="b", hint="c")
            yield from batches

        return write

    monkeypatch.setattr(master, "_chunk_writer", task)
    with pytest.raises(CorruptStateError) as caught:
        wm.prepare_master(trial.spark.range(5), "id", trial.folder / "m")
    assert str(caught.value) == "prepare_master, master table x: expected a, found b. c"
    assert find_error(str(caught.value)) is None
