"""The import contracts in pyproject.toml hold, and each of them breaks when it should."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS, CYCLES, PROMISES = "Layers", "No cycles, in any package", "Promises know nothing of the join that uses them"
SPARK, OBJECTS = "Operators and state run without Spark", "No objects that run code, no pandas"


def broken_contracts(folder: Path) -> set[str]:
    """The contracts that the package in a folder breaks."""
    command = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"
    shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")
    done = subprocess.run(
        [sys.executable, "-P", "-c", command],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    broken = set(re.findall(r"^(.+) BROKEN", done.stdout, re.MULTILINE))
    assert re.search(r"^Contracts: \d+ kept, \d+ broken", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert done.returncode == bool(broken)
    return broken


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(ROOT / "src" / "watersmeet", tmp_path / "watersmeet", ignore=ignored))


def test_the_package_keeps_all_contracts(package: Path) -> None:
    assert broken_contracts(package.parent) == set()


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("state/run.py", "from watersmeet.join.hand import probe", {LAYERS, CYCLES}),
        ("columns/arrow.py", "def late(): import watersmeet.plan", {LAYERS, CYCLES}),
        ("window/scan.py", "from watersmeet.progressive import units", {LAYERS}),
        ("estimate/frequency.py", "from ..state import run", {LAYERS}),
        ("state/run.py", "from watersmeet.state import rows", {CYCLES}),
        ("loose.py", "", {LAYERS}),
        ("window/scan.py", "import watersmeet", {LAYERS, SPARK}),  # whose __init__ imports all
        ("punctuated/promises/codes.py", "from watersmeet.punctuated import lookup", {PROMISES, CYCLES}),
        ("testing/oracle.py", "from pyspark.sql import functions", {SPARK}),
        ("spark/task.py", "import pickle", {OBJECTS}),
        ("lab/report.py", "import pandas as pd", {OBJECTS}),
    ],
)
def test_a_wrong_import_breaks_a_contract(package: Path, file: str, line: str, broken: set[str]) -> None:
    with (package / file).open("a") as source:
        source.write(f"\n{line}\n")
    assert broken_contracts(package.parent) == broken


def test_the_store_knows_no_joins() -> None:
    """What matches what, and what becomes of a row without a match, is decided above the store."""
    for module in ("rows", "parts", "marks", "layouts", "rules"):
        source = (ROOT / "src" / "watersmeet" / "state" / f"{module}.py").read_text(encoding="utf-8")
        assert re.findall(r"\b(?:inner|outer|semi|anti|left join|right join|unmatched)\b", source, re.IGNORECASE) == []
