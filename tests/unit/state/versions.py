"""Versions of one partition, made by a small join."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from watersmeet.engine.runtime import run_batch
from watersmeet.state.directory import StateDir
from watersmeet.state.operator_state import OperatorState
from watersmeet.state.run import Run
from watersmeet.state.shelf import StoreState
from watersmeet.state.store import PartitionStore
from watersmeet.testing import Arrival, batch_of, make_plan, random_script
from watersmeet.testing.arrivals import Row
from watersmeet.testing.harness import rows_of

PLAN = make_plan("symmetric")
SCRIPT = random_script(3, batches=40, idle_share=0.0, null_share=0.0, end=False)
RESTORE = (
    "The file is damaged or gone: restore the state directory from a copy, or start over with a new state directory "
    "and a new checkpoint."
)


def advance(
    folder: Path, number: int, run_id: str = "s", attempt: str = "0", join: str = "", arrival: Arrival | None = None
) -> Counter[Row]:
    batch = batch_of(PLAN, number, arrival or SCRIPT[number])
    results = run_batch(PLAN, StateDir(folder), 0, batch, run_id=run_id, attempt=attempt, join=join)
    return rows_of(results)


def run_until(folder: Path, number: int) -> PartitionStore:
    for batch in range(number + 1):
        advance(folder, batch)
    return PartitionStore(StateDir(folder), 0)


def state_of(runs: list[Run]) -> OperatorState:
    """A state of one store."""
    return OperatorState(stores=[StoreState("left", "left", sum(run.rows for run in runs), runs, {}, {})])


def files(folder: Path, pattern: str) -> list[Path]:
    return sorted((folder / "part-00000").glob(pattern))


def flip_a_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
