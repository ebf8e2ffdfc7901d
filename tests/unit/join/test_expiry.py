"""Unmatched rows of a run that the horizon is inside of: taken from its departures, in the order of their times."""

from __future__ import annotations

import pytest
from tests.conformance.cases import CASES

from watersmeet.join import expiry
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
