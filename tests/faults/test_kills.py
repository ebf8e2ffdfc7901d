"""A Python worker, an executor and the driver of a running pipeline are killed; `make soak` kills 25 per family."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.kills.harness import VICTIMS, Kills


@pytest.mark.spark
def test_three_kills_leave_the_answer_of_a_quiet_run(tmp_path: Path) -> None:
    run = Kills("progressive", tmp_path, seed=0, wanted=3)
    run.run(patience=500.0)
    assert Counter(run.done) == Counter(VICTIMS)
