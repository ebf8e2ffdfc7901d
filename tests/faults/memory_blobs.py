"""An object store in memory, and one that fails: what a store may do to a request is drawn from a script of faults."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from watersmeet.storage.blobs import Blob, Listed, RefusedError, TransientError

T = TypeVar("T")
Objects = dict[str, tuple[bytes, int]]  # content, and the number of the write that made it


class MemoryBlobs:
    """Objects in a dictionary, which several clients may share."""

    def __init__(self, objects: Objects | None = None) -> None:
        self.objects: Objects = {} if objects is None else objects
        self.requests: Counter[str] = Counter()
        self._lock = threading.Lock()

    def get(self, name: str) -> Blob:
        self.requests["get"] += 1
        content, number = self._found(name)
        return Blob(content, str(number))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        self.requests["get"] += 1
        return self._found(name)[0][start : start + length]

    def put(self, name: str, pieces: Sequence[memoryview]) -> None:
        self.requests["put"] += 1
        self._write(name, b"".join(pieces))

    def put_new(self, name: str, content: bytes) -> bool:
        self.requests["put"] += 1
        with self._lock:
            return name not in self.objects and self._write(name, content)

    def replace(self, name: str, content: bytes, tag: str) -> bool:
        self.requests["put"] += 1
        with self._lock:
            return name in self.objects and str(self.objects[name][1]) == tag and self._write(name, content)

    def list(self, folder: str, *, recursive: bool = False) -> list[Listed]:
        self.requests["list"] += 1
        start = f"{folder}/" if folder else ""
        below = [name[len(start) :] for name in self.objects if name.startswith(start)]
        names = below if recursive else {name.partition("/")[0] for name in below}
        return [Listed(name, 0.0) for name in sorted(names)]

    def delete(self, names: Iterable[str]) -> None:
        self.requests["delete"] += 1
        for name in names:
            self.objects.pop(name, None)

    def _write(self, name: str, content: bytes) -> bool:
        self.objects[name] = (content, self.objects.get(name, (b"", 0))[1] + 1)
        return True

    def _found(self, name: str) -> tuple[bytes, int]:
        try:
            return self.objects[name]
        except KeyError:
            raise FileNotFoundError(name) from None


class FaultyBlobs(MemoryBlobs):
    """A client whose requests go wrong. `fault` is asked before each, and says what becomes of it:

    "refused"   not done, and never will be (403)
    "failed"    not done, and the client is told so (500, 503, a reset before the request)
    "lost"      done, but the client is told that it failed (a timeout, a reset before the answer)
    None        done
    """

    def __init__(self, fault: Callable[[str], str | None], objects: Objects | None = None) -> None:
        super().__init__(objects)
        self.fault = fault

    def get(self, name: str) -> Blob:
        return self._asked("get", lambda: super(FaultyBlobs, self).get(name))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self._asked("get", lambda: super(FaultyBlobs, self).get_range(name, start, length))

    def put(self, name: str, pieces: Sequence[memoryview]) -> None:
        self._asked("put", lambda: super(FaultyBlobs, self).put(name, pieces))

    def put_new(self, name: str, content: bytes) -> bool:
        return self._asked("put_new", lambda: super(FaultyBlobs, self).put_new(name, content))

    def replace(self, name: str, content: bytes, tag: str) -> bool:
        return self._asked("replace", lambda: super(FaultyBlobs, self).replace(name, content, tag))

    def list(self, folder: str, *, recursive: bool = False) -> list[Listed]:
        return self._asked("list", lambda: super(FaultyBlobs, self).list(folder, recursive=recursive))

    def delete(self, names: Iterable[str]) -> None:
        gone = [*names]
        self._asked("delete", lambda: super(FaultyBlobs, self).delete(gone))

    def _asked(self, kind: str, request: Callable[[], T]) -> T:
        fate = self.fault(kind)
        if fate == "refused":
            raise RefusedError("status code: 403: AccessDenied")
        if fate == "failed":
            raise TransientError("status code: 503: SlowDown")
        answer = request()
        if fate == "lost":
            raise TransientError("timed out")
        return answer
