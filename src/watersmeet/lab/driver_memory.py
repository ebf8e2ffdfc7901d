"""Driver input selection (Valsomatzis, Gounaris): early input consumption, the memory of the buffers over time.

The paper's consumption rate policy is meant to free the buffers early, and its summary says that initial output size
frees them even earlier. No figure shows it; here it is measured in the runs of Fig. 6 to 8.
"""

from __future__ import annotations

import numpy as np

from watersmeet.lab.driver_runs import BASE, CONTROLS, GRID, PERIODS, Behaviour, behaviours
from watersmeet.lab.drivers import CLEARLY, note, policies_of
from watersmeet.lab.experiment import Check, Experiment, Findings, Numbers, Panel, Progress, Scale, Series

NAMES = ("V", "VI")  # where selectivities differ, so that there is a consumption rate to compare with
CONSUMPTION, OUTPUT = "Consumption rate", "Initial output size"


def buffered(behaviour: Behaviour) -> float:
    """The share of a batch's rows that is in the buffers, on average over the time of timestamp-based."""
    within = GRID <= 1.0
    return float(np.mean(1 - np.asarray(behaviour.consumed)[within]))


def consumption(scale: Scale, progress: Progress) -> Findings:
    """Rows that have not driven yet, over time."""
    panels, numbers = [], {}
    names = NAMES[:1] if scale == "tiny" else NAMES
    for place, (name, period) in enumerate((name, period) for name in names for period in PERIODS):
        progress(place, len(names) * len(PERIODS))
        measured = behaviours(name, period, scale)["last 80 %"]
        found = {policy: measured[policy] for policy in policies_of(name)}
        series = {
            policy: Series([float(at) for at in GRID], [1 - share for share in one.consumed])
            for policy, one in found.items()
        }
        title = f"Dataset {name}, batch {period}"
        panels.append(Panel(title, "time over that of timestamp-based", "share of the rows in the buffers", series))
        numbers[title] = {policy: buffered(one) for policy, one in found.items()}
    notes = [
        *note(scale),
        "numbers: share of a batch's rows in the buffers, on average over the time that timestamp-based takes. A row "
        "that has driven is in its hash table, here as in the paper: the buffers' memory becomes the tables', and what "
        "all of it takes does not depend on the policy",
    ]
    return Findings(panels, numbers, notes)


def judge(numbers: Numbers) -> list[Check]:
    """Both policies empty the buffers before timestamp-based and the controls, initial output size first."""
    checks = []
    for setting, values in numbers.items():
        for policy in (CONSUMPTION, OUTPUT):
            text = f"{setting}: {policy} {values[policy]:.2f}, {BASE} {values[BASE]:.2f}"
            checks.append(Check(values[policy] < CLEARLY * values[BASE], text))
        best = min(values[control] for control in CONTROLS)
        text = f"{setting}: {OUTPUT} {values[OUTPUT]:.2f}, the best control {best:.2f}"
        checks.append(Check(values[OUTPUT] < CLEARLY * best, text))
        text = f"{setting}: {OUTPUT} {values[OUTPUT]:.2f}, {CONSUMPTION} {values[CONSUMPTION]:.2f}"
        checks.append(Check(values[OUTPUT] <= values[CONSUMPTION], text))
    return checks


def emptied(numbers: Numbers) -> str:
    """Which order empties the buffers first, from the numbers."""
    means = {policy: float(np.mean([v[policy] for v in numbers.values()])) for policy in next(iter(numbers.values()))}
    ranked = sorted(means, key=lambda policy: means[policy])
    return "Rows in the buffers on average, fewest first: " + ", ".join(f"{p} {means[p]:.2f}" for p in ranked) + "."


EXPERIMENTS = [
    Experiment(
        id="drivers/consumption",
        title="Section 4: early input consumption",
        claim="Consumption rate and initial output size empty the buffers earlier than timestamp-based, initial output "
        "size even before consumption rate.",
        rule="Rows in the buffers on average over the time of timestamp-based, datasets V and VI: both policies less "
        "than "
        "0.97 of timestamp-based; initial output size less than 0.97 of the best control, and no more than consumption "
        "rate.",
        takeaway=emptied,
        clock="cpu",
        run=consumption,
        judge=judge,
        figure=lambda numbers: (
            f"{OUTPUT} over the best control, at most: "
            f"{max(v[OUTPUT] / min(v[c] for c in CONTROLS) for v in numbers.values()):.2f}"
        ),
        printed="no number; no control",
        reason="Whole buffers that are drained one after the other are empty early whichever comes first; only their "
        "order differs.",
    ),
]
