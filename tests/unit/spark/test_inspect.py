"""What `read_state` says, from the manifests alone: rows of inputs that have not left, and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.conformance.cases import CASES
from tests.conformance.sampling import LEADING

from watersmeet.engine.runtime import run_batch
from watersmeet.pipeline.report import state_rows
from watersmeet.plan.metrics import Metrics
from watersmeet.spark.inspect import _holdings
from watersmeet.state.accounts import Accounts
from watersmeet.state.buckets import Buckets
from watersmeet.state.directory import StateDir, seal
from watersmeet.state.history import metrics_history, newest_manifests
from watersmeet.state.layouts import HashTiers
from watersmeet.state.manifest import FORMAT, Manifest
from watersmeet.state.operator_state import OperatorState
from watersmeet.state.parts import Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.side_table import SideTable
from watersmeet.state.space import RunSpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import batch_of
from watersmeet.testing.cases import Case

SCHEMA = pa.schema([("_hash", pa.uint64())])


def table(hashes: list[int]) -> pa.Table:
    return pa.table([pa.array(hashes, pa.uint64())], schema=SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> PartitionStore:
    store = PartitionStore(StateDir(tmp_path), 3)
    store.load(0, "q", "s")
    return store


def rows_of(name: str, space: RunSpace, input: str | None = None) -> RowStore:
    return RowStore(name, SCHEMA, HashTiers(), space, Accounts(Metrics()), input=input, buckets=Buckets(8))


def commit(store: PartitionStore, version: int, state: OperatorState) -> Manifest:
    history = store.manifest(version - 1).history if version else []
    manifest = Manifest(version=version, partition=3, query="q", run_id="s", history=history)
    return store.commit(manifest, state, store.space(version, "0"), Metrics(rows_out=version), {"join": 0.5}, 0)


def test_buckets_of_spilled_runs(store: PartitionStore) -> None:
    rows = rows_of("left", store.space(0, "0"))
    rows.spill(iter([(0, table([1, 2])), (0, table([3])), (4, table([9, 9]))]), oldest=0, newest=1)
    second = rows.spill(iter([(4, table([9])), (5, table([11]))]), oldest=2, newest=2)
    rows.release(5, [second.id])
    rows.add(table([1, 2, 3]), batch=3)
    manifest = commit(store, 0, OperatorState(stores=[rows.save()]))
    assert sorted(_holdings(manifest), key=str) == sorted(
        [
            (3, "left", 0, "spilled", 1, 3, 24, 0, 1, 0),
            (3, "left", 4, "spilled", 2, 3, 24, 0, 2, 0),
            (3, "left", None, "resident", 1, 3, 24, 3, 3, 0),
        ],
        key=str,
    )


def test_only_living_rows_of_inputs_count(store: PartitionStore) -> None:
    """Two stores of one input add up; dead rows, entries that are no rows of an input, and side tables do not count."""
    space = store.space(0, "0")
    rows, waiting, pending = rows_of("left", space), rows_of("left.waiting", space, "left"), rows_of("p", space, "")
    for each in (rows, waiting, pending):
        each.add(table([1, 2, 3, 4]), batch=0)
    rows.add(table([5, 6]), batch=1)
    part, _ = rows.parts()
    rows.remove(Rows(part, np.array([0, 2, 3])), "punctuation")
    rows.side(part.run, "order", lambda: table([3, 2, 1, 0]))
    for each in (rows, waiting, pending):
        for marks in each.marks.values():
            marks.settle({run.id: run for run in each.runs})
    state = OperatorState(
        stores=[each.save() for each in (rows, waiting, pending)], tables={"more": SideTable.of(table([7]))}
    )
    manifest = commit(store, 0, state)
    assert manifest.tables
    assert list(_holdings(manifest)) == [(3, "left", None, "resident", 3, 7, 80, 0, 1, 0)]


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case in LEADING
        and ("spilling" in case.name or case.name.startswith(("semi_stream", "rpj", "window")))
        and "at once" not in case.name  # nothing waits there
    ],
    ids=str,
)
def test_rows_add_up_to_the_gauges(case: Case, tmp_path: Path) -> None:
    plan, directory = case.plan(), StateDir(tmp_path)
    held: Counter[str] = Counter()
    for number, arrival in enumerate(case.random_script(2, batches=8)):
        for _ in run_batch(plan, directory, 0, batch_of(plan, number, arrival)):
            pass
        (manifest,) = newest_manifests(directory)
        found: Counter[str] = Counter()
        for _, name, _, tier, _, rows, *_ in _holdings(manifest):
            found[f"{tier}_rows.{name}"] += rows
        shown: Counter[str] = Counter()
        for row in state_rows(directory):
            shown[f"{row['tier']}_rows.{row['input']}"] += row["rows"]
        gauges = manifest.history[-1]["counters"].items()
        expected = {name: rows for name, rows in gauges if name.startswith(("resident_rows.", "spilled_rows."))}
        assert +found == +shown == +Counter(expected)
        assert manifest.history[-1]["state_rows"] == found.total()
        held.update(found)
    assert held.total() > 0


def test_history_is_that_of_segments_and_of_the_newest_manifest(store: PartitionStore) -> None:
    for version in range(34):
        commit(store, version, OperatorState())
    (newest,) = newest_manifests(store.directory)
    assert newest.version == 33
    history = metrics_history(store.directory, newest)
    assert [(entry["batch"], entry["rows_out"]) for entry in history] == [(v, v) for v in range(34)]


def test_a_segment_of_a_batch_that_was_never_committed_is_not_shown(store: PartitionStore) -> None:
    newest = commit(store, 0, OperatorState())
    stray = {"format": FORMAT, "segment": 0, "history": [{**newest.history[0], "batch": batch} for batch in range(32)]}
    store.directory.publish(f"{store.folder}/metrics-0-000000.json", seal(stray))
    assert [entry["batch"] for entry in metrics_history(store.directory, newest)] == [0]
