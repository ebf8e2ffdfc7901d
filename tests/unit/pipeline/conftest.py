"""A join's state made without Spark, and a good pipeline to spoil."""

from pathlib import Path

import pytest

from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join
from watersmeet.testing.arrivals import make_plan, random_script
from watersmeet.testing.harness import run_stored

GOOD = """\
name: orders-with-payments
sources:
  orders:
    format: parquet
    path: data/orders
    schema: "order_id long, amount double"
    options: {maxFilesPerTrigger: 1}
  payments:
    format: parquet
    path: data/payments
    schema: "order_id long, method string"
join:
  operator: progressive
  left: orders
  right: payments
  on: order_id
  memory: 256 MB
  policy: rpj
sink: {format: parquet, path: out/joined}
trigger: {processing_time: 2 seconds}
finish: when_drained
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A pipeline file without problems."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(GOOD)
    return file


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state directory of a join that ran 40 batches, more than one segment of its history, and ended."""
    directory = StateDir(tmp_path_factory.mktemp("work") / "state")
    directory.create()
    plan = make_plan("symmetric", ("left", "right"), {})
    register_join("test", directory, plan)
    run_stored(plan, random_script(1, inputs=("left", "right"), batches=40), directory)
    return directory.uri
