"""In which order a driver's rows visit the other inputs.

The most selective input comes first, so that the fewest keys go on to the next one. Two estimates rank an input l for a
driver d: the share of d's rows that find a match at all (it decides how many keys go on), then the expected number of
matches per row, sigma_dl * |ht_l| (it decides how many combinations they carry).
"""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.estimate.selectivity import Selectivities


def probe_order(driver: int, sizes: Sequence[int], estimates: Selectivities) -> list[int]:
    """The inputs other than the driver, most selective first; ties go to the lower number.

    >>> estimates = Selectivities(3)
    >>> estimates.observe_pair(0, 2, rows=100, stored=10, hits=1, matches=1)
    >>> probe_order(0, [5, 10, 10], estimates)
    [2, 1]
    """

    def rank(driven: int) -> tuple[float, float, int]:
        expected = estimates.pair(driver, driven) * sizes[driven]
        return estimates.hit_share(driver, driven), expected, driven

    return sorted((index for index in range(len(sizes)) if index != driver), key=rank)
