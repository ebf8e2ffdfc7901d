"""A run of many experiments that can be interrupted and continued: what is in it, what is done, and how long the rest
will take.

OUT/run/journal.json    the experiments of the run, and how long those took that are done; gone when all are
OUT/run/*.json          parts of experiments (`parts`)
OUT/durations.json      scale -> id -> seconds that it took last

What is done is known by the edition of the code that did it (`code`): after a change it is run again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watersmeet.lab.code import edition
from watersmeet.lab.experiment import SCALES, Experiment, Scale
from watersmeet.lab.store import OUTDATED, load

RUN, JOURNAL, DURATIONS = "run", "journal.json", "durations.json"

# Seconds that an experiment may take at small scale, until it is known. Figures that share their runs with an earlier
# one cost little more than drawing. At other scales it is so many times as long.
GROWTH: dict[Scale, float] = {"tiny": 0.02, "small": 1.0, "paper": 40.0}
WEIGHTS: dict[str, float] = {
    "rpj/fig8": 60, "rpj/fig10": 400, "rpj/fig11": 200, "rpj/fig12": 1, "rpj/long-run": 20, "rpj/fig9": 1,
    "rpj/classes": 10,
    "drivers/fig5": 5, "drivers/fig6": 60, "drivers/fig7": 60, "windows/fig4": 20, "windows/fig5": 40,
    "windows/fig6": 30, "windows/fig7": 30, "windows/fig8": 10, "windows/fig9": 10, "windows/fig10": 10,
    "punctuations/fig8": 30, "punctuations/fig9": 20, "punctuations/fig11": 20,
    "ssbj/fig4a": 40, "ssbj/fig4b": 30, "ssbj/fig5a": 40, "ssbj/fig5b": 60, "ssbj/fig5c": 60, "ssbj/fig5d": 40,
    "ssbj/projection": 10, "ssbj/fig5e": 60, "ssbj/fig6a": 60, "ssbj/fig6b": 60, "ssbj/fig6c": 20, "ssbj/fig6d": 20,
}  # fmt: skip


def expected(id_: str, scale: Scale, durations: Durations) -> float:
    """Seconds that an experiment will take: as long as last time, or at the next smaller scale times the growth."""
    if id_ in durations.get(scale, {}):
        return durations[scale][id_]
    if id_ in WEIGHTS:
        smaller = [one for one in SCALES[: SCALES.index(scale)] if id_ in durations.get(one, {})]
        if smaller:
            return durations[smaller[-1]][id_] * GROWTH[scale] / GROWTH[smaller[-1]]
        return WEIGHTS[id_] * GROWTH[scale]
    return 1.0  # an example is as large at every scale


Durations = dict[Scale, dict[str, float]]


def durations_in(folder: Path) -> Durations:
    """How long experiments took."""
    path = folder / DURATIONS
    known: Durations = json.loads(path.read_text()) if path.exists() else {}
    return known


def due(
    experiments: Sequence[Experiment],
    folder: Path,
    scale: Scale,
    *,
    measured: bool | None = None,
    outdated: bool = False,
    replace: bool = False,
) -> list[Experiment]:
    """The experiments that are to be run.

    `measured`: only those with CPU time in them, or only those without. `outdated`: only those that have no valid
    result at this scale or a larger one. A valid result at a larger scale is kept, unless it is to be replaced.
    """

    def wanted(experiment: Experiment) -> bool:
        if measured is not None and experiment.measured != measured:
            return False
        result = load(experiment, folder)
        if result is None or result.verdict == OUTDATED:
            return True
        known, asked = SCALES.index(result.scale), SCALES.index(scale)
        return known < asked or (not outdated if known == asked else replace)

    return [experiment for experiment in experiments if wanted(experiment)]


@dataclass
class Campaign:
    """The experiments of a run with the editions of their code, and the seconds of those that are done."""

    out: Path
    scale: Scale
    editions: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    taken_up: str = ""  # the one that the interruption found half done: what is left of it says nothing of the whole
    pace: Durations = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, scale: Scale, experiments: Sequence[Experiment], *, fresh: bool = False) -> Campaign:
        """Go on with the run that was interrupted, if it is at this scale and has all these experiments; else begin.

        Those that were outdated when it began are fewer by now. Of an experiment that is asked for again by itself the
        parts are kept, and it is run.
        """
        editions = {experiment.id: edition(experiment.module) for experiment in experiments}
        campaign = cls(folder, scale, editions, pace=durations_in(folder))
        path = campaign.folder / JOURNAL
        if path.exists():
            written = json.loads(path.read_text())
            before = written["editions"]
            if not fresh and written["scale"] == scale and set(editions) <= set(before):
                again = set(editions) if len(editions) < len(before) else set()
                again |= {name for name, made_by in editions.items() if before[name] != made_by}
                campaign.editions = {**before, **editions}
                campaign.seconds = {name: took for name, took in written["seconds"].items() if name not in again}
                campaign.taken_up = next(iter(campaign.left), "")
                return campaign
        shutil.rmtree(campaign.folder, ignore_errors=True)
        campaign._write()
        return campaign

    @property
    def folder(self) -> Path:
        """Where journal and parts are."""
        return self.out / RUN

    @property
    def names(self) -> list[str]:
        """All of the run."""
        return list(self.editions)

    @property
    def left(self) -> list[str]:
        """What is still to be run."""
        return [name for name in self.names if name not in self.seconds]

    def done(self, name: str, seconds: float) -> None:
        """An experiment is done; with the last one the run is."""
        self.seconds[name] = seconds
        if name != self.taken_up:
            known = durations_in(self.out)
            took = max(round(seconds, 1), 0.1)  # nothing takes no time: the time left is a multiple of it
            known[self.scale] = dict(sorted({**known.get(self.scale, {}), name: took}.items()))
            _replace(self.out / DURATIONS, json.dumps(known, indent=1) + "\n")
        if self.left:
            self._write()
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def seconds_left(self, current: str, share: float, elapsed: float) -> float:
        """How long the rest will take: what is expected of it, times how much slower than expected it went so far.

        `current` is under way for `elapsed` seconds and has done `share` of its work. So far counts beside a tenth of
        the whole that goes as expected, so that an example of a tenth of a second does not set the pace of hours.
        """
        wanted = {name: expected(name, self.scale, self.pace) for name in self.editions}
        some = sum(wanted.values()) / 10
        worked = sum(wanted[name] for name in self.seconds) + share * wanted.get(current, 0.0)
        spent = sum(self.seconds.values()) + (elapsed if share else 0.0)
        ahead = sum(wanted[name] for name in self.left) - share * wanted.get(current, 0.0)
        return ahead * (spent + some) / (worked + some)

    def told(self, seconds: float) -> str:
        """How far the run is, after an experiment that took so long: for those who read it in a file."""
        left = shown(self.seconds_left("", 0.0, 0.0)) if self.left else "all done"
        return f"{seconds:.0f} s; {len(self.seconds)} of {len(self.names)} done, {left}"

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        written = {"scale": self.scale, "editions": self.editions, "seconds": self.seconds}
        _replace(self.folder / JOURNAL, json.dumps(written))


def _replace(path: Path, text: str) -> None:
    """Write a file in one piece, so that an interruption leaves no half of it."""
    begun = path.with_name(f"{path.name}.new")
    begun.write_text(text)
    begun.replace(path)


def shown(seconds: float) -> str:
    """A time for people.

    >>> shown(42), shown(600), shown(3.2 * 3600)
    ('about 42 s left', 'about 10 min left', 'about 3.2 h left')
    """
    if seconds < 120:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 2 * 3600 else f"about {seconds / 3600:.1f} h left"
