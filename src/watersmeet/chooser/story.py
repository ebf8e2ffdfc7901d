"""What is known of a join when it is built: enough to explain it then, while it runs, and afterwards.

A story is kept beside the state, in `explain.json`. It decides nothing: a join goes on without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from watersmeet.chooser.decide import Choice
from watersmeet.plan.metrics import FAMILIES
from watersmeet.state.directory import StateDir, check_fields, seal, unseal
from watersmeet.state.identity import BROADCAST

STORY_FILE = "explain.json"
_LATER = ("where", "nulls_match")  # that older releases did not record

# The family of each operator, as functions, pipelines and documentation name it.
FAMILY = {operator: name.replace("_", "-") for name, operators in FAMILIES.items() for operator in operators}
FAMILY[BROADCAST] = BROADCAST  # it is Spark's, and has no metrics of ours


@dataclass(frozen=True)
class Side:
    """An input: its name, about how many bytes a stored row takes, whether it sends punctuations, and the name to show
    for it, if that is another one."""

    name: str
    row_bytes: int
    punctuated: bool = False
    shown: str = ""

    @property
    def label(self) -> str:
        """The name to show."""
        return self.shown or self.name


@dataclass(frozen=True)
class Story:
    """A join as it was built."""

    who: str
    operator: str
    how: str
    on: str
    inputs: tuple[Side, ...]
    options: Mapping[str, Any]  # in JSON form, those that may change at a restart included
    partitions: int  # 0: those of the stream, whatever they are
    choices: tuple[Choice, ...] = ()
    table: Mapping[str, Any] = field(default_factory=dict)  # rows, nbytes, chunk_rows and layout of a master table
    where: str = ""  # the condition on pairs of rows with equal keys
    nulls_match: tuple[str, ...] = ()  # the key columns in which a null matches a null

    @property
    def reasons(self) -> tuple[Choice, ...]:
        """What was chosen, with the reasons; that its function was called, if nothing was."""
        return self.choices or (Choice("join", self.family, f"{self.who} was called"),)

    @property
    def keeps_nothing(self) -> bool:
        """Whether it is Spark's own join, which holds no row from one micro-batch to the next."""
        return self.operator == BROADCAST

    @property
    def family(self) -> str:
        """The join by the name that pipelines have for it."""
        return FAMILY[self.operator]

    def other(self, side: Side) -> Side:
        """The input that the rows of an input of two are joined with."""
        (found,) = [one for one in self.inputs if one.name != side.name]
        return found

    def named(self, shown: Mapping[str, str]) -> Story:
        """The same with other names to show for the inputs."""
        return replace(self, inputs=tuple(replace(side, shown=shown.get(side.name, "")) for side in self.inputs))

    def unique(self, side: Side) -> bool:
        """Whether a key comes once from an input. A window join that takes promises back relies on it for nothing."""
        if self.family == "window" and self.options.get("on_violation") == "keep":
            return False
        return any(one["one"] == side.name for one in self.constraints("one_to_many"))

    def constraints(self, kind: str) -> list[Mapping[str, Any]]:
        """The constraints of a kind."""
        return [one for one in self.options.get("constraints") or () if one["kind"] == kind]


def record_story(directory: StateDir, story: Story) -> None:
    """Keep a story beside the state, if it is a new one."""
    content = seal({"story": asdict(story)})
    if directory.size(STORY_FILE) is None or directory.read(STORY_FILE) != content:
        directory.publish(STORY_FILE, content)


def recorded_story(directory: StateDir) -> Story | None:
    """The story beside a state; None if there is none."""
    if directory.size(STORY_FILE) is None:
        return None
    where = directory.path(STORY_FILE)
    body = unseal(directory.read(STORY_FILE), where)
    check_fields(body, where, "story")
    raw = body["story"]
    check_fields(raw, where, *(one.name for one in fields(Story) if one.name not in _LATER))
    return Story(
        **{
            **raw,
            "inputs": tuple(Side(**side) for side in raw["inputs"]),
            "choices": chosen(raw["choices"]),
            "nulls_match": tuple(raw.get("nulls_match", ())),
        }
    )


def chosen(raw: Sequence[Mapping[str, str]]) -> tuple[Choice, ...]:
    """Choices from their JSON form."""
    return tuple(Choice(**one) for one in raw)
