"""The number of the release stands in one place, and the build, the package and the command read it there."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import watersmeet as wm
from watersmeet.cli import app

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("release", ["7.8.9", wm.__version__])
def test_the_build_reads_the_release_of_the_package(tmp_path: Path, release: str) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "src/watersmeet/release.py"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((ROOT / name).read_text())
    copy.write_text(copy.read_text().replace(wm.__version__, release))
    command = [sys.executable, "-m", "hatchling", "metadata", "version"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert built.stdout.strip() == release


def test_the_command_says_it() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"watersmeet {wm.__version__}\n"
