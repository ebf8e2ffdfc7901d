"""Dividing the state of a stopped join into another number of partitions, ahead of its next batch.

The next batch would do the same (see `inheritance`): here it is done offline, so that it can be looked at, and so that
the batch finds versions of its own. The record of the join names the division that is complete before anything is
written, and the new one last. Until then the state is the old one, and what was written is swept away; from then on it
is the new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from watersmeet.engine.held_rows import complete_version, present
from watersmeet.engine.inheritance import bring_up
from watersmeet.engine.registry import build
from watersmeet.join.operator import saved
from watersmeet.plan import JoinPlan
from watersmeet.plan.options import check_partitions
from watersmeet.state.description import record_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import check_divisible, clear_divisions, record_join
from watersmeet.state.manifest import Manifest
from watersmeet.state.store import PartitionStore

ATTEMPT = "rescale"


@dataclass(frozen=True)
class Rescaled:
    """What was done: from how many partitions to how many, after which batch, and how many rows were divided."""

    before: int
    partitions: int
    version: int | None
    rows: int


def rescale(directory: StateDir, partitions: int) -> Rescaled:
    """Divide the state of a join into so many partitions. The query must be stopped."""
    who = "rescale"
    check_partitions(who, partitions, hint="Give the number.")
    description = present(directory)
    former = description.plan
    if partitions == former.partitions:
        return Rescaled(partitions, partitions, complete_version(directory, former), 0)
    check_divisible(who, directory, former)
    version = complete_version(directory, former)
    plan = replace(former, partitions=partitions, former=(*former.former, former.partitions))
    # The record may name a division that no batch has completed, of which the number is now taken: were it still named
    # when this dies, these shares would pass for its own.
    record_join(directory, former)
    clear_divisions(directory, plan.division)
    rows = 0
    if version is not None:
        query = PartitionStore(directory, 0, former.division).manifest(version).query
        for partition in range(partitions):
            rows += _establish(directory, plan, partition, version, query)
    record_join(directory, plan)
    record_inputs(directory, replace(description, plan=plan))
    return Rescaled(former.partitions, partitions, version, rows)


def _establish(directory: StateDir, plan: JoinPlan, partition: int, version: int, query: str) -> int:
    store = PartitionStore(directory, partition, plan.division)
    directory.make(store.folder)
    space = store.space(version, ATTEMPT)
    operator = build(plan, space)
    bring_up(operator, store, version + 1, query, "")
    manifest = Manifest(
        version, partition, query, run_id="", division=plan.division, partitions=plan.partitions
    )  # fmt: skip
    store.establish(manifest, saved(operator), space)
    return sum(held.rows for held in operator.row_stores() if held.input)
