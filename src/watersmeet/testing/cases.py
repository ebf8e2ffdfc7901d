"""What the conformance suite runs: operators with options, each with the oracle of its answer.

A new operator gets every check of the suite by adding a module to `tests/conformance/cases/` whose `CASES` lists it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from watersmeet.plan import JoinPlan
from watersmeet.testing.arrivals import Row, Script, make_plan, random_script
from watersmeet.testing.keys import INTEGERS, Keys
from watersmeet.testing.oracle import inner_join


@dataclass(frozen=True)
class Case:
    """An operator to check.

    `plan` may be replaced where the default one (see `make_plan`) does not fit; `script` makes a seeded arrival
    script and takes the keyword arguments of `random_script`; `oracle` gives the multiset of rows owed over a script.
    Both speak of whole numbers as keys; `keys` says what the operator sees in their place (see `testing.keys`). An
    oracle that takes from the operator what was dropped is an `account`: it gets the operator's script and plan, too.
    `by_batch` gives the rows owed in each batch: for joins whose rows must come at the earliest moment.
    A `variation` of another case gets one test of the answer, the accounts and restarts in place of every check.
    `make_colliding_plan` is for joins with a table of their own, which must share its hashes when all hashes collide.
    """

    name: str
    operator: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("left", "right")
    oracle: Callable[[Script], Counter[Row]] | None = None
    account: Callable[[Script, Script, JoinPlan], Counter[Row]] | None = None
    by_batch: Callable[[Script], list[Counter[Row]]] | None = None
    how: str = "inner"
    condition: Mapping[str, Any] | None = None
    script: Callable[..., Script] = random_script
    make_plan: Callable[..., JoinPlan] = make_plan
    make_colliding_plan: Callable[..., JoinPlan] | None = None
    keys: Keys = INTEGERS
    variation: bool = False

    def with_keys(self, keys: Keys) -> Case:
        """The same case with keys of another type."""
        return replace(self, keys=keys)

    def plan(self) -> JoinPlan:
        """The plan of this case."""
        return self._plan(self.make_plan)

    def colliding_plan(self) -> JoinPlan:
        """The plan for a run in which every key has the same hash."""
        return self._plan(self.make_colliding_plan or self.make_plan)

    def _plan(self, make: Callable[..., JoinPlan]) -> JoinPlan:
        how = {} if self.how == "inner" else {"how": self.how}
        made = make(self.operator, self.inputs, self.options, tuning=self.tuning, keys=self.keys.kinds, **how)
        return made if self.condition is None else replace(made, condition=dict(self.condition))

    def random_script(self, seed: int, **shape: Any) -> Script:
        """A seeded script for this case's inputs."""
        return self.keys.script(self.script(seed, inputs=self.inputs, **shape))

    def expected(self, script: Script) -> Counter[Row]:
        """All rows owed over a script."""
        plain = self.keys.plain(script)
        if self.account:
            return self.keys.answer(self.account(plain, script, self.plan()))
        if self.by_batch:
            return sum(self.expected_by_batch(script), Counter())
        return self.keys.answer(self.oracle(plain) if self.oracle else inner_join(plain, self.inputs))

    def expected_by_batch(self, script: Script) -> list[Counter[Row]]:
        """The rows owed in each batch."""
        assert self.by_batch is not None
        return [self.keys.answer(rows) for rows in self.by_batch(self.keys.plain(script))]

    def __str__(self) -> str:
        return self.name
