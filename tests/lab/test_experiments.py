"""Every experiment at tiny scale: it runs, is judged and drawn; and the rule can say both yes and no."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from watersmeet.lab.experiment import Numbers, no_progress
from watersmeet.lab.registry import EXPERIMENTS, PAPERS, select
from watersmeet.lab.report import build
from watersmeet.lab.store import Result, run
from watersmeet.lab.window_splits import FIG8, FIG9, FIG10, Split

Change = Callable[[Numbers], Numbers]


def swapped(first: str, second: str) -> Change:
    """The numbers of two series exchanged."""

    def change(numbers: Numbers) -> Numbers:
        changed = copy.deepcopy(numbers)
        for values in changed.values():
            if first in values and second in values:
                values[first], values[second] = values[second], values[first]
        return changed

    return change


def exchanged(first: str, second: str) -> Change:
    """The measured numbers of two settings exchanged."""

    def change(numbers: Numbers) -> Numbers:
        changed = copy.deepcopy(numbers)
        one, other = changed[first], changed[second]
        one["measured"], other["measured"] = other["measured"], one["measured"]
        return changed

    return change


def by_equation(split: Split) -> Numbers:
    """Every strategy gives what the paper's equation says."""
    return {name: {"measured": value, "equation": value} for name, (_, value) in split.strategies.items()}


def printed(name: str) -> Numbers:
    """The paper's own numbers."""
    paper = EXPERIMENTS[name].paper
    return {s: {n: v for n, v in values.items() if isinstance(v, float)} for s, values in paper.items()}


GREEDY_WIN: Numbers = {
    "Dataset I, batch 1M: running time": {"Timestamp-based": 1.0, "Initial output size": 0.8, "Output rate": 0.8},
    "Dataset I, batch 1M: time for 60 %": {"Timestamp-based": 0.6, "Initial output size": 0.3, "Output rate": 0.3},
}
MODEL: Numbers = {
    "cross-over": {"HHJ to HNJ": 70.0},
    "cost at 10 rows/s": {"HHJ": 1.0, "HNJ": 2.0},
    "cost at 200 rows/s": {"HHJ": 2.0, "HNJ": 1.0},
}

