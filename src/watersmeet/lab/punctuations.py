"""The metadata-aware join (Ding, Rundensteiner, Heineman): scheduling, time and memory on news and access records.

A batch is what comes while one news item is the oldest of the ten latest: its records, one new item, one punctuation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.arrow import hash_keys
from watersmeet.lab.experiment import Check, Experiment, Findings, Numbers, Panel, Progress, Scale, Series, at_least
from watersmeet.lab.workloads import Order, news
from watersmeet.operator import Batch, Operator, advance
from watersmeet.operators import build
from watersmeet.punctuated.patterns import Pattern, punctuation_table
from watersmeet.state.space import MemorySpace
from watersmeet.testing import make_plan

LATEST = 10
SIZES: dict[Scale, tuple[int, int]] = {"tiny": (40, 20), "small": (500, 40), "paper": (3000, 50)}
REPEATS: dict[Scale, int] = {"tiny": 1, "small": 2, "paper": 10}
NAMES = ("left", "right")  # news items, access records
ONE_TO_MANY = {"constraints": [{"kind": "one_to_many", "one": "left"}]}
MJOIN, XJOIN = "MJoin", "XJoin"
PATTERNS: tuple[Order, ...] = ("ordered", "random")


@dataclass
class Trace:
    """Results so far, CPU milliseconds so far and rows in the state, after every batch."""

    results: list[int] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    state: list[float] = field(default_factory=list)


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


def _operator(join: str, tuning: tuple[tuple[str, Any], ...]) -> Operator:
    if join == XJOIN:
        # Memory for everything: the paper's experiment stays in memory.
        options = {"policy": "xjoin"}
        plan = make_plan("xjoin", NAMES, options, payload=(pa.int64(),), tuning={"memory_rows": 10**9})
    else:
        plan = make_plan("punctuated", NAMES, ONE_TO_MANY, payload=(pa.int64(),), tuning=dict(tuning))
    return build(plan, MemorySpace())


@cache
def trace(join: str, order: Order, scale: Scale, **tuning: Any) -> Trace:
    """One join over the workload; of several runs the one that took the least time."""
    script, best = _script(order, scale), Trace()
    for _ in range(REPEATS[scale]):
        operator, one, found, spent = _operator(join, tuple(tuning.items())), Trace(), 0, 0.0
        for batch in [*script, *_drain(len(script), tuning)]:
            begun = process_time()
            rows = batch if join == MJOIN else Batch(batch.number, batch.time, batch.rows)
            found += sum(table.num_rows for table in advance(operator, rows))
            spent += process_time() - begun
            counters = operator.metrics.counters
            one.results.append(found)
            one.milliseconds.append(1000 * spent)
            if join == XJOIN:
                one.state.append(counters.get("resident_rows", 0.0))
            else:
                one.state.append(sum(counters.get(f"state_rows.{name}", 0.0) for name in NAMES))
        if not best.results or one.milliseconds[-1] < best.milliseconds[-1]:
            best = one
    return best


def _drain(start: int, tuning: dict[str, Any]) -> list[Batch]:
    """With a quota rows wait; batches without rows let them through at the end."""
    return [Batch(start + i, (start + i) * 1_000_000) for i in range(20 if "quota" in tuning else 0)]


def _panel(title: str, y: str, lines: dict[str, tuple[list[int], list[float]]]) -> Panel:
    series = {}
    for name, (results, values) in lines.items():
        at = np.unique(np.linspace(0, len(results) - 1, 60).astype(int))
        series[name] = Series([float(results[i]) for i in at], [values[i] for i in at])
    return Panel(title, "results", y, series)


def _note(scale: Scale) -> str:
    items, per_item = SIZES[scale]
    return f"{items:,} news items with {per_item} access records each; a batch per punctuation"


QUOTA = "test: quota without scheduling"


def queueing(numbers: Numbers) -> str:
    """What of the difference is the queue that scheduling needs, and what the scheduling."""
    parts = []
    for order in PATTERNS:
        values = numbers[f"{order}: CPU ms"]
        parts.append(
            f"{order}, {values['random/sequential']:.0f} ms without either, {values[QUOTA]:.0f} with the quota alone, "
            f"{values['priority/value']:.0f} with both"
        )
    return (
        f"Scheduling needs rows that wait, hence a quota per batch: {'; '.join(parts)}. A batch is joined at once "
        "here, so the order of its rows saves nothing."
    )


def fig8(scale: Scale, progress: Progress) -> Findings:
    """Time to get so many results, with and without scheduling."""
    per_batch = SIZES[scale][1] + 1
    variants: dict[str, dict[str, Any]] = {
        "priority/value": {"scheduling": "value", "quota": per_batch},
        "random/sequential": {},
        QUOTA: {"quota": per_batch},
    }
    panels, numbers = [], {}
    for place, order in enumerate(PATTERNS):
        progress(place, len(PATTERNS))
        traces = {name: trace(MJOIN, order, scale, purge="immediate", **tuning) for name, tuning in variants.items()}
        shown = {n: (t.results, t.milliseconds) for n, t in traces.items() if n != QUOTA}
        panels.append(_panel(order, "CPU time (ms)", shown))
        numbers[f"{order}: CPU ms"] = {name: one.milliseconds[-1] for name, one in traces.items()}
    return Findings(panels, numbers, [_note(scale), "purging after every batch; nothing is propagated"])


def judge_fig8(numbers: Numbers) -> list[Check]:
    """Scheduling takes at most as long, in both patterns."""
    return at_least(numbers, "random/sequential", "priority/value")


def _against_xjoin(scale: Scale, order: Order) -> dict[str, Trace]:
    return {
        MJOIN: trace(MJOIN, order, scale, purge="batch", purge_after=100 if scale != "tiny" else 5),
        XJOIN: trace(XJOIN, order, scale),
    }


def fig9(scale: Scale, progress: Progress) -> Findings:
    """CPU time of MJoin, purging after every 100 punctuations, and XJoin."""
    panels, numbers = [], {}
    for place, order in enumerate(PATTERNS):
        progress(place, len(PATTERNS))
        traces = _against_xjoin(scale, order)
        panels.append(_panel(order, "CPU time (ms)", {n: (t.results, t.milliseconds) for n, t in traces.items()}))
        numbers[f"{order}: CPU ms"] = {name: one.milliseconds[-1] for name, one in traces.items()}
        numbers[f"{order}: {PER_BATCH}"] = {
            f"{name}, {when}": value for name, one in traces.items() for when, value in _early_and_late(one).items()
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


def judge_fig9(numbers: Numbers) -> list[Check]:
    """XJoin takes longer in the end, in both patterns."""
    return at_least(numbers, XJOIN, MJOIN, 1.0)


def fig10(scale: Scale, progress: Progress) -> Findings:
    """Rows in the state of MJoin and XJoin over the results."""
    panels, numbers = [], {}
    for place, order in enumerate(PATTERNS):
        progress(place, len(PATTERNS))
        traces = _against_xjoin(scale, order)
        panels.append(_panel(order, "rows in the state", {n: (t.results, t.state) for n, t in traces.items()}))
        numbers[f"{order}: most rows"] = {name: max(one.state) for name, one in traces.items()}
        numbers[f"{order}: rows at the end"] = {name: one.state[-1] for name, one in traces.items()}
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
    lines, numbers = {}, {}
    for place, (name, after) in enumerate((("immediate (1)", None), ("batch (100)", 100), (NEVER, 10**9))):
        progress(place, 3)
        tuning: dict[str, Any] = {"purge": "batch", "purge_after": after} if after else {"purge": "immediate"}
        one = trace(MJOIN, "random", scale, **tuning)
        numbers[name] = one.milliseconds[-1]
        if name != NEVER:
            lines[name] = one.results, one.milliseconds
    panel = _panel("random", "CPU time (ms)", lines)
    return Findings([panel], {"CPU ms": numbers}, [_note(scale)])


def judge_fig11(numbers: Numbers) -> list[Check]:
    """Immediate purging takes at least 1.1 times as long."""
    return at_least(numbers, "immediate (1)", "batch (100)", 1.1)


EXPERIMENTS = [
    Experiment(
        id="punctuations/fig8",
        title="Fig. 8: scheduling of streams and values",
        claim="Priority-driven, value-oriented scheduling gets the same results in less time than none.",
        rule="CPU time for all results: at most that without scheduling, ordered and random.",
        takeaway='Leave scheduling="sequential"; choose "value" only to have punctuations propagated early under '
        "a quota.",
        clock="cpu",
        run=fig8,
        judge=judge_fig8,
        reason=queueing,
    ),
    Experiment(
        id="punctuations/fig9",
        title="Fig. 9: execution time, MJoin and XJoin",
        claim="From some size on MJoin takes less time than XJoin, because it probes a smaller state.",
        rule="CPU time for all results: XJoin at least that of MJoin, ordered and random.",
        takeaway="Expect memory from punctuations, not speed: probing sorted runs hardly grows with the state.",
        clock="cpu",
        run=fig9,
        judge=judge_fig9,
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
    ),
    Experiment(
        id="punctuations/fig11",
        title="Fig. 11: immediate and batch purging",
        claim="Purging after every punctuation takes longer than after every 100, because each purge scans the state.",
        rule="CPU time: immediate at least 1.1 times that of batch.",
        takeaway='purge="immediate" is the default: rows are found by their value, not by a scan.',
        clock="cpu",
        run=fig11,
        judge=judge_fig11,
        reason=found_by_key,
    ),
]
