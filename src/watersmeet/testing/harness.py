"""Running a script through an operator: in memory, or over a state directory with a restart after every batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from watersmeet.engine.registry import build
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Operator, advance, resume, saved
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import StateDir
from watersmeet.state.manifest import digest_of
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing.arrivals import Row, Script, batch_of
from watersmeet.testing.oracle import comparable


@dataclass
class Outcome:
    """What a run gave: rows per batch, and a digest of the state after each."""

    per_batch: list[Counter[Row]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    operator: Operator | None = None

    @property
    def rows(self) -> Counter[Row]:
        """All rows of the run."""
        return sum(self.per_batch, Counter())


def rows_of(tables: Iterable[pa.Table]) -> Counter[Row]:
    """Output tables as a multiset of plain rows, in which every NaN is the same value."""
    found: Counter[Row] = Counter()
    for table in tables:
        columns = [_values(column) for column in table.columns]
        found.update(zip(*columns, strict=True))
    return found


def _values(column: pa.ChunkedArray) -> list[Any]:
    values = column.to_pylist()
    return [comparable(value) for value in values] if pa.types.is_floating(column.type) else values


def run_in_memory(plan: JoinPlan, script: Script, *, constant_hash: bool = False, reload: bool = False) -> Outcome:
    """Run a script on one operator. With `reload` a new operator takes up the saved state after every batch."""
    space = MemorySpace()
    operator = build(plan, space)
    outcome = Outcome(operator=operator)
    for number, arrival in enumerate(script):
        if reload and number:
            fresh = build(plan, space)
            resume(fresh, saved(operator))
            outcome.operator = operator = fresh
        batch = batch_of(plan, number, arrival, constant_hash=constant_hash)
        outcome.per_batch.append(rows_of(advance(operator, batch)))
        outcome.digests.append(digest_of(saved(operator), operator.metrics.as_dict()))
    return outcome


def run_stored(plan: JoinPlan, script: Script, directory: StateDir, *, repeat: bool = False) -> Outcome:
    """Run a script over a state directory, everything reloaded from disk (and verified) in every batch.

    With `repeat` every batch is run twice, as Spark does after a crash: the second attempt's rows count.
    """
    outcome = Outcome()
    store = PartitionStore(directory, 0)
    for number, arrival in enumerate(script):
        batch = batch_of(plan, number, arrival)
        for attempt in range(2 if repeat else 1):
            run_id = f"run-{number}-{attempt}"
            rows = rows_of(run_batch(plan, directory, 0, batch, run_id=run_id, attempt=str(attempt)))
        outcome.per_batch.append(rows)
        outcome.digests.append(store.manifest(number).digest)
    return outcome
