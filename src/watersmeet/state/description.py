"""What the inputs of a join look like to its user: `inputs.json`, so that stored rows can be read by themselves.

Stored rows have internal names (see `columns.arrow`). The record says which column of an input each of them is, in
which type of Spark, and how the join was built when it was last started. What state may be used by is in `join.json`;
this decides where that does not tell two columns apart, because no output has them, or because it says nothing of the
nulls that match (`check_inputs`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from watersmeet.errors import CorruptStateError, OptionError, StateDirError
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import StateDir, check_fields, seal, unseal
from watersmeet.state.identity import of_another_join, recorded_partitions, require_join
from watersmeet.state.manifest import FORMAT, check_format

INPUTS_FILE = "inputs.json"

Hashing = Literal["spark", "in-process"]


@dataclass(frozen=True)
class InputColumn:
    """A column of an input: the user's name and the internal one. The types are as Spark writes them (empty in
    process): its own, and that in which it is stored, which for a key is the one that the inputs are compared in."""

    name: str
    column: str
    type: str = ""
    stored: str = ""
    null_if: str = ""


@dataclass(frozen=True)
class Description:
    """A join and the columns of its inputs. `hashing` is what made the hashes of the keys."""

    plan: JoinPlan
    columns: Mapping[str, Sequence[InputColumn]]
    hashing: Hashing = "spark"

    @classmethod
    def plain(cls, plan: JoinPlan) -> Description:
        """That of a join whose inputs have no other names: one that runs in process."""
        flags = plan.null_flags
        columns = {
            spec.name: [
                InputColumn(name, name, null_if=flags.get(name, ""))
                for name in spec.schema.names[1:]
                if name not in flags.values()
            ]
            for spec in plan.inputs
        }
        return cls(plan, columns, "in-process")

    def check_input(self, who: str, name: object) -> str:
        """The name of an input; an error if there is none of that name."""
        if isinstance(name, str) and name in self.columns:
            return name
        raise OptionError(
            who,
            expected=f"input {' or '.join(map(repr, self.columns))}",
            found=repr(name),
            hint="Give the name of an input of the join.",
            option="input",
        )


def check_inputs(who: str, directory: StateDir, now: Description, comparable: Callable[[str], str]) -> None:
    """Refuse a join for which columns of stored rows would be other columns of an input than those that were stored.

    `comparable` gives names in the form in which they are compared. Where inputs or output have changed in any other
    way, `register_join` says so; and where nothing was recorded, or it cannot be read any more, nothing is known.
    """
    if recorded_partitions(directory) is None or directory.size(INPUTS_FILE) is None:
        return
    try:
        before = recorded_inputs(directory)
    except CorruptStateError:
        return
    old, new = before.plan.identity(), now.plan.identity()
    if any(old[part] != new[part] for part in ("inputs", "output")):
        return
    changed = [
        f"{name}.{one.name} was stored where {name}.{other.name} is now"
        for name, columns in now.columns.items()
        for other in columns
        for one in before.columns.get(name, ())
        if one.column == other.column and comparable(one.name) != comparable(other.name)
    ]
    flags, wanted = (
        {(name, one.column): one.null_if for name, columns in description.columns.items() for one in columns}
        for description in (before, now)
    )
    if flags != wanted and not changed:
        changed = [f"nulls_match was {_null_safe(before)}, is {_null_safe(now)}"]
    if changed:
        raise of_another_join(who, directory, f"state of another one: {'; '.join(changed)}")


def _null_safe(description: Description) -> list[str]:
    """The key columns of which nulls match, by the names that the first input has for them."""
    return [column.name for column in next(iter(description.columns.values())) if column.null_if]


def record_inputs(directory: StateDir, description: Description) -> None:
    """Keep the description beside the state; it is written when it has changed."""
    body: dict[str, Any] = {
        "format": FORMAT,
        "plan": description.plan.to_dict(),
        "columns": {name: [asdict(column) for column in found] for name, found in description.columns.items()},
        "hashing": description.hashing,
    }
    content = seal(body)
    if directory.size(INPUTS_FILE) is None or directory.read(INPUTS_FILE) != content:
        directory.publish(INPUTS_FILE, content)


def recorded_inputs(directory: StateDir) -> Description:
    """The description kept beside the state."""
    if directory.size(INPUTS_FILE) is None:
        require_join(directory)
        raise StateDirError(
            f"state directory {directory.uri}",
            expected=f"the record of the inputs, {INPUTS_FILE}",
            found="state without it",
            hint="Start the query once with this release of Watersmeet: the record is written when the join is built.",
        )
    where = directory.path(INPUTS_FILE)
    body = unseal(directory.read(INPUTS_FILE), where)
    check_format(body, where)
    check_fields(body, where, "plan", "columns", "hashing")
    columns = {name: [InputColumn(**column) for column in found] for name, found in body["columns"].items()}
    return Description(JoinPlan.from_dict(body["plan"]), columns, body["hashing"])
