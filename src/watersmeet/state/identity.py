"""Which join a state directory belongs to: `join.json`, written when the join is first built.

A broadcast join keeps no state. Its directory has the record alone, so that it is the same join after a restart:
Spark's checkpoint of one join does not fit the sources of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from watersmeet.errors import CorruptStateError, StateDirError, StateMismatchError
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import JOIN_FILE, StateDir, check_fields, seal, unseal
from watersmeet.state.manifest import FORMAT, check_format

PART = re.compile(r"part-(\d+)(?:\.(\d+))?$")  # a partition's folder: its number, and its division if not the first
BROADCAST = "broadcast"  # the operator of joins that are Spark's own, and keep nothing


def read_join(directory: StateDir) -> dict[str, Any] | None:
    """The record of the join, or None if the directory has none."""
    if directory.size(JOIN_FILE) is None:
        return None
    body = unseal(directory.read(JOIN_FILE), directory.path(JOIN_FILE))
    check_format(body, directory.path(JOIN_FILE))
    check_fields(body, directory.path(JOIN_FILE), "fingerprint", "identity", "partitions")
    return body


def recorded_join(directory: StateDir) -> dict[str, Any]:
    """The record of the join; an error if the directory has none."""
    found = read_join(directory)
    if found is None:
        raise StateDirError(
            f"state directory {directory.uri}",
            expected="the state directory of a join",
            found="no join.json",
            hint="Give the state_dir that the join was built with; build the join first.",
        )
    return found


def require_join(directory: StateDir) -> dict[str, Any]:
    """The record of a join whose state can be looked at; an error if there is none, or it keeps none."""
    found = recorded_join(directory)
    if keeps_nothing(found):
        raise StateDirError(
            f"state directory {directory.uri}",
            expected="a join that keeps state",
            found="a broadcast join, which is Spark's own and keeps none: there is nothing to look at",
            hint="What it does is in the progress of its query (query.lastProgress), what was chosen and why in "
            "wm.explain. With operator='semi-stream', a new state directory and a new checkpoint it keeps state.",
        )
    return found


def keeps_nothing(record: dict[str, Any]) -> bool:
    """Whether a record is that of a broadcast join."""
    return bool(record["identity"]["operator"] == BROADCAST)


def recorded_partitions(directory: StateDir) -> int | None:
    """The number of partitions the state was begun with; None while there is no state."""
    found = read_join(directory)
    return int(found["partitions"]) if found and _has_versions(directory) else None


def divisions(record: dict[str, Any]) -> list[int]:
    """The numbers of partitions that the state has been divided into, the present one last."""
    return [*record.get("former", []), record["partitions"]]


def built_operator(directory: StateDir) -> str | None:
    """The operator of the join that was built here last, whether it has run or not; None if there is none."""
    found = read_join(directory)
    return str(found["identity"]["operator"]) if found else None


def recorded_operator(directory: StateDir) -> str | None:
    """The operator the state was begun with; None while there is no state."""
    found = read_join(directory)
    return str(found["identity"]["operator"]) if found and _has_versions(directory) else None


def register_join(who: str, directory: StateDir, plan: JoinPlan, *, succeeds: str | None = None) -> JoinPlan:
    """Record the join, or check that the state is of this very join. State that was never used may change hands.

    Returns the plan with the former divisions of the state: it may have been divided before, or be from now on because
    the plan has another number of partitions. `succeeds` names another operator whose state this one can take up.
    """
    found = read_join(directory)
    if found is not None and keeps_nothing(found):
        raise of_another_join(
            who, directory, f"that of a broadcast join, which may have run: operator is {plan.operator!r} now"
        )
    if not _has_versions(directory):
        record_join(directory, plan)
        return plan
    if found is None:
        raise CorruptStateError(
            f"{who}, state directory {directory.uri}",
            expected=f"the record of the join that its state belongs to, {JOIN_FILE}",
            found="state without it",
            hint="Restore the file from a copy, or start over with a new state directory and a new checkpoint.",
        )
    if not (succeeds and _can_succeed(found, plan, succeeds)):
        _check(who, directory, found, plan)
    if found["partitions"] != plan.partitions:
        check_divisible(who, directory, plan)
    plan = _divided(directory, found, plan)
    if plan.division >= len(divisions(found)):
        clear_divisions(directory, plan.division)
    if (found["fingerprint"], divisions(found)) != (plan.fingerprint(), [*plan.former, plan.partitions]):
        record_join(directory, plan)
    return plan


def check_not_broadcast(who: str, directory: StateDir) -> None:
    """Refuse the directory of a broadcast join. Whether it has run is not known: it leaves nothing behind."""
    if built_operator(directory) == BROADCAST:
        raise of_another_join(who, directory, "that of a broadcast join, which may have run")


def record_join(directory: StateDir, plan: JoinPlan) -> None:
    """Write the record of a join."""
    record = {
        "format": FORMAT,
        "fingerprint": plan.fingerprint(),
        "identity": plan.identity(),
        "partitions": plan.partitions,
        "former": list(plan.former),
    }
    directory.publish(JOIN_FILE, seal(record))


def register_broadcast(who: str, directory: StateDir, input: str, how: str) -> None:
    """Record a broadcast join, unless there is state of another one. What else it is may change at a restart."""
    if _has_versions(directory):
        found = read_join(directory)
        operator = "unknown" if found is None else found["identity"]["operator"]
        raise of_another_join(who, directory, f"state of another one: operator was {operator!r}, is {BROADCAST!r}")
    identity = {"operator": BROADCAST, "how": how, "options": {}, "inputs": {input: {}}, "output": []}
    record = {"format": FORMAT, "fingerprint": BROADCAST, "identity": identity, "partitions": 0, "former": []}
    directory.publish(JOIN_FILE, seal(record))


def _divided(directory: StateDir, found: dict[str, Any], plan: JoinPlan) -> JoinPlan:
    """The plan after the divisions there are, or after one more. A division that no batch has used is forgotten."""
    known = divisions(found)
    while len(known) > 1 and known[-1] != plan.partitions and not _is_used(directory, len(known) - 1):
        known.pop()
    former = known[:-1] if known[-1] == plan.partitions else known
    return replace(plan, former=tuple(former))


def _is_used(directory: StateDir, division: int) -> bool:
    """Whether there is a version in a division."""
    return _have_versions(directory, (folder for folder, found in _folders(directory) if found == division))


def clear_divisions(directory: StateDir, first: int) -> None:
    """Delete what is left of divisions, from a number on, that were begun and are not, or no more, in the record."""
    for folder, division in _folders(directory):
        if division >= first:
            directory.delete_tree(folder)


def _folders(directory: StateDir) -> Iterator[tuple[str, int]]:
    """The folders of partitions, and the division of each."""
    for match in filter(None, map(PART.match, directory.list())):
        yield match[0], int(match[2] or 0)


def _have_versions(directory: StateDir, folders: Iterable[str]) -> bool:
    return any(name.startswith("v-") for folder in folders for name in directory.list(folder))


def _can_succeed(found: dict[str, Any], plan: JoinPlan, operator: str) -> bool:
    """Whether the state is that of another operator over the same inputs."""
    before, now = found["identity"], plan.identity()
    same = all(before.get(name) == now.get(name) for name in ("inputs", "output", "hot_keys"))
    return bool(before["operator"] == operator != plan.operator and same)


NEW_START = "or give this join a new state directory and a new checkpoint."


def check_divisible(who: str, directory: StateDir, plan: JoinPlan) -> None:
    """Refuse a join whose state cannot be divided: rows of hot keys lie in partitions that their hash does not name."""
    if plan.hot_keys:
        raise StateMismatchError(
            f"{who}, state directory {directory.uri}",
            expected="a join whose state can be divided anew",
            found='hot_keys="auto"',
            hint="Joins that spread hot keys keep their number of partitions (docs/rescaling.md): give the old number, "
            f"{NEW_START}",
        )


def _check(who: str, directory: StateDir, found: dict[str, Any], plan: JoinPlan) -> None:
    if found["fingerprint"] == plan.fingerprint():
        return
    differences = _differences(found["identity"], plan.identity())
    raise of_another_join(who, directory, "state of another one: " + "; ".join(differences))


def of_another_join(who: str, directory: StateDir, found: str) -> StateMismatchError:
    """The error for a directory that belongs to another join."""
    return StateMismatchError(
        f"{who}, state directory {directory.uri}",
        expected="state of this join",
        found=found,
        hint=f"Build the join as it was, {NEW_START}",
    )


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for name in sorted(old.keys() | new.keys()):
            found += _differences(old.get(name), new.get(name), f"{path}.{name}" if path else name)
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        found = []
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            found += _differences(before, after, f"{path}[{i}]")
        return found
    return [] if old == new else [f"{path} was {old!r}, is {new!r}"]


def _has_versions(directory: StateDir) -> bool:
    """Whether a batch has been committed. What one leaves that dies before that belongs to no version."""
    return _have_versions(directory, (folder for folder, _ in _folders(directory)))
