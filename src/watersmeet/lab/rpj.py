"""RPJ (Tao et al.), section 6: progressiveness and efficiency on reliable and unreliable networks."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial

from watersmeet.lab import parts
from watersmeet.lab.experiment import (
    Check,
    Experiment,
    Findings,
    Numbers,
    Panel,
    Progress,
    Scale,
    Series,
    at_least,
    least_ratio,
    no_progress,
    ratio_figure,
    settings_of,
)
from watersmeet.lab.parallel import in_parallel
from watersmeet.lab.rpj_clock import Curve, Simulation, Size
from watersmeet.lab.rpj_fluid import Fluid
from watersmeet.lab.workloads import Network, Pattern, relations, suspensions

# Fractions of the paper's 2,000,000 rows. On an unreliable network the join works all the time, so that the number of
# tasks does not shrink with the rows, and each costs milliseconds of real time: its "paper" is a tenth. There as at
# full size every suspension is used (`Size.every`), and every bucket gets rows between two flushes (`whole_rows`).
SIZES: dict[Network, dict[Scale, Size]] = {
    "reliable": {"tiny": Size(0.001, 20), "small": Size(0.01, 50), "paper": Size(1.0, 5000)},
    "unreliable": {"tiny": Size(0.0002, 5), "small": Size(0.005, 50), "paper": Size(0.1, 500)},
}
# Fig. 8 to 12, a to d.
SETTINGS: dict[str, tuple[Pattern, float]] = {
    "a: harmony, speeds 1:1": ("harmony", 1.0),
    "b: reverse, speeds 1:1": ("reverse", 1.0),
    "c: harmony, speeds 5:1": ("harmony", 5.0),
    "d: reverse, speeds 5:1": ("reverse", 5.0),
}
SHOWN: dict[Network, str] = {"reliable": "a", "unreliable": "abcd"}  # the panels of Fig. 8 and 10 that have a clean-up
TINY_SETTINGS = [name for name in SETTINGS if name[0] in "ad"]
# Policy, and how it flushes if not in its own way.
Run = tuple[str, str | None]
POLICIES: dict[str, Run] = {"RPJ": ("rpj", None), "HMJ": ("hmj", None), "XJoin": ("xjoin", None)}
# Not in the paper: XJoin that skips buckets without new rows, and RPJ with the long-run flush.
FRESH, LONG = "XJoin, fresh buckets only", "RPJ, long-run flush"
BEYOND: dict[str, Run] = {**POLICIES, FRESH: ("xjoin-fresh", None), LONG: ("rpj", "long-run")}
VARIANTS: dict[str, Run] = {"RPJ": ("rpj", None), "RPJ-dd": ("rpj-dd", None), "RPJ-md": ("rpj-md", None)}


Key = tuple[Network, str, Run, Scale, int]  # which curve: the network, the setting, the policy, the scale, the seed
SEED = 1  # of the figures
_known: dict[Key, Curve] = {}


def cleaned_up(network: Network, scale: Scale) -> str:
    """The panels that show the clean-up; of 2,000,000 rows it has some 100,000,000 results, and no number needs it."""
    return "" if (network, scale) == ("reliable", "paper") else SHOWN[network]


def _curve(key: Key) -> Curve:
    network, setting, (policy, flush), scale, seed = key
    size = SIZES[network][scale]
    pattern, ratio = SETTINGS[setting]
    each, shown = size.stands_for, seed == SEED and setting[0] in cleaned_up(network, scale)
    arrivals = relations(size.rows, pattern, ratio, network, domain=size.domain, seed=seed, stands_for=each)
    silences = suspensions(size.rows, seed=seed, stands_for=each, every=size.every) if network == "unreliable" else None
    return Simulation(size, policy, arrivals, flush=flush).run(no_progress, silences, clean_up=shown)


def curves_of(
    network: Network, policies: dict[str, Run], scale: Scale, progress: Progress, seed: int = SEED
) -> dict[str, dict[str, Curve]]:
    """Curves per setting and policy; figures of the same runs share them."""
    settings = TINY_SETTINGS if scale == "tiny" else list(SETTINGS)
    keys: list[Key] = [(network, setting, policy, scale, seed) for setting in settings for policy in policies.values()]
    _known.update({key: Curve(**kept) for key in keys if key not in _known and (kept := parts.known(__name__, key))})
    missing = [key for key in keys if key not in _known]
    progress(0, len(missing))
    for number, (key, curve) in enumerate(zip(missing, in_parallel(_curve, missing, scale), strict=True)):
        _known[key] = curve
        parts.keep(asdict(curve), __name__, key)
        progress(number + 1, len(missing))
    return {
        setting: {name: _known[network, setting, policy, scale, seed] for name, policy in policies.items()}
        for setting in settings
    }


def notes_of(network: Network, scale: Scale) -> list[str]:
    """How it was done."""
    size = SIZES[network][scale]
    notes = [
        f"{size.rows:,} rows of the paper's 2,000,000, memory for {size.memory:,}, {size.domain:,} join values, "
        f"batches of up to {size.batch_rows} rows, pages of {size.page_rows}; n_flush 5 % of memory, lambda 0.5, "
        "fan-in 8, c_ran 10 ms, c_seq 1 ms, 0.1 microseconds per row touched. Time is shown in the paper's seconds"
    ]
    if not cleaned_up(network, scale):
        notes.append("the clean-up is left out; how many results there are in all is counted from the keys")
    if network == "unreliable":
        notes.append(
            f"gaps are drawn for all 2,000,000 rows and a row of ours comes with every {size.stands_for}th of them, so "
            "suspensions are as long beside a task's duration as in the paper. Used is one suspension in "
            f"{size.every}, "
            "by a rule that looks at no result: all of them, but at most one for every two rows. A task that is begun "
            "is "
            "finished: a dd-task with all its merging passes, HMJ's stage with all its buckets; XJoin pays for the "
            "scan "
            "of its largest bucket also when nothing new is in it"
        )
    return notes


def progress_panel(title: str, curves: dict[str, Curve], size: Size, *, clean_up: bool) -> Panel:
    """Results over time."""
    series = {}
    for name, curve in curves.items():
        last = len(curve.seconds) if clean_up else curve.transmitted + 1
        at = [int(i) for i in curve.sampled() if i < last]
        series[name] = Series([curve.seconds[i] / size.fraction for i in at], [float(curve.results[i]) for i in at])
    return Panel(title, "time (s)", "results", series)


def _cost_panel(title: str, curves: dict[str, Curve], size: Size) -> Panel:
    series = {}
    for name, curve in curves.items():
        at = [int(i) for i in curve.sampled() if 0 < i <= curve.transmitted and curve.results[i]]
        cost = [1000 * curve.cost[i] / curve.results[i] for i in at]
        series[name] = Series([curve.seconds[i] / size.fraction for i in at], cost)
    return Panel(title, "time (s)", "cost per result (ms)", series)


def shares(found: dict[str, dict[str, Curve]]) -> Numbers:
    """The share of the results before the clean-up."""
    return {setting: {n: c.share_before_clean_up for n, c in curves.items()} for setting, curves in found.items()}


FLAT = "; random pages at the price of sequential ones"


def costs(found: dict[str, dict[str, Curve]]) -> Numbers:
    """Milliseconds of work per result at the end of transmission, at both prices of a random page."""
    numbers: Numbers = {}
    for suffix in ("", FLAT):
        for setting, curves in found.items():
            numbers[setting + suffix] = {
                n: 1000 * (c.flat_cost if suffix else c.cost)[c.transmitted] / max(1, c.results[c.transmitted])
                for n, c in curves.items()
            }
    return numbers


def progressiveness(
    network: Network, policies: dict[str, Run], scale: Scale, progress: Progress, *, clean_up: bool = True
) -> Findings:
    """Fig. 8, 10 and 11: results over time; the panels that show the clean-up are those of the paper."""
    shown = cleaned_up(network, scale) if clean_up else ""
    found = curves_of(network, policies, scale, progress)
    size = SIZES[network][scale]
    panels = [progress_panel(name, curves, size, clean_up=name[0] in shown) for name, curves in found.items()]
    return Findings(panels, shares(found), [*notes_of(network, scale), "numbers: share of all results before clean-up"])


EXPECTED = "RPJ-md by expected values, at the paper's size"
LUMPS: dict[Scale, int] = {"tiny": 20_000, "small": 200, "paper": 200}  # rows that arrive at once


def variants(scale: Scale, progress: Progress) -> Findings:
    """Fig. 11, and RPJ-md by expected values: what a small copy makes too easy for it (`rpj_fluid`)."""
    found = progressiveness("unreliable", VARIANTS, scale, progress, clean_up=False)
    expected = {
        s[0]: parts.part(partial(_expected, s, LUMPS[scale]), __name__, "fluid", s, LUMPS[scale]) for s in found.numbers
    }
    return replace(found, numbers=found.numbers | {f"test: {s}, {EXPECTED}": v for s, v in expected.items()})


def _expected(setting: str, lump: int) -> dict[str, float]:
    return {"RPJ-md": Fluid(*SETTINGS[setting], lump=lump).run()}


def efficiency(network: Network, policies: dict[str, Run], scale: Scale, progress: Progress) -> Findings:
    """Fig. 9 and 12: work per result over time, while data comes."""
    found = curves_of(network, policies, scale, progress)
    panels = [_cost_panel(setting, curves, SIZES[network][scale]) for setting, curves in found.items()]
    notes = [*notes_of(network, scale), "numbers: ms per result at the end of transmission"]
    return Findings(panels, costs(found), notes)


RIVALS = ("HMJ", "XJoin")


def judge_fig8(numbers: Numbers) -> list[Check]:
    """RPJ at least 1.1 times both others at the end of transmission, in all settings."""
    return [check for rival in RIVALS for check in at_least(numbers, "RPJ", rival, 1.1)]


def lead(numbers: Numbers) -> str:
    """By how much RPJ is ahead of the better of the others where it is ahead by the least."""
    best = {s: {"RPJ": v["RPJ"], "the others": max(v[r] for r in RIVALS)} for s, v in numbers.items() if "HMJ" in v}
    setting, ratio = least_ratio(best, "RPJ", "the others")
    return f"RPJ's results over those of the better of HMJ and XJoin, at least: {ratio:.2f} ({setting[0]})"


def early_results(numbers: Numbers) -> str:
    """How far RPJ is ahead, from the numbers."""
    leads = {s: values["RPJ"] / max(values[rival] for rival in RIVALS) for s, values in numbers.items()}
    low, high = min(leads, key=lambda s: leads[s]), max(leads, key=lambda s: leads[s])
    return (
        f'With memory for a part of the state, policy="rpj" gives {leads[low]:.1f} to {leads[high]:.1f} times the '
        f"early results of the better of the others: least in {low}, most in {high}."
    )


def judge_lowest_cost(numbers: Numbers) -> list[Check]:
    """RPJ's cost per result is the lowest of all."""
    return _lowest({setting: values for setting, values in numbers.items() if not setting.endswith(FLAT)})


