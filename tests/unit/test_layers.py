"""The import-layer check passes on the package and finds each kind of violation in small bad ones."""

import re
from pathlib import Path

import pytest

import check_layers

REAL_PACKAGE = Path(__file__).resolve().parents[2] / "src" / "watersmeet"
UNITS = check_layers.FAMILY_MAY_IMPORT | check_layers.OPERATORS_AND_ABOVE | {"metrics"}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with every unit and no imports."""
    root = tmp_path / "watersmeet"
    for unit in UNITS - {"__init__", "__main__"}:
        (root / unit).mkdir(parents=True)
        (root / unit / "__init__.py").touch()
    return root


def write(package: Path, file: str, source: str) -> None:
    path = package / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


def test_the_package_respects_its_layers() -> None:
    assert [str(violation) for violation in check_layers.check(REAL_PACKAGE)] == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("spark/api.py", "from pyspark.sql import DataFrame\nfrom watersmeet.progressive.rpj import Rpj"),
        ("pipeline/run.py", "import pyspark"),
        ("lab/rpj.py", "import pyspark\ntable.to_pandas()\nframe.toPandas()"),
        ("cli.py", "from pyspark.sql import SparkSession"),
        ("__init__.py", "from watersmeet.spark.api import progressive_join"),
        ("state/run.py", "from watersmeet.arrow import hash_keys\nfrom ..estimate import arrival_rate"),
        ("progressive/rpj.py", "from . import duplicates\nfrom ..state import run\nimport watersmeet.errors"),
        ("punctuated/join.py", "from watersmeet.progressive.duplicates import owed"),
        ("testing/oracle.py", "from watersmeet.window import window_join"),
        ("state/store.py", "from watersmeet.metrics import Metrics"),
        ("state/store.py", "import json, xxhash\nimport pyarrow.fs"),
        ("join/binary.py", "from watersmeet.operator import Operator\nfrom ..state.rows import RowStore"),
        ("window/window_join.py", "from watersmeet.join.binary import BinaryJoin"),
        ("operator.py", "from watersmeet.state.rows import RowStore"),
    ],
)
def test_allowed(package: Path, file: str, source: str) -> None:
    write(package, file, source)
    assert check_layers.check(package) == []


@pytest.mark.parametrize(
    ("file", "source", "named"),
    [
        # Spark stays on the Spark side
        ("state/run.py", "import pyspark", "pyspark"),
        ("window/shedding.py", "from pyspark.sql import functions as F", "pyspark.sql.functions"),
        ("__init__.py", "from pyspark.sql import DataFrame", "pyspark.sql.DataFrame"),
        ("arrow.py", "import importlib\nimportlib.import_module('pyspark.sql')", "pyspark.sql"),
        ("testing/oracle.py", "def late():\n    import pyspark", "pyspark"),
        ("testing/oracle.py", "from watersmeet.spark import session", "watersmeet.spark.session"),
        ("new_module.py", "from .spark import api", "watersmeet.spark.api"),
        # state and estimate know no operators
        ("state/layouts.py", "from watersmeet.progressive import rpj", "watersmeet.progressive.rpj"),
        ("state/layouts.py", "from ..testing.oracle import join", "watersmeet.testing.oracle.join"),
        ("estimate/frequency.py", "from ..state import run", "watersmeet.state.run"),
        ("estimate/frequency.py", "import watersmeet.lab.report", "watersmeet.lab.report"),
        ("operator.py", "from .multiway.mjoin import MJoin", "watersmeet.multiway.mjoin.MJoin"),
        ("state/rows.py", "from ..join.probe import probe", "watersmeet.join.probe.probe"),
        ("state/rows.py", "from watersmeet.operator import Batch", "watersmeet.operator.Batch"),
        ("operator.py", "from .join.binary import BinaryJoin", "watersmeet.join.binary.BinaryJoin"),
        ("estimate/frequency.py", "from ..join import clock", "watersmeet.join.clock"),
        # join is below the families
        ("join/binary.py", "from ..window.scan import Rows", "watersmeet.window.scan.Rows"),
        ("join/binary.py", "from ..testing.oracle import join", "watersmeet.testing.oracle.join"),
        # a family knows no other, but for punctuated on progressive
        ("progressive/rpj.py", "from watersmeet import window", "watersmeet.window"),
        ("progressive/rpj.py", "from ..punctuated import purge", "watersmeet.punctuated.purge"),
        ("multiway/deep/mjoin.py", "from ...semistream import cache", "watersmeet.semistream.cache"),
        ("window/window_join.py", "from watersmeet import progressive_join", "watersmeet.progressive_join"),
        ("window/window_join.py", "import watersmeet", "watersmeet"),
        # no objects that run code, no pandas
        ("state/store.py", "import pickle", "pickle"),
        ("spark/task.py", "from pyspark import cloudpickle", "pyspark.cloudpickle"),
        ("spark/task.py", "__import__('dill')", "dill"),
        ("cli.py", "import marshal", "marshal"),
        ("lab/report.py", "import pandas as pd", "pandas"),
        ("spark/api.py", "import pyspark.pandas as ps", "pyspark.pandas"),
        ("spark/task.py", "table.to_pandas()", ".to_pandas"),
        ("pipeline/run.py", "convert = frame.toPandas", ".toPandas"),
    ],
)
def test_violation(package: Path, file: str, source: str, named: str) -> None:
    write(package, file, source)
    (violation,) = check_layers.check(package)
    assert violation.file == package / file
    assert violation.line == len(source.splitlines())
    assert f" {named}: " in violation.message


def test_the_store_knows_no_joins() -> None:
    """What matches what, and what becomes of a row without a match, is decided above the store."""
    for module in ("rows", "parts", "marks", "layouts", "rules"):
        source = (REAL_PACKAGE / "state" / f"{module}.py").read_text(encoding="utf-8")
        assert re.findall(r"\b(?:inner|outer|semi|anti|left join|right join|unmatched)\b", source, re.IGNORECASE) == []
        imported = set(re.findall(r"^\s*(?:from|import) watersmeet\.(\w+)", source, re.MULTILINE))
        assert imported <= {"arrow", "metrics", "saturating", "state"}


def test_the_command_reports_each_violation_and_fails(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(package, "state/run.py", "import json\nimport pickle\nimport pyspark\n")
    assert check_layers.main([str(package)]) == 1
    first, second, summary = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{package / 'state' / 'run.py'}:2: state imports pickle: ")
    assert second.startswith(f"{package / 'state' / 'run.py'}:3: state imports pyspark: ")
    assert summary.startswith("2 import(s)")


def test_the_command_is_silent_about_a_clean_package(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_layers.main([str(package)]) == 0
    assert capsys.readouterr().out == "Layers respected\n"


def test_the_command_refuses_a_missing_folder(tmp_path: Path) -> None:
    assert check_layers.main([str(tmp_path / "absent")]) == 2
