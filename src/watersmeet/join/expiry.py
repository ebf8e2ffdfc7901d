"""Rows that time has made useless: stored ones before the horizon, and new ones that come behind it."""

from __future__ import annotations

import numpy as np

from watersmeet.columns.saturating import Times
from watersmeet.state.parts import Before, Departed
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon, Mask


def expire(store: RowStore, horizon: int | None, new: Times, bound: int | None) -> tuple[Mask, list[Departed]]:
    """Move a store's horizon; returns which of the new rows are not behind it, and the runs that left.

    `bound` is the time before which the input's rows counted as late when they came: those leave as late, the others
    that are behind the horizon as expired, because the other inputs are ahead of them.
    """
    assert isinstance(store.rule, Horizon)
    gone = [] if horizon is None else store.remove(Before(horizon), "expired")
    if store.rule.time is None:
        return np.ones(len(new), np.bool_), gone
    behind = new < store.rule.time
    late = 0 if bound is None else int(np.count_nonzero(behind & (new < bound)))
    store.accounts.leave(store.input, "late", late)
    store.accounts.leave(store.input, "expired", int(np.count_nonzero(behind)) - late)
    return ~behind, gone
