"""The failures of a pipeline's runs, kept beside the state: whoever looks later sees when and why it stopped."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from watersmeet.errors import WatersmeetError
from watersmeet.state.directory import JOIN_FILE, StateDir, check_fields, seal, unseal

FAILURES_FILE = "failures.json"
MOST = 50  # the newest are kept


def record_failure(directory: StateDir, message: str) -> None:
    """Note that a run failed now. `message` has no secrets. Not to be able to is no failure of its own."""
    with suppress(WatersmeetError, OSError):
        if directory.size(JOIN_FILE) is not None:
            failures = [*recorded_failures(directory), {"time": int(time.time() * 1e6), "message": message}]
            directory.publish(FAILURES_FILE, seal({"failures": failures[-MOST:]}))


def recorded_failures(directory: StateDir) -> list[dict[str, Any]]:
    """The failures so far, oldest first: `time` in microseconds since 1970, and `message`."""
    if directory.size(FAILURES_FILE) is None:
        return []
    where = directory.path(FAILURES_FILE)
    body = unseal(directory.read(FAILURES_FILE), where)
    check_fields(body, where, "failures")
    return list(body["failures"])
