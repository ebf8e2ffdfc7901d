"""A pytest plugin for `mutation.py`: records what each test takes and calls, or runs a list of tests in its order."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
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

_about: dict[str, Any] = json.loads(Path(RECORD).read_text()) if RECORD else {}
_failed: set[str] = set()
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
    elif RECORD:
        known = set(_about["known"])
        items[:] = [item for item in items if item.nodeid not in known]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not RECORD:
        return (yield)
    _called.clear()
    begun = time.process_time()
    threading.settrace(_on_call)
    sys.settrace(_on_call)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        if item.nodeid not in _failed:
            _record(item.nodeid, time.process_time() - begun)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)
        if KILLER:
            Path(KILLER).write_text(report.nodeid)


def _record(test: str, seconds: float) -> None:
    """Each test at once, so that an interrupted baseline is taken up again."""
    file = test.split("::")[0]
    facts = {"file": file, "key": _about["keys"][file], "test": test, "seconds": round(seconds, 3)}
    with Path(_about["out"]).open("a") as out:
        out.write(json.dumps({**facts, "source": _about["source"], "calls": sorted(_called)}) + "\n")


def _on_call(frame: FrameType, event: str, argument: object) -> None:
    code = frame.f_code
    if code not in _names:
        names = [name for name in code.co_qualname.split(".") if not name.startswith("<")]  # <locals>, <lambda>
        _names[code] = f"{Path(code.co_filename).stem}:{'.'.join(names)}" if PACKAGE in code.co_filename else None
    name = _names[code]
    if name is not None:
        _called.add(name)
