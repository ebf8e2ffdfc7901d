"""A pytest plugin for `mutation.py`: records what each test takes and calls, or runs a list of tests in its order."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings

RECORD = os.environ.get("MUTATION_RECORD")
TESTS = os.environ.get("MUTATION_TESTS")
KILLER = os.environ.get("MUTATION_KILLER")
PACKAGE = f"{os.sep}watersmeet{os.sep}"

_recorded: dict[str, dict[str, Any]] = {}
_called: set[str] = set()
_names: dict[Any, str | None] = {}


def pytest_configure() -> None:
    if TESTS:  # any failure will do: do not look for the smallest example
        profile = settings.get_current_profile_name()
        settings.register_profile(profile, settings.get_profile(profile), phases=(Phase.explicit, Phase.generate))
        settings.load_profile(profile)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if TESTS:
        order = {test: place for place, test in enumerate(json.loads(Path(TESTS).read_text()))}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not RECORD:
        return (yield)
    _called.clear()
    threading.settrace(_on_call)
    sys.settrace(_on_call)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        _facts(item.nodeid)["calls"] = sorted(_called)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if RECORD:
        facts = _facts(report.nodeid)
        facts["seconds"] = round(facts["seconds"] + report.duration, 3)
        facts["failed"] |= report.failed
    elif KILLER and report.failed:
        Path(KILLER).write_text(report.nodeid)


def pytest_sessionfinish() -> None:
    if RECORD:
        Path(RECORD).write_text(json.dumps(_recorded))


def _facts(test: str) -> dict[str, Any]:
    return _recorded.setdefault(test, {"seconds": 0.0, "calls": [], "failed": False})


def _on_call(frame: FrameType, event: str, argument: object) -> None:
    code = frame.f_code
    if code not in _names:
        _, found, place = code.co_filename.rpartition(PACKAGE)
        _names[code] = f"watersmeet/{place}:{code.co_firstlineno}" if found else None
    name = _names[code]
    if name is not None:
        _called.add(name)
