"""Arrival probabilities per input and bucket (section 4.2 of the RPJ paper, equations 5 and 6).

    p_i[j]  =  P(j | R_i)  *  P(R_i)  =  total_i[j] / sum_j total_i[j]  *  recent_i / (recent_1 + recent_2)

`total` counts every row ever received. `recent` follows the speed of the networks: at the end of each time unit it
becomes  lambda * recent + (1 - lambda) * (rows of that unit); the first unit starts it. The clock is the batches' own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Probabilities = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class ArrivalRates:
    """Totals per bucket and recent arrivals of several inputs.

    >>> rates = ArrivalRates(inputs=2, buckets=2, decay=0.5, unit=1)
    >>> rates.observe(np.array([[35, 25], [10, 30]]), time=0)
    >>> rates.probabilities().round(2).tolist()
    [[0.35, 0.25], [0.1, 0.3]]
    >>> rates.probabilities(ended={1}).tolist()[1]
    [0.0, 0.0]
    """

    def __init__(self, inputs: int, buckets: int, *, decay: float, unit: int) -> None:
        self.decay = decay
        self.unit = unit
        self.total: Counts = np.zeros((inputs, buckets), np.int64)
        self.current: Counts = np.zeros(inputs, np.int64)  # alpha_i of the running time unit
        self.recent: Probabilities = np.zeros(inputs)
        self.speed: Probabilities = np.full(inputs, 1 / inputs)  # P(R_i) as last known
        self.started: int | None = None  # the running time unit
        self.units = 0  # completed units

    def observe(self, counts: Counts, time: int) -> None:
        """Rows per input and bucket arrived in a batch at `time`."""
        self._advance_to(time // self.unit)
        self.total += counts
        self.current += counts.sum(axis=1)
        if not self.units:  # nothing better is known during the first unit
            self._measure(self.current)

    def _advance_to(self, unit: int) -> None:
        if self.started is None:
            self.started = unit
        passed = unit - self.started
        if passed <= 0:  # a clock that stands still or goes back adds to the running unit
            return
        if self.units:
            self.recent = self.decay * self.recent + (1 - self.decay) * self.current
        else:
            self.recent = self.current.astype(np.float64)
        self._measure(self.recent)
        # The units in between were empty: they decay both inputs alike.
        self.recent = self.recent * self.decay ** (passed - 1)
        self.current = np.zeros_like(self.current)
        self.started, self.units = unit, self.units + passed

    def _measure(self, recent: npt.NDArray[Any]) -> None:
        if (whole := recent.sum()) > 0:
            self.speed = recent / whole

    def probabilities(self, ended: Collection[int] = ()) -> Probabilities:
        """p_i[j] of equation 6; 0 for inputs that have ended."""
        sums = self.total.sum(axis=1, keepdims=True)
        shares = np.divide(self.total, sums, out=np.full(self.total.shape, 1 / self.total.shape[1]), where=sums > 0)
        result: Probabilities = shares * self.speed[:, None]
        result[list(ended)] = 0.0
        return result

    def inherit(self, former: Sequence[ArrivalRates]) -> None:
        """Go on from several others: what counts are shares, so that it is enough to add."""
        self.restore(former[0].save())
        for one in former[1:]:
            self.total = self.total + one.total
            self.current = self.current + one.current
            self.recent = self.recent + one.recent

    def save(self) -> dict[str, Any]:
        """The state, in JSON form."""
        return {
            "total": self.total.tolist(),
            "current": self.current.tolist(),
            "recent": self.recent.tolist(),
            "speed": self.speed.tolist(),
            "started": self.started,
            "units": self.units,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up what `save` returned."""
        self.total = np.array(saved["total"], np.int64)
        self.current = np.array(saved["current"], np.int64)
        self.recent = np.array(saved["recent"], np.float64)
        self.speed = np.array(saved["speed"], np.float64)
        self.started, self.units = saved["started"], saved["units"]
