"""Rows that time has made useless, stored ones before the horizon and new ones that come behind it; and rows that it
will soon make useless, which go to disk first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from watersmeet.columns.saturating import Times
from watersmeet.plan.metrics import Metrics
from watersmeet.state.parts import Before, Departed
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon, Mask
from watersmeet.state.run import Run


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


def spill_soonest(
    stores: Mapping[str, RowStore], memory: int, horizons: Mapping[str, int | None], metrics: Metrics
) -> None:
    """Move runs to disk until the rows in memory are within the budget: those first that expire soonest, as they will
    be probed the fewest times. Rows of an input without a horizon wait for one not yet seen, and are not probed at all.
    """

    def life(name: str, run: Run) -> int:
        horizon = horizons[name]
        return -1 if horizon is None else (run.time_to or 0) - horizon

    while sum(store.nbytes for store in stores.values()) > memory:
        name, run = min(
            ((name, run) for name, store in stores.items() for run in store.resident),
            key=lambda one: (life(*one), one[1].time_from, one[1].rows, one[0]),
        )
        metrics.count("runs_flushed")
        metrics.count("rows_flushed", run.rows)
        stores[name].spill_run(run)
        metrics.count("rows_rewritten", stores[name].settle())
