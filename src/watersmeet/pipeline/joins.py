"""A join out of a pipeline file: wiring and options told apart, both checked, all problems found at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from pyspark.sql import DataFrame

from watersmeet.chooser.decide import Choice
from watersmeet.chooser.tuning import as_options, choices
from watersmeet.errors import PlanError
from watersmeet.pipeline.auto import AUTO, chosen, is_auto, known_keys, our_name
from watersmeet.pipeline.families import FAMILIES
from watersmeet.pipeline.problems import nearest
from watersmeet.pipeline.wiring import Site, Wiring
from watersmeet.plan.options import WRITTEN, Options
from watersmeet.spark.explaining import because
from watersmeet.spark.join import KINDS, earlier_options


@dataclass(frozen=True)
class Join:
    """A validated join: its wiring, all its options, which of them were given, and why it was chosen, if it was."""

    wiring: Wiring
    options: Options
    given: Mapping[str, Any]
    choice: Choice | None = None

    @property
    def memory(self) -> int | None:
        """The memory budget in bytes, if the join has one."""
        memory = getattr(self.options, "memory", None)
        return int(memory) if memory is not None else None

    def build(self, site: Site) -> DataFrame:
        """The joined stream."""
        names = self.wiring.sources()
        if self.choice is None:
            with because([Choice("join", self.wiring.operator, "operator was given")], names):
                return self.wiring.build(site, dict(self.given))
        table = self.wiring.table(site)
        inside = list(choices(self.wiring.operator, self.given, table=table, earlier=earlier_options(site.home)))
        with because([self.choice, *inside], names):
            return self.wiring.build(site, as_options(inside, self.given))


def parse_join(value: Any) -> Join:
    """A join from its part of a pipeline file; everything that is wrong with it in one `ValidationError`."""
    if isinstance(value, Join):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping with the operator, its inputs and its options")
    choice = None
    if is_auto(value):
        try:
            made, choice = chosen(value)
        except PlanError as error:
            message = f"expected {error.expected}, found {error.found}. {error.hint}"
            raise failed([detail(message, (error.option,) if error.option and error.option in value else ())]) from None
        known = known_keys(FAMILIES[choice.value])
    else:
        family = _family(value["operator"])
        made, known = dict(value), [*family.model_fields, *family.option_names()]
    return _parsed(value, made, known, choice)


def _parsed(value: Mapping[str, Any], made: Mapping[str, Any], known: Sequence[str], choice: Choice | None) -> Join:
    """The join `made` of what the file says; `known` are the keys that the file may have."""
    family = FAMILIES[made["operator"]]
    names = family.option_names()
    given = {key: inner for key, inner in made.items() if key in names}
    details = [detail(f"unknown key; {_near(key, known, choice)}", (key,)) for key in value if key not in known]
    wiring = options = None
    wrong: list[InitErrorDetails] = []
    try:
        wiring = family.model_validate({key: inner for key, inner in made.items() if key in family.model_fields})
        wrong += [detail(message, (key,)) for key, message in wiring.mistakes()]
    except ValidationError as error:
        wrong += _details(error)
    try:
        # Without a wiring what follows from it is unknown; the other options can be checked all the same.
        filled = wiring.filled_in() if wiring else {}
        options = family.OPTIONS.model_validate({**given, **filled}, context=WRITTEN)
    except ValidationError as error:
        wrong += [one for one in _details(error) if wiring or set(one["loc"][:1]) & given.keys()]
    if choice is not None:
        wrong = [_at_our_key(one, value) for one in wrong]
        unused = [key for key in made if key in known and key not in family.model_fields and key not in names]
        details += [detail(f"means nothing to the {choice.value} join, which fits the rest", (key,)) for key in unused]
    details += wrong
    if details or wiring is None or options is None:
        raise failed(details)
    return Join(wiring, options, given, choice)


def _near(key: Any, known: Sequence[str], choice: Choice | None) -> str:
    """The key that is meant: also what the family of a join that is chosen would call it."""
    meant = our_name(key)
    return f"did you mean {meant!r}?" if choice is not None and meant != key else nearest(str(key), known)


def _at_our_key(one: InitErrorDetails, value: Mapping[str, Any]) -> InitErrorDetails:
    """A problem at the key that the file has for it."""
    first, *rest = one["loc"] or ("",)
    if first == "constraints":  # unique, clustered, ordered: whichever is there, in this order
        return {**one, "loc": tuple(key for key in KINDS if key in value)[:1]}
    return {**one, "loc": (our_name(first), *rest)} if one["loc"] else one


def wiring_of(value: Any) -> Wiring | None:
    """The wiring alone, if that much of a join is right."""
    if not isinstance(value, Mapping):
        return None
    try:
        made = chosen(value)[0] if is_auto(value) else value
        family = FAMILIES.get(str(made.get("operator")))
        if family is None:
            return None
        return family.model_validate({key: one for key, one in made.items() if key in family.model_fields})
    except (ValidationError, PlanError):
        return None


def _family(operator: Any) -> type[Wiring]:
    if operator not in FAMILIES:
        known = [AUTO, *FAMILIES]
        raise failed([detail(f"unknown operator {operator!r}; {nearest(str(operator), known)}", ("operator",))])
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
