"""What the benchmarks share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HARNESS = Path(__file__).parents[2] / "benchmarks" / "harness.py"


def test_a_run_that_finished_no_micro_batch_has_a_result() -> None:
    spec = importlib.util.spec_from_file_location("benchmark_harness", HARNESS)
    assert spec is not None
    assert spec.loader is not None
    harness = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = harness  # dataclasses look their module up
    spec.loader.exec_module(harness)
    result = harness.Run("rival", extra={"finished": False}).as_dict()
    assert (result["rows_per_second"], result["steady_rows_per_second"], result["finished"]) == (0, None, False)
