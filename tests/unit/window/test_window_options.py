"""The limits of the options of a window join and of the costs it is told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from watersmeet.errors import OptionError
from watersmeet.window.batch_costs import KernelCosts
from watersmeet.window.options import WindowOptions

MOST = 10_000 * 365 * 86_400 * 1_000_000  # 10,000 years


@pytest.mark.parametrize("name", ["window", "lateness"])
def test_times_reach_from_nothing_to_ten_thousand_years(name: str) -> None:
    for value, is_allowed in ((0, True), (MOST, True), (-1, False), (MOST + 1, False)):
        given: dict[str, Any] = {"window": "1 s", "time": "t", name: timedelta(microseconds=value)}
        if is_allowed:
            found = getattr(WindowOptions.checked("window_join", **given), name)
            assert found == ((value, value) if name == "window" else value)
        else:
            with pytest.raises(OptionError, match="10,000 years"):
                WindowOptions.checked("window_join", **given)


def test_rows_may_come_ten_seconds_late_unless_told_otherwise() -> None:
    assert WindowOptions.checked("window_join", window="1 s", time="t").lateness == 10_000_000


@pytest.mark.parametrize("name", list(KernelCosts.model_fields))
def test_a_cost_may_be_nothing_and_not_less(name: str) -> None:
    assert getattr(KernelCosts(**{name: 0.0}), name) == 0.0
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        KernelCosts(**{name: -1e-9})
