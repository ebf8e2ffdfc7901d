"""Several writers of one master table at once: each gets a version of its own, and all that one names is there."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from watersmeet.errors import CorruptStateError, StateDirError
from watersmeet.semistream import master_registry
from watersmeet.semistream.master_registry import Registration, lowest_needed, register_newest, remove_old_versions
from watersmeet.semistream.master_table import MasterTable, floor_of
from watersmeet.semistream.master_writer import new_folder, publish_version
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join as record_join
from watersmeet.testing import Arrival, run_stored
from watersmeet.testing.masters import semi_stream_plan, write_master

REPETITIONS = 30


def rows_of(writer: int) -> list[tuple[int, int, str]]:
    return [(key, 1000 * writer + key, "x" * writer) for key in range(40)]


def content(path: str, version: int) -> list[tuple[object, ...]]:
    part = MasterTable(path).partition(version, 0)
    tables = [part.read(i) for i in range(part.count)]
    return sorted(row for table in tables for row in zip(*(c.to_pylist() for c in table.columns[1:]), strict=True))


def write_often(path: str, writer: int, wait: Callable[[], object]) -> list[int]:
    """One version per repetition, all writers at the same moment."""
    numbers = []
    for _ in range(REPETITIONS):
        wait()
        numbers.append(write_master(path, rows_of(writer), chunk_rows=7))
    return numbers


def check(path: str, numbers: dict[int, list[int]]) -> None:
    """Every write has a version of its own with the rows it wrote."""
    everything = sorted(number for mine in numbers.values() for number in mine)
    assert everything == list(range(1, 1 + REPETITIONS * len(numbers)))
    for writer, mine in numbers.items():
        assert mine == sorted(mine)
        for number in mine:
            assert content(path, number) == sorted(rows_of(writer))


def test_threads_that_write_at_once_get_different_versions(tmp_path: Path) -> None:
    barrier = threading.Barrier(3, timeout=60)
    with ThreadPoolExecutor(3) as pool:
        tasks = {writer: pool.submit(write_often, str(tmp_path), writer, barrier.wait) for writer in (1, 2, 3)}
        check(str(tmp_path), {writer: task.result() for writer, task in tasks.items()})


def _in_process(path: str, writer: int, barrier: threading.Barrier, answers: multiprocessing.Queue[object]) -> None:
    answers.put((writer, write_often(path, writer, lambda: barrier.wait(60))))


def test_processes_that_write_at_once_get_different_versions(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    writers = [context.Process(target=_in_process, args=(str(tmp_path), w, barrier, answers)) for w in (1, 2)]
    for writer in writers:
        writer.start()
    numbers = dict(answers.get(timeout=120) for _ in writers)
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    check(str(tmp_path), numbers)


def test_versions_are_removed_while_others_are_written(tmp_path: Path) -> None:
    """Nothing that the newest version names is missing, and in the end one version and one folder are left."""
    path, barrier = str(tmp_path), threading.Barrier(2, timeout=60)
    possible = [sorted(rows_of(writer)) for writer in (1, 2)]

    def refresh(writer: int) -> list[int]:
        numbers = []
        for _ in range(REPETITIONS):
            barrier.wait()
            numbers.append(write_master(path, rows_of(writer), chunk_rows=7))
            remove_old_versions(path)
            newest = MasterTable(path).latest()["version"]
            try:
                assert content(path, newest) in possible
            except (StateDirError, CorruptStateError, FileNotFoundError):  # its files go when there is a newer version
                assert MasterTable(path).newest > newest
        return numbers

    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(refresh, writer) for writer in (1, 2)]
        numbers = [task.result() for task in tasks]
    assert len({number for mine in numbers for number in mine}) == 2 * REPETITIONS
    (last,) = MasterTable(path).versions()
    assert last == 2 * REPETITIONS
    assert content(path, last) in possible
    assert len(list(tmp_path.glob("rows-*"))) == 1
    floors = [floor_of(mark.name) for mark in tmp_path.glob("from-*")]
    assert floors in ([last], [last] * 2, [last, last - 1], [last - 1, last])  # one of each writer at most


def test_of_two_removals_at_once_neither_deletes_the_other_s_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a mark the number of a removed version could come back."""
    path = str(tmp_path)
    for writer in (1, 2, 3):
        write_master(path, rows_of(writer))
    delete_tree = StateDir.delete_tree

    def meanwhile(directory: StateDir, name: str) -> None:
        monkeypatch.setattr(StateDir, "delete_tree", delete_tree)
        assert remove_old_versions(path) == [1, 2]
        delete_tree(directory, name)

    monkeypatch.setattr(StateDir, "delete_tree", meanwhile)
    assert remove_old_versions(path) == [1, 2]
    assert {floor_of(mark.name) for mark in tmp_path.glob("from-*")} == {3}
    write_master(path, rows_of(1))
    remove_old_versions(path)
    assert [floor_of(mark.name) for mark in tmp_path.glob("from-*")] == [4]


