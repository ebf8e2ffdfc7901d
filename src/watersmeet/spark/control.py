"""Words to a running join: markers that travel through the stream, so that they are replayed like any row.

A marker is a small JSON file in `state_dir/control/`, which the join reads as one more streaming source. It reaches
every partition in one micro-batch and takes effect at that batch's end. Its seal is a digest that Spark computes too,
so that a damaged marker fails the batch and is not taken for another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable

from watersmeet.errors import OptionError
from watersmeet.plan.options import checked_path, known_names
from watersmeet.spark.storage import StorageOptions, find_storage
from watersmeet.state.directory import CONTROL, StateDir
from watersmeet.state.identity import keeps_nothing, recorded_join, require_join

CONTROL_SCHEMA = "kind string, input string, value long, seal string"

# It shares an integer with what the row is (see `spark/wire.py`).
MAX_SIGNAL = 2**27

SENT: list[Callable[[str], None]] = []  # who wants to know when a marker was sent to a place in an object store


@known_names
def end_input(state_dir: str | os.PathLike[str], name: str, *, storage_options: StorageOptions | None = None) -> None:
    """Declare an input of a join complete: no more rows will come on it.

    The join learns it with its next micro-batch. When all inputs have ended, that batch emits everything still owed and
    drops the state. A row that arrives after its input's end is an error. Calling it twice does no harm. A broadcast
    join owes nothing at any time, so that it is told nothing. In a process that has not built the join, an object store
    is reached with `storage_options`, the settings of the session there is, or the environment.

    >>> end_input("/path/to/state", "left")  # doctest: +SKIP
    """
    find_storage("end_input", checked_path("end_input", "state_dir", state_dir), storage_options)
    declare_end(state_dir, name)


def declare_end(state_dir: str | os.PathLike[str], name: str, **note: str) -> None:
    """`end_input`, with a note in the marker: the stream does not read it, `declared_ends` does."""
    directory = StateDir(checked_path("end_input", "state_dir", state_dir))
    join = recorded_join(directory)
    inputs = list(join["identity"]["inputs"])
    if repr(name) not in map(repr, inputs):  # whatever was given, it can be shown
        raise OptionError(
            "end_input",
            expected=f"name = one of the join's inputs: {', '.join(inputs)}",
            found=repr(name),
            hint="Give the name of the input, not of the DataFrame.",
            option="name",
        )
    if not keeps_nothing(join):
        _send(directory, {"kind": "end", "input": name}, note)


def declared_ends(state_dir: str | os.PathLike[str]) -> dict[str, list[dict[str, str]]]:
    """The inputs that were declared ended, each with its markers, whether the join has read them or not."""
    directory = StateDir(state_dir)
    found: dict[str, list[dict[str, str]]] = {}
    for file in directory.list(CONTROL):
        marker = json.loads(directory.read(f"{CONTROL}/{file}")) if file.endswith(".json") else {}
        if marker.get("kind") == "end":
            found.setdefault(marker["input"], []).append(marker)
    return found


def send_signal(state_dir: str | os.PathLike[str], value: int) -> None:
    """Send a number to every partition of a join; what it means is the operator's affair."""
    if not 0 <= value <= MAX_SIGNAL:
        raise ValueError(f"a signal is a number from 0 to {MAX_SIGNAL}, not {value}")
    directory = StateDir(state_dir)
    require_join(directory)
    _send(directory, {"kind": "signal", "value": value}, {})


def _send(directory: StateDir, marker: dict[str, object], note: dict[str, str]) -> None:
    # Published in one piece: Spark ignores the half-made file, whose name begins with a dot.
    sealed = {**marker, "seal": marker_seal(*marker.values()), **note}
    content = json.dumps(sealed).encode() + b"\n"
    if directory.is_local:
        directory.publish(f"{CONTROL}/{uuid.uuid4().hex}.json", content)
        return
    # In an object store markers have numbers: asking for the next one is cheaper than a listing.
    number = sum(name.endswith(".json") for name in directory.list(CONTROL))
    unique = content[:-2] + f', "id": "{uuid.uuid4().hex}"}}\n'.encode()
    while not directory.publish_new(f"{CONTROL}/{marker_name(number)}", unique):
        number += 1
    for tell in SENT:
        tell(directory.place)


def marker_name(number: int) -> str:
    """The name of a marker in an object store."""
    return f"{number:06d}.json"


def marker_seal(*values: object) -> str:
    """The digest of a marker's values, those it has, in the order of the schema."""
    return hashlib.md5("/".join(str(value) for value in values).encode(), usedforsecurity=False).hexdigest()
