"""A Python worker, an executor and the driver of a running pipeline are killed, while a full join marks rows, spills
them and emits unmatched ones; `make soak` kills 25 in every family, in an inner and in an outer join."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.kills.harness import VICTIMS, Kills


@pytest.mark.spark
@pytest.mark.long
def test_three_kills_leave_the_answer_of_a_quiet_run(tmp_path: Path) -> None:
    run = Kills("progressive", tmp_path, seed=0, wanted=3, how="full")
    run.run(patience=500.0)
    assert Counter(run.done) == Counter(VICTIMS)
    alone = [row for row in run.expected() if None in row]
    assert len({row[0] is None for row in alone}) == 2  # with and without a key
