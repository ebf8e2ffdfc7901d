"""Options of the joins: one validated model per operator family, used by the Python API and by pipeline files alike.

A field that a family lists in `TUNING` may change between restarts; all others decide what the state means and are part
of the join's fingerprint. Users are offered all fields but those in `INTERNAL`, and all values but those in `LAB`: the
others follow from the inputs, the state and the machine, or serve the experiments, which build plans (see docs/lab).
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, field_validator

from watersmeet.errors import OptionError
from watersmeet.plan.join_plan import InputSpec, JoinPlan

_SIZES = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_DURATIONS = {
    "us": 1, "microsecond": 1, "ms": 10**3, "millisecond": 10**3, "s": 10**6, "sec": 10**6, "second": 10**6,
    "m": 60 * 10**6, "min": 60 * 10**6, "minute": 60 * 10**6, "h": 3600 * 10**6, "hour": 3600 * 10**6,
    "d": 86400 * 10**6, "day": 86400 * 10**6,
}  # fmt: skip
# Windows and lateness: longer than any time that Spark can print, and short enough to be added to each other.
MAX_DURATION = 10_000 * 365 * 86_400 * 10**6
# Every micro-batch has a task and files for each partition; their folders are numbered with five digits.
MAX_PARTITIONS = 100_000
# The context in which values are validated that a user has written; those of a plan have none.
WRITTEN = {"written": True}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*$")


def parse_size(value: object) -> object:
    """A size in bytes: a number, or text such as "256 MB" (10**6) or "64 MiB" (2**20).

    >>> parse_size("256 MB"), parse_size("1.5 GiB"), parse_size(4096)
    (256000000, 1610612736, 4096)
    """
    return _quantity(value, _SIZES, "a size such as '256 MB' or '64 MiB'")


def parse_duration(value: object) -> object:
    """A duration in microseconds: text such as "60 s", "10 min" or "500 ms", or a `datetime.timedelta`.

    >>> parse_duration("60 s"), parse_duration("500 ms"), parse_duration(timedelta(minutes=10))
    (60000000, 500000, 600000000)
    """
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    return _quantity(value, _DURATIONS, "a duration such as '60 s' or '10 min'")


def written_duration(value: object, info: ValidationInfo) -> object:
    """A number has no unit: where a user has written it, it is refused. In a plan numbers are microseconds."""
    if info.context == WRITTEN and isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"a number has no unit; write for example '{value:g} s', or give a datetime.timedelta")
    return parse_duration(value)


def _quantity(value: object, units: dict[str, int], wanted: str) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not {wanted}")
    if not isinstance(value, str):
        return value
    match = _QUANTITY.match(value)
    unit = match[2].lower() if match else ""
    factor = units.get(unit) or units.get(unit.removesuffix("s"))
    if match is None or factor is None:
        raise ValueError(f"{value!r} is not {wanted}")
    return round(float(match[1]) * factor)


def size_text(nbytes: int) -> str:
    """A size in the largest unit that gives a whole number; never less than it is.

    >>> size_text(524_288), size_text(3 << 20), size_text(1025)
    ('512 KiB', '3 MiB', '2 KiB')
    """
    kib = -(-nbytes // 1024)
    for unit, factor in (("GiB", 1 << 20), ("MiB", 1 << 10)):
        if kib and kib % factor == 0:
            return f"{kib // factor} {unit}"
    return f"{kib} KiB"


def checked_path(who: str, name: str, value: object) -> str:
    """A path or a URI as text; anything else is an `OptionError` that names the parameter."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(path, str) and path:
        return path
    raise OptionError(
        who,
        expected=f"{name} = a path or a URI",
        found=repr(value),
        hint=f"Write for example {name}='data/orders'.",
        option=name,
    )


def check_choice(who: str, name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is none of the choices, the first of which is the default."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(
            who,
            expected=f"{name} {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}",
            found=repr(value),
            hint=f"Leave it out for {choices[0]!r}.",
            option=name,
        )


def check_partitions(who: str, value: object, *, origin: str = "", hint: str = "Leave it out for the default.") -> None:
    """Refuse a number of key partitions that no join can have; `origin` says where it comes from."""
    if type(value) is not int or not 1 <= value <= MAX_PARTITIONS:
        raise OptionError(
            who,
            expected=f"partitions from 1 to {MAX_PARTITIONS:,}",
            found=f"{value!r}{origin}",
            hint=hint,
            option="partitions",
        )


