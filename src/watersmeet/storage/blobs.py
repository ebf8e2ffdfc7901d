"""What Watersmeet asks of an object store. Five requests are enough; each is one round trip.

Names are relative to the root that a `Blobs` was made for. A missing object is a `FileNotFoundError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class TransientError(Exception):
    """A request failed in a way that may pass: a timeout, a reset, 429, 5xx. It may have happened all the same."""


class RefusedError(Exception):
    """A request failed for good: no permission, no such bucket."""


@dataclass(frozen=True)
class Blob:
    """An object as it was read."""

    content: bytes
    tag: str  # names this content of the object, for `replace`


@dataclass(frozen=True)
class Listed:
    """An object, or a folder, in a listing."""

    name: str
    changed: float | None = None  # seconds since the epoch


class Blobs(Protocol):
    """An object store below one root."""

    def get(self, name: str) -> Blob:
        """An object."""

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """A part of one."""

    def put(self, name: str, pieces: Sequence[memoryview]) -> None:
        """Write an object, whatever is there. It appears whole or not at all."""

    def put_new(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one of that name; returns whether it was written."""

    def replace(self, name: str, content: bytes, tag: str) -> bool:
        """Write an object if what is there is still what `tag` names; returns whether it was written."""

    def list(self, folder: str, *, recursive: bool = False) -> list[Listed]:
        """The objects in a folder, by their names below it; without `recursive`, folders appear as names as well."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, many at a time; those that are gone already are no error."""
