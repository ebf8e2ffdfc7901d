"""The rule of `duplicates` against the paper's own formulations, pair by pair and batch by batch.

An operator runs under a tiny budget with frequent silences. From outside we watch when each row arrives (ATS) and
leaves memory (DTS), and which tasks ran when. Two oracles then say which pairs every batch must report:

    intervals    sections 5.1 and 5.2: intersecting intervals, the arrays T_md, runs that met in an earlier dd-task
    positions    place in the bucket's order of arrival, rows of the other bucket on disk at arrival, one bit
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from watersmeet.columns.arrow import hashes_of
from watersmeet.engine.registry import build
from watersmeet.join.operator import advance
from watersmeet.progressive.budgeted import BudgetedJoin
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of, make_plan

BUCKETS = 3


@dataclass
class Watched:
    """A row as seen from outside. Times are ticks: 2b for the arrivals and flushes of batch b, 2b + 1 for its tasks."""

    ident: int
    key: int
    bucket: int
    ats: int
    dts: float = math.inf
    position: int = 0
    on_disk_before: int = 0  # |S_bfr|
    served: bool = False  # an md-task ran during its stay in memory


@dataclass
class Observer:
    """Follows an operator from batch to batch."""

    operator: BudgetedJoin
    rows: tuple[dict[int, Watched], dict[int, Watched]] = field(default_factory=lambda: ({}, {}))
    md_times: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # T_md per input and bucket
    dd_times: dict[int, list[int]] = field(default_factory=dict)

    def arrive(self, number: int, arrival: Arrival) -> None:
        batch = batch_of(self.operator.plan, number, arrival)
        for index, name in enumerate(("left", "right")):
            if name not in batch.rows:
                continue
            table = batch.rows[name]
            bucket_of = self.operator.buckets.of(hashes_of(table))
            order = np.argsort(hashes_of(table), kind="stable")
            for at in order:
                bucket, others = int(bucket_of[at]), self.rows[1 - index].values()
                self.rows[index][int(table["_p0"][int(at)].as_py())] = Watched(
                    int(table["_p0"][int(at)].as_py()),
                    int(table["_k0"][int(at)].as_py()),
                    bucket,
                    ats=2 * number,
                    position=sum(row.bucket == bucket for row in self.rows[index].values()),
                    on_disk_before=sum(row.bucket == bucket and row.dts < math.inf for row in others),
                )

    def flushed(self, number: int) -> None:
        for index, store in enumerate(self.operator.sides):
            held = {ident for part in store.parts() for ident in part.table["_p0"].to_pylist()}
            for row in self.rows[index].values():
                if row.dts == math.inf and row.ident not in held:
                    row.dts = 2 * number

    def pairs(self) -> list[tuple[Watched, Watched]]:
        return [(a, b) for a in self.rows[0].values() for b in self.rows[1].values() if a.key == b.key]

    # -- sections 5.1 and 5.2 --------------------------------------------------------------------------------------

    def met_in_memory(self, a: Watched, b: Watched) -> bool:
        return a.ats <= b.dts and b.ats <= a.dts

    def md_reports(self, index: int, inner: Watched, outer: Watched) -> bool:
        """Fig. 5, before the task is entered into T_md."""
        if inner.dts < math.inf or outer.dts == math.inf or self.met_in_memory(inner, outer):
            return False
        earlier = self.md_times.get((index, inner.bucket), [])
        return not (earlier and earlier[-1] > inner.ats and earlier[-1] > outer.dts)

    def dd_reports(self, a: Watched, b: Watched) -> bool:
        """Fig. 7 with T[i] in line 7; runs match if an earlier dd-task had both rows on disk."""
        if self.met_in_memory(a, b):
            return False
        if any(time > max(a.dts, b.dts) for time in self.dd_times.get(a.bucket, [])):
            return False
        return not any(
            inner.ats <= time <= inner.dts and time > outer.dts
            for index, inner, outer in ((0, a, b), (1, b, a))
            for time in self.md_times.get((index, inner.bucket), [])
        )

    # -- positions -------------------------------------------------------------------------------------------------

    def owed(self, a: Watched, b: Watched) -> bool:
        by_left = b.position < a.on_disk_before and not a.served
        by_right = a.position < b.on_disk_before and not b.served
        return by_left or by_right


@pytest.mark.parametrize("policy", ["rpj", "rpj-md", "rpj-dd", "xjoin", "hmj"])
@pytest.mark.parametrize("combine_runs", [0, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_every_task_reports_what_both_formulations_say(policy: str, combine_runs: int, seed: int) -> None:
    rng = random.Random(f"{policy} {seed}")
    options = ProgressiveOptions(
        policy=policy, memory_rows=12, buckets=BUCKETS, page_rows=3, fan_in=2, flush_share=0.2, idle_pages=10_000,
        combine_runs=combine_runs,
    )  # fmt: skip
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    operator = build(plan, MemorySpace())
    assert isinstance(operator, BudgetedJoin)
    seen, ident, tasks = Observer(operator), 0, 0
    for number in range(24):
        rows: dict[str, list[tuple[int, int, str]]] = {}
        for name in ("left", "right"):
            if number % 3 != 2:
                rows[name] = [(rng.randrange(6), ident + i, "") for i in range(rng.randint(0, 4))]
                ident += len(rows[name])
        arrival = Arrival(rows, time=number * 1_000_000)
        seen.arrive(number, arrival)
        found: Counter[tuple[int, int]] = Counter()
        for table in advance(operator, batch_of(plan, number, arrival)):
            found.update(zip(table["left_0"].to_pylist(), table["right_0"].to_pylist(), strict=True))

        expected: Counter[tuple[int, int]] = Counter()
        for a, b in seen.pairs():
            together = a.dts == b.dts == math.inf or (seen.met_in_memory(a, b) and max(a.ats, b.ats) == 2 * number)
            if together and max(a.ats, b.ats) == 2 * number:
                expected[a.ident, b.ident] += 1
        for event in operator.metrics.events:
            tick = 2 * number + 1
            if event["kind"] == "md_task":
                index = ("left", "right").index(event["input"])
                tasks += 1
                for a, b in seen.pairs():
                    inner, outer = (a, b) if index == 0 else (b, a)
                    if inner.bucket == event["bucket"] and seen.md_reports(index, inner, outer):
                        expected[a.ident, b.ident] += 1
                        assert seen.owed(a, b)
                seen.md_times.setdefault((index, event["bucket"]), []).append(tick)
                for row in seen.rows[index].values():
                    if row.bucket == event["bucket"] and row.dts == math.inf:
                        row.served = True
            elif event["kind"] == "dd_task":
                tasks += 1
                for a, b in seen.pairs():
                    on_disk = a.dts < math.inf and b.dts < math.inf
                    if a.bucket == event["bucket"] and on_disk:
                        by_intervals = seen.dd_reports(a, b)
                        matched = any(time > max(a.dts, b.dts) for time in seen.dd_times.get(a.bucket, []))
                        assert by_intervals == (seen.owed(a, b) and not matched)
                        expected[a.ident, b.ident] += by_intervals
                seen.dd_times.setdefault(event["bucket"], []).append(tick)
        assert found == expected, f"batch {number}"
        seen.flushed(number)
    assert tasks
    assert any(row.dts < math.inf for row in seen.rows[0].values())
