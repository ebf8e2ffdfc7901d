"""Every experiment runs at tiny scale, its rule reads what the run gives, and can say yes and no to it."""

from __future__ import annotations

import copy
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest

import watersmeet.lab
from watersmeet.lab import store
from watersmeet.lab.experiment import Check, Experiment, Findings, Numbers, at_least, no_progress
from watersmeet.lab.figures import draw
from watersmeet.lab.registry import EXPERIMENTS, PAPERS, select
from watersmeet.lab.report import build
from watersmeet.lab.rpj_examples import FIGURE_6
from watersmeet.lab.store import Result, run
from watersmeet.lab.window_splits import FIG8, FIG9, FIG10, Split
from watersmeet.lab.windows import OURS
from watersmeet.lab.windows import PAPERS as PAPERS_RATIO

Change = Callable[[Numbers], Numbers]


def swapped(first: str, second: str) -> Change:
    """The numbers of two series exchanged, in every setting that has both."""

    def change(numbers: Numbers) -> Numbers:
        changed = copy.deepcopy(numbers)
        for values in changed.values():
            if first in values and second in values:
                values[first], values[second] = values[second], values[first]
        return changed

    return change


def exchanged(first: str, second: str, series: str = "measured") -> Change:
    """The numbers of a series in two settings exchanged."""

    def change(numbers: Numbers) -> Numbers:
        changed = copy.deepcopy(numbers)
        one, other = changed[first], changed[second]
        one[series], other[series] = other[series], one[series]
        return changed

    return change


def turned_round(numbers: Numbers) -> Numbers:
    """Settings in reverse: the first has the numbers of the last."""
    return dict(zip(numbers, reversed(list(numbers.values())), strict=True))


def valued(**series: float) -> Change:
    """In every setting of the run, these values for the series it has (blanks are underscores, dashes doubled)."""
    wanted = {name.replace("__", "-").replace("_", " "): value for name, value in series.items()}

    def change(numbers: Numbers) -> Numbers:
        return {s: {n: wanted.get(n, v) for n, v in values.items()} for s, values in numbers.items()}

    return change


def as_by(series: str, *others: str) -> Change:
    """The others are given the values of a series that the rule compares them with."""

    def change(numbers: Numbers) -> Numbers:
        return {
            s: {n: values[series] if n in others and series in values else v for n, v in values.items()}
            for s, values in numbers.items()
        }

    return change


def shifted(series: str, amount: float) -> Change:
    """A series moved by an amount."""

    def change(numbers: Numbers) -> Numbers:
        return {s: {n: v + amount if n == series else v for n, v in values.items()} for s, values in numbers.items()}

    return change


def by_equation(split: Split) -> Change:
    """Every strategy gives what the paper's equation says."""
    return lambda numbers: {n: {"measured": v, "equation": v} for n, (_, v) in split.strategies.items()}


def early_and_cheap(numbers: Numbers) -> Numbers:
    """The greedy driver policies as the paper has them."""
    greedy = ("Initial output size", "Output rate")
    return {s: {n: 0.4 if n in greedy else 1.0 for n in values} for s, values in numbers.items()}


def tables(greedy: float, base: float) -> Change:
    """The driver tables: the greedy policies and the consumption rate at one value, the others at another."""
    wanted = ("Initial output size", "Output rate", "Consumption rate")
    return lambda numbers: {s: {n: greedy if n in wanted else base for n in values} for s, values in numbers.items()}


def by_rate(numbers: Numbers) -> Numbers:
    """Fig. 6 of the window joins as the paper has it."""
    changed = {}
    for setting, values in numbers.items():
        late = setting.startswith("CPU ms at") and float(setting.split()[3]) > 70
        wanted = {"HHJ": 2.0, "HNJ": 1.0, "NHJ": 3.0, "NNJ": 4.0} if late else {"HHJ": 1.0, "HNJ": 2.0, "NNJ": 4.0}
        changed[setting] = {n: wanted.get(n, v) for n, v in values.items()}
    return changed


def rising(numbers: Numbers) -> Numbers:
    """Cache shares that rise from 0.39 to 0.54."""
    last = len(numbers) - 1
    return {s: dict.fromkeys(v, 0.39 + 0.15 * i / last) for i, (s, v) in enumerate(numbers.items())}


