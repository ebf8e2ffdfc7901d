"""Conditions on pairs beside the equality of keys: every family, every join type."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from tests.conformance.cases import combined, multiway, progressive, punctuated, semistream, window
from watersmeet.join.condition import constants
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.testing.arrivals import Row, Script
from watersmeet.testing.cases import Case
from watersmeet.testing.masters import semi_stream_join
from watersmeet.testing.oracle import BinaryOracle, inner_join

# The text of the left row is at most that of the right one, and they came within 40 rows of each other.
CONDITION: dict[str, Any] = {
    "text": "left.p1 <= right.p1 AND abs(left.p0 - right.p0) < 40",
    "tree": [
        "and",
        ["<=", ["column", "left", "_p1"], ["column", "right", "_p1"]],
        ["<", ["abs", ["-", ["column", "left", "_p0"], ["column", "right", "_p0"]]], ["constant", 0]],
    ],
    "ansi": True,
    **constants({"c0": pa.array([40], pa.int64())}),
}


def holds(left: Row, right: Row) -> bool:
    return bool(left[2] <= right[2] and abs(left[1] - right[1]) < 40)


def answer(script: Script, how: str) -> list[Counter[Row]]:
    return BinaryOracle(how, where=holds).answer(script)


def promised(script: Script, how: str, one: tuple[str, ...] = ()) -> list[Counter[Row]]:
    return punctuated.PromiseOracle(how, where=holds, one=one).answer(script)


def window_and_promises(script: Script, how: str, ones: list[str]) -> list[Counter[Row]]:
    lengths = (4 * window.SECOND, 2 * window.SECOND)
    return combined.PromisedWindowOracle(how, lengths, 2 * window.SECOND, ones, where=holds).answer(script)


def whole(script: Script, how: str) -> Counter[Row]:
    return sum(answer(script, how), Counter())


def cases(how: str) -> Iterator[Case]:
    def conditional(case: Case, **oracle: Callable[..., Any]) -> Case:
        name = f"{case.name}, {how}, where"
        fresh: dict[str, Any] = {"by_batch": None, "oracle": None, **oracle}
        return replace(case, name=name, how=how, condition=CONDITION, variation=True, **fresh)

    late = {"oracle": partial(whole, how=how)}
    yield conditional(Case("symmetric", "symmetric"), by_batch=partial(answer, how=how))
    for one in (progressive.case("rpj", 3, 4), progressive.case("xjoin", 10, 2), progressive.case("hmj", 10, 3)):
        yield conditional(one, **late)
    windows = {"lateness": 3 * window.SECOND, "arrival_clock": False, "how": how, "where": holds}
    for name, lengths, tuning in (
        ("HN", (4, 2), {"algorithm": "HN"}),
        ("disk", (6, 5), {"memory": 600}),
        ("between 1 and 5", (5, -1), {"algorithm": "NN"}),
    ):
        micros = tuple(length * window.SECOND for length in lengths)
        case = window.case(name, lengths, 3, **tuning)
        yield conditional(case, by_batch=partial(window.answer, window=micros, **windows))
    exact = partial(promised, how=how)
    yield conditional(punctuated.case("many-to-many"), by_batch=exact)
    for name, constraint, script, one in (
        ("one-to-many", punctuated.ONE_LEFT, punctuated.one_to_many, "left"),
        ("many-to-one", punctuated.ONE_RIGHT, punctuated.many_to_one, "right"),
    ):
        made = punctuated.case(name, constraint, script=script)
        yield conditional(made, by_batch=partial(promised, how=how, one=(one,)))
        yield conditional(punctuated.case(f"spilling, {name}", constraint, script=script, memory=250), **late)
    for name, constraints, script in (
        ("punctuations", (), combined.script),
        ("one-to-many", (punctuated.ONE_LEFT,), combined.one_to_many),
        ("many-to-one", (punctuated.ONE_RIGHT,), combined.many_to_one),
    ):
        ones = [constraint["one"] for constraint in constraints]
        made = combined.case(f"{name}, disk", how, *constraints, script=script, memory=600)
        yield conditional(made, by_batch=partial(window_and_promises, how=how, ones=ones))
    yield conditional(punctuated.case("quota and spilling", quota=3, scheduling="value", **punctuated.TINY), **late)


def with_table(policy: str, name: str, how: str, **tuning: Any) -> Case:
    """A stream and a table: most rows of a key fail the condition, on some all do."""
    made = semistream.case(policy, f"{name}, where", how=how, **tuning)
    oracle = partial(semi_stream_join, master=semistream.master_rows(), how=how, where=suits)
    return replace(made, oracle=oracle, condition=OF_TABLE, variation=True)


OF_TABLE: dict[str, Any] = {
    "text": "master.p0 <= 100 * stream.p0 AND master.p1 <> 'm'",
    "tree": [
        "and",
        ["<=", ["column", "right", "_p0"], ["*", ["column", "left", "_p0"], ["constant", 0]]],
        ["not", ["=", ["column", "right", "_p1"], ["constant", 1]]],
    ],
    "ansi": True,
    **constants({"c0": pa.array([100], pa.int64()), "c1": pa.array(["m"])}),
}


def suits(stream: Row, master: Row) -> bool:
    return bool(master[1] <= 100 * stream[1] and master[2] != "m")


def of_three(script: Script) -> Counter[Row]:
    answer: Counter[Row] = Counter()
    for row, count in inner_join(script, multiway.INPUTS[3]).items():
        answer[row] += count * (row[2] <= row[4] and row[1] != row[5])
    return +answer


THREE: dict[str, Any] = {
    "text": "a.p1 <= b.p1 AND a.p0 <> c.p0",
    "tree": [
        "and",
        ["<=", ["column", "a", "_p1"], ["column", "b", "_p1"]],
        ["not", ["=", ["column", "a", "_p0"], ["column", "c", "_p0"]]],
    ],
    "ansi": True,
    **constants({}),
}


def several(case: Case) -> Case:
    return replace(case, name=f"{case.name}, where", condition=THREE, oracle=of_three, variation=True)


CASES = [case for how in JOIN_TYPES for case in cases(how)]
CASES += [
    made
    for policy in ("aligned", "ssbj", "mesh")
    for how in semistream.HOW
    for made in (
        with_table(policy, "moves", how, **semistream.MOVES),
        with_table(policy, "refresh", how, refresh=True, max_delay=4, switching_factor=0.05, memory=3000),
    )
]
CASES += [several(multiway.plain("output_size", 3)), several(multiway.budgeted(3, 900, 4, 3))]
