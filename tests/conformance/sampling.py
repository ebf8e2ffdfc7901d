"""Which cases get which checks. The soak profile (HYPOTHESIS_PROFILE=soak) gives all checks to all cases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.conformance.cases import CASES
from watersmeet.plan.metrics import FAMILIES
from watersmeet.testing.cases import Case
from watersmeet.testing.keys import COMPOSITE, FLOATS, INTEGERS, STRINGS


def leading(cases: list[Case]) -> list[Case]:
    """The cases that get every check: all inner joins that are no variation of another, and of each family one of every
    other join type. The others get one test of the answer, the accounts and restarts."""
    chosen: dict[tuple[object, ...], Case] = {}
    for case in (case for case in cases if not case.variation):
        family = next(family for family, operators in FAMILIES.items() if case.operator in operators)
        budget = family == "progressive" and case.operator != "symmetric"
        chosen.setdefault((case.name,) if case.how == "inner" else (family, budget, case.how), case)
    return list(chosen.values())


SOAK = settings.get_current_profile_name() != "ci"
LEADING = CASES if SOAK else leading(CASES)
every_case = pytest.mark.parametrize("case", LEADING, ids=str)


def dealt(name: str, values: Sequence[object], others: int = 1) -> pytest.MarkDecorator:
    """All values for the first case of each operator, and so many for every other case, in turn."""
    first: dict[str, Case] = {}
    for case in LEADING:
        first.setdefault(case.operator, case)
    pairs: list[tuple[Case, object]] = []
    for at, case in enumerate(LEADING):
        every = SOAK or first[case.operator] is case
        pairs += [(case, one) for one in (values if every else _in_turn(values, others * at, others))]
    return pytest.mark.parametrize(("case", name), pairs, ids=str)


def variant(case: Case) -> tuple[object, ...]:
    """What is stored and divided in a way of its own."""
    return (
        case.operator,
        case.how,
        *(bool(case.options.get(name)) for name in ("optional", "window")),
        case.options.get("policy"),
    )


# For what the store does below the operators: a case of every way to use it will do.
one_of_each_variant = pytest.mark.parametrize(
    "case",
    CASES if SOAK else list({variant(case): case for case in CASES if case.how in ("inner", "full")}.values()),
    ids=str,
)


def _in_turn(values: Sequence[object], first: int, count: int) -> list[object]:
    return [values[(first + i) % len(values)] for i in range(count)]


hard_types = st.sampled_from([INTEGERS, STRINGS, COMPOSITE, FLOATS])


def examples(count: int) -> int:
    """So many random scripts per case; the soak profile draws as many as it says."""
    return settings.default.max_examples if SOAK else count
