"""A run of many experiments that can be interrupted and continued: what is in it, what is done, and how long the rest
will take.

OUT/run/journal.json    the experiments of the run, and how long those took that are done; gone when all are
OUT/run/*.json          parts of experiments (`parts`)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watersmeet.lab.experiment import SCALES, Experiment, Scale
from watersmeet.lab.store import OUTDATED, load

RUN, JOURNAL = "run", "journal.json"

# How much longer an experiment takes than an exact example; only the ratios matter, and only for the time left. Figures
# that share their runs with an earlier one cost little more than drawing.
WEIGHTS: dict[str, float] = {
    "rpj/fig8": 60, "rpj/fig10": 400, "rpj/fig11": 200, "rpj/fig12": 1, "rpj/long-run": 20, "rpj/fig9": 1,
    "drivers/fig5": 5, "drivers/fig6": 60, "drivers/fig7": 60, "windows/fig4": 20, "windows/fig5": 40,
    "windows/fig6": 30, "windows/fig7": 30, "windows/fig8": 10, "windows/fig9": 10, "windows/fig10": 10,
    "punctuations/fig8": 30, "punctuations/fig9": 20, "punctuations/fig11": 20,
    "ssbj/fig4a": 40, "ssbj/fig4b": 30, "ssbj/fig5a": 40, "ssbj/fig5b": 60, "ssbj/fig5c": 60, "ssbj/fig5d": 40,
    "ssbj/projection": 10, "ssbj/fig5e": 60, "ssbj/fig6a": 60, "ssbj/fig6b": 60, "ssbj/fig6c": 20, "ssbj/fig6d": 20,
}  # fmt: skip


def weight(id_: str) -> float:
    """The weight of an experiment."""
    return WEIGHTS.get(id_, 1.0)


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
    """The experiments of a run, and the seconds of those that are done."""

    folder: Path
    scale: Scale
    names: list[str]
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, scale: Scale, experiments: Sequence[Experiment], *, fresh: bool = False) -> Campaign:
        """Go on with the run that was interrupted, if it is at this scale and has all these experiments; else begin.

        Those that were outdated when it began are fewer by now. Of an experiment that is asked for again by itself the
        parts are kept, and it is run.
        """
        campaign = cls(folder / RUN, scale, [experiment.id for experiment in experiments])
        path = campaign.folder / JOURNAL
        if path.exists():
            written = json.loads(path.read_text())
            if not fresh and written["scale"] == scale and set(campaign.names) <= set(written["names"]):
                again = set(campaign.names) if len(campaign.names) < len(written["names"]) else set()
                campaign.names = written["names"]
                campaign.seconds = {name: took for name, took in written["seconds"].items() if name not in again}
                return campaign
        shutil.rmtree(campaign.folder, ignore_errors=True)
        campaign._write()
        return campaign

    @property
    def left(self) -> list[str]:
        """What is still to be run."""
        return [name for name in self.names if name not in self.seconds]

    def done(self, name: str, seconds: float) -> None:
        """An experiment is done; with the last one the run is."""
        self.seconds[name] = seconds
        if self.left:
            self._write()
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def seconds_left(self, current: str, share: float, elapsed: float) -> float | None:
        """How long the rest will take, if it goes on as it went; none before anything is known.

        `current` is under way for `elapsed` seconds and has done `share` of its work.
        """
        worked = sum(weight(name) for name in self.seconds) + share * weight(current)
        spent = sum(self.seconds.values()) + elapsed
        ahead = sum(weight(name) for name in self.left) - share * weight(current)
        return ahead * spent / worked if worked > 0 and spent > 0 else None

    def told(self, seconds: float) -> str:
        """How far the run is, after an experiment that took so long: for those who read it in a file."""
        left = shown(self.seconds_left("", 0.0, 0.0)) if self.left else "all done"
        return f"{seconds:.0f} s; {len(self.seconds)} of {len(self.names)} done, {left}"

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        written = {"scale": self.scale, "names": self.names, "seconds": self.seconds}
        begun = self.folder / f"{JOURNAL}.new"
        begun.write_text(json.dumps(written))
        begun.replace(self.folder / JOURNAL)


def shown(seconds: float | None) -> str:
    """A time for people.

    >>> shown(None), shown(42), shown(600), shown(3.2 * 3600)
    ('', 'about 42 s left', 'about 10 min left', 'about 3.2 h left')
    """
    if seconds is None:
        return ""
    if seconds < 120:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 2 * 3600 else f"about {seconds / 3600:.1f} h left"