def judge_fig12(numbers: Numbers) -> list[Check]:
    """RPJ's cost per result is the lowest of all, and RPJ-dd's is in the end lower than RPJ-md's."""
    priced = {setting: values for setting, values in numbers.items() if not setting.endswith(FLAT)}
    return _lowest(priced) + at_least(priced, "RPJ-md", "RPJ-dd")


def _lowest(numbers: Numbers) -> list[Check]:
    others = [name for name in next(iter(numbers.values())) if name != "RPJ"]
    return [check for other in others for check in at_least(numbers, other, "RPJ")]


def dearest(numbers: Numbers) -> str:
    """RPJ's cost per result over that of the cheapest other, at most."""
    ratios = {
        setting: values["RPJ"] / min(value for name, value in values.items() if name != "RPJ")
        for setting, values in numbers.items()
        if not setting.endswith(FLAT)
    }
    worst = max(ratios, key=lambda setting: ratios[setting])
    return f"RPJ's cost per result over that of the cheapest other, at most: {ratios[worst]:.2f} ({worst[0]})"


def price_of_seeks(numbers: Numbers) -> str:
    """Whether the price of random pages is what makes the difference: the same work at one price for all pages."""
    flat = _lowest({setting: values for setting, values in numbers.items() if setting.endswith(FLAT)})
    held = sum(check.holds for check in flat)
    text = f"With random pages at the price of sequential ones, RPJ wins {held} of {len(flat)} comparisons"
    if held == len(flat):
        return (
            text + ": what makes the difference is the price of seeks, of which optimal flush needs more, because it "
            "scatters rows over many runs."
        )
    return text + ": the price of seeks is a part of the reason; what else is, is open."


