"""Which join a state directory belongs to: `join.json`, written when the join is first built."""

from __future__ import annotations

from typing import Any

from watersmeet.errors import CorruptStateError, StateDirError, StateMismatchError
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import JOIN_FILE, StateDir, check_fields, seal, unseal
from watersmeet.state.manifest import FORMAT, check_format


def read_join(directory: StateDir) -> dict[str, Any] | None:
    """The record of the join, or None if the directory has none."""
    if directory.size(JOIN_FILE) is None:
        return None
    body = unseal(directory.read(JOIN_FILE), directory.path(JOIN_FILE))
    check_format(body, directory.path(JOIN_FILE))
    check_fields(body, directory.path(JOIN_FILE), "fingerprint", "identity", "partitions")
    return body


def require_join(directory: StateDir) -> dict[str, Any]:
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


def recorded_partitions(directory: StateDir) -> int | None:
    """The number of partitions the state was begun with; None while there is no state."""
    found = read_join(directory)
    return int(found["partitions"]) if found and _has_versions(directory) else None


def recorded_operator(directory: StateDir) -> str | None:
    """The operator the state was begun with; None while there is no state."""
    found = read_join(directory)
    return str(found["identity"]["operator"]) if found and _has_versions(directory) else None


def register_join(who: str, directory: StateDir, plan: JoinPlan, *, succeeds: str | None = None) -> None:
    """Record the join, or check that the state is of this very join. State that was never used may change hands.

    `succeeds` names another operator whose state this one can take up.
    """
    found = read_join(directory)
    if _has_versions(directory):
        if found is None:
            raise CorruptStateError(
                f"{who}, state directory {directory.uri}",
                expected=f"the record of the join that its state belongs to, {JOIN_FILE}",
                found="state without it",
                hint="Restore the file from a copy, or start over with a new state directory and a new checkpoint.",
            )
        if not (succeeds and _can_succeed(found, plan, succeeds)):
            _check(who, directory, found, plan)
            return
    record = {
        "format": FORMAT,
        "fingerprint": plan.fingerprint(),
        "identity": plan.identity(),
        "partitions": plan.partitions,
    }
    directory.publish(JOIN_FILE, seal(record))


def _can_succeed(found: dict[str, Any], plan: JoinPlan, operator: str) -> bool:
    """Whether the state is that of another operator over the same inputs."""
    before, now = found["identity"], plan.identity()
    same = all(before[name] == now[name] for name in ("inputs", "output"))
    return bool(before["operator"] == operator != plan.operator and same and found["partitions"] == plan.partitions)


def _check(who: str, directory: StateDir, found: dict[str, Any], plan: JoinPlan) -> None:
    new_start = "or give this join a new state directory and a new checkpoint."
    if found["partitions"] != plan.partitions:
        raise StateMismatchError(
            f"{who}, state directory {directory.uri}",
            expected=f"{found['partitions']} partitions, with which the state was begun",
            found=f"partitions={plan.partitions}",
            hint=f"Leave `partitions` out or give the old number, {new_start}",
        )
    if found["fingerprint"] == plan.fingerprint():
        return
    differences = _differences(found["identity"], plan.identity())
    raise StateMismatchError(
        f"{who}, state directory {directory.uri}",
        expected="state of this join",
        found="state of another one: " + "; ".join(differences),
        hint=f"Build the join as it was, {new_start}",
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
    return any(name.startswith("part-") for name in directory.list())
