"""Running a script over a state directory in several partitions that share hot keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import concat, hash_keys, hashes_of, key_names, numpy_of
from watersmeet.columns.partitions import partition_of
from watersmeet.engine.hot_tables import hot_table, votes
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch
from watersmeet.join.votes import Judge
from watersmeet.plan import JoinPlan
from watersmeet.plan.hot_table import HotTable, routes
from watersmeet.state.directory import StateDir
from watersmeet.testing.arrivals import Row, Script, batch_of
from watersmeet.testing.harness import rows_of

Places = npt.NDArray[np.int64]


def routed(plan: JoinPlan, batch: Batch, table: HotTable) -> list[Batch]:
    """The batch of each partition, as Spark routes it (`spark.hot_routing`): a row of a split input by its content, a
    punctuation of a single key to all partitions that may have rows of it, others to all there are."""
    ways: dict[str, list[tuple[Places, Places, bool]]] = {name: [] for name in batch.rows}
    for name, rows in batch.rows.items():
        hashes = hashes_of(rows)
        home = np.ones(len(hashes), np.bool_)
        keyed = _keyed(rows)
        for route in routes(table, [name]):
            mine = np.flatnonzero((hashes == np.uint64(route.hash)) & keyed)
            home[mine] = False
            chosen = _contents(rows)[mine] % np.uint64(len(route.targets))
            ways[name].append((mine, np.array(route.targets)[chosen.astype(np.int64)], route.is_copy))
        others = np.flatnonzero(home)
        ways[name].append((others, partition_of(hashes[others], plan.partitions), False))
    found = []
    for number in range(plan.partitions):
        rows, copies = (_arriving(batch, ways, number, copy=copy) for copy in (False, True))
        said = {name: _heard(plan, punctuations, table, number) for name, punctuations in batch.punctuations.items()}
        found.append(replace(batch, rows=rows, copies=copies, punctuations=said))
    return found


def _heard(plan: JoinPlan, punctuations: pa.Table, table: HotTable, partition: int) -> pa.Table:
    """The punctuations that reach a partition."""
    keys = [punctuations.column(name).combine_chunks() for name in key_names(punctuations.schema)]
    single = np.logical_and.reduce([numpy_of(pc.is_valid(key)).astype(np.bool_) for key in keys])
    hashes = hash_keys(keys)
    mine = partition_of(hashes, plan.partitions) == partition
    told = [key.hash for key in table.keys.values() if partition in key.listeners]
    return punctuations.filter(pa.array(~single | mine | np.isin(hashes, np.array(told, np.uint64))))


def _contents(rows: pa.Table) -> npt.NDArray[np.uint64]:
    """A hash of all columns of each row."""
    return hash_keys(rows.columns[1:])


def _keyed(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows have no null in their key: the others are not sent by it."""
    valid = (numpy_of(rows.column(name).is_valid()) for name in key_names(rows.schema))
    return np.asarray(np.logical_and.reduce(list(valid)), np.bool_)


def _arriving(
    batch: Batch, ways: dict[str, list[tuple[Places, Places, bool]]], partition: int, *, copy: bool
) -> dict[str, pa.Table]:
    found = {}
    for name, parts in ways.items():
        tables = [
            batch.rows[name].take(pa.array(rows[to == partition])) for rows, to, is_copy in parts if is_copy == copy
        ]
        rows = concat(tables, batch.rows[name].schema)
        if rows.num_rows or not copy:
            found[name] = rows
    return found


def run_spread(plan: JoinPlan, script: Script, directory: StateDir) -> Iterator[Counter[Row]]:
    """Run a script, everything reloaded in every batch; the rows per batch."""
    for number, arrival in enumerate(script):
        table, found = hot_table(plan, directory, number), list[pa.Table]()
        for partition, batch in enumerate(routed(plan, batch_of(plan, number, arrival), table)):
            found += run_batch(plan, directory, partition, batch, run_id=f"run-{number}")
        yield rows_of(decided(plan, found))


def decided(plan: JoinPlan, tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The results of a batch, given what all partitions have yielded: with what they have voted for, if they vote."""
    if not votes(plan):
        return list(tables)
    judge = Judge()
    found = [
        pa.Table.from_batches([some]) for one in tables for part in one.to_batches() for some in judge.results(part)
    ]
    return [*found, judge.verdict()]
