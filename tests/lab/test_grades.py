"""How numbers become a grade, with the figure that decides; and that what is said of numbers follows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watersmeet.lab.experiment import (
    Check,
    Experiment,
    Findings,
    Numbers,
    Progress,
    Scale,
    at_least,
    least_ratio,
    ratio_figure,
)
from watersmeet.lab.registry import EXPERIMENTS


def nothing(scale: Scale, progress: Progress) -> Findings:
    return Findings([], {})


def experiment(held: int, parts: int, **more: str) -> Experiment:
    def judge(numbers: Numbers) -> list[Check]:
        return [Check(part < held, f"part {part}") for part in range(parts)]

    return Experiment(
        id="rpj/none",
        title="",
        claim="",
        rule="",
        takeaway="",
        clock="exact",
        run=nothing,
        judge=judge,
        figure=lambda numbers: "ours: 1.5",
        printed="7 times",
        reason="Because.",
        **more,
    )


@pytest.mark.parametrize(
    ("held", "parts", "grade"),
    [(4, 4, "agrees"), (3, 4, "partly"), (2, 4, "partly"), (1, 4, "differs"), (0, 4, "differs"), (0, 1, "differs")],
)
def test_the_grade_goes_by_the_parts_that_hold(held: int, parts: int, grade: str) -> None:
    verdict = experiment(held, parts).verdict({})
    assert verdict.outcome == grade
    assert verdict.figure == "ours: 1.5; printed: 7 times"
    assert (f"{held} of {parts} parts" in verdict.why) == (held < parts)
    assert ("Because." in verdict.why) == (held < parts)


@pytest.mark.parametrize("held", [0, 2])
def test_what_lacks_its_data_is_no_reproduction_whatever_it_gives(held: int) -> None:
    verdict = experiment(held, 2, lacks="The data cannot be had.").verdict({})
    assert verdict.outcome == "not reproducible here"
    assert verdict.why.startswith("The data cannot be had. Instead: part 0")


def test_the_least_ratio_is_of_the_settings_and_not_of_their_tests() -> None:
    numbers = {"a": {"x": 4.0, "y": 2.0}, "b": {"x": 3.0, "y": 2.0}, "test: c": {"x": 0.0, "y": 2.0}, "d": {"x": 1.0}}
    assert least_ratio(numbers, "x", "y") == ("b", 1.5)
    assert ratio_figure("x", "y")(numbers) == "x over y, at least: 1.50 (b)"
    assert [check.holds for check in at_least(numbers, "x", "y", 1.6)] == [True, False]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_says_what_is_printed(name: str) -> None:
    assert EXPERIMENTS[name].printed
    assert EXPERIMENTS[name].rule


def test_the_lesson_of_eq4_names_the_policy_that_loses_least() -> None:
    values = {"optimal": 10.0, "all": 1.0, "smallest": 8.0, "largest": 4.0, "adaptive": 6.0}
    lesson = EXPERIMENTS["rpj/eq4"].lesson
    told = lesson({"harmony": values, "reverse": {**values, "smallest": 3.0}})
    assert "adaptive loses least" in told
    assert "smallest loses least" in lesson({"harmony": values, "reverse": values})


def test_the_lesson_of_fig12_names_the_cheapest_in_each_setting() -> None:
    numbers = {"a: x": {"RPJ": 2.0, "RPJ-dd": 3.0, "RPJ-md": 1.0}, "b: x": {"RPJ": 1.0, "RPJ-dd": 3.0, "RPJ-md": 2.0}}
    assert "RPJ in b, RPJ-md in a" in EXPERIMENTS["rpj/fig12"].lesson(numbers)


def test_the_lesson_of_table5_ranks_what_was_found() -> None:
    names = ("Timestamp-based", "Initial output size", "Consumption rate", "control: fixed order")
    values = dict(zip(names, (0.4, 0.8, 0.9, 0.7), strict=True))
    told = EXPERIMENTS["drivers/table5"].lesson({"average, batch 1M": values})
    assert "Consumption rate 0.90, Initial output size 0.80, control: fixed order 0.70, Timestamp-based 0.40" in told


@pytest.mark.parametrize("beaten", [True, False])
def test_the_lesson_of_table4_depends_on_the_controls(beaten: bool) -> None:
    policy = 0.5 if beaten else 0.8
    values = {
        **dict.fromkeys(("Round-robin", "Timestamp-based"), 1.0),
        **dict.fromkeys(("Consumption rate", "Initial output size", "Output rate"), policy),
        **dict.fromkeys(("control: fixed order", "control: output size reversed"), 0.8),
        "control: timestamp, one slice": 0.9,
    }
    experiment = EXPERIMENTS["drivers/table4"]
    numbers = {"average, batch 0.1M": values}
    assert ("expect no time from its choice" in experiment.lesson(numbers)) == (not beaten)
    assert (experiment.verdict(numbers).outcome == "agrees") == beaten


def test_a_takeaway_that_is_a_text_is_said_only_if_the_rule_holds() -> None:
    assert replace(experiment(2, 2), takeaway="Use it.").lesson({}) == "Use it."
    told = replace(experiment(1, 2), takeaway="Use it.").lesson({})
    assert "Use it." not in told
    assert "does not hold here: part 1" in told


@pytest.mark.parametrize("best", ["equal", "window prop"])
def test_the_lesson_of_shedding_names_what_gives_most(best: str) -> None:
    names = ("rate prop", "rate inverse", "window prop", "window inverse", "equal")
    numbers = {name: {"measured": 5.0 if name == best else 1.0, "equation": 1.0} for name in names}
    told = EXPERIMENTS["windows/fig8"].lesson(numbers)
    assert ("its own way gives 5.0 results a second, the most" in told) == (best == "equal")
    assert ("window prop gives most here" in told) == (best == "window prop")


def test_the_lesson_of_fig9_says_what_probing_costs_as_the_state_grows() -> None:
    times = {"XJoin, second tenth": 1.0, "XJoin, last tenth": 3.0, "MJoin, second tenth": 2.0, "MJoin, last tenth": 2.0}
    numbers = {"sorted": {"XJoin": 1.0, "MJoin": 2.0}, "sorted: test: CPU ms per batch": times}
    told = EXPERIMENTS["punctuations/fig9"].lesson(numbers)
    assert "XJoin takes up to 3.0 times as long" in told
    assert "MJoin 1.0 times" in told
    faster = {**numbers, "sorted": {"XJoin": 2.0, "MJoin": 1.0}}
    assert EXPERIMENTS["punctuations/fig9"].lesson(faster).startswith("Punctuations save time as well")
