"""A file system of `pyarrow.fs` as a store: here that of this machine, in place of HDFS."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from watersmeet.errors import StateDirError
from watersmeet.spark.control import _send
from watersmeet.state.directory import StateDir
from watersmeet.state.object_dir import ObjectDir
from watersmeet.state.store import PartitionStore
from watersmeet.storage.cache import HostCache
from watersmeet.storage.retrying import RetryingBlobs
from watersmeet.storage.shared_files import FileBlobs
from watersmeet.testing import make_plan, random_script, run_stored


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(pafs.LocalFileSystem(), str(tmp_path / "root"))


@pytest.fixture
def directory(blobs: FileBlobs, tmp_path: Path) -> ObjectDir:
    made = ObjectDir("hdfs://name/state", RetryingBlobs(blobs, "hdfs://name/state", tries=1))
    made.cache = HostCache(tmp_path / "cache", 1 << 30)
    made.create()
    return made


def test_the_requests_of_a_store(blobs: FileBlobs) -> None:
    assert blobs.put_new("a/x", b"one")
    assert not blobs.put_new("a/x", b"two")
    seen = blobs.get("a/x")
    assert seen.content == b"one"
    assert blobs.replace("a/x", b"two", seen.tag)
    assert not blobs.replace("a/x", b"three", seen.tag)
    blobs.put("a/b/y", [memoryview(b"01234"), memoryview(b"56789")])
    assert blobs.get_range("a/b/y", 3, 4) == b"3456"
    assert sorted(found.name for found in blobs.list("a")) == ["b", "x"]
    assert sorted(found.name for found in blobs.list("a", recursive=True)) == ["b/y", "x"]
    blobs.delete(["a/x", "a/none"])
    with pytest.raises(FileNotFoundError):
        blobs.get("a/x")
    assert blobs.list("none") == []


def test_a_join_gives_the_same_rows_and_state(directory: ObjectDir, tmp_path: Path) -> None:
    plan, script = make_plan("symmetric"), random_script(4, batches=20)
    local = run_stored(plan, script, StateDir(tmp_path / "local"))
    stored = run_stored(plan, script, directory, repeat=True)
    assert (stored.per_batch, stored.digests) == (local.per_batch, local.digests)


def test_what_dead_writers_left_is_collected(directory: ObjectDir, blobs: FileBlobs, tmp_path: Path) -> None:
    """A file is written under a name that begins with a dot; some die before they rename it."""
    old = ["v-000000000002.json", "run-000000000002-0-ab12.pack", "metrics-0-000000.json"]
    new = ["v-000000000039.json", "run-000000000039-0-ab12.pack", "metrics-0-000009.json"]
    for name in (*old, *new):
        blobs._written(f"part-00000/{name}", [memoryview(b"half a f")])
    assert PartitionStore(directory, 0).versions() == []
    run_stored(make_plan("symmetric"), random_script(4, batches=40), directory)
    left = [path.name for path in (tmp_path / "root" / "part-00000").glob(".*")]
    assert sorted(name.rsplit(".", 2)[0] for name in left) == sorted(f".{name}" for name in new)


def test_a_folder_is_deleted_with_what_is_half_made(directory: ObjectDir, blobs: FileBlobs, tmp_path: Path) -> None:
    blobs._written("part-00000.1/v-000000000002.json", [memoryview(b"half a f")])
    directory.publish("part-00000.1/v-000000000001.json", b"whole")
    directory.delete_tree("part-00000.1")
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == []


def test_the_age_of_a_file_and_of_a_folder(directory: ObjectDir, tmp_path: Path) -> None:
    for name in ("a/x", "a/b/y"):
        directory.publish(name, b"")
        os.utime(tmp_path / "root" / name, (1000, 1000))
    os.utime(tmp_path / "root" / "a" / "x", (5000, 5000))
    assert directory.idle_seconds("a") == pytest.approx(time.time() - 5000, abs=100)
    assert directory.idle_seconds("a/b") == pytest.approx(time.time() - 1000, abs=100)
    assert directory.idle_seconds("a/b/y") == pytest.approx(time.time() - 1000, abs=100)
    assert directory.idle_seconds("a/none") == 0


def test_markers_have_numbers_without_gaps(directory: ObjectDir, blobs: FileBlobs) -> None:
    """Who waits for the next marker asks for the next number."""
    blobs._written("control/000000.json", [memoryview(b"half a m")])
    for name in ("left", "right"):
        _send(directory, {"kind": "end", "input": name}, {})
    names = [name for name in directory.list("control") if not name.startswith(".")]
    assert names == ["000000.json", "000001.json"]


def test_errors_are_those_of_a_store_that_may_come_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blobs = RetryingBlobs(FileBlobs(pafs.LocalFileSystem(), str(tmp_path / "file")), "hdfs://name/state", tries=1)
    with pytest.raises(StateDirError, match=r"expected an answer to a put request within 1 tries.*Cannot create"):
        blobs.put("x", [memoryview(b"1")])
