"""What a stored row waits for: the answer to "why is this row still here?"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from watersmeet.columns.arrow import Indices
from watersmeet.columns.saturating import Times, shifted
from watersmeet.join.clock import Clock
from watersmeet.state.parts import Part
from watersmeet.state.rules import Horizon

# end       inputs go on: their rows may match until they end
# time      the same, until their times have passed the row's own, its wait and the lateness
# promise   until its key is promised away on the other input, or that ends
# partner   for the only row that can match it
# turn      to be joined at all: it came in a batch that was larger than the quota
# table     until its part of the master table is read
# sweep     for nothing: it has no future, and is gone when its run is rewritten or its key is purged
Reason = Literal["end", "time", "promise", "partner", "turn", "table", "sweep"]


@dataclass(frozen=True, eq=False)
class Waits:
    """What some rows wait for, and on which inputs. `until` is by row, `now` how far the slowest of the inputs is."""

    what: Reason
    inputs: tuple[str, ...] = ()
    until: Times | None = None
    now: int | None = None
    version: int | None = None  # of the master table


WaitingRows = Iterator[tuple[Indices, Waits]]  # rows of a part, and what they wait for


def waits_for_times(part: Part, rows: Indices, clock: Clock, others: tuple[str, ...], longer: int = 0) -> WaitingRows:
    """Rows of a window wait until all other inputs have passed a time; those behind the horizon for nothing."""
    rule, name = part.store.rule, part.store.input
    times = part.times[rows]
    over = times < rule.time if isinstance(rule, Horizon) and rule.time is not None else np.zeros(len(rows), np.bool_)
    if over.any():
        yield rows[over], Waits("sweep")
    if not over.all():
        seen = [time for other in others if (time := clock.time(other)) is not None]
        now = min(seen) if len(seen) == len(others) and seen else None
        until = shifted(shifted(times[~over], clock.waits[name] + longer), clock.lateness)
        yield rows[~over], Waits("time", others, until, now)
