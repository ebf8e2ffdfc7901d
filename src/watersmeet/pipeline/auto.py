"""`operator: auto`: a join in a pipeline file that says what is known of its inputs, as `wm.join` does.

It becomes a join of the family that is chosen, before anything is checked or built: what a file says under the names of
`wm.join` is said again under the names of the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from watersmeet.chooser.decide import PROMISES, Choice, Facts, decide
from watersmeet.join.join_type import canonical
from watersmeet.pipeline.families import PunctuationOrigin
from watersmeet.pipeline.wiring import NULLS_MATCH, WHERE, Keys, Wiring
from watersmeet.spark.join import KINDS, RENAMED
from watersmeet.window.interval import pair_within

AUTO = "auto"


class AutoWiring(Wiring):
    """See `wm.join`."""

    FUNCTION: ClassVar[str] = "join"
    SUMMARY: ClassVar[str] = "say what is known of the inputs, and the join is chosen by it"

    operator: Literal["auto"] = Field(default="auto", description="Which join.")
    left: str | None = Field(default=None, description="The source that is the left input.")
    right: str | None = Field(default=None, description="The source that is the right input.")
    inputs: list[str] | None = Field(
        default=None, description="In place of left and right: several sources, joined on one key."
    )
    master: str | None = Field(
        default=None, description="In place of right: a source that is a table; prepared at the first run."
    )
    master_path: str | None = Field(
        default=None, description="In place of right: a table that `wm.prepare_master` has written."
    )
    on: Keys | dict[str, str | list[str]] = Field(
        description="The key: a column, a list of columns, or a list of pairs `[left, right]`; of `inputs`, also those "
        "of each by its name."
    )
    how: str = Field(default="inner", description="`inner`, `left`, `right`, `full`, `left_semi` or `left_anti`.")
    nulls_match: bool | list[str] = NULLS_MATCH
    where: str | None = WHERE
    within: str | list[str | None] | None = Field(
        default=None,
        description="How much later than its left row a right row may be: `[0 s, 30 min]`, the least and the greatest "
        "time; or one duration, whichever comes first. Of `inputs`, the time between the first and the last row.",
    )
    time: str | list[str] | dict[str, str] | None = Field(
        default=None, description="The time columns of the inputs, or one for all; without, rows have arrival times."
    )
    unique: str | list[str] | None = Field(
        default=None, description="The inputs (left, right) in which a key occurs at most once."
    )
    clustered: str | list[str] | dict[str, str] | None = Field(
        default=None,
        description="The inputs in which rows of a key follow each other; or `{input: right, sequence: column}`.",
    )
    ordered: str | list[str] | dict[str, str] | None = Field(
        default=None,
        description="The inputs in which rows come in the order of their keys; or "
        "`{input: right, direction: descending, sequence: column, key: column}`.",
    )
    ends: dict[Literal["left", "right"], PunctuationOrigin] | None = Field(
        default=None,
        description="Per input (left, right), where it says that a key is over: `{column: name}` for marked rows, "
        "`{source: name}` for a stream of them.",
    )


def is_auto(value: Mapping[str, Any]) -> bool:
    """Whether a join is to be chosen."""
    return bool(value.get("operator", AUTO) == AUTO)


def our_name(name: str | int) -> str | int:
    """What a key of a family is called in a join that is chosen."""
    return RENAMED.get(str(name), name)


def chosen(value: Mapping[str, Any]) -> tuple[dict[str, Any], Choice]:
    """The join as its family has it, and why it is of that family; a `PlanError` if no join takes all that is said."""
    facts = Facts(
        streams=len(value["inputs"]) if isinstance(value.get("inputs"), list) else 2,
        several="inputs" in value,
        table="master" in value or "master_path" in value,
        window=value.get("within") is not None,
        promises=tuple(name for name in PROMISES if value.get(name) is not None),
        memory=value.get("memory") is not None,
        how=canonical(str(value.get("how", "inner"))) or "inner",  # the family says what is wrong with another one
    )
    choice = decide("join", facts)
    return _as(choice.value, value), choice


def known_keys(family: type[Wiring]) -> list[str]:
    """The keys of a join that is chosen, if it is of this family."""
    options = [name for name in family.option_names() if name not in RENAMED]
    return [*(name for name in AutoWiring.model_fields if name not in options), *options]


def _as(family: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """The keys under the names of a family."""
    made: dict[str, Any] = {"operator": family}
    constraints: list[Any] = []
    for key, given in value.items():
        if key in KINDS:
            many = given if isinstance(given, list) else [given]
            constraints += [_constraint(key, one) for one in many if one is not None]
        elif key == "left" and family == "semi-stream":
            made["stream"] = given
        elif key == "within" and isinstance(given, list) and family == "window":
            pair_within("join", given)
            made["window"] = {"between": given}
        elif key in ("within", "ends"):
            made[{"within": "window", "ends": "punctuations"}[key]] = given
        elif key != "operator":
            made[key] = given
    return {**made, "constraints": constraints} if constraints else made


def _constraint(option: str, given: Any) -> dict[str, Any]:
    named = given if isinstance(given, dict) else {"one" if option == "unique" else "input": given}
    return {"kind": KINDS[option], **named}
