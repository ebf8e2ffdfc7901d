"""The pages about pipelines say what is so: files in them are valid, every command and operator is there."""

import re
from pathlib import Path

import yaml
from typer.main import get_command

from watersmeet.cli import app
from watersmeet.pipeline.config import from_dict
from watersmeet.pipeline.document import Document
from watersmeet.pipeline.families import FAMILIES

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_pipeline_of_the_tutorial_is_valid() -> None:
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    whole, trigger, join = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    pipeline = Document(whole, "tutorial.md").data
    assert from_dict(pipeline).pipeline.name == "orders-shipped"
    assert from_dict({**pipeline, **yaml.safe_load(trigger)}).pipeline.finish == "never"
    assert from_dict({**pipeline, **Document(join, "tutorial.md").data}).pipeline.join.memory == 256_000_000


def test_every_command_has_its_section() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"^## (\S+)$", text, re.MULTILINE)) == commands


def test_every_operator_is_in_the_decision_table() -> None:
    text = (DOCS / "which-join.md").read_text(encoding="utf-8")
    for operator in FAMILIES:
        assert f"`{operator}`" in text