def peaked(numbers: Numbers) -> Numbers:
    """One setting with several series: the middle one is the highest."""
    return {
        s: {n: 3.0 if i == len(values) // 2 else 1.0 for i, n in enumerate(values)} for s, values in numbers.items()
    }


def peak_at_the_end(numbers: Numbers) -> Numbers:
    """The highest value exchanged with the last."""
    changed = copy.deepcopy(numbers)
    for values in changed.values():
        best, last = max(values, key=lambda n: values[n]), list(values)[-1]
        values[best], values[last] = values[last], values[best]
    return changed


MESH = swapped("SSBJ", "MESHJOIN")
TIMED = swapped("Initial output size", "Timestamp-based")
FIRST_6, SECOND_6 = list(FIGURE_6)[:2]

# Runs that show the claim at tiny scale already. Nothing is put into their data: the run itself must agree, and a swap
# in the numbers that it gave must flip the verdict.
AGREEING: dict[str, Change] = {
    "rpj/example4.1": swapped("R1", "R2"),
    "rpj/fig2": lambda numbers: {**numbers, "merge 1": numbers["merge 2"], "merge 2": numbers["merge 1"]},
    "rpj/fig6": lambda numbers: {**numbers, FIRST_6: numbers[SECOND_6], SECOND_6: numbers[FIRST_6]},
    "rpj/eq4": swapped("smallest", "largest"),
    "rpj/fig8": swapped("RPJ", "XJoin"),
    "rpj/fig9": swapped("RPJ", "HMJ"),
    "drivers/fig5": swapped("S1", "S3"),
    "windows/fig2": swapped("HHJ", "HNJ"),
    "windows/fig3": swapped("HHJ", "HNJ"),
    "windows/fig7": swapped("HHJ", "HNJ"),
    "windows/fig11": swapped("Max A / Max rate A", "Max A / Max rate B"),
    "punctuations/fig10": swapped("MJoin", "XJoin"),
    "ssbj/fig3": swapped("partID 10", "partID 30"),
}
# Runs that do not show the claim at tiny scale, or at none; their clock is virtual, so that they never do. The run's
# own numbers are what the rule must say no to. What it must say yes to are the claim's numbers in the run's settings
# (the first change), and a swap among these (the second) must flip the verdict back.
DIFFERING: dict[str, tuple[Change, Change]] = {
    "rpj/fig10": (valued(RPJ=0.9, HMJ=0.2, XJoin=0.2), swapped("RPJ", "HMJ")),
    "rpj/fig11": (valued(RPJ=0.9, RPJ__dd=0.5, RPJ__md=0.2), swapped("RPJ-dd", "RPJ-md")),
    "rpj/fig12": (valued(RPJ=1.0, RPJ__dd=2.0, RPJ__md=3.0), swapped("RPJ", "RPJ-md")),
    "windows/fig8": (by_equation(FIG8), exchanged("equal", "window prop")),
    "windows/fig9": (by_equation(FIG9), exchanged("Max A", "Max B")),
    "windows/fig10": (by_equation(FIG10), exchanged("Max A / Max rate A", "Max A / Max rate B")),
    "ssbj/fig4a": (valued(SSBJ=1.0, MESHJOIN=7.0), MESH),
    "ssbj/fig4b": (valued(SSBJ=1.0, MESHJOIN=5.0), MESH),
    **{f"ssbj/fig5{panel}": (valued(SSBJ=7.0, MESHJOIN=1.0), MESH) for panel in "abcde"},
    "ssbj/fig5f": (rising, turned_round),
    "ssbj/fig6a": (peaked, swapped("factor 1", "factor 4")),
    "ssbj/fig6b": (peaked, peak_at_the_end),
}
# Runs that measure CPU time: whether they agree at tiny scale is up to the machine. The rule must say yes to the
# claim's numbers and no after a swap; and where the run itself agrees, no after the same swap in its own numbers.
MEASURED: dict[str, tuple[Change, Change]] = {
    **{f"drivers/fig{number}": (early_and_cheap, TIMED) for number in (6, 7, 8)},
    "drivers/table4": (tables(0.8, 1.0), TIMED),
    "drivers/table5": (tables(0.8, 0.45), TIMED),
    "windows/fig4": (as_by("model", "measured"), shifted("measured", -50.0)),
    "windows/fig5": (as_by(PAPERS_RATIO, "measured", OURS), shifted("measured", 1000.0)),
    "windows/fig6": (by_rate, shifted("HHJ", 1000.0)),
    "punctuations/fig8": (
        lambda n: {s: {"priority/value": 1.0, "random/sequential": 2.0} for s in n},
        swapped("priority/value", "random/sequential"),
    ),
    "punctuations/fig9": (valued(MJoin=1.0, XJoin=2.0), swapped("MJoin", "XJoin")),
    "punctuations/fig11": (
        lambda n: {s: {"immediate (1)": 2.0, "batch (100)": 1.0} for s in n},
        swapped("immediate (1)", "batch (100)"),
    ),
    **{f"ssbj/fig6{panel}": (as_by("calculated", "measured"), shifted("measured", 1000.0)) for panel in "cd"},
}
# Their axes are not CPU time: the same run gives the same bytes.
REPRODUCIBLE = [name for name, experiment in EXPERIMENTS.items() if experiment.clock != "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture
def forgetful() -> None:
    """Runs that figures share are kept; here they are forgotten."""
    for info in pkgutil.iter_modules(watersmeet.lab.__path__, "watersmeet.lab."):
        for value in vars(importlib.import_module(info.name)).values():
            if callable(getattr(value, "cache_clear", None)):
                value.cache_clear()


def test_tests_of_a_reason_do_not_count() -> None:
    assert not at_least({"test: why": {"RPJ": 1.0, "HMJ": 2.0}}, "RPJ", "HMJ")
    assert at_least({"a": {"RPJ": 1.0, "HMJ": 2.0}}, "RPJ", "HMJ")


def test_every_experiment_has_a_case() -> None:
    assert sorted([*AGREEING, *DIFFERING, *MEASURED]) == sorted(EXPERIMENTS)
    assert {name for name, experiment in EXPERIMENTS.items() if experiment.clock == "cpu"} == set(MEASURED)


def not_held(experiment: Experiment, numbers: Numbers) -> list[Check]:
    """What of the rule these numbers break. (A verdict would also need the numbers behind the reason.)"""
    return [check for check in experiment.judge(numbers) if not check.holds]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_runs_at_tiny_scale_and_the_verdict_can_fail(name: str, folder: Path) -> None:
    experiment = EXPERIMENTS[name]
    result: Result = run(experiment, "tiny", folder, no_progress)
    assert (folder / f"{name}.json").exists()
    if result.findings is None:
        assert result.verdict.outcome == "not reproducible here"
        return
    for panel in result.findings.panels:
        assert panel.series
        assert all(len(line.x) == len(line.y) > 0 for line in panel.series.values())
    assert (folder / f"{name}.svg").exists() == bool(result.findings.panels)
    assert result.verdict.why
    if result.verdict.outcome == "differs" and experiment.reason:
        reason = experiment.reason if isinstance(experiment.reason, str) else experiment.reason(result.findings.numbers)
        assert result.verdict.why.endswith(reason)
    outcome, numbers = result.verdict.outcome, result.findings.numbers
    if name in AGREEING:
        assert outcome == "agrees", result.verdict.why
        swap = AGREEING[name]
    else:
        claim, swap = (DIFFERING | MEASURED)[name]
        assert outcome == "differs" or name in MEASURED
        claimed = claim(numbers)
        assert experiment.verdict(claimed).outcome == "agrees", experiment.verdict(claimed).why
        assert not_held(experiment, swap(claimed))
    if outcome == "agrees":
        assert not_held(experiment, swap(numbers))


@pytest.mark.usefixtures("forgetful")
def test_whatever_is_not_about_cpu_time_is_the_same_to_the_byte(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(findings: Findings, title: str, path: Path) -> None:
        if path.name in ("eq4", "fig11"):  # a figure is a function of the data; two are enough to see it
            draw(findings, title, path)

    monkeypatch.setattr(store, "draw", drawn)
    for name in REPRODUCIBLE:
        if not (folder / f"{name}.json").exists():  # this test was run alone
            run(EXPERIMENTS[name], "tiny", folder, no_progress)
    for name in REPRODUCIBLE:
        run(EXPERIMENTS[name], "tiny", tmp_path, no_progress)
        for path in tmp_path.glob(f"{name}.*"):
            assert path.read_bytes() == (folder / path.relative_to(tmp_path)).read_bytes(), path.name


def test_the_report_has_all_that_was_run(folder: Path) -> None:
    if not list(folder.glob("*/*.json")):
        run(EXPERIMENTS["windows/fig2"], "tiny", folder, no_progress)
    page = build(folder).read_text()
    assert "src='data:image/png;base64," in page
    assert "http" not in page.replace("http-equiv", "")
    for path in folder.glob("*/*.json"):
        assert f"id='{path.parent.name}/{path.stem}'" in page


def test_names_select_a_paper_or_all() -> None:
    assert len(select(["all"])) == len(EXPERIMENTS)
    assert {e.group for e in select(["rpj"])} == {"rpj"}
    assert {e.group for e in EXPERIMENTS.values()} == set(PAPERS)
