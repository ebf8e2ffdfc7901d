"""Files of former divisions of a state that nobody needs any more.

The partitions of a division share the files of the one before, so none of them can tell by itself when a file may go.
What a version does not name no later one will name either: so a file that no kept version of any partition names is
needed by nobody, once every partition has versions of its own to go back to.
"""

from __future__ import annotations

from watersmeet.errors import MissingVersionError
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import PART
from watersmeet.state.store import KEEP, PartitionStore


def sweep(directory: StateDir, plan: JoinPlan) -> int:
    """Delete what former divisions have and the present one does not need; returns how many files. Tasks may run beside
    it, and collect versions that it has listed: then nothing is deleted this time.

    The newest manifest of each former partition stays, and so do its metrics: they are the history of the join.
    """
    needed: set[str] = set()
    for partition in range(plan.partitions):
        store = PartitionStore(directory, partition, plan.division)
        versions = store.versions()
        if len(versions) < KEEP:
            return 0
        try:
            needed |= {file for version in versions for file in store.manifest(version).files()}
        except MissingVersionError:  # its task has collected it meanwhile: another time
            return 0
    gone: list[str] = []
    for match in filter(None, map(PART.match, directory.list())):
        if int(match[2] or 0) < plan.division:
            names = directory.list(match[0])
            newest = max((name for name in names if name.startswith("v-")), default="")
            kept = {name for name in names if name.startswith("metrics-") or name == newest}
            gone += [f"{match[0]}/{name}" for name in names if name not in kept and f"{match[0]}/{name}" not in needed]
    directory.delete_all(gone)
    return len(gone)
