"""Running a script over a state directory in several partitions, whose number changes between batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import hash_keys, hashes_of, key_names, numpy_of
from watersmeet.columns.partitions import Partition
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import StateDir
from watersmeet.testing.arrivals import Arrival, Row, Script, batch_of
from watersmeet.testing.harness import rows_of


def plans_of(plan: JoinPlan, partitions: Sequence[int]) -> list[JoinPlan]:
    """The plan of each batch, given the number of partitions in each."""
    plans: list[JoinPlan] = []
    for number in partitions:
        before = plans[-1] if plans else replace(plan, partitions=number)
        former = before.former if number == before.partitions else (*before.former, before.partitions)
        plans.append(replace(plan, partitions=number, former=former))
    return plans


def share_of(batch: Batch, partition: Partition) -> Batch:
    """What of a batch reaches one partition: rows and single keys by their hash, all else everybody."""
    rows = {name: _owned(table, partition) for name, table in batch.rows.items()}
    said = {name: _heard(table, partition) for name, table in batch.punctuations.items()}
    return replace(batch, rows=rows, punctuations={name: table for name, table in said.items() if table.num_rows})


def _owned(table: pa.Table, partition: Partition) -> pa.Table:
    return table.filter(pa.array(partition.owns(hashes_of(table)))) if table.num_rows else table


def _heard(table: pa.Table, partition: Partition) -> pa.Table:
    """Punctuations of single keys have no hash yet; patterns are for all."""
    keys = [table.column(name).combine_chunks() for name in key_names(table.schema)]
    single = np.logical_and.reduce([numpy_of(pc.is_valid(key)).astype(np.bool_) for key in keys])
    return table.filter(pa.array(~single | partition.owns(hash_keys(keys))))


def run_divided(
    plan: JoinPlan, script: Script, directory: StateDir, partitions: Sequence[int]
) -> Iterator[Counter[Row]]:
    """Run a script, each batch in its number of partitions, everything reloaded in every batch; the rows per batch."""
    for number, (arrival, now) in enumerate(zip(script, plans_of(plan, partitions), strict=True)):
        found: Counter[Row] = Counter()
        for share in shares(now, number, arrival):
            partition, batch = share
            found += rows_of(run_batch(now, directory, partition, batch, run_id=f"run-{number}"))
        yield found


def shares(plan: JoinPlan, number: int, arrival: Arrival) -> Iterator[tuple[int, Batch]]:
    """The batch of each partition."""
    whole = batch_of(plan, number, arrival)
    for partition in range(plan.partitions):
        yield partition, share_of(whole, Partition(partition, plan.partitions))
