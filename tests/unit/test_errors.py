"""Errors as data: what they carry, and how they come back out of a text."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re

import pytest

import watersmeet
from watersmeet import errors
from watersmeet.errors import (
    BrokenPromiseError,
    ColumnError,
    OverloadError,
    WatersmeetError,
    find_error,
    named,
    without_line,
)

NASTY = 'a "quoted" \\ back\\nslash, {braces}, a\nline, ä and \u2028'
SENT = ColumnError("window_join", expected=NASTY, found="y", hint="z", column="k`", input="left", option="on")


def classes(kind: type[WatersmeetError] = WatersmeetError) -> list[type[WatersmeetError]]:
    return [kind, *(one for derived in kind.__subclasses__() for one in classes(derived))]


def test_the_list_of_errors_is_complete() -> None:
    for module in pkgutil.walk_packages(watersmeet.__path__, "watersmeet."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {kind for kind in classes() if kind.__module__.startswith("watersmeet.")}
    listed = re.findall(r"^ {4,}(\w+Error)\b", errors.__doc__ or "", re.M)
    assert sorted(listed) == sorted(kind.__name__ for kind in ours)
    indent = {name: len(space) for space, name in re.findall(r"^( {4,})(\w+Error)\b", errors.__doc__ or "", re.M)}
    for kind in ours - {WatersmeetError}:
        assert indent[kind.__name__] == indent[kind.__mro__[1].__name__] + 2


@pytest.mark.parametrize("copy", [lambda e: pickle.loads(pickle.dumps(e)), lambda e: find_error(e.as_line())])
def test_an_error_survives_as_it_is(copy: object) -> None:
    got = copy(SENT)  # type: ignore[operator]
    assert type(got) is ColumnError
    assert (str(got), got.column, got.input, got.option) == (str(SENT), "k`", "left", "on")


def test_the_line_is_found_whatever_stands_around_it() -> None:
    text = f"[X] failed: a watersmeet-error: {{not json\n{SENT}\n{SENT.as_line()}\n SQLSTATE: 38000\n\tat org.apache"
    assert str(find_error(text)) == str(SENT)
    assert find_error(text.replace('"window_join"', '"window_')) is None  # cut into
    assert find_error(str(SENT)) is None
    assert SENT.as_line() not in without_line(text)
    assert "SQLSTATE" in without_line(text)


def test_an_error_of_a_class_that_is_not_known_here() -> None:
    got = find_error(SENT.as_line().replace("ColumnError", "NewerError"))
    assert type(got) is WatersmeetError
    assert str(got) == str(SENT)


def test_the_public_function_comes_first_and_once() -> None:
    below = BrokenPromiseError("input 'left'", expected="x", found="y", hint="z", input="left")
    assert str(named(below, "window_join")) == "window_join, input 'left': expected x, found y. z"
    assert (type(named(below, "w")), named(below, "w").input) == (BrokenPromiseError, "left")
    own = OverloadError("semi_stream_join", expected="x", found="y", hint="z")
    assert named(own, "semi_stream_join") is own
