"""The joins that a page shows, read when somebody looks."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from watersmeet.engine.why import as_null, why
from watersmeet.errors import StateDirError, StateError, WatersmeetError
from watersmeet.release import __version__
from watersmeet.storage.uri import is_local
from watersmeet.view.reading import JoinReader
from watersmeet.view.snapshot import Snapshot

LOCAL_SECONDS = 1.0  # a state directory is read no more often, however many look
REMOTE_SECONDS = 5.0  # in an object store, where a look costs requests
MOST_WHY = 100  # rows of a key

Live = Callable[[], Mapping[str, Any]]


class ShownJoin:
    """One state directory. It may be that of a join which is not built yet, if `waits` is set."""

    def __init__(self, place: str | os.PathLike[str], name: str, *, live: Live = dict, waits: bool = False) -> None:
        self.place, self.name, self.live = os.fspath(place), name, live
        self.every = LOCAL_SECONDS if is_local(self.place) else REMOTE_SECONDS
        self._reader: JoinReader | None = None
        self._lock = threading.Lock()
        self._read_at = -math.inf
        self._problem: str | None = None
        if not waits:
            self._reader = JoinReader(self.place)

    def refresh(self) -> int:
        """Read what is new, unless that was done a moment ago; returns the newest batch that is complete."""
        with self._lock:
            now = time.monotonic()
            if now - self._read_at >= self.every:
                self._read_at = now
                try:
                    self._reader = self._reader or JoinReader(self.place)
                    self._reader.refresh()
                    self._problem = None
                except StateDirError:
                    self._problem = None  # not built yet
                except StateError as error:  # a page never stops anything; it says what it found
                    self._problem = str(error)
            return self._reader.complete[-1].batch if self._reader and self._reader.complete else -1

    def document(self, after: int = -1) -> dict[str, Any]:
        """What the page shows, as `snapshot` makes it."""
        self.refresh()
        with self._lock:
            common = {"name": self.name, "problem": self._problem, "release": __version__}
            if self._reader is None:
                return {**common, "status": "starting", "place": self.place, "now": int(time.time() * 1e6)}
            return {**Snapshot(self._reader, live=self.live()).document(after), **common}

    def why(self, key: str | list[str]) -> dict[str, Any]:
        """Why the rows of a key are held; or the error that it makes."""
        try:
            if self._reader is None:
                return {"rows": [], "error": "The join has not begun yet."}
            names = self._reader.names
            key = as_null(key) if self._reader.nulls_match else key
            found = why(self._reader.directory, key, limit=MOST_WHY, named=lambda name: names[name])
        except WatersmeetError as error:
            return {"rows": [], "error": str(error)}
        return {"rows": [reason.as_dict() for reason in found], "most": MOST_WHY}


class Board:
    """All joins of a page, by short names that stand in its addresses."""

    def __init__(self, joins: Sequence[ShownJoin]) -> None:
        self.joins: dict[str, ShownJoin] = {}
        for join in joins:
            name, number = join.name, 2
            while name in self.joins:
                name, number = f"{join.name}-{number}", number + 1
            join.name = name
            self.joins[name] = join

    @classmethod
    def of(cls, places: Iterable[str | os.PathLike[str]]) -> Board:
        """The joins in some state directories; an error names the first that is none."""
        return cls([ShownJoin(place, short_name(place)) for place in places])

    def overview(self) -> dict[str, Any]:
        """The names, for the choice between them."""
        return {"release": __version__, "joins": list(self.joins)}

    def documents(self) -> dict[str, Any]:
        """Everything, for a page without a server."""
        return {**self.overview(), "documents": {name: join.document() for name, join in self.joins.items()}}


def short_name(place: str | os.PathLike[str]) -> str:
    """What to call a join: the last part of its place that says something.

    >>> short_name("/data/orders/state"), short_name("s3://bucket/state/clicks/"), short_name("state")
    ('orders', 'clicks', 'state')
    """
    parts = [part for part in os.fspath(place).replace("\\", "/").split("/") if part not in ("", ".", "..")]
    telling = [part for part in parts if part != "state"] or parts or ["join"]
    return telling[-1]


def as_json(value: Any) -> str:
    """JSON that any browser reads: no NaN, and values of a key as text where JSON has none for them."""
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)
