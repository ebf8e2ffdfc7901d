"""examples/declarative, run by `spark-pipelines` as it is written, but for the path of its data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
PATIENCE = 500.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, its data in a folder beside it."""
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "project"))
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/data/paid-orders", str(tmp_path / "data")))
    return folder


def pipeline(project: Path) -> str:
    """The command of the example; returns what it printed."""
    (command,) = re.findall(r"^#   spark-pipelines (.+)$", (project / "spark-pipeline.yml").read_text(), re.MULTILINE)
    client = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")
    environment = {name: value for name, value in os.environ.items() if name not in client}
    home = Path(pyspark.__file__).parent
    environment |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"}
    done = subprocess.run(
        [str(home / "bin" / "spark-pipelines"), *command.split()],
        cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr


def send(data: Path, name: str, number: int, rows: list[dict[str, object]]) -> None:
    """One more file of an input."""
    (data / name).mkdir(parents=True, exist_ok=True)
    (data / name / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.spark
def test_the_example_joins_what_is_there_and_then_what_is_new(project: Path, tmp_path: Path) -> None:
    data, countries = tmp_path / "data", ["de", "fr", "it"]
    orders: list[dict[str, object]] = []
    payments: list[dict[str, object]] = []
    for number in range(2):
        first = 40 * number
        new = [{"order_id": first + i, "country": countries[i % 3]} for i in range(40)]
        # Some of the first run are paid in the second one.
        paid = [{"order_id": max(0, first + i - 15), "amount": float(i)} for i in range(60)]
        send(data, "orders", number, new)
        send(data, "payments", number, paid)
        orders, payments = orders + new, payments + paid
        said = pipeline(project)
        assert "COMPLETED" in said

        by_order = {row["order_id"]: row["country"] for row in orders}
        expected = sorted(
            (p["order_id"], by_order[p["order_id"]], p["amount"]) for p in payments if p["order_id"] in by_order
        )
        assert rows(project, "paid_orders") == expected
        total: dict[object, float] = {}
        for _, country, amount in expected:
            total[country] = total.get(country, 0.0) + amount
        assert dict(rows(project, "revenue")) == total
    assert len(expected) > 60


def rows(project: Path, table: str) -> list[tuple[object, ...]]:
    """What a table of the pipeline holds."""
    found = pq.read_table(project / "spark-warehouse" / table).to_pylist()
    return sorted(tuple(row.values()) for row in found)
