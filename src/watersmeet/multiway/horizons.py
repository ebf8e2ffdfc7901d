"""How far a window has moved: which rows are still of use, and what lacks an optional input for certain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from watersmeet.columns.saturating import saturated
from watersmeet.join.clock import Clock


class Horizons:
    """What follows from the inputs' clocks."""

    def __init__(self, clock: Clock, window: int, optional: Collection[str]) -> None:
        self.clock, self.window, self.optional = clock, window, optional

    def of(self, name: str, others: Sequence[str]) -> int | None:
        """The earliest time at which a row of an input can be of use to the inputs that go on; None if any may be.

        A row of an optional input keeps what it fits from being reported without it. That reaches up to a window after
        the row, and gets rows of optional inputs, or is known to lack them, up to two windows after it.
        """
        horizon = self.clock.horizon(name, list(others))
        if horizon is None or name not in self.optional:
            return horizon
        behind = self.clock.horizon(name, [other for other in others if other in self.optional])
        return horizon if behind is None else min(horizon, saturated(behind - self.window))

    def passed(self, name: str, *, has_ended: bool) -> float:
        """The time before which a combination without a row of an optional input lacks it for certain."""
        bound = self.clock.bound(name)
        return inf if has_ended else -inf if bound is None else saturated(bound - self.window)
