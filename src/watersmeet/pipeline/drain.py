"""When the sources of a query that runs on count as read."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime


class DrainWatch:
    """Sources are read when a trigger finds nothing new in any of them, `patience` seconds after the last news.

    What counts is the moment at which such a trigger began: a micro-batch under way says nothing yet, however long it
    takes, because it may have found rows.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.time) -> None:
        self._patience = patience
        self._clock = clock
        self._last_news = clock()
        self._found_nothing = 0.0

    def saw_news(self) -> None:
        """Rows have come just now, or files were read that have none for the join."""
        self._last_news = self._clock()

    def saw_nothing(self, timestamp: str) -> None:
        """A trigger that began at `timestamp` (as Spark reports it) found no source with anything new."""
        self._found_nothing = datetime.fromisoformat(timestamp).timestamp()

    @property
    def drained(self) -> bool:
        """Whether all sources are read."""
        return self._found_nothing - self._last_news >= self._patience
