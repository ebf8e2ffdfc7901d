"""Options are declared in the models. Functions, docstrings and pipeline files say the same of them, or fail here."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import TypeAdapter

import watersmeet as wm
from watersmeet.errors import OptionError
from watersmeet.pipeline.families import FAMILIES
from watersmeet.pipeline.reference import arguments, type_name
from watersmeet.pipeline.wiring import Wiring
from watersmeet.plan.options import known_names, literals
from watersmeet.window.interval import Between

EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)

# What connects a join, by the names that its function has for it.
WIRING = {
    "left", "right", "on", "state_dir", "partitions", "inputs", "names", "time", "punctuations", "stream", "master",
    "idle", "how", "nulls_match", "where", "master_columns", "storage_options", "cache", "cache_dir",
}  # fmt: skip
# Given as None, they are left to `goal`.
LEFT_OPEN = {("punctuated_join", "purge"), ("punctuated_join", "scheduling")}


# The types in which Python code gives a value, by the word that the reference has for its type.
WRITTEN_AS: dict[str, set[Any]] = {
    "duration": {str, timedelta}, "size": {str, int}, "whole number": {int}, "number": {float}, "text": {str},
}  # fmt: skip


def leaves(hint: Any) -> set[Any]:
    """The types of which a hint is made."""
    return set().union(*map(leaves, get_args(hint))) if get_args(hint) else {hint}


def function(family: type[Wiring]) -> Any:
    return getattr(wm, family.FUNCTION)


def parameters(family: type[Wiring]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function(family)).parameters)


@pytest.mark.parametrize("name", [name for name in wm.__all__ if inspect.isfunction(getattr(wm, name))])
def test_an_unknown_parameter_is_an_option_error(name: str) -> None:
    with pytest.raises(OptionError, match="found parameter 'state_dri'") as caught:
        getattr(wm, name)(state_dri="x")
    assert caught.value.option == "state_dri"
    has_one = "state_dir" in inspect.signature(getattr(wm, name)).parameters
    assert ("Did you mean 'state_dir'?" in str(caught.value)) is has_one


@EVERY
def test_every_function_begins_alike(family: type[Wiring]) -> None:
    given = {name: one.kind for name, one in parameters(family).items()}
    inputs = {"multiway_join": ["inputs"], "semi_stream_join": ["stream", "master"]}.get(
        family.FUNCTION, ["left", "right"]
    )
    how = [] if family.FUNCTION == "multiway_join" else ["how"]
    assert list(given)[: len(inputs) + len(how) + 2] == [*inputs, "on", *how, "state_dir"]
    assert [name for name, kind in given.items() if kind is not inspect.Parameter.KEYWORD_ONLY] == [
        *inputs,
        "on",
        *how,
    ]


@EVERY
@pytest.mark.parametrize("place", ["state/orders", Path("state/orders")])
def test_a_state_directory_without_its_name(family: type[Wiring], place: str | Path) -> None:
    """Nothing but the arguments is looked at, so anything may stand for a DataFrame."""
    first = [1, "k"] if family.FUNCTION == "multiway_join" else [1, 2, "k"]
    where = "as argument 3" if family.FUNCTION == "multiway_join" else "in the place of how"
    with pytest.raises(OptionError) as caught:
        function(family)(*first, place)
    assert str(caught.value) == (
        f"{family.FUNCTION}: expected state_dir=..., found no state_dir, but {place!r} {where}. Give state_dir by name."
    )
    assert caught.value.option == "state_dir"
    with pytest.raises(OptionError, match=r"found no state_dir\. Give state_dir by name\."):
        function(family)(*first)


def test_arguments_that_are_missing_or_too_many() -> None:
    call: Any = wm.progressive_join
    expected = "each of left, right, on, how once, and the other parameters by name, "
    for given, named, found in (
        ((1, 2), {}, "found nothing for on."),
        ((1, 2, "k"), {"on": "k"}, "found on twice."),
        ((1, 2, "k", "inner", 5), {}, "found 5 without a name."),
    ):
        with pytest.raises(OptionError, match=expected + found):
            call(*given, state_dir="state", **named)


def test_a_function_of_many_names_takes_them_all() -> None:
    @known_names
    def settings(*names: str, config: int = 0) -> tuple[tuple[str, ...], int]:
        return names, config

    assert settings("kafka", "avro", "delta", config=1) == (("kafka", "avro", "delta"), 1)
    with pytest.raises(OptionError, match="found parameter 'confg'"):
        settings("kafka", confg=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["OneToMany", "Clustered", "Ordered", "PunctuationRows"])
def test_facts_have_known_names_too(name: str) -> None:
    make: Any = getattr(wm, name)
    with pytest.raises(OptionError, match=f"^{name}: expected one of the parameters .*, found parameter 'colum'"):
        make("left", colum="k")
    with pytest.raises(OptionError, match=f"^{name}: expected each of (one|input|column)"):
        make()
    assert isinstance(make("left"), make)


@EVERY
def test_a_function_has_the_options_of_its_model_and_no_others(family: type[Wiring]) -> None:
    offered = set(family.OPTIONS.offered())
    assert set(parameters(family)) - (WIRING - offered) == offered
    assert "partitions" in parameters(family)


@EVERY
def test_defaults_are_those_of_the_model(family: type[Wiring]) -> None:
    for name, parameter in parameters(family).items():
        if name not in family.OPTIONS.offered() or (family.FUNCTION, name) in LEFT_OPEN:
            continue
        field = family.OPTIONS.model_fields[name]
        if field.is_required():
            assert parameter.default is parameter.empty, name
            continue
        given = TypeAdapter(field.rebuild_annotation()).validate_python(parameter.default)
        assert given == field.get_default(call_default_factory=True), name


@EVERY
def test_types_are_those_of_the_model(family: type[Wiring]) -> None:
    hints = get_type_hints(function(family))
    for name in set(parameters(family)) & set(family.OPTIONS.offered()):
        field = family.OPTIONS.model_fields[name]
        assert literals(hints[name]) == family.OPTIONS.offered_values(name), name
        kind = type_name(field.annotation, field.metadata).removeprefix("list of ")
        if kind in WRITTEN_AS:
            assert leaves(hints[name]) - {type(None), Between} == WRITTEN_AS[kind], name


@EVERY
def test_docstrings_explain_every_parameter(family: type[Wiring]) -> None:
    explained = arguments(function(family))
    assert list(explained) == list(parameters(family))
    for name in explained.keys() & set(family.OPTIONS.offered()):
        for value in family.OPTIONS.offered_values(name):
            assert f'"{value}"' in explained[name], (name, value)
        for values in family.OPTIONS.LAB.values():
            assert not any(value in explained[name] for value in values)


@EVERY
def test_pipeline_files_connect_a_join_as_its_function_does(family: type[Wiring]) -> None:
    for name in family.model_fields.keys() & parameters(family).keys():
        field, parameter = family.model_fields[name], parameters(family)[name]
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        given = None if parameter.default is parameter.empty else parameter.default
        assert (default or None) == (given or None), name
