"""Time: the time of a row, what is late, and when a stored row can meet nobody any more.

A left row l and a right row r belong together iff  -window_right <= r - l <= window_left.  So a stored left row waits
for right rows with times up to l + window_left, and is expired once every right row to come is later than that. What is
to come is bounded by what has come: no row is expected more than `lateness` behind its input's newest time.

    right input     ... newest ------------------ lateness ---|
                                                              bound: right rows to come are at or after it
    left window     expired <--------- horizon = bound - window_left ---------> needed

The bound of one input alone decides about the other's window; a slow input never holds its own window back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from watersmeet.arrow import numpy_of, one_chunk
from watersmeet.saturating import LATEST, Times, saturated

TIME = "_time"
# Later than every time: the horizon of a window whose partner has ended.
NEVER = LATEST + 1


def times_of(table: pa.Table, column: str) -> Times:
    """The times of a table's rows in microseconds, without a copy."""
    values = numpy_of(one_chunk(table.column(column)).view(pa.int64()))
    return values if values.dtype == np.int64 else values.astype(np.int64)


@dataclass
class Watermarks:
    """The newest time of each input, and what follows from it."""

    windows: Mapping[str, int]
    lateness: int
    newest: dict[str, int] = field(default_factory=dict)

    def see(self, name: str, time: int) -> None:
        """A time has come on an input."""
        self.newest[name] = max(time, self.newest.get(name, time))

    def bound(self, name: str) -> int | None:
        """The earliest time at which a row of an input is still expected; None if any may come."""
        return saturated(self.newest[name] - self.lateness) if name in self.newest else None

    def horizon(self, name: str, other: str) -> int | None:
        """The earliest time that a stored row of `name` can still be of use at, given the other input's bound."""
        bound = self.bound(other)
        return None if bound is None else saturated(bound - self.windows[name])
