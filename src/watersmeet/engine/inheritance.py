"""The state that a batch starts from: the version before it, or, where the state has been divided anew since, what the
partitions of the former division held.

    division 0   part-00000     part-00001                                        versions up to 41, written by 2 tasks
    division 1   part-00000.1   part-00001.1   part-00002.1   part-00003.1        versions from 42 on, written by 4

Nothing happens to the state when a number of partitions is asked for: the record of the join gets one more division.
The first batch of a new partition finds no version in its own folder, takes up its share of the former partitions'
version, by reference, and commits a version of its own. So a batch starts from the version that Spark asks for, in
whichever division that is; a batch that is interrupted is repeated from there; and as long as no batch of the new
division is complete, the old one is whole and can be gone back to.
"""

from __future__ import annotations

from watersmeet.columns.partitions import Partition
from watersmeet.engine.registry import build
from watersmeet.errors import MissingVersionError
from watersmeet.join.operator import Operator, Origin, resume, take_over
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import StateDir
from watersmeet.state.manifest import Manifest
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore


def bring_up(
    operator: Operator, store: PartitionStore, batch: int, query: str, run_id: str, join: str = ""
) -> Manifest:
    """Bring a fresh operator to where a batch starts; returns the manifest that the next one follows."""
    plan = operator.plan
    if batch == 0:
        heir = Partition(store.partition, plan.partitions)
        for division in map(plan.divided, range(plan.division)):
            for number in heir.origins(division.partitions):
                PartitionStore(store.directory, number, division.division).check_queries(query)
    try:
        before = store.load(batch, query, run_id, join, plan.partitions)
    except MissingVersionError as missing:
        if not plan.former:
            raise
        heir = Partition(store.partition, plan.partitions, plan.division)
        try:
            origins = _origins(plan, store.directory, heir, batch, query, run_id)
        except MissingVersionError:
            raise missing from None
        take_over(operator, heir, origins, batch - 1)
        return Manifest(version=batch - 1, partition=store.partition, query=query, run_id="")
    if before.version >= 0:
        resume(operator, store.state(before, run_id))
    return before


def _origins(plan: JoinPlan, directory: StateDir, heir: Partition, batch: int, query: str, run_id: str) -> list[Origin]:
    """The former partitions that have keys of the heir's, where the batch starts."""
    former = plan.divided(plan.division - 1)
    origins = []
    for number in heir.origins(former.partitions):
        space = MemorySpace()
        space.partition = number
        operator = build(former, space)
        bring_up(operator, PartitionStore(directory, number, former.division), batch, query, run_id)
        origins.append(Origin(Partition(number, former.partitions, former.division), operator))
    return origins
