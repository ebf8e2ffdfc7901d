"""What an experiment is: a claim of a paper, a run that gives numbers and curves, a rule that judges the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "paper")  # from small to large
Outcome = Literal["agrees", "partly", "differs", "not reproducible here", "outdated"]
Clock = Literal["virtual", "cpu", "mixed", "model", "exact"]

# Numbers[setting][series], such as ["harmony, 1"]["RPJ"].
Numbers = dict[str, dict[str, float]]
# Called with the work done and the work to do.
Progress = Callable[[int, int], None]

# What is said about each clock on the report.
CLOCKS: dict[Clock, str] = {
    "virtual": "virtual clock: arrivals, pages and rows have fixed costs, so the curve is the same on every machine",
    "cpu": "CPU time, measured on the machine that ran it",
    "mixed": "virtual clock; the numbers named so are with CPU time, measured on the machine that ran it",
    "model": "a formula, evaluated",
    "exact": "no time in it: an exact example",
}


# What a grade says; at least this share of the parts of a rule must hold for "partly".
PARTLY = 0.5
GRADES: dict[Outcome, str] = {
    "agrees": "every part of the rule holds",
    "partly": "at least half of its parts hold",
    "differs": "fewer than half hold",
    "not reproducible here": "data or a program that the paper used cannot be had; what was run instead is shown",
    "outdated": "runs or rules have changed since it was run; it says nothing until it is run again",
}


class NotReproducibleError(Exception):
    """Something the experiment needs is not here; the message says what."""


@dataclass(frozen=True)
class Series:
    """One line of a figure."""

    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Panel:
    """One diagram of a figure, in the paper's axes; series in the order of the paper's legend.

    With `bars` the x of a series are the places of `ticks`. With `surface`, the name of a second horizontal axis, the
    names of the series are their places on it.
    """

    title: str
    x: str
    y: str
    series: dict[str, Series]
    ticks: list[str] | None = None
    bars: bool = False
    log_y: bool = False
    surface: str = ""


@dataclass(frozen=True)
class Findings:
    """What a run gave: diagrams, the numbers the verdict is about, and remarks on how it was done."""

    panels: list[Panel]
    numbers: Numbers
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Findings:
        """What `as_dict` gave."""
        panels = [
            Panel(**{**panel, "series": {name: Series(**line) for name, line in panel["series"].items()}})
            for panel in raw["panels"]
        ]
        return cls(panels, raw["numbers"], raw["notes"])


@dataclass(frozen=True)
class Check:
    """One part of a rule, with the numbers behind it."""

    holds: bool
    text: str


@dataclass(frozen=True)
class Verdict:
    """What the rule says, the figure that decides beside the paper's own, and why."""

    outcome: Outcome
    why: str
    figure: str = ""


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper.

    `run` measures, `judge` applies the rule that `rule` states in words. `figure` is the number that decides, and
    `printed` what the paper's text or tables print for it, or that they print none. `paper` has more of the paper's own
    numbers, under the names of `Findings.numbers`. `takeaway` and `reason`, what is known about a difference, are
    functions of the numbers where they say something about them; a takeaway that is a text rests on the rule, and is
    said only if it holds. `lacks` says what of the paper's cannot be had: what is run instead is no reproduction,
    whatever it gives.
    """

    id: str
    title: str
    claim: str
    rule: str
    takeaway: str | Callable[[Numbers], str]
    clock: Clock
    run: Callable[[Scale, Progress], Findings]
    judge: Callable[[Numbers], Sequence[Check]]
    figure: Callable[[Numbers], str]
    printed: str
    paper: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    reason: str | Callable[[Numbers], str] = ""
    lacks: str = ""

    @property
    def group(self) -> str:
        """The paper, in short: the part of the id before the slash."""
        return self.id.split("/")[0]

    @property
    def module(self) -> str:
        """Where its run is written."""
        run = self.run
        while isinstance(run, partial):
            run = run.func
        return run.__module__

    @property
    def measured(self) -> bool:
        """Whether CPU time is in it: then the machine must do nothing else meanwhile."""
        return self.clock in ("cpu", "mixed")

    def verdict(self, numbers: Numbers) -> Verdict:
        """Grade numbers by the parts of the rule that hold."""
        checks = self.judge(numbers)
        failed = [check.text for check in checks if not check.holds]
        figure = f"{self.figure(numbers)}; printed: {self.printed}"
        if self.lacks:
            found = _some([check.text for check in checks])
            return Verdict("not reproducible here", f"{self.lacks} Instead: {found}.", figure)
        if not failed:
            return Verdict("agrees", f"{_some([check.text for check in checks])}.", figure)
        held = len(checks) - len(failed)
        why = f"{_some(failed)} ({held} of {len(checks)} parts of the rule hold). {told(self.reason, numbers)}"
        return Verdict("partly" if held >= PARTLY * len(checks) else "differs", why.strip(), figure)

    def lesson(self, numbers: Numbers) -> str:
        """What to take from it, in the light of the numbers."""
        if not isinstance(self.takeaway, str):
            return self.takeaway(numbers)
        failed = [check.text for check in self.judge(numbers) if not check.holds]
        return f"Nothing: what the claim says does not hold here: {failed[0]}." if failed else self.takeaway


def told(text: str | Callable[[Numbers], str], numbers: Numbers) -> str:
    """A text, or what a function says of the numbers."""
    return text if isinstance(text, str) else text(numbers)


def _some(texts: Sequence[str], most: int = 6) -> str:
    """The first ones; the others are as the table of numbers shows."""
    more = len(texts) - most
    return "; ".join(texts[:most]) + (f"; and {more} more of this sort" if more > 0 else "")


def at_least(numbers: Numbers, better: str, worse: str, factor: float = 1.0) -> list[Check]:
    """In every setting that has both, one series is at least so many times another; tests of a reason do not count."""
    checks = []
    for setting, values in settings_of(numbers).items():
        if better in values and worse in values:
            times = f"is {values[better] / values[worse]:.2f} times" if values[worse] else f"{values[better]:g}, 0 for"
            text = f"{setting}: {better} {times} {worse}"
            checks.append(Check(values[better] >= factor * values[worse], text))
    return checks


def settings_of(numbers: Numbers) -> Numbers:
    """The settings of the paper's; those that test a reason are ours."""
    return {setting: values for setting, values in numbers.items() if not setting.startswith("test:")}


def least_ratio(numbers: Numbers, better: str, worse: str) -> tuple[str, float]:
    """The setting in which one series is ahead of another by the least, and how many times."""
    ratios = {
        setting: values[better] / max(values[worse], 1e-12)
        for setting, values in settings_of(numbers).items()
        if better in values and worse in values
    }
    worst = min(ratios, key=lambda setting: ratios[setting])
    return worst, ratios[worst]


def ratio_figure(better: str, worse: str) -> Callable[[Numbers], str]:
    """The figure that decides where one series must be ahead of another everywhere: the least ratio."""

    def figure(numbers: Numbers) -> str:
        setting, ratio = least_ratio(numbers, better, worse)
        return f"{better} over {worse}, at least: {ratio:.2f} ({setting})"

    return figure


def no_progress(done: int, total: int) -> None:
    """For whoever does not care."""
