"""The object stores of a pipeline: its settings for them (`conf`), and whether they work."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.errors import StateDirError
from watersmeet.state.directory import StateDir
from watersmeet.storage.access import access_to, remember
from watersmeet.storage.uri import is_local, located

_HADOOP = "spark.hadoop."


def know_storage(place: str, conf: Mapping[str, str]) -> None:
    """Let commands that run without Spark reach a place with the settings that Spark would get."""
    try:
        remember(place, hadoop=lambda name: conf.get(f"{_HADOOP}{name}"))
    except StateDirError:
        return  # `check` says what is wrong with it


def storage_notes(place: str) -> list[str]:
    """Which settings were found for a place, and where; secrets are only named."""
    try:
        if is_local(place) or located(place).store == "hdfs":
            return []
        found = access_to(place).credentials.described()
    except StateDirError:
        return []
    return [
        f"{located(place).uri}: {line}" for line in found or ["no settings: the client asks the machine for a role"]
    ]


def storage_problem(place: str) -> str | None:
    """Why state cannot be kept at a place in an object store: an object is written there and deleted."""
    try:
        StateDir(place).create()
    except StateDirError as error:
        return str(error)
    return None
