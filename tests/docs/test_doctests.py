"""Every example in a docstring is run."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import watersmeet

SOURCE = Path(watersmeet.__file__).parent
MODULES = [
    ".".join(("watersmeet", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text()
]


def test_there_are_examples() -> None:
    assert len(MODULES) > 40


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(import_module(name), verbose=False)
    assert result.failed == 0