def literals(annotation: Any) -> list[str]:
    """The values of a choice, which may also be left out.

    >>> literals(Literal["a", "b"] | None), literals(int)
    (['a', 'b'], [])
    """
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    parts = get_args(annotation) if isinstance(annotation, UnionType) or get_origin(annotation) is Union else ()
    return [value for part in parts for value in literals(part)]


def check_memory(who: str, memory: int, page_rows: int, plan: JoinPlan, *, beside: int = 0) -> None:
    """Refuse a budget of which a partition's share does not hold a page of the widest input.

    `beside` are the bytes that a join stores with each row.
    """
    width = max(_row_bytes(spec) + beside for spec in plan.inputs)
    least = width * page_rows * plan.partitions
    if memory < least:
        raise OptionError(
            who,
            expected=f"memory of at least {size_text(least)}: a page of {page_rows} rows of at least {width} "
            f"bytes in each of {plan.partitions} partitions",
            found=f"{memory} bytes",
            hint="Raise memory, lower page_rows or use fewer partitions.",
            option="memory",
        )


def _row_bytes(spec: InputSpec) -> int:
    """A lower bound of a row's size: fixed-width columns in full, the others by their offset alone."""
    width = 0
    for kind in spec.schema.types:
        try:
            width += (kind.bit_width + 7) // 8
        except ValueError:
            width += 4
    return width


P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

HotKeys = Literal["off", "auto"]
Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[int, BeforeValidator(written_duration)]


def known_names(function: Callable[P, R]) -> Callable[P, R]:
    """Make an unknown or missing keyword of a public function an `OptionError`: one that knows the nearest name, and
    what was given in the place of another parameter."""
    return known_names_and()(function)


