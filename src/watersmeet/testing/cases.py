"""What the conformance suite runs: operators with options, each with the oracle of its answer.

A new operator gets every check of the suite by adding a module to `tests/conformance/cases/` whose `CASES` lists it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watersmeet.plan import JoinPlan
from watersmeet.testing.arrivals import Row, Script, make_plan, random_script
from watersmeet.testing.oracle import inner_join


@dataclass(frozen=True)
class Case:
    """An operator to check.

    `plan` may be replaced where the default one (see `make_plan`) does not fit; `script` makes a seeded arrival
    script and takes the keyword arguments of `random_script`; `oracle` gives the multiset of rows owed over a script.
    `make_colliding_plan` is for joins with a table of their own, which must share its hashes when all hashes collide.
    """

    name: str
    operator: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("left", "right")
    oracle: Callable[[Script], Counter[Row]] | None = None
    script: Callable[..., Script] = random_script
    make_plan: Callable[..., JoinPlan] = make_plan
    make_colliding_plan: Callable[..., JoinPlan] | None = None

    def plan(self) -> JoinPlan:
        """The plan of this case."""
        return self.make_plan(self.operator, self.inputs, self.options, tuning=self.tuning)

    def colliding_plan(self) -> JoinPlan:
        """The plan for a run in which every key has the same hash."""
        make = self.make_colliding_plan or self.make_plan
        return make(self.operator, self.inputs, self.options, tuning=self.tuning)

    def random_script(self, seed: int, **shape: Any) -> Script:
        """A seeded script for this case's inputs."""
        return self.script(seed, inputs=self.inputs, **shape)

    def expected(self, script: Script) -> Counter[Row]:
        """All rows owed over a script."""
        return self.oracle(script) if self.oracle else inner_join(script, self.inputs)

    def __str__(self) -> str:
        return self.name
