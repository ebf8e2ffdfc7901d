"""What PySpark repeats in every task of a worker is not repeated for archives that have not changed, and what Spark
sends is acknowledged at once."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import zipimport
from pathlib import Path
from zipfile import ZipFile

import pytest

from watersmeet.spark import worker
from watersmeet.spark.worker import spare_work


class OnThePath:
    """An archive with modules, which can be imported; reads of its directory are counted."""

    def __init__(self, file: Path, patch: pytest.MonkeyPatch) -> None:
        self.file, self.reads = file, 0
        read = zipimport._read_directory  # type: ignore[attr-defined]

        def counted(archive: str) -> object:
            self.reads += archive == str(file)
            return read(archive)

        patch.setattr(zipimport, "_read_directory", counted)
        patch.syspath_prepend(str(file))

    def write(self, **modules: str) -> None:
        with ZipFile(self.file, "w") as archive:
            for name, text in modules.items():
                archive.writestr(f"{name}.py", text)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnThePath:
    made = OnThePath(tmp_path / "modules.zip", monkeypatch)
    made.write(in_the_archive="value = 1")
    importlib.invalidate_caches()
    assert importlib.import_module("in_the_archive").value == 1
    spare_work()
    return made


def test_an_archive_that_has_not_changed_is_not_read_again(archive: OnThePath) -> None:
    reads = archive.reads
    for _ in range(5):
        spare_work()
        importlib.invalidate_caches()
    assert archive.reads == reads


def test_what_is_new_in_an_archive_is_found(archive: OnThePath) -> None:
    archive.write(in_the_archive="value = 1", new_in_the_archive="value = 2")
    os.utime(archive.file, ns=(1, 1))
    importlib.invalidate_caches()
    assert importlib.import_module("new_in_the_archive").value == 2


def test_an_archive_that_is_gone_has_no_modules(archive: OnThePath) -> None:
    archive.file.unlink()
    importlib.invalidate_caches()
    del sys.modules["in_the_archive"]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("in_the_archive")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such option")
def test_what_comes_over_tcp_is_acknowledged_at_once() -> None:
    """Also in later tasks: the option holds until something is sent."""
    worker._connections.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as there:
        here, _ = server.accept()
        pair = socket.socketpair()  # another kind, which has no such option
        with here, pair[0], pair[1]:
            for _ in range(2):
                here.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
                spare_work()
                assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
            there.close()
        spare_work()  # with a connection that has come to its end
        for one in worker._connections():
            one.close()
        spare_work()  # and with one that is closed
    worker._connections.cache_clear()
