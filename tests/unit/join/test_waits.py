"""What rows of a window wait for: the time at which all others have passed it, or nothing once they have."""

from __future__ import annotations

import numpy as np

from watersmeet.engine.registry import build
from watersmeet.join.operator import advance
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of, make_plan


def test_a_row_at_the_horizon_still_waits() -> None:
    plan = make_plan("window", options={"window": [10, 10], "lateness": 0, "time_columns": ["_p0", "_p0"]})
    operator = build(plan, MemorySpace())
    script = [Arrival({"left": [(1, time, "") for time in range(4, 24)], "right": [(2, 0, "")]}, time=0)]
    script += [Arrival({"right": [(2, 15, "")]}, time=1)]
    for number, arrival in enumerate(script):
        for _ in advance(operator, batch_of(plan, number, arrival)):
            pass
    (store,) = (one for one in operator.row_stores() if one.input == "left")
    found = {}
    for part in store.parts():
        for rows, waits in operator.waits(part, np.arange(part.table.num_rows)):
            found |= {int(part.times[row]): waits.what for row in rows}
            if waits.until is not None:
                assert (waits.until - part.times[rows]).tolist() == [10] * len(rows)
                assert (waits.inputs, waits.now) == (("right",), 15)
    assert found == {4: "sweep", **dict.fromkeys(range(5, 24), "time")}
