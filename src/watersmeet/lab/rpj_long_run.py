"""Beyond RPJ (Tao et al.): two ways to flush of our own, beside the paper's joins."""

from __future__ import annotations

from functools import partial

from watersmeet.join.flush_policies import ALIKE, LEAST_RUN
from watersmeet.lab.experiment import Check, Experiment, Findings, Numbers, Progress, Scale, at_least, least_ratio
from watersmeet.lab.rpj import (
    BEYOND,
    FLAT,
    LONG,
    POLICIES,
    RIVALS,
    SEED,
    SIZES,
    Run,
    costs,
    curves_of,
    notes_of,
    progress_panel,
    shares,
)

CLASSES = "RPJ, flush by classes"
SEEDS: dict[Scale, tuple[int, ...]] = {"tiny": (SEED,), "small": (SEED, 2, 3), "paper": (SEED, 2, 3)}


def judge_long_run(numbers: Numbers) -> list[Check]:
    """More early results than HMJ and XJoin at a lower cost than both; 84 % of RPJ's results at half its cost."""
    results, prices = _parts(numbers)
    checks = [check for rival in RIVALS for check in at_least(results, LONG, rival)]
    checks += [check for rival in RIVALS for check in at_least(prices, rival, LONG)]
    return checks + at_least(results, LONG, "RPJ", 0.84) + at_least(prices, "RPJ", LONG, 2.0)


SHARE, COST = "share before clean-up", "ms per result"


def _parts(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Results, and what they cost."""
    results, prices = ({s: v for s, v in numbers.items() if s.endswith(f": {what}")} for what in (SHARE, COST))
    return results, prices


def flushes(name: str, run: Run, note: str, scale: Scale, progress: Progress) -> Findings:
    """RPJ with another flush beside the paper's joins, reliable network: results and cost up to the end of the rows."""
    chosen = {**POLICIES, name: run}
    size, panels = SIZES["reliable"][scale], []
    numbers: Numbers = {}
    for seed in SEEDS[scale]:
        found = curves_of("reliable", chosen, scale, progress, seed)
        if seed == SEED:
            panels = [progress_panel(title, curves, size, clean_up=False) for title, curves in found.items()]
        named = {setting: setting if seed == SEED else f"{setting}, seed {seed}" for setting in found}
        numbers |= {f"{named[s]}: {SHARE}": values for s, values in shares(found).items()}
        numbers |= {f"{named[s]}: {COST}": v for s, v in costs(found).items() if not s.endswith(FLAT)}
    return Findings(panels, numbers, [*notes_of("reliable", scale), note])


def judge_classes(numbers: Numbers) -> list[Check]:
    """95 % of RPJ's early results, and more than HMJ and XJoin, at a lower cost per result than RPJ's."""
    results, prices = _parts(numbers)
    checks = [check for rival in RIVALS for check in at_least(results, CLASSES, rival)]
    return checks + at_least(results, CLASSES, "RPJ", 0.95) + at_least(prices, "RPJ", CLASSES, 1.05)


def worth_of_classes(numbers: Numbers) -> str:
    """Whether it wins on the paper's data."""
    if all(check.holds for check in judge_classes(numbers)):
        return f'flush="classes", which wm.join chooses: {saved(CLASSES, numbers)}.'
    return f'On these data flush="classes" does not win: it has {saved(CLASSES, numbers)}.'


def saved(name: str, numbers: Numbers) -> str:
    """The least share of RPJ's early results, at which share of its cost at most."""
    results, prices = _parts(numbers)
    kept, spent = least_ratio(results, name, "RPJ")[1], 1 / least_ratio(prices, "RPJ", name)[1]
    return f"at least {kept:.0%} of RPJ's early results at no more than {spent:.0%} of its cost per result"


def worth(numbers: Numbers) -> str:
    """What the long-run flush is good for, from the numbers."""
    failed = [check.text for check in judge_long_run(numbers) if not check.holds]
    text = (
        f'flush="long-run" where disk work counts: {saved(LONG, numbers)}. Optimal flush where only early results do.'
    )
    return text if not failed else f"{text} It is not ahead of the others everywhere, so it is no default."


EXPERIMENTS = [
    Experiment(
        id="rpj/long-run",
        title="Beyond the paper: the long-run flush, reliable network",
        claim="Ours: optimal flush without short runs keeps most of RPJ's early results at half of its cost or less, "
        "and "
        "has more of them than HMJ and XJoin at a lower cost than both.",
        rule="At the end of transmission, in all four settings and for every seed: at least as many results as HMJ and "
        "XJoin, at a cost per result of at most theirs; at least 84 % of RPJ's results at half of its cost per result "
        "or "
        "less.",
        takeaway=worth,
        clock="virtual",
        run=partial(flushes, LONG, BEYOND[LONG], f"a run has at least {LEAST_RUN:.0%} of n_flush rows"),
        judge=judge_long_run,
        figure=partial(saved, LONG),
        printed="not in the paper",
        reason="Longer runs are fewer seeks, but rows that are less likely to match stay longer: where the rule fails, "
        "that weighs more.",
    ),
    Experiment(
        id="rpj/classes",
        title="Beyond the paper: flush by classes of probability, reliable network",
        claim="Ours: whole buckets, the largest of those that are about equally likely to be probed, give RPJ's early "
        "results at a lower cost.",
        rule="At the end of transmission, in all four settings and for every seed: more results than HMJ and XJoin; at "
        "least 95 % of RPJ's results, at a cost per result that RPJ's is at least 1.05 times of.",
        takeaway=worth_of_classes,
        clock="virtual",
        run=partial(flushes, CLASSES, ("rpj", "classes"), f"probabilities in a class differ by a factor of {ALIKE:g}"),
        judge=judge_classes,
        figure=partial(saved, CLASSES),
        printed="not in the paper",
        reason="Buckets of these data differ in their probabilities by up to 9 times, so that a class has few of them; "
        "where it flushes a larger bucket whole, rows leave that optimal flush would have kept.",
    ),
]
