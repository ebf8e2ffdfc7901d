"""The tutorial from its first command to its last: what it says is what comes out."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.main import get_command

from tests.docs.walkthrough import Command, alike, blocks, changed, commands, expected
from watersmeet.cli import app

DOCS = Path(__file__).parents[2] / "docs"
PATIENCE = 240.0


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of all tests, which the commands take up and change, as it was."""
    settings, handlers = dict(spark.conf.getAll), {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    yield spark
    spark.sparkContext.setLogLevel("ERROR")
    for name, value in dict(spark.conf.getAll).items():
        if not spark.conf.isModifiable(name):
            continue
        if name not in settings:
            spark.conf.unset(name)
        elif value != settings[name]:
            spark.conf.set(name, settings[name])
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("session")
@pytest.mark.long
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    printed, ran = "", 0
    for block in blocks(page):
        match block.language:
            case "sh":
                assert block.text == "pip install 'watersmeet[plots]'\n"  # all that is not run here
            case "json" | "yaml":
                write(block.title, block.text)
            case "console":
                for command in commands(block.text):
                    check(command, run(command))
                    ran += 1
            case "python":
                printed = captured(block.text)
                ran += 1
            case "text":
                assert expected(block.text).fullmatch(alike(printed)), printed
            case other:
                raise AssertionError(f"nobody runs blocks of {other}")
    assert ran == len([line for line in page.splitlines() if line.startswith(("$ ", "```python"))]) > 10


def write(title: str, text: str) -> None:
    path = Path(title.removeprefix("in "))
    path.parent.mkdir(exist_ok=True)
    path.write_text(changed(path.read_text(), text) if title.startswith("in ") else text)


def check(command: Command, output: str) -> None:
    assert expected(command.printed).fullmatch(alike(output)), f"$ {command.line}\n{output}"


def run(command: Command) -> str:
    """Run a command in this process, for the sake of its Spark; Ctrl-C is sent as a terminal would."""
    name, *arguments = shlex.split(command.line)
    assert name == "watersmeet"
    output = io.StringIO()
    ended = threading.Event()
    if command.before_interrupt is not None:
        threading.Thread(target=interrupt, args=(expected(command.before_interrupt), output, ended)).start()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            get_command(app).main(arguments, prog_name=name, standalone_mode=False)
        finally:
            ended.set()
    return output.getvalue()


def interrupt(awaited: re.Pattern[str], output: io.StringIO, ended: threading.Event) -> None:
    deadline = time.monotonic() + PATIENCE
    while not awaited.fullmatch(alike(output.getvalue())) and time.monotonic() < deadline:
        if ended.wait(0.1):
            return
    os.kill(os.getpid(), signal.SIGINT)


def captured(code: str) -> str:
    """Run code in a process of its own: Spark takes relative paths from where its Java was started."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
