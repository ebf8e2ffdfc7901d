"""What the benchmarks share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession

HARNESS = Path(__file__).parents[2] / "benchmarks" / "harness.py"


def harness_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_harness", HARNESS)
    assert spec is not None
    assert spec.loader is not None
    harness = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = harness  # dataclasses look their module up
    spec.loader.exec_module(harness)
    return harness


def test_a_run_that_finished_no_micro_batch_has_a_result() -> None:
    result = harness_module().Run("rival", extra={"finished": False}).as_dict()
    assert (result["rows_per_second"], result["steady_rows_per_second"], result["finished"]) == (0, None, False)


def test_a_rival_is_stopped_before_its_first_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).write.parquet(str(tmp_path / "in"))
    harness = harness_module()
    run = harness.run_to_end(
        "rival", harness.stream(spark, tmp_path / "in", "id long"), tmp_path, ["id"], limit_seconds=0.001
    )
    assert not run.extra["finished"]
    assert run.as_dict()["rows_per_second"] == 0
