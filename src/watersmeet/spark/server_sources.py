"""Sources that the server of a Spark Connect session runs itself: data sources in Python.

A client of Connect cannot fill a stream in the server's memory, as `markers` and `ticks` do in their own process. The
server's Python asks the object store for markers instead, and makes ticks.

    markers   offset = how many there are; they have numbers, so a repeated batch reads the same ones
    ticks     offset = the second; without ticks always the same one, whatever the checkpoint has

The classes that are shipped hold how the store is reached: like a task's function, and unlike a source's options, no
plan shows them.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from watersmeet.spark.control import CONTROL_SCHEMA, marker_name
from watersmeet.state.directory import CONTROL, StateDir
from watersmeet.storage.access import Packed, packed_access, remember_packed

POLL_SECONDS = 1.0
_KINDS = {"kind": str, "input": str, "value": int, "seal": str}


def server_markers(session: SparkSession, directory: StateDir) -> DataFrame:
    """The markers of a join with state in an object store, each with the `file` it came in."""
    place, access = directory.place, packed_access(directory.place)
    return _stream(session, f"markers-{_short(place)}", f"{CONTROL_SCHEMA}, file string", Markers, (place, access))


def server_ticks(session: SparkSession, *, ticking: bool) -> DataFrame:
    """A source with a row a second, or without any; one may follow the other in the same checkpoint."""
    return _stream(session, "ticks" if ticking else "silence", "tick long", Ticks, (ticking,))


class Markers(DataSourceStreamReader):
    """Reads markers by their numbers, and looks for the next one once a second."""

    def __init__(self, place: str, access: Packed) -> None:
        self.given = place, access
        remember_packed(access)
        self.directory = StateDir(place)
        self.lines: list[tuple[str, bytes]] = []
        self.looked = -math.inf

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark sends the reader to the task that hands the rows out, and open connections do not travel.
        return Markers, self.given

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Before the first one."""
        return {"markers": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """As many as there are."""
        if time.monotonic() - self.looked >= POLL_SECONDS:
            while self._read():
                pass
            self.looked = time.monotonic()
        return {"markers": len(self.lines)}

    def _read(self) -> bool:
        name = f"{CONTROL}/{marker_name(len(self.lines))}"
        try:
            self.lines.append((self.directory.path(name), self.directory.read(name)))
        except FileNotFoundError:
            return False
        return True

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The markers of a micro-batch, which may be one of an earlier run."""
        while len(self.lines) < end["markers"] and self._read():
            pass
        return [InputPartition([_row(*line) for line in self.lines[start["markers"] : end["markers"]]])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """They came with the partition."""
        yield from partition.value


def _row(file: str, content: bytes) -> tuple[Any, ...]:
    """A marker; one that cannot be read has no seal, and fails the batch as any damaged one."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    values = found if isinstance(found, dict) else {}
    return (*(value if type(value := values.get(name)) is kind else None for name, kind in _KINDS.items()), file)


class Ticks(DataSourceStreamReader):
    """A row whenever the second is another one, or none at all."""

    def __init__(self, ticking: bool) -> None:
        self.ticking = ticking

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """No second yet."""
        return {"second": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """This second."""
        return {"second": int(time.time()) if self.ticking else 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One row, but for the offset that a source without ticks sets back."""
        return [InputPartition(end["second"])] if end["second"] else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """The row."""
        yield (partition.value,)


def _stream(
    session: SparkSession, called: str, columns: str, reader: type[DataSourceStreamReader], given: tuple[Any, ...]
) -> DataFrame:
    made = reader

    class ServerSource(DataSource):
        # Made here, so that it travels by value, with what it must know.
        @classmethod
        def name(cls) -> str:
            return f"watersmeet-{called}"

        def schema(self) -> str:
            return columns

        def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
            return made(*given)

    session.dataSource.register(ServerSource)
    return session.readStream.format(ServerSource.name()).schema(columns).load()


def _short(place: str) -> str:
    return hashlib.sha256(place.encode()).hexdigest()[:16]
