"""The join operators as pipelines name them.

A family is one `Wiring` class: which sources go in, how they are connected, and which public function builds the join.
All its other parameters are the fields of the family's own options model, so that a pipeline file accepts what the
Python function accepts, with the same checks. Adding a family is adding a class here and a line to `FAMILIES`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from pyspark.sql import DataFrame

import watersmeet as wm
from watersmeet.multiway.options import MAX_INPUTS, MIN_INPUTS, MultiwayOptions
from watersmeet.options import Options
from watersmeet.pipeline.problems import nearest
from watersmeet.progressive.options import ProgressiveOptions

Pair = Annotated[list[str], Field(min_length=2, max_length=2)]
Keys = str | list[str] | list[Pair]


class Wiring(BaseModel):
    """How a join is connected. Subclasses add the fields, `sources` and `build`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    OPTIONS: ClassVar[type[Options]]
    FILLED_IN: ClassVar[frozenset[str]] = frozenset()  # options that follow from the wiring
    SUMMARY: ClassVar[str]

    operator: str
    partitions: int | None = Field(
        None, ge=1, description="Key partitions; fixed once the pipeline has run. None: `spark.sql.shuffle.partitions`."
    )

    @abstractmethod
    def sources(self) -> dict[str, str]:
        """The source of each input of the join."""

    @abstractmethod
    def build(self, frames: Mapping[str, DataFrame], state_dir: str, options: dict[str, Any]) -> DataFrame:
        """The joined stream, given a DataFrame per source."""

    def estimates(self, options: Options) -> list[str]:
        """What the operator's cost model says before it has seen any rows."""
        return []

    def more_streams(self) -> list[str]:
        """Further streams that the join reads, after the inputs."""
        return []

    def tables(self) -> frozenset[str]:
        """The sources that are read as tables, not as streams."""
        return frozenset()

    def filled_in(self) -> dict[str, Any]:
        """Values for the options in `FILLED_IN`, good enough to check the others with."""
        return {}

    @classmethod
    def option_names(cls) -> list[str]:
        """The options a pipeline file may give."""
        return [name for name in cls.OPTIONS.model_fields if name not in cls.FILLED_IN and name not in cls.model_fields]


def python_keys(on: Keys) -> str | list[str] | list[tuple[str, str]]:
    """`on` as the Python functions take it: pairs are tuples there."""
    if isinstance(on, str):
        return on
    return [tuple(item) if isinstance(item, list) else item for item in on]  # type: ignore[return-value]


class BinaryWiring(Wiring):
    """Two streams."""

    left: str = Field(description="The source that is the left input.")
    right: str = Field(description="The source that is the right input.")
    on: Keys = Field(description="The key: a column, a list of columns, or a list of pairs `[left, right]`.")

    def sources(self) -> dict[str, str]:
        """Left and right."""
        return {"left": self.left, "right": self.right}


class ProgressiveWiring(BinaryWiring):
    """See `wm.progressive_join`."""

    OPTIONS = ProgressiveOptions
    SUMMARY = "two streams that may stall, results from the first row on, within a memory budget"

    operator: Literal["progressive"]

    def build(self, frames: Mapping[str, DataFrame], state_dir: str, options: dict[str, Any]) -> DataFrame:
        """Call `wm.progressive_join`."""
        left, right = frames[self.left], frames[self.right]
        return wm.progressive_join(
            left, right, on=python_keys(self.on), state_dir=state_dir, partitions=self.partitions, **options
        )


class MultiwayWiring(Wiring):
    """See `wm.multiway_join`."""

    OPTIONS = MultiwayOptions
    FILLED_IN = frozenset({"time"})
    SUMMARY = "two to sixteen streams on one key, in one operator without intermediate results"

    operator: Literal["multiway"]
    inputs: list[str] = Field(
        min_length=MIN_INPUTS, max_length=MAX_INPUTS, description="The sources; their names prefix columns that clash."
    )
    on: str | list[str] | dict[str, str | list[str]] = Field(
        description="The key: a column or a list of columns that all inputs share, or those of each input by its name."
    )
    time: str | dict[str, str] | None = Field(
        None, description="The time column, one for all inputs or one for each by its name; needed with `window`."
    )

    def sources(self) -> dict[str, str]:
        """Every input has the name of its source."""
        return {name: name for name in self.inputs}

    def filled_in(self) -> dict[str, Any]:
        """The time columns, not resolved yet."""
        return {"time": self.time if isinstance(self.time, dict) else dict.fromkeys(self.inputs, self.time or "")}

    def build(self, frames: Mapping[str, DataFrame], state_dir: str, options: dict[str, Any]) -> DataFrame:
        """Call `wm.multiway_join`."""
        return wm.multiway_join(
            {name: frames[name] for name in self.inputs},
            on=self.on,
            time=self.time,
            state_dir=state_dir,
            partitions=self.partitions,
            **options,
        )


FAMILIES: dict[str, type[Wiring]] = {
    "progressive": ProgressiveWiring,
    "multiway": MultiwayWiring,
}


@dataclass(frozen=True)
class Join:
    """A validated join: its wiring, all its options, and which of them were given."""

    wiring: Wiring
    options: Options
    given: frozenset[str]

    @property
    def memory(self) -> int | None:
        """The memory budget in bytes, if the join has one."""
        memory = getattr(self.options, "memory", None)
        return int(memory) if memory is not None else None

    def build(self, frames: Mapping[str, DataFrame], state_dir: str) -> DataFrame:
        """The joined stream."""
        return self.wiring.build(frames, state_dir, {name: getattr(self.options, name) for name in sorted(self.given)})


def parse_join(value: Any) -> Join:
    """A join from its part of a pipeline file; everything that is wrong with it in one `ValidationError`."""
    if isinstance(value, Join):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping with the operator, its inputs and its options")
    operator = value.get("operator")
    if operator is None:
        raise _failed([_detail(f"missing; known are {', '.join(FAMILIES)}", ("operator",))])
    if operator not in FAMILIES:
        message = f"unknown operator {operator!r}; {nearest(str(operator), FAMILIES)}"
        raise _failed([_detail(message, ("operator",))])
    family = FAMILIES[operator]
    names = family.option_names()
    known = [*family.model_fields, *names]
    wires = {k: v for k, v in value.items() if k in family.model_fields}
    given = {k: v for k, v in value.items() if k in names}
    details = [_detail(f"unknown key; {nearest(key, known)}", (key,)) for key in value if key not in known]
    wiring = options = None
    try:
        wiring = family.model_validate(wires)
    except ValidationError as error:
        details += _details(error)
    try:
        filled = wiring.filled_in() if wiring else dict.fromkeys(family.FILLED_IN)
        if wiring or not filled:
            options = family.OPTIONS.model_validate({**given, **{k: v for k, v in filled.items() if v is not None}})
    except ValidationError as error:
        details += _details(error)
    if details or wiring is None or options is None:
        raise _failed(details)
    return Join(wiring, options, frozenset(given))


def _detail(message: str, where: tuple[str | int, ...]) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("join", "{message}", {"message": message}), loc=where, input=None)


def _details(error: ValidationError) -> list[InitErrorDetails]:
    return [_detail(one["msg"], tuple(one["loc"])) for one in error.errors(include_url=False)]


def _failed(details: list[InitErrorDetails]) -> ValidationError:
    return ValidationError.from_exception_data("join", details)
