"""Versions: commit, collection, repetition, history, spilled runs."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from tests.unit.state.versions import PLAN, SCRIPT, advance, files, run_until, state_of

from watersmeet.columns.arrow import hashes_of
from watersmeet.engine.runtime import run_batch
from watersmeet.errors import CorruptStateError
from watersmeet.plan.metrics import Metrics
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.directory import StateDir, unseal
from watersmeet.state.history import metrics_history
from watersmeet.state.manifest import Manifest
from watersmeet.state.operator_state import OperatorState
from watersmeet.state.run import resident_run
from watersmeet.state.segments import FOLD, SEGMENT, Segments
from watersmeet.state.store import KEEP, PartitionStore
from watersmeet.testing import Arrival, batch_of, make_plan
from watersmeet.testing.harness import rows_of


def test_files_of_this_session_are_not_checked_again(tmp_path: Path) -> None:
    options = ProgressiveOptions(memory_rows=12, flush_share=0.1)
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    for number, arrival in enumerate(SCRIPT[:3]):
        rows_of(run_batch(plan, StateDir(tmp_path), 0, batch_of(plan, number, arrival), run_id="one"))
    runs = PartitionStore(StateDir(tmp_path), 0).manifest(2).runs
    assert {run.tier for run in runs} == {"resident", "spilled"}
    assert {run.verified for run in runs} == {"one"}


def test_old_versions_and_their_runs_are_collected(tmp_path: Path) -> None:
    store = run_until(tmp_path, 20)
    assert store.versions() == [18, 19, 20][-KEEP:]
    named = {entry.file for version in store.versions() for entry in store.manifest(version).runs}
    there = {path.name for path in files(tmp_path, "run-*")}
    assert named <= there
    # What no kept version names is young: an attempt may still want it.
    assert all(int(name.split("-")[1]) > 20 - KEEP for name in there - named)


def test_files_of_dead_attempts_are_collected_when_they_are_old(tmp_path: Path) -> None:
    store = run_until(tmp_path, 3)
    space = store.space(4, "dead")
    table = pa.table({"_hash": pa.array([1], pa.uint64())})
    space.store(resident_run("left", table, oldest=4, newest=4))
    half = tmp_path / "part-00000" / ".v-000000000004.json.abc.tmp"
    half.write_bytes(b"half a mani")
    for batch in range(4, 4 + KEEP):
        advance(tmp_path, batch)
        assert files(tmp_path, "run-*-dead-*")
        assert half.exists()
    advance(tmp_path, 4 + KEEP)
    assert not files(tmp_path, "run-*-dead-*")
    assert not half.exists()


def test_a_crash_before_the_manifest_leaves_the_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_until(tmp_path, 3)
    before = {path.name: path.read_bytes() for path in files(tmp_path, "v-*.json")}

    def crash(self: StateDir, name: str, content: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StateDir, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            advance(tmp_path, 4)
    assert {path.name: path.read_bytes() for path in files(tmp_path, "v-*.json")} == before
    assert files(tmp_path, "run-000000000004-*")  # written, named by nothing
    whole = tmp_path / "whole"
    run_until(whole, 3)
    assert advance(tmp_path, 4, run_id="restarted") == advance(whole, 4)


def test_a_consumer_that_stops_early_leaves_a_version(tmp_path: Path) -> None:
    run_until(tmp_path, 3)
    results = run_batch(PLAN, StateDir(tmp_path), 0, batch_of(PLAN, 4, SCRIPT[4]))
    next(results)
    results.close()
    assert PartitionStore(StateDir(tmp_path), 0).versions()[-1] == 4


def test_unchanged_runs_are_not_written_again(tmp_path: Path) -> None:
    store = run_until(tmp_path, 3)
    before = {entry.file for entry in store.manifest(3).runs}
    advance(tmp_path, 4, arrival=Arrival())
    assert {entry.file for entry in store.manifest(4).runs} == before


def test_a_repeat_that_differs_is_counted_and_warned_about(tmp_path: Path) -> None:
    store = run_until(tmp_path, 3)
    advance(tmp_path, 3, attempt="1")
    assert store.manifest(3).repeats == 0
    other = Arrival({"left": [(1, 2, "other")], "right": []})
    with pytest.warns(
        UserWarning,
        match="^batch 3 of partition 0 was repeated and came out differently: a source did not replay the same rows$",
    ):
        advance(tmp_path, 3, attempt="2", arrival=other)
    assert store.manifest(3).repeats == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        advance(tmp_path, 3, attempt="3", arrival=other)  # as the last time: still one
    assert store.manifest(3).repeats == 1
    advance(tmp_path, 4)
    assert store.manifest(4).repeats == 1
    assert [entry["repeats"] for entry in metrics_history(store.directory, store.manifest(4))] == [0, 0, 0, 1, 1]


def test_a_damaged_manifest_of_a_dead_attempt_is_replaced(tmp_path: Path) -> None:
    store = run_until(tmp_path, 3)
    (tmp_path / "part-00000" / "v-000000000004.json").write_bytes(b"half a mani")
    advance(tmp_path, 4)
    assert store.manifest(4).version == 4


def test_history_rolls_over_to_segments(tmp_path: Path) -> None:
    store = run_until(tmp_path, SEGMENT + 2)
    assert [entry["batch"] for entry in store.manifest(SEGMENT + 2).history] == [SEGMENT, SEGMENT + 1, SEGMENT + 2]
    (segment,) = files(tmp_path, "metrics-*.json")
    assert segment.name == "metrics-0-000000.json"
    body = unseal(segment.read_bytes(), segment.name)
    assert [entry["batch"] for entry in body["history"]] == list(range(SEGMENT))
    first = body["history"][0]
    assert first["rows_in"] == {name: len(rows) for name, rows in SCRIPT[0].rows.items()}
    assert set(first["timings"]) >= {"load", "join", "store"}


def test_segments_are_folded_so_that_their_files_stay_few(tmp_path: Path) -> None:
    store = PartitionStore(StateDir(tmp_path), 0)
    store.load(0, "q", "s")
    history: list[dict[str, Any]] = []
    for batch in range(2 * SEGMENT * FOLD * FOLD + SEGMENT + 3):
        history = store.segments.add(history, {"batch": batch})
        assert [entry["batch"] for entry in history] == list(range(batch - batch % SEGMENT, batch + 1))
        for name in list(store.segments.obsolete(store.directory.list(store.folder), batch - KEEP)):
            store.directory.delete(f"{store.folder}/{name}")
        assert sorted(store.segments.read()) == list(range(batch + 1 - (batch + 1) % SEGMENT))
        assert len(files(tmp_path, "metrics-*.json")) <= 3 * FOLD + 2
    assert [path.name for path in files(tmp_path, "metrics-*.json")] == [
        "metrics-0-000128.json",
        "metrics-2-000000.json",
        "metrics-2-000001.json",
    ]
    assert min(store.segments.read(after=2 * SEGMENT * FOLD * FOLD - 1)) == 2 * SEGMENT * FOLD * FOLD


def test_a_folded_segment_that_lost_a_part_is_noticed(tmp_path: Path) -> None:
    segments = Segments(StateDir(tmp_path), "part-00000")
    segments.directory.make(segments.folder)
    history: list[dict[str, Any]] = []
    for batch in range(SEGMENT * FOLD):
        history = segments.add(history, {"batch": batch})
    folded = tmp_path / "part-00000" / "metrics-1-000000.json"
    lines = folded.read_bytes().splitlines(keepends=True)
    folded.write_bytes(b"".join(lines[2:]))
    with pytest.raises(CorruptStateError, match=r"expected segments 0 to 7 of the history, found segments 1, 2, 3"):
        segments.read()


def test_timings_are_not_in_the_digest(tmp_path: Path) -> None:
    store = PartitionStore(StateDir(tmp_path), 0)
    store.load(0, "q", "s")

    def commit(seconds: float, count: int) -> str:
        metrics = Metrics()
        metrics.count("probes", count)
        manifest = Manifest(version=0, partition=0, query="q", run_id="s")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return store.commit(manifest, OperatorState(), store.space(0, "0"), metrics, {"join": seconds}, 0).digest

    assert commit(1.0, 1) == commit(2.0, 1) != commit(1.0, 2)


def test_every_batch_has_its_wall_clock_time_and_a_repeated_one_keeps_it(tmp_path: Path) -> None:
    def advance_without_clock(number: int, attempt: str) -> None:
        batch = replace(batch_of(PLAN, number, SCRIPT[number]), time=0)
        rows_of(run_batch(PLAN, StateDir(tmp_path), 0, batch, attempt=attempt))

    before = int(time.time() * 1e6)
    for number in range(3):
        advance_without_clock(number, "0")
    store = PartitionStore(StateDir(tmp_path), 0)
    times = [entry["time"] for entry in store.manifest(2).history]
    assert before <= times[0] <= times[1] <= times[2] <= time.time() * 1e6
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the time is no difference between two attempts
        advance_without_clock(2, "1")
    again = store.manifest(2)
    assert ([entry["time"] for entry in again.history], again.repeats) == (times, 0)


def test_spilled_runs_on_disk_equal_those_in_memory(tmp_path: Path) -> None:
    store = PartitionStore(StateDir(tmp_path), 0)
    store.load(0, "q", "s")
    pages = [(0, [1, 2]), (0, [3]), (4, [9, 9])]
    writer = store.space(0, "0").writer("left", pa.schema({"_hash": pa.uint64()}))
    for bucket, hashes in pages:
        writer.add(bucket, pa.table({"_hash": pa.array(hashes, pa.uint64())}))
    run = writer.finish(oldest=0, newest=0, level=2)
    manifest = Manifest(version=0, partition=0, query="q", run_id="s")
    store.commit(manifest, state_of([run]), store.space(0, "0"), Metrics(), {}, 0)
    (again,) = store.state(store.load(1, "q", "t"), "t").runs
    assert again.digest() == run.digest()
    assert [hashes_of(page).tolist() for page in again.read(0)] == [[1, 2], [3]]
    assert [hashes_of(page).tolist() for page in again.read(4)] == [[9, 9]]
    assert again.facts() == {"level": 2}


def test_only_so_many_files_of_spilled_runs_are_open(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    store = PartitionStore(directory, 0)
    store.readers.most = 2
    store.load(0, "q", "s")
    space = store.space(0, "a")
    tables = [pa.table({"_hash": pa.array([number], pa.uint64())}) for number in range(5)]
    runs = [space.spill("left", [(0, table)], oldest=0, newest=0) for table in tables]
    for run, table in [*zip(runs, tables, strict=True), (runs[0], tables[0])]:
        assert run.data.page(0).equals(table)
        assert len(_open_files(tmp_path)) <= 2
    assert _open_files(tmp_path)  # they are kept, not opened anew for every page


def _open_files(folder: Path) -> list[str]:
    return [file.path for file in psutil.Process().open_files() if file.path.startswith(str(folder))]
