"""A server whose file system is not the client's: what must be shared is missed at once, by name.

The server here has a mount table of Hadoop under which one folder is another one, as a container or a second machine
would have it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.connect.server import ConnectServer, new_session

import watersmeet as wm
from watersmeet.errors import StateDirError

SAID = (
    ": expected a directory that the Spark Connect server sees too, found one that only this machine sees. The server "
    "is on another machine, or in a container with other file systems: give a path on a file system that both have, "
    "under the same path."
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of which the server has another one of the same name."""
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def far(server: str, own: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of that server."""
    theirs = tmp_path_factory.mktemp("theirs")
    mounts = "spark.hadoop.fs.viewfs.mounttable.default"
    running = ConnectServer(
        tmp_path_factory.mktemp("far"),
        {
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
            "spark.hadoop.fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
            f"{mounts}.link.{own}": f"file://{theirs}",
            f"{mounts}.linkFallback": "file:///",
        },
    )
    session = new_session(running.remote)
    yield session
    session.stop()
    running.stop()


def test_what_only_the_client_sees_is_refused(far: SparkSession, own: Path, tmp_path: Path) -> None:
    rate = far.readStream.format("rate").load()
    left, right = rate.selectExpr("value as k", "timestamp as a"), rate.selectExpr("value as k", "timestamp as b")
    table = far.range(10).selectExpr("id as k", "id as name")
    assert wm.progressive_join(left, right, "k", state_dir=tmp_path / "state").columns == ["k", "a", "b"]
    assert wm.prepare_master(table, "k", tmp_path / "master", partitions=2) == 1

    joins = {
        "progressive_join": lambda place: wm.progressive_join(left, right, "k", state_dir=place),
        "window_join": lambda place: wm.window_join(left, right, "k", state_dir=place, window="1 h"),
        "multiway_join": lambda place: wm.multiway_join([left, right], "k", state_dir=place),
        "punctuated_join": lambda place: wm.punctuated_join(left, right, "k", state_dir=place),
        "semi_stream_join": lambda place: wm.semi_stream_join(left, tmp_path / "master", "k", state_dir=place),
        "prepare_master": lambda place: wm.prepare_master(table, "k", place),
    }
    for name, build in joins.items():
        place = own / name
        with pytest.raises(StateDirError) as refused:
            build(place)
        assert str(refused.value) == f"{name}, directory {place}{SAID}"
        assert not [path for path in place.rglob("*") if path.is_file()]

    # What was made where both see it, and then moved.
    for name in ("state", "master"):
        shutil.copytree(tmp_path / name, own / name)
    uses = {
        ("semi_stream_join", "master"): lambda place: wm.semi_stream_join(left, place, "k", state_dir=tmp_path / "s"),
        ("refresh_master", "master"): lambda place: wm.refresh_master(table, place),
        ("read_rows", "state"): lambda place: wm.read_rows(far, place),
    }
    for (name, folder), use in uses.items():
        with pytest.raises(StateDirError) as refused:
            use(own / folder)
        assert str(refused.value) == f"{name}, directory {own / folder}{SAID}"
        assert not list((own / folder).glob("seen-by-*"))
