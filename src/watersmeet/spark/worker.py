"""What PySpark makes a Python worker do for every task, over and over, and a small batch would mostly wait for.

The worker reads the directories of all archives on its path again (`pyspark.zip` has more than a thousand files), and
collects garbage among everything that was ever imported. Neither can have changed since the last task.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import cache
from zipimport import zipimporter


def spare_work() -> None:
    """Called by every task; what it spares is spared from the next task on."""
    _freeze()
    for path, importer in list(sys.path_importer_cache.items()):
        if type(importer) is zipimporter:
            sys.path_importer_cache[path] = UnchangedArchive(path)


@cache
def _freeze() -> None:
    """Once per worker: what is there now stays there anyway, and need not be looked at by the collector."""
    gc.freeze()


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
