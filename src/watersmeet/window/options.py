"""The options of a window join, validated in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from watersmeet.join.clock import Late
from watersmeet.join.flush_policies import Flush
from watersmeet.join.victims import Policy, check_flush
from watersmeet.plan.options import MAX_DURATION, WRITTEN, Duration, HotKeys, Options, Size, written_duration
from watersmeet.window.batch_costs import KernelCosts
from watersmeet.window.interval import Between, Waits, interval, reach_of

Algorithm = Literal["auto", "HH", "HN", "NH", "NN"]
Overload = Literal["keep", "shed", "shrink"]
Shedding = Literal["equal", "rate", "inverse_rate", "window", "inverse_window", "left", "right"]
MemorySplit = Literal["optimal", "left", "right", "rate", "inverse_rate", "equal"]


class WindowOptions(Options):
    """Options of `window_join`.

    >>> options = WindowOptions(window="60 s", lateness="10 s")
    >>> options.window, options.lateness
    ((60000000, 60000000), 10000000)
    """

    TUNING: ClassVar[frozenset[str]] = frozenset(
        {
            "algorithm",
            "service_rate",
            "memory",
            "policy",
            "flush",
            "on_overload",
            "idle_timeout",
            "late",
            "shedding",
            "memory_split",
            "costs",
            "cores",
        }
    )
    INTERNAL: ClassVar[frozenset[str]] = frozenset({"time_columns", "shedding", "memory_split", "costs", "cores"})

    window: tuple[Duration | None, Duration | None]
    """How long rows of the left and of the right input are joined with rows that come after them; or
    `{between: [5 min, 10 min]}`, the interval of right time less left time (`null` for an open end)."""
    time: tuple[str, str] | None = None
    """The time columns of both inputs; None for the arrival clock."""
    time_columns: tuple[str, str] | None = None
    """The time columns under their internal names; filled in when the columns are resolved."""
    lateness: Duration = 10 * 10**6
    """How far behind its input's newest time a row may come and still find everything."""
    late: Late = "join"
    """Whether later rows are joined with what is still there, or dropped."""
    algorithm: Algorithm = "auto"
    """The structure of the left, then of the right window: H for hash, N for nested loops."""
    on_overload: Overload = "keep"
    """What gives way when rows come too fast or do not fit: nothing, rows, or the windows."""
    service_rate: float | None = Field(default=None, gt=0)
    """Rows per second that the whole join can take; None to estimate it from earlier batches."""
    memory: Size | None = Field(default=None, gt=0)
    """Bytes for the rows held in memory, all partitions together."""
    policy: Literal["soonest"] | Policy = "soonest"
    """Which rows leave memory first: those that expire soonest, or as in a progressive join of this policy."""
    flush: Flush | None = None
    """The policy's way to choose them, if it is not its own."""
    idle_timeout: Duration | None = Field(default=None, gt=0)
    """How long an input may be silent before it holds the other one back no more; None: for ever."""
    shedding: Shedding = "equal"
    """How the service rate is divided between the inputs when rows are shed; the experiments compare the others."""
    memory_split: MemorySplit = "optimal"
    """How the memory is divided between the windows when they shrink; the experiments compare the others."""
    costs: KernelCosts | None = None
    """Calibrated costs of this machine; None for those of the reference machine."""
    cores: int | None = Field(default=None, gt=0)
    """How many partitions are computed at once; None for all. Of use when the service rate is estimated."""
    hot_keys: HotKeys = "off"
    """Whether keys with a large part of the work are spread over partitions."""

    @field_validator("window", mode="before")
    @classmethod
    def _both_windows(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Mapping) and list(value) == ["between"]:
            value = interval(value["between"])
        if isinstance(value, Between):
            return tuple(None if wait is None else timedelta(microseconds=wait) for wait in value.waits)
        if isinstance(value, str | int | float | timedelta):
            written_duration(value, info)  # what is wrong with one length is wrong with both, not with the first
            value = (value, value)
        if info.context == WRITTEN and isinstance(value, Sequence):
            for side, length in zip(("left", "right"), value, strict=False):
                if length is None or (isinstance(length, timedelta) and length < timedelta(0)):
                    raise ValueError(f"the {side} window must be between 0 and 10,000 years; wm.between takes any")
        return value

    @field_validator("time", mode="before")
    @classmethod
    def _both_times(cls, value: Any) -> Any:
        both = (value, value) if isinstance(value, str) else value
        if value is not None and not (
            isinstance(both, tuple | list) and len(both) == 2 and all(isinstance(name, str) for name in both)
        ):
            raise ValueError("a time column for each of the two inputs, such as ('ordered_at', 'paid_at')")
        return both

    @field_validator("window")
    @classmethod
    def _windows_in_range(cls, value: Waits) -> Waits:
        for side, length in zip(("left", "right"), value, strict=True):
            if length is not None and not -MAX_DURATION <= length <= MAX_DURATION:
                raise ValueError(f"the {side} window must be between 0 and 10,000 years")
        if sum(reach_of(value)) < 0:
            raise ValueError("the interval ends before it begins")
        return value

    @field_validator("lateness")
    @classmethod
    def _lateness_in_range(cls, value: int) -> int:
        if not 0 <= value <= MAX_DURATION:
            raise ValueError("lateness must be between 0 and 10,000 years")
        return value

    def effective(self) -> dict[str, Any]:
        """What is to give way matters only under an overload that is not kept, and lateness only for event times."""
        unused = set()
        if self.on_overload == "keep":
            unused |= {"shedding", "cores"}
        if self.on_overload != "shrink":
            unused.add("memory_split")
        if self.time is None:
            unused |= {"lateness", "late"}
        if self.memory is None or self.on_overload == "shrink":
            unused |= {"policy", "flush"}
        return {name: value for name, value in super().effective().items() if name not in unused}

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.on_overload == "shrink" and self.memory is None:
            raise ValueError("on_overload='shrink' needs memory=..., the size the windows must shrink to")
        check_flush(self.policy, self.flush, self.memory)
        if self.policy != "soonest" and self.on_overload == "shrink":
            raise ValueError("policy has no effect with on_overload='shrink': no row goes to disk")
        if self.policy != "soonest" and self.algorithm not in ("auto", "HH"):
            raise ValueError("policy needs algorithm='auto' or 'HH': it flushes by ranges of the key's hash")
        if self.service_rate is not None and self.on_overload == "keep":
            raise ValueError("service_rate has an effect only with on_overload='shed' or 'shrink'")
        if None in self.window and self.on_overload != "keep":
            raise ValueError("on_overload='shed' and 'shrink' need an interval with two ends: they weigh its length")
        return self