def cheaper_task(numbers: Numbers) -> str:
    """Which of the variants is cheaper, from the numbers."""
    cheap = {s[0]: min(v, key=lambda n: v[n]) for s, v in numbers.items() if not s.endswith(FLAT)}
    told = ", ".join(
        f"{name} in {' '.join(s for s in cheap if cheap[s] == name)}" for name in sorted(set(cheap.values()))
    )
    return f"The lowest cost per result has {told}. RPJ weighs both tasks by itself and needs no choice."


def judge_fig10(numbers: Numbers) -> list[Check]:
    """RPJ first, then HMJ; RPJ has reported at least half before clean-up, the others at most 30 %."""
    checks = [check for rival in RIVALS for check in at_least(numbers, "RPJ", rival)]
    checks += at_least(numbers, "HMJ", "XJoin")
    for setting, values in numbers.items():
        checks.append(Check(values["RPJ"] >= 0.5, f"{setting}: RPJ has reported {values['RPJ']:.0%} before clean-up"))
        rest = max(values[rival] for rival in RIVALS)
        checks.append(Check(rest <= 0.3, f"{setting}: the best of the others {rest:.0%}, not about 20 %"))
    return checks


def shares_before(numbers: Numbers) -> str:
    """The lowest share of RPJ's, and the highest of the others'."""
    least = min(values["RPJ"] for values in numbers.values())
    most = max(values[rival] for values in numbers.values() for rival in RIVALS)
    return f"before clean-up RPJ has {least:.0%} or more, the best of the others up to {most:.0%}"


