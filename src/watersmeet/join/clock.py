"""Time: what is late, and when a stored row can match nothing any more.

A left row l and a right row r belong together iff  -wait_right <= r - l <= wait_left.  So a stored left row waits for
right rows with times up to l + wait_left, and is expired once every right row to come is later than that. What is to
come is bounded by what has come: no row is expected more than `lateness` behind its input's newest time.
A wait may be negative: the partners of a right row that waits for -5 min are left rows at least that much older.

    right input     ... newest ------------------ lateness ---|
                                                              bound: right rows to come are at or after it
    left rows       expired <--------- horizon = bound - wait_left ---------> needed

The bound of one input alone decides about the other's rows; a slow input never holds its own rows back. With many
inputs a row waits for the slowest of the others.

A clock is that of a partition. Where partitions vote on rows that several of them have, all must let these go in the
same batch: there they go by the newest times of all of them, as they were some batches ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from watersmeet.columns.saturating import EARLIEST, LATEST, Times, saturated

Late = Literal["join", "drop"]  # what happens to rows behind their input's bound


@dataclass
class Clock:
    """The newest time of each input, and what follows from it. `waits` is how long each input's rows wait."""

    waits: Mapping[str, int]
    lateness: int
    newest: dict[str, int] = field(default_factory=dict)
    shared: Mapping[str, int] | None = None  # the newest times in any partition, where all go by these

    def time(self, name: str) -> int | None:
        """The newest time of an input that counts; None if there is none yet."""
        return (self.newest if self.shared is None else self.shared).get(name)

    def see(self, name: str, time: int) -> None:
        """A time has come on an input."""
        self.newest[name] = max(time, self.newest.get(name, time))

    def see_all(self, name: str, times: Times) -> None:
        """Rows with these times have come on an input."""
        if len(times):
            self.see(name, int(times.max()))

    def inherit(self, former: Sequence[Clock]) -> None:
        """Go on from the clocks of several partitions: what is late in one of them may be on time in another, so the
        earliest of their times counts, and none where one of them has seen none."""
        for name in self.waits:
            times = [clock.newest[name] for clock in former if name in clock.newest]
            if len(times) == len(former):
                self.newest[name] = min(times)

    def catch_up(self, former: Sequence[Clock]) -> None:
        """Go on from the clocks of several partitions with the newest of their times: what is late in one of them is
        late from now on."""
        for clock in former:
            for name, time in clock.newest.items():
                self.see(name, time)

    def bound(self, name: str) -> int | None:
        """The earliest time at which a row of an input is still expected; None if any may come."""
        time = self.time(name)
        return None if time is None else saturated(time - self.lateness)

    def horizon(self, name: str, others: list[str]) -> int | None:
        """The earliest time at which a row of `name` can still be of use, given the bounds of inputs that go on; None
        if any may be. It can be one after the latest time there is: then no row is of use."""
        bounds = [bound for other in others if (bound := self.bound(other)) is not None]
        if not bounds or len(bounds) < len(others):
            return None
        return min(max(min(bounds) - self.waits[name], EARLIEST), LATEST + 1)
