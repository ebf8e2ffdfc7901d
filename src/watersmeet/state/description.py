"""What the inputs of a join look like to its user: `inputs.json`, so that stored rows can be read by themselves.

Stored rows have internal names (see `columns.arrow`). The record says which column of an input each of them is, in
which type of Spark, and how the join was built when it was last started. It decides nothing: what state may be used
by is in `join.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from watersmeet.errors import OptionError, StateDirError
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import StateDir, check_fields, seal, unseal
from watersmeet.state.identity import require_join
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