def idle_time_used(numbers: Numbers) -> str:
    """Why the others are not at 20 %, and where RPJ is behind."""
    behind = [s[0] for s, values in numbers.items() if values["RPJ"] < max(values[rival] for rival in RIVALS)]
    return (
        "A task that was begun is finished, here as in section 5, so HMJ and XJoin use the suspensions as well; under "
        "no "
        "single rule for suspensions do they stay at 20 % while RPJ has most. "
        + (f"RPJ is not first in {', '.join(behind)}." if behind else "RPJ is first in every setting.")
    )


def first_of_all(numbers: Numbers) -> str:
    """Which policy has most before the clean-up, from the numbers."""
    best = {s[0]: max(v, key=lambda n: v[n]) for s, v in numbers.items()}
    told = ", ".join(f"{name} in {' '.join(s for s in best if best[s] == name)}" for name in sorted(set(best.values())))
    return (
        f"All policies use silence well; most before the clean-up has {told}. How much idle work is allowed "
        "(idle_after, "
        "idle_pages) matters more than the policy."
    )


def judge_fig11(numbers: Numbers) -> list[Check]:
    """Mixing both tasks gives most; only dd-tasks give more than only md-tasks."""
    return (
        at_least(numbers, "RPJ", "RPJ-dd") + at_least(numbers, "RPJ", "RPJ-md") + at_least(numbers, "RPJ-dd", "RPJ-md")
    )


def first_variant(numbers: Numbers) -> str:
    """Which variant has most before the clean-up, from the numbers."""
    best = {s[0]: max(v, key=lambda n: v[n]) for s, v in settings_of(numbers).items()}
    told = ", ".join(f"{name} in {' '.join(s for s in best if best[s] == name)}" for name in sorted(set(best.values())))
    return f'Most before the clean-up has {told}; "rpj" weighs both tasks and needs no choice.'


