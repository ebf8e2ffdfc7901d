"""A join out of a pipeline file: wiring and options told apart, both checked, all problems found at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from pyspark.sql import DataFrame

from watersmeet.pipeline.families import FAMILIES
from watersmeet.pipeline.problems import nearest
from watersmeet.pipeline.wiring import Site, Wiring
from watersmeet.plan.options import WRITTEN, Options


@dataclass(frozen=True)
class Join:
    """A validated join: its wiring, all its options, and which of them were given."""

    wiring: Wiring
    options: Options
    given: Mapping[str, Any]

    @property
    def memory(self) -> int | None:
        """The memory budget in bytes, if the join has one."""
        memory = getattr(self.options, "memory", None)
        return int(memory) if memory is not None else None

    def build(self, site: Site) -> DataFrame:
        """The joined stream."""
        return self.wiring.build(site, dict(self.given))


def parse_join(value: Any) -> Join:
    """A join from its part of a pipeline file; everything that is wrong with it in one `ValidationError`."""
    if isinstance(value, Join):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping with the operator, its inputs and its options")
    family = _family(value.get("operator"))
    names = family.option_names()
    known = [*family.model_fields, *names]
    given = {key: inner for key, inner in value.items() if key in names}
    details = [detail(f"unknown key; {nearest(str(key), known)}", (key,)) for key in value if key not in known]
    wiring = options = None
    try:
        wiring = family.model_validate({key: inner for key, inner in value.items() if key in family.model_fields})
    except ValidationError as error:
        details += _details(error)
    try:
        # Without a wiring what follows from it is unknown; the other options can be checked all the same.
        filled = wiring.filled_in() if wiring else {}
        options = family.OPTIONS.model_validate({**given, **filled}, context=WRITTEN)
    except ValidationError as error:
        details += [one for one in _details(error) if wiring or set(one["loc"][:1]) & given.keys()]
    if details or wiring is None or options is None:
        raise failed(details)
    return Join(wiring, options, given)


def wiring_of(value: Any) -> Wiring | None:
    """The wiring alone, if that much of a join is right."""
    family = FAMILIES.get(str(value.get("operator"))) if isinstance(value, Mapping) else None
    if family is None:
        return None
    try:
        return family.model_validate({key: inner for key, inner in value.items() if key in family.model_fields})
    except ValidationError:
        return None


def _family(operator: Any) -> type[Wiring]:
    if operator is None:
        raise failed([detail(f"missing; known are {', '.join(FAMILIES)}", ("operator",))])
    if operator not in FAMILIES:
        raise failed([detail(f"unknown operator {operator!r}; {nearest(str(operator), FAMILIES)}", ("operator",))])
    return FAMILIES[operator]


def detail(message: str, where: tuple[str | int, ...]) -> InitErrorDetails:
    """A problem at a place below the model that raises it."""
    return InitErrorDetails(type=PydanticCustomError("join", "{message}", {"message": message}), loc=where, input=None)


def _details(error: ValidationError) -> list[InitErrorDetails]:
    return [
        detail("missing" if one["type"] == "missing" else one["msg"], tuple(one["loc"]))
        for one in error.errors(include_url=False)
    ]


def failed(details: list[InitErrorDetails]) -> ValidationError:
    """All problems in one error, which Pydantic merges into its own."""
    return ValidationError.from_exception_data("join", details)
