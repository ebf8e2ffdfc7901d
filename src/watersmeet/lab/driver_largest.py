"""Beyond Valsomatzis and Gounaris: the largest buffer first, beside their policies and the controls."""

from __future__ import annotations

import numpy as np

from watersmeet.lab.driver_runs import CONTROLS, LARGEST, PERIODS, POLICIES, behaviours
from watersmeet.lab.drivers import CLEARLY, note, policies_of
from watersmeet.lab.experiment import Check, Experiment, Findings, Numbers, Progress, Scale
from watersmeet.lab.workloads import DATASETS

TIME, SHARE = "running time", "share at half time"
BEST, CONTROL = "the paper's best", "the best control"


def largest(scale: Scale, progress: Progress) -> Findings:
    """Running time and early results, of every policy, in the runs of Table 4 and 5."""
    names = list(DATASETS)[:1] if scale == "tiny" else list(DATASETS)
    numbers: Numbers = {}
    for place, (name, period) in enumerate((name, period) for name in names for period in PERIODS):
        progress(place, len(names) * len(PERIODS))
        found = behaviours(name, period, scale)["last 80 %"]
        chosen = policies_of(name)
        numbers[f"Dataset {name}, batch {period}: {TIME}"] = {p: found[p].running_time for p in chosen}
        numbers[f"Dataset {name}, batch {period}: {SHARE}"] = {p: found[p].share_at_half for p in chosen}
    return Findings([], numbers, note(scale))


def means(numbers: Numbers, what: str) -> dict[str, float]:
    """Ours, the paper's best and the best control, on average over datasets and batches."""
    settings = [values for setting, values in numbers.items() if setting.endswith(what)]
    best = min if what == TIME else max
    return {
        LARGEST: float(np.mean([values[LARGEST] for values in settings])),
        BEST: float(np.mean([best(values[p] for p in POLICIES if p in values) for values in settings])),
        CONTROL: float(np.mean([best(values[p] for p in CONTROLS) for values in settings])),
    }


def judge(numbers: Numbers) -> list[Check]:
    """Clearly less time than the paper's best policy and the controls, and no fewer early results."""
    ours, papers, control = means(numbers, TIME).values()
    early, papers_early, _ = means(numbers, SHARE).values()
    return [
        Check(ours <= CLEARLY * papers, f"takes {ours / papers:.2f} of the time of the paper's best"),
        Check(ours <= CLEARLY * control, f"takes {ours / control:.2f} of the time of the best control"),
        Check(early >= papers_early, f"has {early:.2f} of the results by half time, their best {papers_early:.2f}"),
    ]


EXPERIMENTS = [
    Experiment(
        id="drivers/largest",
        title="Beyond the paper: the largest buffer first",
        claim="Ours: to drain the largest buffer first, while the tables that it probes are smallest, takes less time.",
        rule="On average over datasets and batches: at most 0.97 of the time of the best of the paper's policies and "
        "of the best control, and no fewer results by half time than the best of the paper's.",
        takeaway=lambda numbers: (
            'It wins: choose driver="largest_buffer".'
            if all(check.holds for check in judge(numbers))
            else "It does not win, so it is not offered: what a step costs hardly depends on which buffer drives."
        ),
        clock="cpu",
        run=largest,
        judge=judge,
        figure=lambda numbers: (
            f"time over that of the paper's best: {(found := means(numbers, TIME))[LARGEST] / found[BEST]:.2f}"
        ),
        printed="not in the paper",
        reason="What a step takes is mostly the same for every buffer.",
    ),
]