def known_names_and(*more: str, renamed: Mapping[str, str] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The same for a function that takes further keywords (`**options`) and knows which; `renamed` are names that
    something has elsewhere, with the name that it has here."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        return _known(function, more, renamed or {})

    return decorated


def known_fields(cls: C) -> C:
    """The same for the constructor of a class."""
    made: Any = vars(cls)["__init__"]
    setattr(cls, "__init__", _known(made, (), {}, who=cls.__name__))  # noqa: B010
    return cls


def _known(function: Callable[P, R], more: Sequence[str], renamed: Mapping[str, str], who: str = "") -> Callable[P, R]:
    parameters = inspect.signature(function).parameters
    own = [one.name for one in parameters.values() if one.kind is not one.VAR_KEYWORD]
    names = [*own, *dict.fromkeys(name for name in more if name not in own)]
    needed = [one.name for one in parameters.values() if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    places = [one for one in parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    unbounded = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    who = who or function.__name__
    hidden = int(own[:1] == ["self"])

    def instead(args: Sequence[object]) -> Iterator[str]:
        """The arguments that may have been meant for a parameter that is given by name; no join has one before `on`."""
        first = next((at for at, one in enumerate(places) if one.name == "on"), -1) + 1
        for place, value in enumerate(args[first:], first):
            if place >= len(places):
                yield f", but {value!r} as argument {place + 1}"
            elif places[place].default is not inspect.Parameter.empty:
                yield f", but {value!r} in the place of {places[place].name}"

    def check_places(args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Each parameter once, and none too many."""
        given = [one.name for one in places[: len(args)]]
        twice = [name for name in given if name in kwargs]
        missing = [one.name for one in places if one.default is one.empty and one.name not in {*given, *kwargs}]
        if twice or missing or (len(args) > len(places) and not unbounded):
            wrong = f"{twice[0]} twice" if twice else f"nothing for {missing[0]}" if missing else ""
            several = ", ".join(one.name for one in places[hidden:])
            raise OptionError(
                who,
                expected=f"each of {several} once, and the other parameters by name",
                found=wrong or f"{len(args) - hidden} without a name",
                hint="Compare the call with the function's documentation.",
                option=(*twice, *missing, None)[0],
            )

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                near = [renamed[name]] if name in renamed else difflib.get_close_matches(name, names, n=1)
                raise OptionError(
                    who,
                    expected=f"one of the parameters {', '.join(names[hidden:])}",
                    found=f"parameter {name!r}",
                    hint=f"Did you mean {near[0]!r}?" if near else "Remove it.",
                    option=name,
                )
        for name in needed:
            if name not in kwargs:
                raise OptionError(
                    who,
                    expected=f"{name}=...",
                    found=f"no {name}{''.join(instead(args))}",
                    hint=f"Give {name} by name.",
                    option=name,
                )
        check_places(args, kwargs)
        return function(*args, **kwargs)

    return checked


class Options(BaseModel):
    """Base of every family's options: unknown names are errors, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    TUNING: ClassVar[frozenset[str]] = frozenset()
    PLANNED: ClassVar[frozenset[str]] = frozenset({"hot_keys"})  # what the plan says itself, for every operator
    INTERNAL: ClassVar[frozenset[str]] = frozenset()
    LAB: ClassVar[Mapping[str, frozenset[str]]] = {}

    @classmethod
    def checked(cls, who: str, internal: Mapping[str, Any] | None = None, /, **written: Any) -> Self:
        """What a user has written, and the options that are not the user's; an `OptionError` names the first wrong."""
        for name in written:
            if name not in cls.offered():
                near = difflib.get_close_matches(name, cls.offered(), n=1)
                raise OptionError(
                    who,
                    expected=f"one of the options {', '.join(cls.offered())}",
                    found=f"option {name!r}",
                    hint=f"Did you mean {near[0]!r}?" if near else "Remove it.",
                    option=name,
                )
        options = cls._valid(who, {**written, **(internal or {})})
        options._refuse_unused(who, written)
        return options

    @classmethod
    def offered(cls) -> list[str]:
        """The options that a user may give."""
        return [name for name in cls.model_fields if name not in cls.INTERNAL]

    @classmethod
    def offered_values(cls, name: str) -> list[str]:
        """The values that a user may give to an option that is a choice; none for others."""
        choices = literals(cls.model_fields[name].annotation)
        return [value for value in choices if value not in cls.LAB.get(name, ())]

    @field_validator("*", mode="before")
    @classmethod
    def _is_offered(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        if info.context == WRITTEN and name in cls.LAB:
            offered = cls.offered_values(name)
            if not isinstance(value, str) or value not in offered:
                raise ValueError(f"Input should be {', '.join(map(repr, offered[:-1]))} or {offered[-1]!r}")
        return value

    @classmethod
    def _valid(cls, who: str, values: Mapping[str, Any]) -> Self:
        try:
            return cls.model_validate(values, context=WRITTEN)
        except ValidationError as error:
            first = error.errors()[0]
            reason = first["msg"].removeprefix("Value error, ")
            if not first["loc"]:  # each is valid by itself
                raise OptionError(
                    who,
                    expected="options that go together",
                    found=f"some that do not: {reason}",
                    hint="Change one of them; the reference says what each may be.",
                ) from None
            name = ".".join(str(part) for part in first["loc"])
            raise OptionError(
                who,
                expected=f"a valid value for {name}",
                found=f"{first['input']!r} ({reason})",
                hint=f"Correct {name}; the reference lists what it may be.",
                option=str(first["loc"][0]),
            ) from None

    def _refuse_unused(self, who: str, written: Mapping[str, Any]) -> None:
        """Fail with an `OptionError` if an option is set that has no effect, given the others."""
        effective = self.effective()
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value not in (None, (), field.get_default(call_default_factory=True)) and name not in effective:
                raise OptionError(
                    who,
                    expected="options that have an effect together",
                    found=f"{name}={written.get(name, value)!r}, which has none with the others as they are",
                    hint=f"Leave {name} out, or set what it depends on; the reference says what that is.",
                    option=name,
                )

    def check_plan(self, who: str, plan: JoinPlan) -> None:
        """Fail with an `OptionError` if the options do not fit the join's inputs or partitions."""

    def effective(self) -> dict[str, Any]:
        """The options that have an effect, given the others, with the values in force."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) not in (None, ())}

    def identity(self) -> dict[str, Any]:
        """The options that decide what the state means, in JSON form."""
        return {k: v for k, v in self.model_dump(mode="json").items() if k not in self.TUNING | self.PLANNED}

    def tuning(self) -> dict[str, Any]:
        """The options that may change between restarts, in JSON form."""
        return {k: v for k, v in self.model_dump(mode="json").items() if k in self.TUNING}