def test_a_removed_number_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer stands still between choosing version 2 and taking it; meanwhile 2 is written, replaced and removed."""
    path = str(tmp_path)
    write_master(path, rows_of(1))
    publish_new = StateDir.publish_new

    def late(directory: StateDir, name: str, content: bytes) -> bool:
        monkeypatch.setattr(StateDir, "publish_new", publish_new)
        for _ in range(2):
            write_master(path, rows_of(2))
        assert remove_old_versions(path) == [1, 2]
        assert name == "v-000002.json"
        return publish_new(directory, name, content)

    monkeypatch.setattr(StateDir, "publish_new", late)
    write_master(path, rows_of(3))
    assert MasterTable(path).versions() == [3]
    assert content(path, 3) == sorted(rows_of(2))
    assert write_master(path, rows_of(3)) == 4
    assert remove_old_versions(path) == [2, 3]
    assert len(list(tmp_path.glob("rows-*"))) == 1


def test_a_listing_that_misses_the_change_of_versions_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 was removed before it was listed, and version 2 published after the listing had passed its place."""
    path = str(tmp_path)
    for writer in (1, 2):
        write_master(path, rows_of(writer))
    assert remove_old_versions(path) == [1]
    complete = StateDir.list

    def torn(directory: StateDir, name: str = "") -> list[str]:
        monkeypatch.setattr(StateDir, "list", complete)
        return [each for each in complete(directory, name) if not each.startswith("v-")]

    monkeypatch.setattr(StateDir, "list", torn)
    assert MasterTable(path).versions() == [2]
    (tmp_path / "v-000002.json").unlink()
    assert MasterTable(path).versions() == []


def test_a_second_first_version_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path)
    write_master(path, rows_of(1))
    about = MasterTable(path).description
    with pytest.raises(StateDirError, match=r"without a master table, found version 1 at .*refresh_master"):
        publish_version(path, about, new_folder(), {}, chunk_rows=7, first=True)
    assert content(path, 1) == sorted(rows_of(1))


def test_files_of_a_dead_writer_go_after_a_day_and_those_of_a_slow_one_stay(tmp_path: Path) -> None:
    path = str(tmp_path)
    write_master(path, rows_of(1))
    for name in ("rows-dead", "rows-slow"):
        (tmp_path / name / "part-00000").mkdir(parents=True)
        (tmp_path / name / "part-00000" / "chunk-00000-0.arrow").write_bytes(b"half")
    (tmp_path / ".v-000002.json.0.tmp").write_bytes(b"half")
    week_ago = time.time() - 7 * 86_400
    for dead in (tmp_path, *tmp_path.rglob("*")):
        os.utime(dead, (week_ago, week_ago))
    (tmp_path / "rows-slow" / "part-00000" / "chunk-00001-0.arrow").write_bytes(b"more")
    remove_old_versions(path)
    assert not (tmp_path / "rows-dead").exists()
    assert not (tmp_path / ".v-000002.json.0.tmp").exists()
    assert len(list((tmp_path / "rows-slow").rglob("*.arrow"))) == 2
    assert content(path, 1) == sorted(rows_of(1))  # as old, but named by a version


def test_a_writer_whose_files_were_deleted_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = StateDir.publish

    def collected(directory: StateDir, name: str, content: bytes) -> None:
        publish(directory, name, content)
        for chunk in tmp_path.glob("rows-*/*/chunk-00000*"):
            chunk.unlink()

    monkeypatch.setattr(StateDir, "publish", collected)
    with pytest.raises(StateDirError, match=r"chunk files written to rows-\w+/part-00000, found 1 of them gone"):
        write_master(str(tmp_path), rows_of(1), chunk_rows=7)
    assert MasterTable(str(tmp_path)).versions() == []


def state_of(tmp_path: Path, master: str) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.create()
    record_join("test", state, semi_stream_plan(master))
    return state


def test_a_join_built_during_a_removal_keeps_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2 comes and 1 is to be removed while a join that has seen version 1 leaves its note."""
    master = str(tmp_path / "master")
    write_master(master, rows_of(1))
    state = state_of(tmp_path, master)
    published = StateDir.publish

    def meanwhile(directory: StateDir, name: str, content: bytes) -> None:
        if name.startswith("from-"):
            monkeypatch.setattr(StateDir, "publish", published)
            master_registry.register_join(master, Registration(state.root, 1))
        published(directory, name, content)

    monkeypatch.setattr(StateDir, "publish", meanwhile)
    write_master(master, rows_of(2))
    assert remove_old_versions(master) == []
    assert MasterTable(master).versions() == [1, 2]
    assert content(master, 1) == sorted(rows_of(1))


def test_a_join_whose_version_is_removed_before_its_note_takes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = str(tmp_path / "master")
    write_master(master, rows_of(1))
    state = state_of(tmp_path, master)
    register_join = master_registry.register_join

    def late(path: str, registration: Registration) -> None:
        monkeypatch.setattr(master_registry, "register_join", register_join)
        write_master(master, rows_of(2))
        assert remove_old_versions(master) == [1]
        register_join(path, registration)

    monkeypatch.setattr(master_registry, "register_join", late)
    assert register_newest(master, state.root) == 2


def test_a_running_join_is_asked_what_it_needs(tmp_path: Path) -> None:
    """Its manifests come and go while they are read."""
    master = str(tmp_path / "master")
    write_master(master, rows_of(1))
    state = state_of(tmp_path, master)
    script = [Arrival({"stream": [(key, key, "")]}) for key in range(60)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_stored, semi_stream_plan(master), script, state)
        asked = 0
        while not running.done():
            assert lowest_needed(Registration(state.root, 1)) == 1
            asked += 1
        running.result()
    assert asked > 10
