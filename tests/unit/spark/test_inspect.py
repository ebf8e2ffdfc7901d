"""What `read_state` says of spilled runs, from their page directory alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from watersmeet.metrics import Metrics
from watersmeet.spark.inspect import _holdings
from watersmeet.state.directory import StateDir, seal
from watersmeet.state.history import metrics_history, newest_manifests
from watersmeet.state.manifest import FORMAT, Manifest
from watersmeet.state.operator_state import OperatorState
from watersmeet.state.rows import StoreState
from watersmeet.state.run import Run, resident_run
from watersmeet.state.store import PartitionStore


def table(hashes: list[int]) -> pa.Table:
    return pa.table({"_hash": pa.array(hashes, pa.uint64())})


@pytest.fixture
def store(tmp_path: Path) -> PartitionStore:
    store = PartitionStore(StateDir(tmp_path), 3)
    store.load(0, "q", "s")
    return store


def commit(store: PartitionStore, version: int, runs: list[Run]) -> Manifest:
    history = store.manifest(version - 1).history if version else []
    manifest = Manifest(version=version, partition=3, query="q", session="s", history=history)
    state = OperatorState(stores=[StoreState("left", "left", sum(run.rows for run in runs), runs, {}, {})])
    return store.commit(manifest, state, store.space(version, "0"), Metrics(rows_out=version), {"join": 0.5}, 0)


def test_buckets_of_spilled_runs(store: PartitionStore) -> None:
    space = store.space(0, "0")
    first = space.spill("left", [(0, table([1, 2])), (0, table([3])), (4, table([9, 9]))], oldest=0, newest=1)
    second = space.spill("left", [(4, table([9])), (5, table([11]))], oldest=2, newest=2)
    resident = resident_run("left", table([1, 2, 3]), oldest=3, newest=3)
    manifest = commit(store, 0, [first, second.without_bucket(5), resident])
    assert sorted(_holdings(manifest), key=str) == sorted(
        [
            (3, "left", 0, "spilled", 1, 3, 24, 0, 1, 0),
            (3, "left", 4, "spilled", 2, 3, 24, 0, 2, 0),
            (3, "left", None, "resident", 1, 3, 24, 3, 3, 0),
        ],
        key=str,
    )


def test_history_is_that_of_segments_and_of_the_newest_manifest(store: PartitionStore) -> None:
    for version in range(34):
        commit(store, version, [])
    (newest,) = newest_manifests(store.directory)
    assert newest.version == 33
    history = metrics_history(store.directory, newest)
    assert [(entry["batch"], entry["rows_out"]) for entry in history] == [(v, v) for v in range(34)]


def test_a_segment_of_a_batch_that_was_never_committed_is_not_shown(store: PartitionStore) -> None:
    newest = commit(store, 0, [])
    stray = {"format": FORMAT, "segment": 0, "history": [{**newest.history[0], "batch": batch} for batch in range(32)]}
    store.directory.publish(f"{store.folder}/metrics-0-000000.json", seal(stray))
    assert [entry["batch"] for entry in metrics_history(store.directory, newest)] == [0]
