"""Which joins read a master table, and which versions of it they may still need.

A join that is built leaves a note at the table with its state directory. The versions it may need are those its kept
manifests name (Spark may repeat the last batch) and all newer ones. A note whose state directory is gone is removed.

Versions are removed while joins are built and other writers write. So a removal is announced first, and looks again
before it deletes; a join that is built looks again after it has left its note. One of the two sees the other.

    removal    which versions are needed? -> mark: from-000007-<id> -> still none before 7? -> delete (else unmark)
    join       which is the newest? -> note                        -> still there?          -> begin (else again)

Files of a writer that died are named by no version. They are removed after a day in which none of them has changed.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass

import xxhash

from watersmeet.errors import CorruptStateError, MissingVersionError, StateDirError
from watersmeet.semistream.master_table import FORMAT, MasterTable, floor_of, version_name
from watersmeet.semistream.master_writer import ROWS
from watersmeet.state.directory import StateDir, check_fields, seal, unseal
from watersmeet.state.identity import divisions, read_join
from watersmeet.state.manifest import Manifest
from watersmeet.state.store import PartitionStore

JOINS = "joins"
LEFTOVER_SECONDS = 86_400


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
        directory.make(JOINS)
        directory.publish(name, seal({"format": FORMAT, **asdict(registration)}))


def register_newest(path: str, state_dir: str) -> int:
    """Register a join for the newest version, and return it: it is there for as long as the join needs it."""
    table = MasterTable(path)
    while True:
        newest = table.newest
        register_join(path, Registration(state_dir, newest))
        if newest in table.versions():
            return newest


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
    """The oldest version that a join may still read; None if it has finished.

    Partitions of a new division that have no version yet begin with what those of the former one need.
    """
    directory = StateDir(registration.state_dir)
    join = read_join(directory)
    if join is None:
        return None
    needed: list[int] = []
    for division, partitions in reversed(list(enumerate(divisions(join)))):
        found = [_manifests(PartitionStore(directory, number, division)) for number in range(partitions)]
        needed += [version for manifests in found for one in manifests for version in one.values.get("versions", [])]
        if all(found):
            break
    else:
        needed.append(registration.version)
    return min(needed, default=None)


def _manifests(store: PartitionStore) -> list[Manifest]:
    """The kept manifests of a partition whose join may be running: one that it removes meanwhile is not asked for."""
    while True:
        versions = store.versions()
        try:
            return [store.manifest(version) for version in versions]
        except MissingVersionError:
            if store.versions() == versions:
                raise


def remove_old_versions(path: str) -> list[int]:
    """Delete the versions that no join may need any more; the newest always stays. Returns those deleted."""
    table = MasterTable(path)
    keep_from = _keep_from(table, path)
    gone = [version for version in table.every_version() if version < keep_from]
    if gone:
        mark = f"from-{keep_from:06d}-{uuid.uuid4().hex}"
        table.directory.publish(mark, b"")
        if _keep_from(table, path) < keep_from:  # a join has come that begins with one of them
            table.directory.delete(mark)
            return []
        for version in gone:
            if folder := _folder(table, version):
                table.directory.delete_tree(folder)
            table.directory.delete(f"{version_name(version)}.json")
        for name in table.directory.list():
            # Not another mark for the same versions: whoever set it may be deleting ours.
            if (floor_of(name) or keep_from) < keep_from:
                table.directory.delete(name)
    _remove_leftovers(table)
    return gone


def _keep_from(table: MasterTable, path: str) -> int:
    lowest = [needed for each in registered_joins(path) if (needed := lowest_needed(each)) is not None]
    return min([*lowest, table.newest])


def _folder(table: MasterTable, version: int) -> str | None:
    """Where the rows of a version are; None if its file is gone, or damaged."""
    try:
        return str(table.version(version)["folder"])
    except (StateDirError, CorruptStateError):
        return None


def _remove_leftovers(table: MasterTable) -> None:
    """Delete what dead writers left: folders that no version names, and files that were never published."""
    names = table.directory.list()  # before the versions: what is named later was there before
    folders = {_folder(table, version) for version in table.every_version()}
    if None in folders:
        return  # which folder that version has is not known
    for name in names:
        folder, file = name.startswith(ROWS) and name not in folders, name.startswith(".") and name.endswith(".tmp")
        if (folder or file) and table.directory.idle_seconds(name) > LEFTOVER_SECONDS:
            (table.directory.delete_tree if folder else table.directory.delete)(name)