# Per experiment: numbers for which the rule must say yes, and a swap after which it must say no.
CASES: dict[str, tuple[Numbers, Change]] = {
    "rpj/fig8": ({"a": {"RPJ": 0.3, "HMJ": 0.1, "XJoin": 0.2}}, swapped("RPJ", "XJoin")),
    "rpj/fig9": ({"a": {"RPJ": 1.0, "HMJ": 2.0, "XJoin": 3.0}}, swapped("RPJ", "HMJ")),
    "rpj/fig10": ({"a": {"RPJ": 0.9, "HMJ": 0.2, "XJoin": 0.2}}, swapped("RPJ", "HMJ")),
    "rpj/fig11": ({"a": {"RPJ": 0.9, "RPJ-dd": 0.5, "RPJ-md": 0.2}}, swapped("RPJ-dd", "RPJ-md")),
    "rpj/fig12": ({"a": {"RPJ": 1.0, "RPJ-dd": 2.0, "RPJ-md": 3.0}}, swapped("RPJ", "RPJ-md")),
    "rpj/example4.1": (
        {"value 1": {"R1": 0.0, "R2": 10.0}, "value 2": {"R1": 10.0, "R2": 5.0}},
        swapped("R1", "R2"),
    ),
    "rpj/fig2": (
        {"merge 1": {"(1, 12)": 1.0, "(3, 14)": 1.0, "(6, 11)": 1.0}, "merge 2": {"(8, 15)": 1.0}},
        lambda numbers: {"merge 1": numbers["merge 2"], "merge 2": numbers["merge 1"]},
    ),
    "rpj/eq4": (
        {
            "harmony": {"optimal": 5.0, "smallest": 4.0, "adaptive": 3.0, "largest": 2.0, "all": 1.0},
            "reverse": {"optimal": 5.0, "smallest": 2.0, "adaptive": 3.0, "largest": 4.0, "all": 1.0},
        },
        swapped("smallest", "largest"),
    ),
    "drivers/fig5": (
        {"Dataset I: peak over mean": {"S1": 1.2, "S3": 1.6}, "Dataset V: peak over mean": {"S1": 1.2, "S3": 6.0}},
        swapped("S1", "S3"),
    ),
    "drivers/fig6": (GREEDY_WIN, swapped("Initial output size", "Timestamp-based")),
    "drivers/fig7": (GREEDY_WIN, swapped("Output rate", "Timestamp-based")),
    "drivers/fig8": (GREEDY_WIN, swapped("Output rate", "Timestamp-based")),
    "drivers/table4": (printed("drivers/table4"), swapped("Initial output size", "Timestamp-based")),
    "drivers/table5": (printed("drivers/table5"), swapped("Initial output size", "Timestamp-based")),
    "windows/fig2": (MODEL, swapped("HHJ", "HNJ")),
    "windows/fig3": ({**MODEL, "cross-over": {"HHJ to HNJ": 140.0}}, swapped("HHJ", "HNJ")),
    "windows/fig4": (
        {"cross-over HJ to NLJ (rows/s)": {"measured": 70.0, "model": 68.0}},
        lambda numbers: {"cross-over HJ to NLJ (rows/s)": {"measured": 0.0, "model": 68.0}},
    ),
    "windows/fig5": (
        {"|B| = 5": {"measured": 3.0, "Eq. 7": 2.8}, "|B| = 20": {"measured": 14.0, "Eq. 7": 14.4}},
        lambda numbers: {
            setting: {"measured": 17 - values["measured"], "Eq. 7": values["Eq. 7"]}
            for setting, values in numbers.items()
        },
    ),
    "windows/fig6": (
        {
            "CPU ms at 10 rows/s": {"HHJ": 1.0, "HNJ": 2.0, "NHJ": 3.0, "NNJ": 4.0},
            "CPU ms at 100 rows/s": {"HHJ": 2.0, "HNJ": 1.0, "NHJ": 3.0, "NNJ": 4.0},
        },
        swapped("HHJ", "HNJ"),
    ),
    "windows/fig7": (
        {
            "thrashing point (rows/s)": {"HHJ": 110.0, "HNJ": 190.0},
            "highest output (results/s)": {"HHJ": 11844.0, "HNJ": 18939.0},
        },
        swapped("HHJ", "HNJ"),
    ),
    "windows/fig8": (by_equation(FIG8), exchanged("equal", "window prop")),
    "windows/fig9": (by_equation(FIG9), exchanged("Max A", "Max B")),
    "windows/fig10": (by_equation(FIG10), exchanged("Max A / Max rate A", "Max A / Max rate B")),
    "windows/fig11": (
        {
            "results per second": {
                "Max A / Max rate A": 0.5,
                "Max A / Max rate B": 9.5,
                "Max B / Max rate A": 9.5,
                "Max B / Max rate B": 0.5,
                "chosen by the join": 9.5,
            }
        },
        swapped("Max A / Max rate A", "Max A / Max rate B"),
    ),
    "punctuations/fig8": (
        {"ordered: CPU ms": {"priority/value": 1.0, "random/sequential": 2.0}},
        swapped("priority/value", "random/sequential"),
    ),
    "punctuations/fig9": ({"ordered: CPU ms": {"MJoin": 1.0, "XJoin": 2.0}}, swapped("MJoin", "XJoin")),
    "punctuations/fig10": (
        {"random: most rows": {"MJoin": 10.0, "XJoin": 50.0}, "random: rows at the end": {"MJoin": 0.0, "XJoin": 50.0}},
        swapped("MJoin", "XJoin"),
    ),
    "punctuations/fig11": (
        {"CPU ms": {"immediate (1)": 2.0, "batch (100)": 1.0}},
        swapped("immediate (1)", "batch (100)"),
    ),
    "ssbj/fig3": (
        {"master rows in the cache": {"partID 10": 0.0, "partID 30": 2.0}},
        swapped("partID 10", "partID 30"),
    ),
    "ssbj/fig4a": ({"a": {"SSBJ": 1.0, "MESHJOIN": 7.0}}, swapped("SSBJ", "MESHJOIN")),
    "ssbj/fig4b": ({"a": {"SSBJ": 1.0, "MESHJOIN": 5.0}}, swapped("SSBJ", "MESHJOIN")),
    **{f"ssbj/fig5{panel}": ({"a": {"SSBJ": 7.0, "MESHJOIN": 1.0}}, swapped("SSBJ", "MESHJOIN")) for panel in "abde"},
    "ssbj/fig5c": (
        {"skew 0": {"SSBJ": 1.0, "MESHJOIN": 1.0}, "skew 1": {"SSBJ": 8.0, "MESHJOIN": 1.0}},
        swapped("SSBJ", "MESHJOIN"),
    ),
    "ssbj/fig5f": (
        {"memory 1% of R": {"SSBJ": 0.39}, "memory 10% of R": {"SSBJ": 0.54}},
        lambda numbers: dict(zip(numbers, reversed(list(numbers.values())), strict=True)),
    ),
    "ssbj/fig6a": (
        {"service rate": {"factor 0.25": 1.0, "factor 1": 3.0, "factor 4": 1.0}},
        swapped("factor 1", "factor 4"),
    ),
    "ssbj/fig6b": (
        {"service rate": {"500 rows": 1.0, "1000 rows": 3.0, "2000 rows": 1.0}},
        swapped("1000 rows", "2000 rows"),
    ),
    **{
        f"ssbj/fig6{panel}": (
            {"SSBJ, 20 rows per step: c_loop (ms)": {"measured": 1.0, "calculated": 1.1}},
            lambda numbers: {setting: {**values, "measured": 2.0} for setting, values in numbers.items()},
        )
        for panel in "cd"
    },
}
# What is exact, or large enough at tiny scale, must agree there too.
AGREES_AT_TINY = {
    "rpj/fig8", "rpj/example4.1", "rpj/fig2", "windows/fig2", "windows/fig3", "windows/fig7", "windows/fig11",
    "punctuations/fig10",
    "ssbj/fig3",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


def test_every_experiment_has_a_case() -> None:
    assert set(CASES) == set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_rule_says_yes_and_no(name: str) -> None:
    numbers, change = CASES[name]
    experiment = EXPERIMENTS[name]
    assert experiment.verdict(numbers).outcome == "agrees"
    assert experiment.verdict(change(numbers)).outcome == "differs"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_runs_at_tiny_scale(name: str, folder: Path) -> None:
    result: Result = run(EXPERIMENTS[name], "tiny", folder, no_progress)
    if result.findings is None:
        assert result.verdict.outcome == "not reproducible here"
        return
    for panel in result.findings.panels:
        assert panel.series
        assert all(len(line.x) == len(line.y) > 0 for line in panel.series.values())
    assert (folder / f"{name}.json").exists()
    assert (folder / f"{name}.svg").exists() == bool(result.findings.panels)
    if name in AGREES_AT_TINY:
        assert result.verdict.outcome == "agrees", result.verdict.why
    # The rule reads what the run gives: the case's series are among those of the run.
    found = {series for values in result.findings.numbers.values() for series in values}
    assert {series for values in CASES[name][0].values() for series in values} & found


def test_the_report_has_all_that_was_run(folder: Path) -> None:
    page = build(folder).read_text()
    assert "src='data:image/png;base64," in page
    assert "http" not in page.replace("http-equiv", "")
    for path in folder.glob("*/*.json"):
        assert f"id='{path.parent.name}/{path.stem}'" in page


def test_names_select_a_paper_or_all() -> None:
    assert len(select(["all"])) == len(EXPERIMENTS)
    assert {e.group for e in select(["rpj"])} == {"rpj"}
    assert {e.group for e in EXPERIMENTS.values()} == set(PAPERS)
