"""Parts of experiments that take long, kept on disk while a run is under way.

Whoever interrupts `watersmeet lab run all --scale paper` and starts it again gets them from there. The first part of a
key is the module that makes the part: what an older edition of its code made is not found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from watersmeet.lab.code import edition

_folder: Path | None = None


@contextmanager
def kept_in(folder: Path | None) -> Iterator[None]:
    """Keep parts in a folder within; none: nowhere."""
    global _folder  # one run at a time in a process
    before, _folder = _folder, folder
    try:
        yield
    finally:
        _folder = before


def known(module: str, *key: object) -> dict[str, Any] | None:
    """A part that was kept, if it was."""
    path = _path(module, key)
    if path is None or not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def keep(part: dict[str, Any], module: str, *key: object) -> None:
    """Keep a part; in one piece, so that an interruption leaves no half of it."""
    path = _path(module, key)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = path.with_suffix(".new")
        begun.write_text(json.dumps(part))
        begun.replace(path)


def part(make: Callable[[], dict[str, Any]], module: str, *key: object) -> dict[str, Any]:
    """A part that was kept, or is made and kept now."""
    found = known(module, *key)
    if found is None:
        found = make()
        keep(found, module, *key)
    return found


def _path(module: str, key: tuple[object, ...]) -> Path | None:
    if _folder is None:
        return None
    return _folder / f"{hashlib.sha256(repr((module, edition(module), key)).encode()).hexdigest()[:24]}.json"
