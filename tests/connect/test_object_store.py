"""State in an object store, with a client of Spark Connect that shares no file system with the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.connect.server import ConnectServer, new_session
from tests.object_store.server import ACCESS_KEY, SECRET_KEY, Server, serving
from tests.spark.feed import Feed

import watersmeet as wm
from watersmeet.errors import CorruptStateError
from watersmeet.state.directory import StateDir
from watersmeet.view.embed import printed_plan

KEYS = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def session(server: str, store: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Of a server that was given the settings of the store. It tells its client all of them but the secrets."""
    settings = {f"spark.hadoop.{name}": value for name, value in store.hadoop.items()}
    running = ConnectServer(tmp_path_factory.mktemp("stored"), settings)
    made = new_session(running.remote)
    yield made
    made.stop()
    running.stop()


def rows(frame: DataFrame) -> Counter[Any]:
    return Counter(map(tuple, frame.collect()))


class Trial:
    """Two streams whose join is run over all there is, again and again."""

    def __init__(self, session: SparkSession, folder: Path, name: str) -> None:
        self.session, self.folder, self.state = session, folder, f"s3a://lake/connect/{name}"
        self.left, self.right = (Feed(session, folder / side, f"k long, {side} long") for side in ("a", "b"))

    def send(self, *keys: int) -> None:
        self.left.send(*({"k": key, "a": key} for key in keys))
        self.right.send(*({"k": key, "b": -key} for key in keys[::2]))

    def run(self, **options: Any) -> Any:
        joined = wm.progressive_join(
            self.left.stream, self.right.stream, "k", how="left", state_dir=self.state, storage_options=KEYS, **options
        )
        writer = joined.writeStream.format("parquet").option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(self.folder / "out"))
        query.awaitTermination()
        return query

    def check(self) -> None:
        expected = self.left.batch.join(self.right.batch, "k", "left")
        assert rows(self.session.read.parquet(str(self.folder / "out"))) == rows(expected)


def test_restarts_ends_and_looks_inside(session: SparkSession, tmp_path: Path) -> None:
    trial = Trial(session, tmp_path, "whole")
    trial.send(*range(40))
    query = trial.run()
    assert not {ACCESS_KEY, SECRET_KEY} & set(printed_plan(query).replace("'", " ").split())
    held = wm.read_state(session, trial.state).groupBy("input").sum("rows").collect()
    assert {row["input"]: row["sum(rows)"] for row in held} == {"left": 40, "right": 20}
    found = wm.read_rows(session, trial.state, input="left").where("k = 7").select("k", "a").collect()
    assert [tuple(row) for row in found] == [(7, 7)]
    trial.send(*range(30, 60))
    trial.run(memory="16 MB")  # with ticks
    trial.send(*range(50, 70))
    trial.run()  # and without them again
    for name in ("left", "right"):
        wm.end_input(trial.state, name)
    trial.run()
    trial.check()
    assert {row["run"] for row in wm.read_metrics(session, trial.state).select("run").distinct().collect()}


def test_a_marker_reaches_a_join_that_runs(session: SparkSession, tmp_path: Path) -> None:
    trial = Trial(session, tmp_path, "running")
    trial.send(*range(10))
    joined = wm.progressive_join(
        trial.left.stream, trial.right.stream, "k", how="left", state_dir=trial.state, storage_options=KEYS
    )
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start(str(tmp_path / "out"))
    try:
        query.processAllAvailable()
        wm.end_input(trial.state, "right")
        for _ in range(300):
            if query.awaitTermination(1) or session.read.parquet(str(tmp_path / "out")).count() == 10:
                break
    finally:
        query.stop()
    trial.check()


def test_a_damaged_marker_fails_the_batch(session: SparkSession, tmp_path: Path) -> None:
    trial = Trial(session, tmp_path, "damaged")
    trial.send(1)
    trial.run()
    StateDir(trial.state).publish("control/000000.json", b'{"kind": "end", "input": "le')
    with pytest.raises(StreamingQueryException) as caught:
        trial.run()
    cause = wm.error(caught.value)
    assert isinstance(cause, CorruptStateError)
    assert "control/000000.json: expected a marker with its seal" in str(cause)
