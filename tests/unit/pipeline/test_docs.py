"""The pages about pipelines say what is so: files in them are valid, every command and operator is there."""

import re
from pathlib import Path

from typer.main import get_command

from watersmeet.cli import app
from watersmeet.pipeline.families import FAMILIES

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_command_has_its_section() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"^## (\S+)$", text, re.MULTILINE)) == commands


def test_every_operator_is_in_the_decision_table() -> None:
    text = (DOCS / "which-join.md").read_text(encoding="utf-8")
    for operator in FAMILIES:
        assert f"`{operator}`" in text
