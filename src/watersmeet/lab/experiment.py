"""What an experiment is: a claim of a paper, a run that gives numbers and curves, a rule that judges the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Scale = Literal["tiny", "small", "paper"]
Outcome = Literal["agrees", "differs", "not reproducible here"]
Clock = Literal["virtual", "cpu", "model", "exact"]

# Numbers[setting][series], such as ["harmony, 1"]["RPJ"].
Numbers = dict[str, dict[str, float]]
# Called with the work done and the work to do.
Progress = Callable[[int, int], None]

# What is said about each clock on the report.
CLOCKS: dict[Clock, str] = {
    "virtual": "virtual clock: arrivals, pages and rows have fixed costs, so the curve is the same on every machine",
    "cpu": "CPU time, measured on the machine that ran it",
    "model": "a formula, evaluated",
    "exact": "no time in it: an exact example",
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
    """What the rule says, and why."""

    outcome: Outcome
    why: str


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper.

    `run` measures, `judge` applies the rule that `rule` states in words. `paper` has the paper's own numbers where its
    text gives them, under the names of `Findings.numbers`. `reason` is what is known about a difference; where the run
    itself tests it, it is a function of the numbers.
    """

    id: str
    title: str
    claim: str
    rule: str
    takeaway: str
    clock: Clock
    run: Callable[[Scale, Progress], Findings]
    judge: Callable[[Numbers], Sequence[Check]]
    paper: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    reason: str | Callable[[Numbers], str] = ""

    @property
    def group(self) -> str:
        """The paper, in short: the part of the id before the slash."""
        return self.id.split("/")[0]

    def verdict(self, numbers: Numbers) -> Verdict:
        """Judge numbers: every check of the rule must hold."""
        checks = self.judge(numbers)
        failed = [check.text for check in checks if not check.holds]
        if not failed:
            return Verdict("agrees", f"{_some([check.text for check in checks])}.")
        held = len(checks) - len(failed)
        why = f"{_some(failed)} ({held} of {len(checks)} parts of the rule hold)."
        reason = self.reason if isinstance(self.reason, str) else self.reason(numbers)
        return Verdict("differs", f"{why} {reason}".strip())


def _some(texts: Sequence[str], most: int = 6) -> str:
    """The first ones; the others are as the table of numbers shows."""
    more = len(texts) - most
    return "; ".join(texts[:most]) + (f"; and {more} more of the kind" if more > 0 else "")


def at_least(numbers: Numbers, better: str, worse: str, factor: float = 1.0) -> list[Check]:
    """In every setting that has both, one series is at least so many times another; tests of a reason do not count."""
    checks = []
    for setting, values in numbers.items():
        if better in values and worse in values and not setting.startswith("test:"):
            times = f"is {values[better] / values[worse]:.2f} times" if values[worse] else f"{values[better]:g}, 0 for"
            text = f"{setting}: {better} {times} {worse}"
            checks.append(Check(values[better] >= factor * values[worse], text))
    return checks


def no_progress(done: int, total: int) -> None:
    """For whoever does not care."""
