"""Options of the multi-way join."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from watersmeet.plan.options import MAX_DURATION, Duration, Options

MIN_INPUTS, MAX_INPUTS = 2, 16

DriverName = Literal["timestamp", "round_robin", "consumption_rate", "output_size", "output_rate"]


class MultiwayOptions(Options):
    """What a multi-way join can be told.

    >>> MultiwayOptions(window="10 min", time={"a": "_p0", "b": "_p1"}).window
    600000000
    """

    TUNING: ClassVar[frozenset[str]] = frozenset({"driver", "slices", "max_results"})
    INTERNAL: ClassVar[frozenset[str]] = frozenset({"time"})

    driver: DriverName = Field(
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
        description="How far behind its input's newest time a row may come and still meet all its partners.",
    )
    time: dict[str, str] = Field(
        default_factory=dict,
        description="The time column of each input, under its internal name; all need one when there is a window.",
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

    def effective(self) -> dict[str, Any]:
        """Lateness is about windows, and only some drivers cut their buffers into slices."""
        unused = set() if self.window is not None else {"lateness"}
        if self.driver not in ("timestamp", "round_robin"):
            unused.add("slices")
        return {name: value for name, value in super().effective().items() if name not in unused}

    @model_validator(mode="after")
    def _window_needs_times(self) -> Self:
        if self.window is not None and not self.time:
            raise ValueError("a window needs a time column for every input: give time=")
        return self
