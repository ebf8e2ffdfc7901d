"""Windows over many inputs: a combination counts when its earliest and latest rows are at most `window` apart.

Every driver row is a unit of its own. The matches of each input are ordered by key and time, so that those within the
window of the driver row are one stretch of them; the combinations of these stretches are enumerated, and as two rows of
other inputs may both be near the driver row and yet far from each other, each combination is checked at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from watersmeet.columns.arrow import Indices
from watersmeet.columns.saturating import Times, shifted
from watersmeet.multiway.probe import Matches


def within_window(matches: Sequence[Matches], times: Sequence[Times], driver: int, window: int) -> list[Matches]:
    """The matches again, with every driver row as a unit and only its partners within the window.

    `times` are by row of each match's table. Driver rows without a partner in some input are left out.
    """
    drivers = matches[driver]
    groups = np.repeat(np.arange(len(drivers.counts)), drivers.counts)
    offset = np.cumsum(drivers.counts) - drivers.counts
    places = np.arange(len(groups)) + np.repeat(drivers.begins - offset, drivers.counts)
    when = times[driver][drivers.rows[places]]
    units = []
    for index, match in enumerate(matches):
        if index == driver:
            units.append(Matches(match.table, match.rows, places, np.ones(len(places), np.int64)))
        else:
            units.append(_stretches(match, times[index], groups, when, window))
    alive = np.all([unit.counts > 0 for unit in units], axis=0)
    return [Matches(unit.table, unit.rows, unit.begins[alive], unit.counts[alive]) for unit in units]


def _stretches(match: Matches, times: Times, groups: Indices, when: Times, window: int) -> Matches:
    """Per unit the rows of its group whose time is at most `window` from the unit's."""
    of_group = np.repeat(np.arange(len(match.counts)), match.counts)
    first = np.cumsum(match.counts) - match.counts
    rows = match.rows[np.arange(len(of_group)) + np.repeat(match.begins - first, match.counts)]
    at = times[rows]
    # Times become ranks, so that group and time fit into one number that can be searched for.
    ranks = np.unique(at)
    base = len(ranks) + 1
    place = of_group * base + np.searchsorted(ranks, at)
    order = np.argsort(place, kind="stable")
    place = place[order]
    low = np.searchsorted(place, groups * base + np.searchsorted(ranks, shifted(when, -window), side="left"))
    high = np.searchsorted(place, groups * base + np.searchsorted(ranks, shifted(when, window), side="right"))
    return Matches(match.table, rows[order], low, high - low)


def in_window(blocks: Iterator[list[Indices]], times: Sequence[Times], window: int) -> Iterator[list[Indices]]:
    """The combinations whose earliest and latest times are at most `window` apart."""
    for block in blocks:
        at = [of_input[rows] for of_input, rows in zip(times, block, strict=True)]
        near = np.maximum.reduce(at) <= shifted(np.minimum.reduce(at), window)
        yield block if near.all() else [rows[near] for rows in block]
