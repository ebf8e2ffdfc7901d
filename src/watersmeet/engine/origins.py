"""What a partition takes of keys that are new in it: rows, and promises, from other partitions' versions.

A version is opened once, whatever is taken from it. It is there as long as the batch after it can be repeated, so that
every attempt takes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, take
from watersmeet.engine.registry import build
from watersmeet.join.operator import Operator, resume
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import StateDir
from watersmeet.state.parts import Part
from watersmeet.state.rows import RowStore
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore


class Origins:
    """The partitions of a join as they stood after a batch."""

    def __init__(self, plan: JoinPlan, directory: StateDir, version: int, run_id: str) -> None:
        self.plan, self.directory, self.version, self.run_id = plan, directory, version, run_id
        self._opened: dict[int, Operator] = {}

    def operator(self, partition: int) -> Operator:
        """The operator of a partition."""
        if partition not in self._opened:
            store = PartitionStore(self.directory, partition)
            space = MemorySpace()
            space.partition = partition
            operator = build(self.plan, space)
            resume(operator, store.state(store.manifest(self.version), self.run_id))
            self._opened[partition] = operator
        return self._opened[partition]

    def rows(self, partition: int, numbers: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, pa.Table]]:
        """The rows that a partition holds of some keys, given by input."""
        for rows in self.operator(partition).row_stores():
            wanted = np.array(sorted(numbers.get(rows.input, ())), np.uint64)
            for part in _parts(rows, wanted) if len(wanted) else ():
                found = part.of_keys(wanted)
                if len(found):
                    yield rows.input, _as_came(self.plan, rows.input, take(part.table, found))


def held(store: RowStore, wanted: Hashes) -> Indices:
    """How many rows a store has of each of some sorted keys; one at least if there are any on disk: none is read."""
    found = np.full(len(wanted), len(store.spilled), np.int64)
    for part in store.parts():
        found += np.bincount(np.searchsorted(wanted, part.hashes[part.of_keys(wanted)]), minlength=len(wanted))
    return found


def _parts(store: RowStore, wanted: Hashes) -> Iterator[Part]:
    """All that may have rows of some keys: of what is on disk, their buckets."""
    yield from store.parts()
    for run in store.spilled:
        buckets = None if store.buckets is None else sorted(set(store.buckets.of(wanted).tolist()))
        yield from store.pages(run, buckets)


def _as_came(plan: JoinPlan, name: str, rows: pa.Table) -> pa.Table:
    """Stored rows in the schema of their input. Columns that the join has not kept it does not need."""
    schema = plan.input(name).schema
    columns = [
        rows.column(field.name).cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
