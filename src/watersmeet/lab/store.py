"""Where results are kept: a folder per paper with its data and figures, and all verdicts in one file.

OUT/rpj/fig8.json     findings, verdict and scale       OUT/verdicts.json    id -> verdict, scale
OUT/rpj/fig8.png      OUT/rpj/fig8.svg                  OUT/index.html, OUT/README.md    the report
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watersmeet.lab.experiment import Experiment, Findings, NotReproducibleError, Progress, Scale, Verdict
from watersmeet.lab.figures import draw

VERDICTS = "verdicts.json"
DIGITS = 6
# Changes when runs or rules do, so that what was kept is not judged by rules that it was not made for.
EDITION = 3
OUTDATED = Verdict("outdated", "Runs or rules have changed since this was run: run it again.")


@dataclass(frozen=True)
class Result:
    """An experiment that was run."""

    experiment: Experiment
    scale: Scale
    verdict: Verdict
    findings: Findings | None  # none where it is not reproducible


def run(experiment: Experiment, scale: Scale, folder: Path, progress: Progress) -> Result:
    """Run, judge, draw and keep."""
    try:
        findings = Findings.from_dict(_rounded(experiment.run(scale, progress).as_dict()))
    except NotReproducibleError as error:
        result = Result(experiment, scale, Verdict("not reproducible here", str(error)), None)
    else:
        result = Result(experiment, scale, experiment.verdict(findings.numbers), findings)
        if findings.panels:
            draw(findings, f"{experiment.id}: {experiment.title}", folder / experiment.id)
    keep(result, folder)
    return result


def keep(result: Result, folder: Path) -> None:
    """Write the data and note the verdict."""
    path = folder / f"{result.experiment.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "experiment": result.experiment.id,
        "scale": result.scale,
        "edition": EDITION,
        "verdict": vars(result.verdict),
        "findings": result.findings.as_dict() if result.findings else None,
    }
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n")
    note(result, folder)


def note(result: Result, folder: Path) -> None:
    """Put the verdict among the others."""
    known = verdicts(folder)
    known[result.experiment.id] = {"scale": result.scale, **vars(result.verdict)}
    (folder / VERDICTS).write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def load(experiment: Experiment, folder: Path) -> Result | None:
    """What was kept of an experiment, judged anew by the present rule."""
    path = folder / f"{experiment.id}.json"
    if not path.exists():
        return None
    data = json.loads(path.read_text())
    findings = None if data["findings"] is None else Findings.from_dict(data["findings"])
    if data.get("edition") != EDITION:
        return Result(experiment, data["scale"], OUTDATED, None)
    if findings is None:
        return Result(experiment, data["scale"], Verdict(**data["verdict"]), None)
    try:
        experiment.lesson(findings.numbers)
        return Result(experiment, data["scale"], experiment.verdict(findings.numbers), findings)
    except (LookupError, ValueError, StopIteration):  # other numbers than the rule or the takeaway reads
        return Result(experiment, data["scale"], OUTDATED, None)


def verdicts(folder: Path) -> dict[str, dict[str, Any]]:
    """The last verdict of every experiment."""
    path = folder / VERDICTS
    known: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return known


def _rounded(value: Any) -> Any:
    """Six digits are enough for a figure, and keep the files small."""
    if isinstance(value, dict):
        return {str(name): _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return value.item() if hasattr(value, "item") else value
