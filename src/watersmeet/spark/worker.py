"""What PySpark makes a Python worker do for every task, over and over, and a small batch would mostly wait for.

The worker reads the directories of all archives on its path again (`pyspark.zip` has more than a thousand files), and
collects garbage among everything that was ever imported. Neither can have changed since the last task. And it waits for
rows that Spark holds back: TCP sends small pieces only when those before are acknowledged, and Linux acknowledges them
when it has something to send as well, or after 40 ms.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from contextlib import suppress
from functools import cache
from zipimport import zipimporter


def spare_work() -> None:
    """Called by every task, before it reads its rows; what else it spares is spared from the next task on."""
    for connection in _connections():
        with suppress(OSError):  # it has come to its end
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # until something is sent
    _freeze()
    for path, importer in list(sys.path_importer_cache.items()):
        if type(importer) is zipimporter:
            sys.path_importer_cache[path] = UnchangedArchive(path)


@cache
def _freeze() -> None:
    """Once per worker: what is there now stays there anyway, and need not be looked at by the collector."""
    gc.freeze()


@cache
def _connections() -> list[socket.socket]:
    """The connection to Spark, which a worker keeps: found among the open files of the process, once. There is none
    where Linux is not, or where Spark uses other sockets (`spark.python.unix.domain.socket.enabled`)."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd") if sys.platform == "linux" else ()):
        with suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                found.append(socket.socket(fileno=os.dup(number)))
    kept = (socket.AF_INET, socket.AF_INET6)
    return [one for one in found if one.family in kept and one.type == socket.SOCK_STREAM]


class UnchangedArchive(zipimporter):
    """An archive on the path whose directory is read again only if the file has changed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._state = self._now()

    def invalidate_caches(self) -> None:
        """What `importlib.invalidate_caches` calls: PySpark does in every task."""
        state = self._now()
        if state != self._state:
            self._state = state
            super().invalidate_caches()

    def _now(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.archive)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
