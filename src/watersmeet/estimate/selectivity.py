"""Selectivities of a multi-way join, estimated from what its probes find.

Symbols as in Valsomatzis and Gounaris, Table 1, for inputs numbered 0..n-1:

    sigma_jl       matches of j with l over the size of their cross product
    sigma_MJoin    results over the product of the sizes of all inputs
    sigma_Sj       results over the rows of input j

Every step in which a slice of `rows` rows probes tables of sizes |ht_l| adds `rows * prod |ht_l|` to the cross product
and its results to the results. Over a whole run these steps tile the product of all inputs exactly once, so without
ageing the ratio *is* sigma_MJoin. Ageing (once per batch) lets the estimates follow data that changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

# What a batch's observations still weigh one batch later: half after about seven batches.
DECAY = 0.9


class Selectivities:
    """Running estimates for `inputs` inputs.

    >>> estimates = Selectivities(3)
    >>> estimates.observe_pair(0, 1, rows=100, stored=1000, hits=20, matches=50)
    >>> float(estimates.pair(0, 1)), float(estimates.hit_share(0, 1)), float(estimates.hit_share(0, 2))
    (0.0005, 0.2, 1.0)
    """

    def __init__(self, inputs: int) -> None:
        self.matches: Numbers = np.zeros((inputs, inputs))
        self.crossed: Numbers = np.zeros((inputs, inputs))
        self.probing: Numbers = np.zeros((inputs, inputs))  # driver rows that looked for a match ...
        self.hitting: Numbers = np.zeros((inputs, inputs))  # ... and those that found one
        self.seen: Numbers = np.zeros(inputs)
        self.results = 0.0
        self.product = 0.0

    def age(self) -> None:
        """A new batch begins: what was seen so far counts a little less."""
        for numbers in (self.matches, self.crossed, self.probing, self.hitting, self.seen):
            numbers *= DECAY
        self.results *= DECAY
        self.product *= DECAY

    def observe_arrivals(self, index: int, rows: int) -> None:
        """Rows of an input have arrived."""
        self.seen[index] += rows

    def observe_pair(
        self, driver: int, driven: int, *, rows: float, stored: float, hits: float, matches: float
    ) -> None:
        """`rows` driver rows, whatever else they match, were looked up among `stored` rows of another input."""
        self.matches[driver, driven] += matches
        self.crossed[driver, driven] += rows * stored
        self.probing[driver, driven] += rows
        self.hitting[driver, driven] += hits

    def observe_results(self, product: float, results: float) -> None:
        """A step that covered `product` combinations gave `results` of them."""
        self.product += product
        self.results += results

    def pair(self, j: int, other: int) -> float:
        """sigma_jl; one result more than seen would be the upper guess, so nothing seen gives 1."""
        crossed = self.crossed[j, other] + self.crossed[other, j]
        matches = self.matches[j, other] + self.matches[other, j]
        return float(matches / crossed) if crossed else 1.0

    def hit_share(self, driver: int, driven: int) -> float:
        """The share of the driver's rows that have a match at all; 1 as long as nothing is known."""
        probing = self.probing[driver, driven]
        return float(self.hitting[driver, driven] / probing) if probing else 1.0

    @property
    def of_join(self) -> float:
        """sigma_MJoin. One result is added, because an estimate of zero would make all inputs look alike."""
        return (self.results + 1) / (self.product + 1)

    def of_inputs(self) -> Numbers:
        """sigma_Sj of every input: results per row of it."""
        return np.asarray((self.results + 1) / (self.seen + 1))

    def as_dict(self) -> dict[str, Any]:
        """The JSON form kept in the state."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Selectivities:
        """The estimates that `as_dict` gave."""
        estimates = cls(len(values["seen"]))
        for name, value in values.items():
            setattr(estimates, name, np.array(value, np.float64) if isinstance(value, list) else value)
        return estimates
