"""Requests that fail in passing are sent again, with pauses that grow, up to a limit.

A put whose answer was lost may have happened. Sent again without a condition it writes the same bytes. With one it
finds itself there: so whoever is told "taken" looks whether it is taken by these very bytes.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from watersmeet.errors import StateDirError
from watersmeet.storage.blobs import Blob, Blobs, Listed, RefusedError, TransientError

TRIES = 8
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0

T = TypeVar("T")


class RetryingBlobs:
    """A store whose requests are repeated, and counted."""

    def __init__(
        self, blobs: Blobs, where: str, *, tries: int = TRIES, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self.blobs, self.where, self.tries, self.pause = blobs, where, tries, pause
        self.counts: Counter[str] = Counter()  # requests by kind, bytes in both directions, repeats
        self._lock = threading.Lock()

    def get(self, name: str) -> Blob:
        """An object."""
        found = self._ask("get", name, lambda: self.blobs.get(name))
        self._count("bytes_fetched", len(found.content))
        return found

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """A part of one."""
        found = self._ask("get", name, lambda: self.blobs.get_range(name, start, length))
        self._count("bytes_fetched", len(found))
        return found

    def put(self, name: str, pieces: Sequence[memoryview]) -> None:
        """Write an object."""
        self._ask("put", name, lambda: self.blobs.put(name, pieces))
        self._count("bytes_sent", sum(len(piece) for piece in pieces))

    def put_new(self, name: str, content: bytes) -> bool:
        """Write an object unless there is another of that name."""
        written = self._ask("put", name, lambda: self.blobs.put_new(name, content))
        self._count("bytes_sent", len(content))
        return written or self._is(name, content)

    def replace(self, name: str, content: bytes, tag: str) -> bool:
        """Write an object if what is there is still what `tag` names."""
        written = self._ask("put", name, lambda: self.blobs.replace(name, content, tag))
        self._count("bytes_sent", len(content))
        return written or self._is(name, content)

    def list(self, folder: str, *, recursive: bool = False) -> list[Listed]:
        """The objects in a folder."""
        return self._ask("list", folder, lambda: self.blobs.list(folder, recursive=recursive))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        gone = list(names)
        if gone:
            self._ask("delete", gone[0], lambda: self.blobs.delete(gone))

    def _is(self, name: str, content: bytes) -> bool:
        try:
            return self.get(name).content == content
        except FileNotFoundError:
            return False

    def _count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self.counts[what] += by

    def _ask(self, kind: str, name: str, request: Callable[[], T]) -> T:
        pause = FIRST_PAUSE
        for left in reversed(range(self.tries)):
            self._count(f"{kind}_requests")
            try:
                return request()
            except TransientError as error:
                if not left:
                    raise self._unreachable(kind, name, str(error)) from None
                self._count("requests_repeated")
                # Workers that were slowed down together should not come back together.
                self.pause(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE)
            except RefusedError as error:
                raise self._refused(kind, name, str(error)) from None
        raise AssertionError("unreachable")

    def _unreachable(self, kind: str, name: str, said: str) -> StateDirError:
        return StateDirError(
            f"state file {self.where}/{name}",
            expected=f"an answer to a {kind} request within {self.tries} tries",
            found=said,
            hint="Nothing is lost: the batch is not committed and is repeated when the query is started again. Look "
            "whether the store can be reached from the executors, and whether it is slowing requests down.",
        )

    def _refused(self, kind: str, name: str, said: str) -> StateDirError:
        return StateDirError(
            f"state file {self.where}/{name}",
            expected=f"permission for a {kind} request",
            found=said,
            hint="Check bucket, region, endpoint and credentials (`watersmeet check` says which were found). The join "
            "needs to get, put, list and delete objects below its state directory.",
        )
