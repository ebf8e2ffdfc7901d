"""Which joins read a master table, and which versions of it they may still need.

A join that is built leaves a note at the table with its state directory. The versions it may need are those its kept
manifests name (Spark may repeat the last batch) and all newer ones. A note whose state directory is gone is removed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import xxhash

from watersmeet.semistream.master_table import FORMAT, MasterTable, version_name
from watersmeet.state.directory import StateDir, check_fields, seal, unseal
from watersmeet.state.identity import read_join
from watersmeet.state.store import PartitionStore

JOINS = "joins"


@dataclass(frozen=True)
class Registration:
    """A join's note: where its state is, and the version that was newest when it was built."""

    state_dir: str
    version: int


def register_join(path: str, registration: Registration) -> None:
    """Leave a note; a join that is built again keeps the older one, whose version it may still need."""
    directory = StateDir(path)
    name = f"{JOINS}/{xxhash.xxh3_64_hexdigest(registration.state_dir.encode())}.json"
    if directory.size(name) is None:
        directory.fs.create_dir(directory.path(JOINS), recursive=True)
        directory.publish(name, seal({"format": FORMAT, **asdict(registration)}))


def registered_joins(path: str) -> list[Registration]:
    """The joins that read the table and whose state still exists."""
    directory = StateDir(path)
    found = []
    for name in directory.list(JOINS):
        if not name.endswith(".json"):
            continue
        body = unseal(directory.read(f"{JOINS}/{name}"), directory.path(f"{JOINS}/{name}"))
        check_fields(body, directory.path(f"{JOINS}/{name}"), "state_dir", "version")
        registration = Registration(body["state_dir"], body["version"])
        if read_join(StateDir(registration.state_dir)) is None:
            directory.delete(f"{JOINS}/{name}")
        else:
            found.append(registration)
    return found


def lowest_needed(registration: Registration) -> int | None:
    """The oldest version that a join may still read; None if it has finished."""
    directory = StateDir(registration.state_dir)
    join = read_join(directory)
    needed: list[int] = []
    for partition in range(int(join["partitions"]) if join else 0):
        store = PartitionStore(directory, partition)
        manifests = [store.manifest(version) for version in store.versions()]
        if not manifests:
            needed.append(registration.version)
        for manifest in manifests:
            needed += manifest.values.get("versions", [])
    return min(needed, default=None)


def remove_old_versions(path: str) -> list[int]:
    """Delete the versions that no join may need any more; the newest always stays. Returns those deleted."""
    table = MasterTable(path)
    lowest = [needed for each in registered_joins(path) if (needed := lowest_needed(each)) is not None]
    keep_from = min([*lowest, table.newest])
    gone = [version for version in table.versions() if version < keep_from]
    for version in gone:
        table.directory.delete(f"{version_name(version)}.json")
        table.directory.fs.delete_dir(table.directory.path(version_name(version)))
    return gone
