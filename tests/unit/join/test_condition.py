"""Conditions on pairs, evaluated column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.errors import ConditionError
from watersmeet.join.condition import Condition, Tree, constants

NAN = float("nan")


def evaluated(tree: Tree, left: pa.Array, right: pa.Array, *, ansi: bool = True, **values: Any) -> list[bool]:
    """The condition on pairs of rows with the same number."""
    made = constants({name: pa.array([value]) for name, value in values.items()})
    condition = Condition.of({"text": "c", "tree": tree, "ansi": ansi, **made})
    numbers = np.arange(len(left))
    return condition.holds((pa.table({"x": left}), numbers), (pa.table({"y": right}), numbers)).tolist()


X, Y = ["column", "left", "x"], ["column", "right", "y"]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("=", [True, True, False, False, False]),
        ("<", [False, False, True, False, False]),
        ("<=", [True, True, True, False, False]),
        ("<=>", [True, True, False, False, False]),
    ],
)
def test_nan_equals_itself_and_is_the_greatest(operation: str, expected: list[bool]) -> None:
    left, right = pa.array([NAN, -0.0, 1.0, NAN, None]), pa.array([NAN, 0.0, NAN, 1.0, NAN])
    assert evaluated([operation, X, Y], left, right) == expected


def test_logic_of_three_values() -> None:
    left, right = pa.array([True, True, None, None, False]), pa.array([True, None, None, False, None])
    assert evaluated(["and", X, Y], left, right) == [True, False, False, False, False]
    assert evaluated(["or", X, Y], left, right) == [True, True, False, False, False]
    assert evaluated(["not", ["and", X, Y]], left, right) == [False, False, False, True, True]
    assert evaluated(["<=>", X, Y], left, right) == [True, False, True, False, False]
    assert evaluated(["is null", ["or", X, Y]], left, right) == [False, False, True, True, True]


def test_text_is_compared_by_its_bytes() -> None:
    left, right = pa.array(["Z", "\uffff", "a"]), pa.array(["a", "\U0001f600", "ab"])
    assert evaluated(["<", X, Y], left, right) == [True, True, True]
    assert evaluated(["like", X, ["constant", 0]], left, right, c0="_") == [True, True, True]


def test_only_what_is_needed_can_overflow() -> None:
    left, right = pa.array([100, 2, None], pa.int8()), pa.array([100, 3, 100], pa.int8())
    large = ["<", ["constant", 0], ["+", X, Y]]
    constant = np.int8(4)
    with pytest.raises(ConditionError, match=r"the condition 'c'.*overflow.*wider type"):
        evaluated(large, left, right, c0=constant)
    assert evaluated(large, left, right, ansi=False, c0=constant) == [False, True, False]  # 200 is -56 here
    small = ["<", X, ["constant", 1]]
    assert evaluated(["and", small, large], left, right, c0=constant, c1=np.int8(50)) == [False, True, False]
    first = ["or", ["not", small], large]
    assert evaluated(first, left, right, c0=constant, c1=np.int8(50)) == [True, True, False]
    either = ["<", ["constant", 0], ["coalesce", X, ["+", X, Y]]]
    assert evaluated(either, left, right, c0=constant) == [True, False, False]


def test_the_columns_that_are_needed() -> None:
    tree = ["and", ["<", X, Y], ["is null", ["column", "right", "z"]]]
    condition = Condition("c", tree, pa.table({"_": pa.nulls(1)}), ansi=True)
    assert condition.columns("left") == ["x"]
    assert condition.columns("right") == ["y", "z"]


def test_an_unknown_operation_is_no_silent_match() -> None:
    with pytest.raises(ValueError, match="no operation 'xor'"):
        evaluated(["xor", X, Y], pa.array([True]), pa.array([True]))
