"""Unmatched rows of a run that the horizon is inside of: taken from its departures, in the order of their times."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.conformance.cases import CASES

from watersmeet.join import expiry
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import TimeSlices
from watersmeet.state.parts import Before
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace
from watersmeet.testing import run_in_memory
from watersmeet.testing.cases import Case

OUTER = {
    case.how: case
    for case in reversed(CASES)
    if case.operator == "window" and case.by_batch and case.how in ("left", "right", "full", "left_anti")
}


@pytest.mark.parametrize("case", OUTER.values(), ids=str)
def test_each_row_leaves_in_the_batch_in_which_the_horizon_passes_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_down, departures = [], expiry._departures
    monkeypatch.setattr(expiry, "SCANNED_ROWS", 0)
    monkeypatch.setattr(expiry, "_departures", lambda *given: put_down.append(1) or departures(*given))  # type: ignore[func-returns-value]
    for seed in range(4):
        script = case.random_script(seed, batch_rows=20, batches=16, end=False)
        assert run_in_memory(case.plan(), script).per_batch == case.expected_by_batch(script)
    assert put_down


@pytest.mark.parametrize("scanned", [0, expiry.SCANNED_ROWS])
def test_rows_of_some_keys_are_found_as_the_horizon_passes_them(scanned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of keys that have not been asked for when it entered their run."""
    monkeypatch.setattr(expiry, "SCANNED_ROWS", scanned)
    rows = pa.table({"_hash": pa.array([1, 1, 1, 2, 2, 3], pa.uint64()), "_p0": [4, 1, 7, 6, 2, 5]})
    store = RowStore(
        "left", rows.schema, TimeSlices(span=1000, share=8), MemorySpace(), Accounts(Metrics()), time="_p0",
        rule=Horizon("_p0"),
    )  # fmt: skip
    store.add(rows, 0)

    def found(keys: list[int], before: int | None, horizon: int) -> list[int]:
        times = [
            int(time)
            for part, which in expiry.expiring(store, np.array(keys, np.uint64), before, horizon)
            for time in part.times[which]
        ]
        store.remove(Before(horizon), "expired")
        return sorted(times)

    assert found([1], None, 3) == [1]
    assert found([1, 2], 3, 6) == [4]
    assert found([1, 2], 6, 7) == [6]
    assert found([3], 7, 8) == []
    assert not store.held
