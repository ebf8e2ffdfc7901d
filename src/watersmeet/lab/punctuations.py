"""The metadata-aware join (Ding, Rundensteiner, Heineman): scheduling, time and memory on news and access records.

A batch is what comes while one news item is the oldest of the ten latest: its records, one new item, one punctuation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import hash_keys
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, Operator, advance
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
    ratio_figure,
)
from watersmeet.lab.measuring import least_in_turns
from watersmeet.lab.workloads import Order, news
from watersmeet.plan import OutputColumn
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.punctuated.propagation import COLUMN, punctuation_type
from watersmeet.state.space import MemorySpace
from watersmeet.testing import make_plan

LATEST = 10
SIZES: dict[Scale, tuple[int, int]] = {"tiny": (40, 20), "small": (500, 40), "paper": (3000, 50)}
TURNS: dict[Scale, int] = {"tiny": 1, "small": 3, "paper": 3}
NAMES = ("left", "right")  # news items, access records
ONE_TO_MANY: dict[str, Any] = {"constraints": [{"kind": "one_to_many", "one": "left"}]}
MJOIN, XJOIN = "MJoin", "XJoin"
SAID = "said"  # the output column of propagated punctuations
PATTERNS: tuple[Order, ...] = ("ordered", "random")


@dataclass(frozen=True)
class Variant:
    """A join and how it is tuned."""

    join: str
    tuning: tuple[tuple[str, Any], ...] = ()
    propagates: bool = False

    @classmethod
    def mjoin(cls, *, propagates: bool = False, **tuning: Any) -> Variant:
        """The metadata-aware join."""
        return cls(MJOIN, tuple(tuning.items()), propagates)

    @property
    def waits(self) -> bool:
        """Whether rows wait: with a quota, batches without rows let them through at the end."""
        return any(name == "quota" for name, _ in self.tuning)


@dataclass
class Trace:
    """Results so far, CPU milliseconds so far, rows in the state and rows waiting, after every batch."""

    results: list[int] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    state: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)


@cache
def _script(order: Order, scale: Scale) -> list[Batch]:
    items, per_item = SIZES[scale]
    workload = news(items, per_item, order, latest=LATEST)
    left, right = (_rows(table.column("key").to_numpy()) for table in (workload.items, workload.records))
    batches, seen, known = [], 0, 0
    for number, until in enumerate(workload.punctuated_after):
        arrived = min(items, number + LATEST)
        rows = {"left": left.slice(known, arrived - known), "right": right.slice(seen, int(until) - seen)}
        said = punctuation_table((pa.int64(),), [[Pattern.value(number)]])
        batches.append(Batch(number, number * 1_000_000, rows, {"right": said}))
        seen, known = int(until), arrived
    return batches


def _rows(keys: Any) -> pa.Table:
    column = pa.array(keys)
    return pa.table({"_hash": hash_keys([column]), "_k0": column, "_p0": np.arange(len(keys))})


def _operator(variant: Variant) -> Operator:
    if variant.join == XJOIN:
        # Memory for everything: the paper's experiment stays in memory.
        options = {"policy": "xjoin"}
        plan = make_plan("xjoin", NAMES, options, payload=(pa.int64(),), tuning={"memory_rows": 10**9})
    else:
        options = {**ONE_TO_MANY, **({"propagate": SAID} if variant.propagates else {})}
        plan = make_plan("punctuated", NAMES, options, payload=(pa.int64(),), tuning=dict(variant.tuning))
        if variant.propagates:
            said = OutputColumn(pa.field(SAID, punctuation_type(["k0"], (pa.int64(),))), NAMES[0], COLUMN)
            plan = replace(plan, output=(*plan.output, said))
    return build(plan, MemorySpace())


def _results(table: pa.Table, variant: Variant) -> int:
    """Rows that are results: a propagated punctuation is none."""
    return int(table.column(SAID).null_count) if variant.propagates else int(table.num_rows)


def _run(variant: Variant, script: list[Batch], trace: Trace) -> list[float]:
    """CPU seconds of every batch; results and state are noted in the trace."""
    operator, spent = _operator(variant), []
    trace.results, trace.state, trace.waiting, found = [], [], [], 0
    drain = [Batch(len(script) + i, (len(script) + i) * 1_000_000) for i in range(20 if variant.waits else 0)]
    for batch in [*script, *drain]:
        rows = batch if variant.join == MJOIN else Batch(batch.number, batch.time, batch.rows)
        begun = process_time()
        found += sum(_results(table, variant) for table in advance(operator, rows))
        spent.append(process_time() - begun)
        counters = operator.metrics.counters
        held = "resident_rows" if variant.join == XJOIN else "held_rows"
        trace.results.append(found)
        trace.state.append(sum(counters[f"{held}.{name}"] for name in NAMES))
        trace.waiting.append(sum(counters.get(f"waiting_rows.{name}", 0) for name in NAMES))
    return spent


@cache
def traces(order: Order, scale: Scale, *variants: Variant, queued: bool = False) -> list[Trace]:
    """Several joins over the workload, in turns."""
    key = (order, scale, *variants, queued)
    kept = parts.part(
        lambda: {"traces": [asdict(one) for one in _traces(order, scale, variants, queued)]}, __name__, *key
    )
    return [Trace(**one) for one in kept["traces"]]


def _traces(order: Order, scale: Scale, variants: Sequence[Variant], queued: bool) -> list[Trace]:
    found = [Trace() for _ in variants]
    script = _queued(order, scale) if queued else _script(order, scale)
    works = {
        str(place): partial(_run, variant, script, trace)
        for place, (variant, trace) in enumerate(zip(variants, found, strict=True))
    }
    for trace, spent in zip(found, least_in_turns(works, TURNS[scale]).values(), strict=True):
        trace.milliseconds = (1000 * np.cumsum(spent)).tolist()
    return found


def _panel(title: str, y: str, lines: dict[str, tuple[list[int], list[float]]]) -> Panel:
    series = {}
    for name, (results, values) in lines.items():
        at = np.unique(np.linspace(0, len(results) - 1, 60).astype(int))
        series[name] = Series([float(results[i]) for i in at], [values[i] for i in at])
    return Panel(title, "results", y, series)


def _note(scale: Scale) -> str:
    items, per_item = SIZES[scale]
    return (
        f"{items:,} news items with {per_item} access records each; a batch per punctuation. CPU time: the joins take "
        f"turns, {TURNS[scale]} each, and of each batch the least time counts"
    )


PURGED_AND_SAID = "with purging after every batch and propagation of punctuations, as in the paper"
UNQUEUED = "test: without a queue"
# Punctuations that come ahead: as many batches stand in the queue from the start, so that it never runs empty.
AHEAD: dict[Scale, int] = {"tiny": 10, "small": 120, "paper": 300}


@cache
def _queued(order: Order, scale: Scale) -> list[Batch]:
    """The workload with a standing backlog: the first batches come all at once, the others one by one."""
    script, ahead = _script(order, scale), AHEAD[scale]
    first = {name: pa.concat_tables([batch.rows[name] for batch in script[:ahead]]) for name in NAMES}
    said = pa.concat_tables([batch.punctuations["right"] for batch in script[:ahead]])
    rest = [replace(b, number=b.number - ahead + 1, time=(b.number - ahead + 1) * 1_000_000) for b in script[ahead:]]
    return [Batch(0, 0, first, {"right": said}), *rest]


def queueing(numbers: Numbers) -> str:
    """What of the time is the queue that scheduling needs, and how long the queue was."""
    parts = []
    for order in PATTERNS:
        values = numbers[f"{order}: CPU ms"]
        parts.append(
            f"{order}, {values['priority/value']:.0f} ms with scheduling, {values['random/sequential']:.0f} without, "
            f"{values[UNQUEUED]:.0f} without a queue; {numbers[f'test: {order}: rows waiting']['mean']:,.0f} rows wait"
        )
    return (
        f"Both read from the same queue, which never runs empty: {'; '.join(parts)}. A batch is joined at once here, "
        "so "
        "the order of its rows has little to save: the likely reason."
    )


def fig8(scale: Scale, progress: Progress) -> Findings:
    """Time to get so many results from a queue, with and without scheduling."""
    per_batch = SIZES[scale][1] + 1
    common: dict[str, Any] = {"propagates": True, "purge": "immediate"}
    variants = {
        "priority/value": Variant.mjoin(**common, scheduling="priority_value", quota=per_batch),
        "random/sequential": Variant.mjoin(**common, quota=per_batch),
        UNQUEUED: Variant.mjoin(**common),
    }
    panels, numbers = [], {}
    for place, order in enumerate(PATTERNS):
        progress(place, len(PATTERNS))
        found = dict(zip(variants, traces(order, scale, *variants.values(), queued=True), strict=True))
        shown = {n: (t.results, t.milliseconds) for n, t in found.items() if n != UNQUEUED}
        panels.append(_panel(order, "CPU time (ms)", shown))
        numbers[f"{order}: CPU ms"] = {name: one.milliseconds[-1] for name, one in found.items()}
        waited = found["priority/value"].waiting[: len(_queued(order, scale))]
        numbers[f"test: {order}: rows waiting"] = {"mean": float(np.mean(waited))}
    return Findings(panels, numbers, [_note(scale), PURGED_AND_SAID, _backlog(scale)])


def _backlog(scale: Scale) -> str:
    return f"the rows of the first {AHEAD[scale]} batches come at once, and a quota keeps them waiting, for both joins"


def judge_fig8(numbers: Numbers) -> list[Check]:
    """Without scheduling it takes clearly longer, in both patterns: a tie is no gain."""
    return at_least(numbers, "random/sequential", "priority/value", 1.05)


def _against_xjoin(scale: Scale, order: Order) -> dict[str, Trace]:
    mjoin = Variant.mjoin(purge="batch", purge_after=100 if scale != "tiny" else 5)
    return dict(zip((MJOIN, XJOIN), traces(order, scale, mjoin, Variant(XJOIN)), strict=True))


def fig9(scale: Scale, progress: Progress) -> Findings:
    """CPU time of MJoin, purging after every 100 punctuations, and XJoin."""
    panels, numbers = [], {}
    for place, order in enumerate(PATTERNS):
        progress(place, len(PATTERNS))
        found = _against_xjoin(scale, order)
        panels.append(_panel(order, "CPU time (ms)", {n: (t.results, t.milliseconds) for n, t in found.items()}))
        numbers[f"{order}: CPU ms"] = {name: one.milliseconds[-1] for name, one in found.items()}
        numbers[f"{order}: {PER_BATCH}"] = {
            f"{name}, {when}": value for name, one in found.items() for when, value in _early_and_late(one).items()
        }
    return Findings(panels, numbers, [_note(scale)])


PER_BATCH = "test: CPU ms per batch"


def _early_and_late(one: Trace) -> dict[str, float]:
    """Time per batch while the state is small and when it is large."""
    tenth = max(1, len(one.results) // 10)
    spent = np.diff([0.0, *one.milliseconds])
    return {"second tenth": float(np.median(spent[tenth : 2 * tenth])), "last tenth": float(np.median(spent[-tenth:]))}


def probing(numbers: Numbers) -> str:
    """Whether a larger state makes XJoin slower, as the claim has it, and what MJoin takes beside it."""
    parts, growing = [], []
    for order in PATTERNS:
        values = numbers[f"{order}: {PER_BATCH}"]
        early, late = values[f"{XJOIN}, second tenth"], values[f"{XJOIN}, last tenth"]
        growing.append(late > 1.5 * early)
        parts.append(
            f"{order}: XJoin {early:.2f} ms per batch in the second tenth of the run and {late:.2f} in the last, MJoin "
            f"{values[f'{MJOIN}, second tenth']:.2f} and {values[f'{MJOIN}, last tenth']:.2f}"
        )
    grows = "as the paper says, but not enough at this size" if any(growing) else "unlike in the paper"
    slower = "slows down with its state" if any(growing) else "does not slow down with its state"
    return f"XJoin {slower}, {grows}. {'; '.join(parts)}. The lasting benefit of purging is memory."


def slowed(numbers: Numbers) -> str:
    """How much slower each join has become by the end of the run, at most."""
    grown = {
        name: max(v[f"{name}, last tenth"] / v[f"{name}, second tenth"] for s, v in numbers.items() if PER_BATCH in s)
        for name in (XJOIN, MJOIN)
    }
    return (
        f"a batch of XJoin takes up to {grown[XJOIN]:.1f} times as long when its state is largest, one of MJoin "
        f"{grown[MJOIN]:.1f} times, and that is less than what keeping promises takes"
    )


def judge_fig9(numbers: Numbers) -> list[Check]:
    """XJoin takes at least as long as MJoin for all results, in both patterns."""
    return at_least(numbers, XJOIN, MJOIN, 1.0)


def fig10(scale: Scale, progress: Progress) -> Findings:
    """Rows in the state of MJoin and XJoin over the results."""
    panels, numbers = [], {}
    for place, order in enumerate(PATTERNS):
        progress(place, len(PATTERNS))
        found = _against_xjoin(scale, order)
        panels.append(_panel(order, "rows in the state", {n: (t.results, t.state) for n, t in found.items()}))
        numbers[f"{order}: most rows"] = {name: max(one.state) for name, one in found.items()}
        numbers[f"{order}: rows at the end"] = {name: one.state[-1] for name, one in found.items()}
    return Findings(panels, numbers, [_note(scale)])


def judge_fig10(numbers: Numbers) -> list[Check]:
    """XJoin holds at least twice the most that MJoin does, and at least ten times as much in the end."""
    most = {setting: values for setting, values in numbers.items() if "most" in setting}
    last = {setting: values for setting, values in numbers.items() if "end" in setting}
    return at_least(most, XJOIN, MJOIN, 2.0) + at_least(last, XJOIN, MJOIN, 10.0)


NEVER = "test: no purging"


def found_by_key(numbers: Numbers) -> str:
    """What purging costs at all."""
    values = numbers["CPU ms"]
    return (
        f"In the paper each purge scans the state. Here the rows to purge are looked up by their keys: without any "
        f"purging the run takes {values[NEVER]:.0f} ms, with purging at once {values['immediate (1)']:.0f}."
    )


def fig11(scale: Scale, progress: Progress) -> Findings:
    """CPU time with purging after every punctuation and after every 100, items in random order."""
    variants = {
        "immediate (1)": Variant.mjoin(purge="immediate"),
        "batch (100)": Variant.mjoin(purge="batch", purge_after=100),
        NEVER: Variant.mjoin(purge="batch", purge_after=10**9),
    }
    found = dict(zip(variants, traces("random", scale, *variants.values()), strict=True))
    numbers = {name: one.milliseconds[-1] for name, one in found.items()}
    shown = {n: (t.results, t.milliseconds) for n, t in found.items() if n != NEVER}
    panel = _panel("random", "CPU time (ms)", shown)
    return Findings([panel], {"CPU ms": numbers}, [_note(scale)])


def judge_fig11(numbers: Numbers) -> list[Check]:
    """Immediate purging takes at least 1.1 times as long."""
    return at_least(numbers, "immediate (1)", "batch (100)", 1.1)


EXPERIMENTS = [
    Experiment(
        id="punctuations/fig8",
        title="Fig. 8: scheduling of streams and values",
        claim="Priority-driven, value-oriented scheduling gets the same results in less time than none.",
        rule="CPU time for all results, from a queue that never runs empty: without scheduling at least 1.05 times "
        "that "
        "with it, ordered and random.",
        takeaway=lambda numbers: (
            'scheduling="priority_value" saves time where rows wait.'
            if all(check.holds for check in judge_fig8(numbers))
            else 'Leave scheduling="sequential"; choose "value" only to have punctuations propagated early under a '
            "quota."
        ),
        clock="cpu",
        run=fig8,
        judge=judge_fig8,
        figure=ratio_figure("random/sequential", "priority/value"),
        printed="no number; above 1 in both patterns",
        reason=queueing,
    ),
    Experiment(
        id="punctuations/fig9",
        title="Fig. 9: execution time, MJoin and XJoin",
        claim="From some size on MJoin takes less time than XJoin, because it probes a smaller state.",
        rule="CPU time for all results: XJoin at least that of MJoin, ordered and random.",
        takeaway=lambda numbers: (
            "Punctuations save time as well, once the state of a join without them is large."
            if all(check.holds for check in judge_fig9(numbers))
            else f"Expect memory from punctuations, not speed: {slowed(numbers)}."
        ),
        clock="cpu",
        run=fig9,
        judge=judge_fig9,
        figure=ratio_figure(XJOIN, MJOIN),
        printed="above 1 from 7,500 results on",
        reason=probing,
    ),
    Experiment(
        id="punctuations/fig10",
        title="Fig. 10: memory, MJoin and XJoin",
        claim="Purging keeps the state small while XJoin's grows with the streams.",
        rule="XJoin holds at least twice MJoin's most rows, and ten times as many at the end, ordered and random.",
        takeaway="With punctuations the state is what is still open, and empty in the end: choose punctuated_join "
        "for streams "
        "that never end.",
        clock="virtual",
        run=fig10,
        judge=judge_fig10,
        figure=ratio_figure(XJOIN, MJOIN),
        printed="no number; XJoin's state grows with the streams, MJoin's does not",
        reason="What is open at a time is what purging cannot touch.",
    ),
    Experiment(
        id="punctuations/fig11",
        title="Fig. 11: immediate and batch purging",
        claim="Purging after every punctuation takes longer than after every 100, because each purge scans the state.",
        rule="CPU time: immediate at least 1.1 times that of batch.",
        takeaway=lambda numbers: (
            'purge="immediate" is the default. Rows are found by their value, not by a scan: it takes '
            f"{numbers['CPU ms']['immediate (1)'] / numbers['CPU ms']['batch (100)']:.2f} times as long as purging in "
            "batches."
        ),
        clock="cpu",
        run=fig11,
        judge=judge_fig11,
        figure=ratio_figure("immediate (1)", "batch (100)"),
        printed="no number; above 1",
        reason=found_by_key,
    ),
]
