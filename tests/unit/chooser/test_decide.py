"""The decision table: every combination of facts, one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from watersmeet.chooser.decide import JOINS, PROMISES, Facts, decide
from watersmeet.chooser.table_size import TableSize
from watersmeet.errors import OptionError, PlanError
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.spark.join import FUNCTIONS

MEGABYTES = 1_000_000
SMALL = TableSize(estimate=1_000, rows=40, row_bytes=44, threshold=10 * MEGABYTES)
LARGE = TableSize(estimate=80 * MEGABYTES, rows=None, row_bytes=8, threshold=10 * MEGABYTES)
SHAPES = {"two": {}, "table": {"table": True}, "list": {"several": True, "streams": 3}}
SUBSETS = [
    tuple(name for name, there in zip(PROMISES, mask, strict=True) if there) for mask in product((0, 1), repeat=4)
]


def expected(shape: str, window: bool, promises: tuple[str, ...], how: str) -> str | None:
    """The table of docs/which-join.md."""
    if shape == "table":
        return None if window or promises else "semi-stream"
    if shape == "list":
        return None if promises or how != "inner" else "multiway"
    if window:
        return "window"
    return "punctuated" if promises else "progressive"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("memory", [False, True])
def test_every_combination(shape: str, window: bool, memory: bool) -> None:
    for promises, how in product(SUBSETS, JOIN_TYPES):
        facts = Facts(**SHAPES[shape], window=window, promises=promises, memory=memory, how=how)  # type: ignore[arg-type]
        wanted = expected(shape, window, promises, how)
        if wanted is None:
            with pytest.raises(PlanError):
                decide("join", facts)
        else:
            choice = decide("join", facts)
            assert (choice.what, choice.value) == ("join", wanted)
            assert choice.why == JOINS[wanted].why


@pytest.mark.parametrize(
    ("facts", "message", "option"),
    [
        (
            Facts(table=True, window=True),
            "expected with a stream and a table no more than memory, found a stream and a table and within",
            "within",
        ),
        (
            Facts(table=True, promises=("ordered",)),
            "found a stream and a table and ordered",
            "ordered",
        ),
        (
            Facts(several=True, streams=4, promises=("unique",), window=True),
            "expected with a list of streams with how='inner' no more than within and memory, found four streams, "
            "within and unique",
            "unique",
        ),
        (Facts(several=True, streams=3, how="left"), "found how='left'. Name the inputs that may be missing", "how"),
    ],
)
def test_what_a_table_or_a_list_cannot_use(facts: Facts, message: str, option: str) -> None:
    with pytest.raises(PlanError) as caught:
        decide("join", facts)
    assert message in str(caught.value)
    assert caught.value.option == option


@pytest.mark.parametrize("name", JOINS)
def test_a_join_can_be_asked_for_if_it_takes_the_facts(name: str) -> None:
    for shape, window, promises in product(SHAPES, (False, True), SUBSETS):
        facts = Facts(**SHAPES[shape], window=window, promises=promises)  # type: ignore[arg-type]
        fits = expected(shape, window, promises, "inner") == name
        fits |= name == "punctuated" and shape == "two" and not window  # promises may come later
        facts = replace(facts, frame=name == "broadcast")
        fits |= name == "broadcast" and shape == "table" and not window and not promises
        if fits:
            assert decide("join", facts, name).why == "operator was given"
        else:
            with pytest.raises(PlanError, match=f"expected what a {name} join can use"):
                decide("join", facts, name)


def test_a_window_join_that_was_asked_for_needs_a_window() -> None:
    with pytest.raises(PlanError, match=r"or say how long rows wait \(within\)\.$"):
        decide("join", Facts(), "window")
    with pytest.raises(PlanError, match=r"or leave out what it cannot use\.$"):
        decide("join", Facts(window=True), "progressive")


@pytest.mark.parametrize("wrong", ["windows", 3, "", ["window"]])
def test_a_join_that_does_not_exist(wrong: object) -> None:
    with pytest.raises(OptionError, match="expected operator 'broadcast', 'semi-stream', 'multiway', 'progressive'"):
        decide("join", Facts(), wrong)  # type: ignore[arg-type]


def test_every_join_has_its_function() -> None:
    assert {name: join.function for name, join in JOINS.items()} == {
        name: function.__name__ for name, function in FUNCTIONS.items()
    }


TABLE = Facts(table=True, frame=True)


@pytest.mark.parametrize(
    ("facts", "wanted", "why"),
    [
        (
            replace(TABLE, size=SMALL),
            "broadcast",
            "the table is small, 40 rows, 1.8 kB (up to 5.0 MB, half of spark.sql.autoBroadcastJoinThreshold, are "
            f"broadcast): {JOINS['broadcast'].why}",
        ),
        (
            replace(TABLE, size=LARGE),
            "semi-stream",
            f"{JOINS['semi-stream'].why}; it is not broadcast at about 80.0 MB by Spark's estimate (up to 5.0 MB, half "
            "of spark.sql.autoBroadcastJoinThreshold, are broadcast)",
        ),
        (replace(TABLE, size=None), "semi-stream", JOINS["semi-stream"].why),
        (replace(TABLE, frame=False), "semi-stream", JOINS["semi-stream"].why),
        (
            replace(TABLE, size=SMALL, only=("memory", "max_delay")),
            "semi-stream",
            f"{JOINS['semi-stream'].why}; only this join has memory and max_delay",
        ),
        (
            replace(TABLE, size=LARGE, built="broadcast"),
            "broadcast",
            "the state directory was made by such a join: it goes on as it was, whatever size the table has now",
        ),
        (
            replace(TABLE, size=SMALL, built="semi-stream"),
            "semi-stream",
            "the state directory was made by such a join: it goes on as it was, whatever size the table has now",
        ),
    ],
)
def test_which_join_with_a_table(facts: Facts, wanted: str, why: str) -> None:
    choice = decide("join", facts)
    assert (choice.value, choice.why) == (wanted, why)


def test_a_prepared_table_cannot_be_broadcast() -> None:
    with pytest.raises(PlanError, match="what a broadcast join can use: a stream and a batch DataFrame, found"):
        decide("join", replace(TABLE, frame=False, size=SMALL), "broadcast")
    assert decide("join", replace(TABLE, size=LARGE), "broadcast").why == "operator was given"


def test_what_is_said_of_a_table_that_takes_no_window_names_the_join_that_takes_most() -> None:
    with pytest.raises(PlanError, match="expected with a stream and a table no more than memory, found a stream and a"):
        decide("join", replace(TABLE, window=True))
