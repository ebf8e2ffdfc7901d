"""The pages about pipelines say what is so: files in them are valid, every command and operator is there."""

import io
import re
import shlex
import textwrap
from pathlib import Path

from rich.console import Console
from typer.main import get_command

from watersmeet.cli import app
from watersmeet.lab.cli import app as lab_app
from watersmeet.pipeline.display import render
from watersmeet.pipeline.families import FAMILIES
from watersmeet.pipeline.progress import InputProgress, Snapshot

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_command_has_its_section() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"^## (\S+)$", text, re.MULTILINE)) == commands


def test_every_command_line_is_one_that_the_commands_take() -> None:
    """Parsed by the very parsers, not run."""
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    watersmeet (\S+) ([^>\n]*)", text.partition("## run")[2], re.MULTILINE)
    assert len(lines) > 15
    group = get_command(app)
    for name, rest in lines:
        if name == "lab":
            group_of_lab = get_command(lab_app)
            command, *arguments = shlex.split(rest)
            group_of_lab.commands[command].make_context(command, arguments)  # type: ignore[attr-defined]
        else:
            group.commands[name].make_context(name, shlex.split(rest))  # type: ignore[attr-defined]


def test_the_live_view_is_shown_as_it_is() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    (drawn,) = re.findall(r"((?:^    [╭│╰].*\n)+)", text, re.MULTILINE)
    inputs = (
        InputProgress("orders", 1_240_000, 31_020.0, "3 files", "flowing", 0.0),
        InputProgress("payments", 860_000, 0.0, None, "stalled", 7.0),
    )
    snapshot = Snapshot(
        name="orders-with-payments", phase="reading", elapsed=42.0, batch=57, batch_seconds=0.84, inputs=inputs,
        results=410_233, result_rate=9_870.0, resident_bytes=251_300_000, spilled_bytes=96_000_000,
        state_rows=2_100_000, budget=256_000_000, doing="idle: md-task x3",
        remaining="orders: 3 files, 96.0 MB on disk",
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=len(drawn.splitlines()[0]) - 4)
    console.print(render(snapshot))
    assert textwrap.dedent(drawn) == console.file.getvalue()  # type: ignore[attr-defined]


def test_every_operator_is_in_the_decision_table() -> None:
    text = (DOCS / "which-join.md").read_text(encoding="utf-8")
    for operator in FAMILIES:
        assert f"`{operator}`" in text
