"""`why`: a sentence for each row of a key that a join holds. It needs the state directory, and no Spark.

left row of batch 12, in memory, not matched yet, waits until right passes 2024-05-17 12:10:00 (now 12:07:31)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from watersmeet.columns.arrow import python_values
from watersmeet.engine.held_rows import (
    HeldRows,
    as_key,
    clock_is_local,
    complete_version,
    open_rows,
    present,
    user_table,
)
from watersmeet.engine.hot_keys import NULL
from watersmeet.join.waits import Waits
from watersmeet.state.description import Description
from watersmeet.state.directory import StateDir

MOST_ROWS = 1000


def as_null(key: Any) -> Any:
    r"""A key that was typed, with a null where it says so.

    >>> as_null(r"\N"), as_null(["7", r"\N"])
    (None, ['7', None])
    """
    return [as_null(one) for one in key] if isinstance(key, list | tuple) else None if key == NULL else key


@dataclass(frozen=True)
class Reason:
    """Why a row is held: the facts, and a sentence of them."""

    input: str
    row: dict[str, Any]  # by column of the input
    partition: int
    version: int  # the batch after which this was so
    batches: tuple[int, int]  # when it came: one batch, or the range of a run that was merged
    in_memory: bool
    matched: bool | None  # None where the join does not need to know
    waits_for: str  # see `join.waits`
    inputs: tuple[str, ...]  # on which
    until: int | None  # the time that they must pass, in microseconds since 1970
    now: int | None  # how far the slowest of them is
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """The facts by name, in plain values."""
        return dict(self.__dict__, batches=list(self.batches), inputs=list(self.inputs))


def why(
    state_dir: StateDir | str,
    key: object,
    *,
    input: str | None = None,
    version: int | None = None,
    limit: int = MOST_ROWS,
    named: Callable[[str], str] = str,
) -> list[Reason]:
    """The rows that a join holds of a key (a value, or a list of them), at most `limit`, and what each waits for.

    `named` gives the names under which inputs are shown. The newest version that all partitions have is read.
    """
    directory = state_dir if isinstance(state_dir, StateDir) else StateDir(state_dir)
    description = present(directory)
    values = list(key) if isinstance(key, list | tuple) else [key]
    wanted = as_key("why", description, values)
    partitions = description.plan.partitions
    chosen = wanted.partition(description.plan)
    inputs = list(description.columns) if input is None else [description.check_input("why", input)]
    near = complete_version(directory, description.plan)
    found: list[Reason] = []
    for partition in range(partitions) if chosen is None else [chosen]:
        for name in inputs:
            held = open_rows(directory, description, partition, name, version=version, near=near, key=wanted)
            most = limit - len(found)
            found += islice((one for some in held for one in _reasons(description, name, some, most, named)), most)
    return found


def _reasons(
    description: Description, input: str, held: HeldRows, most: int, named: Callable[[str], str]
) -> Iterator[Reason]:
    table = user_table(description, input, held.table.slice(0, most))
    columns = [python_values(column) for column in table.columns]
    rows = [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]
    is_local = clock_is_local(description, input)
    for at, row in enumerate(rows):
        until = None if held.waits.until is None else int(held.waits.until[at])
        batches = int(held.oldest[at]), int(held.newest[at])
        matched = None if held.matched is None else bool(held.matched[at])
        words = [
            f"{named(input)} row of {_batch(batches)}",
            "in memory" if held.in_memory else "on disk",
            *([] if matched is None else ["matched" if matched else "not matched yet"]),
            _waiting(held.waits, until, named, is_local),
        ]
        yield Reason(
            named(input), row, held.partition, held.version, batches, held.in_memory, matched, held.waits.what,
            tuple(map(named, held.waits.inputs)), until, held.waits.now, ", ".join(words),
        )  # fmt: skip


def _batch(batches: tuple[int, int]) -> str:
    oldest, newest = batches
    return f"batch {oldest}" if oldest == newest else f"one of the batches {oldest} to {newest}"


def _waiting(waits: Waits, until: int | None, named: Callable[[str], str], is_local: bool) -> str:
    inputs = _listed([named(name) for name in waits.inputs])
    many = len(waits.inputs) > 1
    if waits.what == "time" and until is not None:
        if not waits.inputs:
            return "waits for no input any more"
        now = "nothing has come yet" if waits.now is None else f"now {shown_time(waits.now, is_local)}"
        return f"waits until {inputs} {'pass' if many else 'passes'} {shown_time(until, is_local)} ({now})"
    if waits.what == "end":
        return f"waits until {inputs} {'end' if many else 'ends'}" if inputs else "waits to be joined with rows on disk"
    return {
        "promise": f"waits until {inputs} promises its key away, or ends",
        "partner": f"waits for the one row of {inputs} with its key, or until {inputs} promises it away or ends",
        "turn": "waits to be joined, because its batch was larger than the quota",
        "table": f"waits until its part of version {waits.version} of the master table is read",
        "sweep": "waits for nothing and is about to be removed",
    }[waits.what]


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 2 else names)


def shown_time(time: int, is_local: bool) -> str:
    """A time of rows, with its zone unless it has none.

    >>> shown_time(1_000_000, False), shown_time(1_500_000, True)
    ('1970-01-01 00:00:01 UTC', '1970-01-01 00:00:01.500000')
    """
    text = str(np.datetime64(time, "us")).replace("T", " ").removesuffix(".000000")
    return text if is_local else f"{text} UTC"
