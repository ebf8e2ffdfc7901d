"""A page of the docs as something to run: its files, commands with their output, and Python code.

    ```json title="orders/1.json"     a file
    ```yaml title="in mine.yaml"      lines that replace those of a file with the same key, or are added to it
    ```console                        commands (`$ ...`), each followed by what it prints; `^C` is a Ctrl-C
    ```python                         code; a ```text block after it is what it prints

`...` stands for any lines, or within a line for any text. Durations, rates and batch numbers may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_VARYING = (
    (r"^ *\d+\.\d+s ", "#s "),
    (r"\(\d+\.\d+ s\)", "(# s)"),
    (r"\([\d,]+/s\)", "(#/s)"),
    (r"\bbatch \d+", "batch #"),
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title, its text."""

    language: str
    title: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command and what it prints; if it is to be interrupted, what it prints before that."""

    line: str
    printed: str
    before_interrupt: str | None = None


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for language, title, text in _BLOCK.findall(page):
        yield Block(language, title, text)


def commands(text: str) -> Iterator[Command]:
    """The commands of a `console` block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, _, printed = part.partition("\n")
        before, interrupted, after = printed.partition("^C\n")
        yield Command(line, before + after, before if interrupted else None)


def changed(text: str, lines: str) -> str:
    """The text of a file with some of its lines replaced, by their keys."""
    for line in lines.splitlines():
        key = line.partition(":")[0]
        text, found = re.subn(rf"^{re.escape(key)}:.*$", line, text, flags=re.MULTILINE)
        text = text if found else f"{text}{line}\n"
    return text


def expected(printed: str) -> re.Pattern[str]:
    """What matches the whole output of a command."""
    parts = []
    for line in printed.splitlines():
        if line == "...":
            parts.append(r"(?:.*\n)*")
        else:
            parts.append(re.escape(alike(line)).replace(r"\.\.\.", ".*") + r"\n")
    return re.compile("".join(parts))


def alike(output: str) -> str:
    """Output without what differs from run to run."""
    for pattern, replacement in _VARYING:
        output = re.sub(pattern, replacement, output, flags=re.MULTILINE)
    return output
