"""The reference of pipeline files as Markdown, made from the models that check them.

A description is taken from the field itself (which may have it as a text below), or from the arguments of the public
function.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich import filesize

import watersmeet as wm
from watersmeet.pipeline.auto import AUTO, AutoWiring
from watersmeet.pipeline.families import FAMILIES
from watersmeet.pipeline.models import Columns, Config, Pipeline, SinkConfig, SourceConfig, TriggerConfig
from watersmeet.pipeline.wiring import Wiring
from watersmeet.plan.options import Duration, Size
from watersmeet.plan.quantities import format_duration

HEAD = """# Pipeline reference

All that a pipeline file may say. This page is made from the models that check the files (`make reference`).

Sizes are numbers of bytes or text such as `256 MB` or `64 MiB`; durations are text such as `500 ms`, `60 s` or
`10 min`. Relative paths start at the pipeline file. In every value `${NAME}` is an environment variable,
`${NAME:-text}` one with a default, `${file:path}` the content of a file, and `$${` stands for `${`.
"""

_SECTIONS: dict[str, type[Config]] = {
    "sources.<name>": SourceConfig, "sink": SinkConfig, "trigger": TriggerConfig, "result": Columns,
}  # fmt: skip


def reference() -> str:
    """The whole page."""
    parts = [HEAD, "## The file\n", *_table(Pipeline)]
    for place, model in _SECTIONS.items():
        parts += [f"\n## {place}\n", f"{inspect.getdoc(model)}\n", *_table(model)]
    parts += [
        f"\n## join, operator: {AUTO}\n",
        f"The default: {AutoWiring.SUMMARY}. See `wm.join` and [how it decides](which-join.md).\n",
        *_table(AutoWiring),
        "",
        "Options: `memory`, and all of the join that is chosen, which are listed with it below.",
    ]
    for operator, family in FAMILIES.items():
        parts += [
            f"\n## join, operator: {operator}\n",
            f"{family.SUMMARY[0].upper()}{family.SUMMARY[1:]}. See `wm.{family.FUNCTION}`.\n",
            *_table(family),
            "",
            "Options (those marked * are fixed once the pipeline has run):\n",
            *_options(family),
        ]
    return "\n".join(parts) + "\n"


def _table(model: type[BaseModel]) -> Iterator[str]:
    yield from ("| key | type | default | |", "|---|---|---|---|")
    for name, field in model.model_fields.items():
        if name != "operator":  # the heading says it
            yield _row(field.alias or name, field, field.description or "")


def _options(family: type[Wiring]) -> Iterator[str]:
    documented = arguments(getattr(wm, family.FUNCTION))
    yield from ("| key | type | default | |", "|---|---|---|---|")
    for name in family.option_names():
        field = family.OPTIONS.model_fields[name]
        fixed = "" if name in family.OPTIONS.TUNING else "*"
        choices = ", ".join(f"`{value}`" for value in family.OPTIONS.offered_values(name))
        yield _row(f"{name}{fixed}", field, field.description or documented.get(name, ""), choices)


def _row(key: str, field: FieldInfo, description: str, choices: str = "") -> str:
    text = " ".join(description.split()).replace("|", "\\|")
    shown_type = (choices or type_name(field.annotation, field.metadata)).replace("|", "\\|")
    return f"| `{key}` | {shown_type} | {_default(field)} | {text} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ({}, [], ()):
        return ""
    if isinstance(value, BaseModel):
        return ""
    return f"`{shown_value(field, value)}`"


def shown_value(field: FieldInfo, value: Any) -> str:
    """A value of an option as a pipeline file would have it, sizes and durations with their units."""
    kind = type_name(field.annotation, field.metadata)
    if isinstance(value, tuple):
        return ", ".join(_shown_duration(one) if kind == "list of duration" else str(one) for one in value)
    if kind == "duration":
        return format_duration(value)
    return filesize.decimal(value) if kind == "size" else str(value)


def _shown_duration(value: int | None) -> str:
    return "unbounded" if value is None else format_duration(value)


def type_name(annotation: Any, metadata: list[Any] | None = None) -> str:
    """A type in the words of a YAML file.

    >>> type_name(dict[str, str]), type_name(Literal["a", "b"] | None), type_name(Size)
    ('mapping', '`a`, `b`', 'size')
    """
    kinds = {get_args(Size)[1]: "size", get_args(Duration)[1]: "duration"}
    for item in metadata or []:
        if item in kinds:
            return kinds[item]
    origin = get_origin(annotation)
    if origin is Annotated:
        return type_name(get_args(annotation)[0], list(get_args(annotation)[1:]))
    if origin is Literal:
        return ", ".join(f"`{str(v).lower() if isinstance(v, bool) else v}`" for v in get_args(annotation))
    if origin in (Union, types.UnionType):
        names = [type_name(part) for part in get_args(annotation) if part is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if origin in (list, tuple):
        return f"list of {type_name(get_args(annotation)[0])}"
    if origin is dict:
        return "mapping"
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return plain.get(annotation, "mapping")


def arguments(function: Any) -> dict[str, str]:
    """The `Args:` of a docstring."""
    doc = inspect.getdoc(function) or ""
    _, _, rest = doc.partition("\nArgs:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", rest, re.MULTILINE)
    return {name: textwrap.dedent(text) for name, text in found}


if __name__ == "__main__":
    print(reference(), end="")