def whole_rows(numbers: Numbers) -> str:
    """Why md-tasks alone do better in a small copy: rows cannot be divided, and a bucket without one needs no task."""
    ours = ", ".join(f"{values['RPJ-md']:.0%}" for values in settings_of(numbers).values())
    text = (
        "Between two flushes the coldest bucket of an input gets 25 rows in the paper. A small copy has less than a "
        "row for it: mostly there is nothing that an md-task must meet before it is flushed, and nothing that a flush "
        f"leaves as a run, so that md-tasks are fewer and cheaper. RPJ-md reports {ours} here"
    )
    fluid = [values["RPJ-md"] for setting, values in numbers.items() if setting.endswith(EXPECTED)]
    if fluid:
        text += f"; by expected values, where nothing is rounded to rows, {', '.join(f'{one:.0%}' for one in fluid)}"
    return text + ". An independent simulation of 2,000,000 rows has 50 %, 62 %, 73 % and 80 % (a to d)."


EXPERIMENTS = [
    Experiment(
        id="rpj/fig8",
        title="Fig. 8 a-d: results over time, reliable network",
        claim="RPJ reports more results than HMJ and XJoin while data comes, whatever the arrival pattern and the "
        "speeds.",
        rule="RPJ at least 1.1 times HMJ and XJoin at the end of transmission, in all four settings.",
        takeaway=early_results,
        clock="virtual",
        run=partial(progressiveness, "reliable", POLICIES),
        judge=judge_fig8,
        figure=lead,
        printed="no number; RPJ is the highest curve of all four panels",
        reason="Optimal flush keeps more of what matches next; where it does not lead by a tenth, the patterns differ "
        "too little.",
    ),
    Experiment(
        id="rpj/fig9",
        title="Fig. 9 a-d: cost per result, reliable network",
        claim="RPJ has the lowest cost per result at all times, because it has more results.",
        rule="RPJ's cost per result at the end of transmission is at most that of HMJ and of XJoin, in all four "
        "settings.",
        takeaway=lambda numbers: (
            "RPJ is the cheapest per result, too."
            if all(check.holds for check in judge_lowest_cost(numbers))
            else "RPJ pays for early results with more, smaller runs on disk; where random pages are dear, choose "
            'flush="long-run" (rpj/long-run).'
        ),
        clock="virtual",
        run=partial(efficiency, "reliable", POLICIES),
        judge=judge_lowest_cost,
        figure=dearest,
        printed="no number; RPJ is the lowest curve of all four panels",
        reason=price_of_seeks,
    ),
    Experiment(
        id="rpj/fig10",
        title="Fig. 10 a-d: results over time, unreliable network",
        claim="Before clean-up RPJ has reported most results, the others only about 20 %; HMJ more than XJoin.",
        rule="RPJ at least as many as HMJ and XJoin, HMJ as many as XJoin; RPJ at least half of all, the others at "
        "most "
        "30 %; in all four settings.",
        takeaway=first_of_all,
        clock="virtual",
        run=partial(progressiveness, "unreliable", BEYOND),
        judge=judge_fig10,
        figure=shares_before,
        printed="RPJ most of the results, the others about 20 %",
        reason=idle_time_used,
    ),
    Experiment(
        id="rpj/fig11",
        title="Fig. 11 a-d: variants of RPJ over time, unreliable network",
        claim="RPJ reports more than RPJ-dd, and RPJ-dd more than RPJ-md.",
        rule="Shares before clean-up: RPJ >= RPJ-dd >= RPJ-md in all four settings.",
        takeaway=first_variant,
        clock="virtual",
        run=variants,
        judge=judge_fig11,
        figure=ratio_figure("RPJ-dd", "RPJ-md"),
        printed="no number; the curves lie in this order in all four panels",
        reason=whole_rows,
    ),
    Experiment(
        id="rpj/fig12",
        title="Fig. 12 a-d: cost per result of RPJ's variants, unreliable network",
        claim="RPJ has the smallest cost per result of its variants; RPJ-dd's becomes lower than RPJ-md's.",
        rule="Cost per result at the end of transmission: RPJ's at most that of RPJ-dd and RPJ-md, and RPJ-dd's at "
        "most "
        "that of RPJ-md, in all four settings.",
        takeaway=cheaper_task,
        clock="virtual",
        run=partial(efficiency, "unreliable", VARIANTS),
        judge=judge_fig12,
        figure=dearest,
        printed="no number; RPJ is the lowest curve of all four panels",
        reason=price_of_seeks,
    ),
]
