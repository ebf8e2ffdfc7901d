"""A file system of `pyarrow.fs` as a store: here that of this machine, in place of HDFS."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from watersmeet.errors import StateDirError
from watersmeet.state.directory import StateDir
from watersmeet.state.object_dir import ObjectDir
from watersmeet.storage.cache import HostCache
from watersmeet.storage.retrying import RetryingBlobs
from watersmeet.storage.shared_files import FileBlobs
from watersmeet.testing import make_plan, random_script, run_stored


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(pafs.LocalFileSystem(), str(tmp_path / "root"))


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


def test_a_join_gives_the_same_rows_and_state(blobs: FileBlobs, tmp_path: Path) -> None:
    plan, script = make_plan("symmetric"), random_script(4, batches=20)
    local = run_stored(plan, script, StateDir(tmp_path / "local"))
    directory = ObjectDir("hdfs://name/state", RetryingBlobs(blobs, "hdfs://name/state"))
    directory.cache = HostCache(tmp_path / "cache", 1 << 30)
    directory.create()
    stored = run_stored(plan, script, directory, repeat=True)
    assert (stored.per_batch, stored.digests) == (local.per_batch, local.digests)


def test_errors_are_those_of_a_store_that_may_come_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blobs = RetryingBlobs(FileBlobs(pafs.LocalFileSystem(), str(tmp_path / "file")), "hdfs://name/state", tries=1)
    with pytest.raises(StateDirError, match=r"expected an answer to a put request within 1 tries.*Cannot create"):
        blobs.put("x", [memoryview(b"1")])
