"""Options of the metadata-aware join."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, StrictStr, model_validator

from watersmeet.join.flush_policies import Flush
from watersmeet.join.victims import Policy, check_flush
from watersmeet.plan.options import HotKeys, Options, Size
from watersmeet.punctuated.promises.constraints import Clustered, OneToMany, Ordered, one_sides

# What a goal stands for: the paper's rules 1 and 2, and value-oriented scheduling for the earliest propagation.
GOALS: dict[str, dict[str, Any]] = {
    "throughput": {"purge": "batch", "scheduling": "priority"},
    "memory": {"purge": "immediate", "scheduling": "sequential"},
    "punctuations": {"purge": "immediate", "scheduling": "value"},
}
DEFAULT_QUOTA = 100_000


class PunctuatedOptions(Options):
    """See the reference of `punctuated_join` for what each option does."""

    TUNING: ClassVar[frozenset[str]] = frozenset(
        {
            "purge",
            "purge_after",
            "scheduling",
            "quota",
            "goal",
            "on_violation",
            "memory",
            "policy",
            "flush",
            "idle_pages",
        }
    )

    constraints: tuple[Annotated[OneToMany | Clustered | Ordered, Field(discriminator="kind")], ...] = ()
    purge: Literal["immediate", "batch"] = "immediate"
    purge_after: PositiveInt = 100
    scheduling: Literal["sequential", "priority", "value", "priority_value"] = "sequential"
    quota: PositiveInt | None = None
    goal: Literal["throughput", "memory", "punctuations"] | None = None
    memory: Annotated[Size, Field(gt=0)] | None = None
    policy: Literal["largest"] | Policy = "largest"
    flush: Flush | None = None
    buckets: Annotated[int, Field(ge=1, le=65536)] = 64
    idle_pages: PositiveInt = 64
    on_violation: Literal["raise", "drop", "keep"] = "raise"
    propagate: Annotated[StrictStr, Field(min_length=1)] | None = None
    hot_keys: HotKeys = Field(
        "off", description="Whether keys with a large part of the work are spread over partitions."
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_goal(cls, values: Any) -> Any:
        """A goal sets purge and scheduling; saying both is a contradiction unless they agree."""
        goal = values.get("goal") if isinstance(values, dict) else None
        if not isinstance(goal, str) or goal not in GOALS:
            return values
        for name, meant in GOALS[goal].items():
            if values.get(name, meant) != meant:
                raise ValueError(f"goal {goal!r} means {name}={meant!r}, but {name}={values[name]!r} was given")
        return {**values, **GOALS[goal]}

    @model_validator(mode="after")
    def _consistent(self) -> PunctuatedOptions:
        # For throughput nothing is held back that is not asked for: without a quota there is nothing to schedule.
        if self.scheduling != "sequential" and self.quota is None and self.goal != "throughput":
            object.__setattr__(self, "quota", DEFAULT_QUOTA)
        check_flush(self.policy, self.flush, self.memory)
        for kind in (Clustered, Ordered):
            inputs = [c.input for c in self.constraints if isinstance(c, kind)]
            if len(inputs) != len(set(inputs)):
                raise ValueError(f"{kind.__name__} is given twice for one input")
        return self

    def effective(self) -> dict[str, Any]:
        """A purge that does not wait has no interval, and without a budget nothing is spilled. Buckets count even so:
        they are fixed for the state, and a budget may come and go."""
        unused = set() if self.purge == "batch" else {"purge_after"}
        if self.memory is None:
            unused |= {"idle_pages", "policy", "flush"}
        return {name: value for name, value in super().effective().items() if name not in unused}

    @property
    def clustered(self) -> frozenset[str]:
        """The inputs whose rows with equal keys come one after the other."""
        return frozenset(each.input for each in self.constraints if isinstance(each, Clustered))

    @property
    def one_sides(self) -> frozenset[str]:
        """The inputs on which a key occurs at most once."""
        return one_sides(self.constraints)
