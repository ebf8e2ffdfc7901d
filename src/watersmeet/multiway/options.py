"""Options of the multi-way join."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from watersmeet.errors import OptionError
from watersmeet.join.clock import Late
from watersmeet.plan.join_plan import JoinPlan
from watersmeet.plan.options import MAX_DURATION, Duration, HotKeys, Options, Size, check_memory
from watersmeet.state.space import PAGE_ROWS

MIN_INPUTS, MAX_INPUTS = 2, 16

DriverName = Literal["timestamp", "round_robin", "consumption_rate", "output_size", "output_rate"]
# The others are controls of experiments: what a policy must beat if the choice of the driver is what counts.
Driver = Literal[
    "timestamp",
    "round_robin",
    "consumption_rate",
    "output_size",
    "output_rate",
    "fixed_order",
    "reversed_output_size",
    "largest_buffer",
]


def _as_list(value: object) -> object:
    """One name is a list of one."""
    return [value] if isinstance(value, str) else value


InputNames = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class MultiwayOptions(Options):
    """What a multi-way join can be told.

    >>> MultiwayOptions(window="10 min", time={"a": "_p0", "b": "_p1"}).window
    600000000
    """

    TUNING: ClassVar[frozenset[str]] = frozenset(
        {"driver", "late", "slices", "max_results", "memory", "idle_pages", "page_rows"}
    )
    INTERNAL: ClassVar[frozenset[str]] = frozenset({"time"})
    LAB: ClassVar[Mapping[str, frozenset[str]]] = {
        "driver": frozenset({"fixed_order", "reversed_output_size", "largest_buffer"})
    }

    driver: Driver = Field(
        "output_size",
        description="Which input's buffer is drained next. Never changes the answer.",
    )
    window: Duration | None = Field(
        None,
        ge=0,
        le=MAX_DURATION,
        description="Longest time between the earliest and the latest row of a combination; none: all is kept.",
    )
    lateness: Duration = Field(
        10_000_000,
        ge=0,
        le=MAX_DURATION,
        description="How far behind its input's newest time a row may come and still find all its partners.",
    )
    late: Late = Field(
        "join",
        description="Whether later rows are joined with what is still there, or dropped.",
    )
    time: dict[str, str] = Field(
        default_factory=dict,
        description="The time column of each input, under its internal name; all need one when there is a window.",
    )
    optional: InputNames = Field(
        (),
        description="Inputs that may be absent: combinations of the others are results without a row of them, once it "
        "is certain that there is none.",
    )
    slices: int = Field(
        8,
        ge=1,
        le=65_536,
        description="Into how many slices a buffer is cut by the drivers that interleave (timestamp, round_robin).",
    )
    max_results: int = Field(
        1_000_000_000,
        ge=1,
        le=1 << 53,
        description="Most results that one batch of one partition may give; more is an error before they are built.",
    )

    memory: Size | None = Field(
        None,
        gt=0,
        description="Budget for rows in memory, shared by the partitions; none: unlimited.",
    )
    idle_pages: int = Field(
        256,
        ge=0,
        description="Pages that a batch without rows may read and write; the bucket that uses the last is finished.",
    )
    page_rows: int = Field(
        PAGE_ROWS,
        ge=1,
        description="Rows in a page, the unit in which spilled rows are written and read.",
    )
    buckets: int = Field(
        64,
        ge=1,
        le=4096,
        description="Into how many buckets the keys of a partition are divided: what is flushed and merged together.",
    )
    hot_keys: HotKeys = Field(
        "off",
        description="Whether keys with a large part of the work are spread over partitions.",
    )

    def effective(self) -> dict[str, Any]:
        """Late rows are about windows, only some drivers cut their buffers into slices, and without a budget nothing is
        flushed. With a window nothing is left for idle batches. Buckets count even so: a budget may still come."""
        unused = set() if self.window is not None else {"lateness", "late"}
        if self.driver not in ("timestamp", "round_robin"):
            unused.add("slices")
        if self.memory is None:
            unused |= {"idle_pages", "page_rows"}
        if self.window is not None:
            unused.add("idle_pages")
        return {name: value for name, value in super().effective().items() if name not in unused}

    @model_validator(mode="after")
    def _window_needs_times(self) -> Self:
        if self.window is not None and not self.time:
            raise ValueError("a window needs a time column for every input: give time=")
        return self

    @model_validator(mode="after")
    def _optional_differ(self) -> Self:
        if len(set(self.optional)) < len(self.optional):
            raise ValueError("optional names an input twice")
        if self.optional and self.window is not None and self.memory is not None:
            raise ValueError(
                "optional inputs, a window and memory do not go together: rows that a window has passed are looked for "
                "by their time, and rows on disk are found by their key only; leave one of the three out"
            )
        return self

    def check_plan(self, who: str, plan: JoinPlan) -> None:
        """Optional inputs are some of the inputs. Each partition's share of the memory must hold at least a page of the
        widest input."""
        required_inputs(who, self.optional, [spec.name for spec in plan.inputs])
        if self.memory is not None:
            check_memory(who, self.memory, self.page_rows, plan)


def required_inputs(who: str, optional: Sequence[str], names: Sequence[str]) -> list[str]:
    """The inputs that are not optional; an `OptionError` if there is none, or if an optional one is no input."""
    unknown = [name for name in optional if name not in names]
    required = [name for name in names if name not in optional]
    if not unknown and required:
        return required
    raise OptionError(
        who,
        expected=f"optional to name some of the inputs {', '.join(names)}, and not all of them",
        found=f"optional={list(optional)!r}",
        hint=_meant(unknown[0], names) if unknown else "Leave one out: a result has a row of at least one input.",
        option="optional",
    )


def _meant(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"There is no input {name!r}: correct it or leave it out."
