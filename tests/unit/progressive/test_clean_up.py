"""The clean-up: bounded memory, nothing left, and the same again after a crash in its middle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import hash_keys
from watersmeet.columns.partitions import Partition
from watersmeet.engine import runtime
from watersmeet.engine.registry import build
from watersmeet.errors import BrokenPromiseError
from watersmeet.join.operator import Batch, Origin, advance
from watersmeet.plan import JoinPlan
from watersmeet.progressive.budgeted import BudgetedJoin
from watersmeet.progressive.merge_join import Source, Stretch
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.directory import StateDir
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import Arrival, batch_of, inner_join, make_plan, random_script, run_in_memory
from watersmeet.testing.harness import rows_of


def plan_of(**settings: object) -> JoinPlan:
    options = ProgressiveOptions(**settings)
    return make_plan(options.operator, options=options.identity(), tuning=options.tuning())


def wide_script(batches: int, rows: int, keys: int) -> list[Arrival]:
    rng = random.Random(3)
    arrivals = []
    for number in range(batches):
        sides = {
            name: [(rng.randrange(keys), number * rows + i, "x" * rng.randrange(40)) for i in range(rows)]
            for name in ("left", "right")
        }
        arrivals.append(Arrival(sides, time=number * 1_000_000))
    return [*arrivals, Arrival(time=batches * 1_000_000, ended=frozenset(("left", "right")))]


def test_a_bucket_larger_than_memory_is_merged_and_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = Stretch.of.__func__  # type: ignore[attr-defined]

    def recorded(cls: type[Stretch], sources: Sequence[Source], bound: int | None) -> Stretch | None:
        stretch: Stretch | None = original(cls, sources, bound)
        seen.append(0 if stretch is None else len(stretch.hashes))
        return stretch

    monkeypatch.setattr(Stretch, "of", classmethod(recorded))
    script = wide_script(batches=20, rows=100, keys=3000)
    plan = plan_of(memory_rows=250, buckets=1, page_rows=20, idle_pages=0)
    outcome = run_in_memory(plan, script)
    assert outcome.rows == inner_join(script)
    # 4000 rows in the only bucket; a step takes a quarter of the budget, shared by both inputs, give or take.
    assert len(seen) > 2 * 4000 / (250 / 4) - 2
    assert max(seen) < 250 / 4


@pytest.mark.parametrize("policy", ["rpj", "hmj"])
def test_resident_bytes_leave_room_for_the_next_batch(policy: str) -> None:
    script = wide_script(batches=12, rows=60, keys=50)
    plan = plan_of(memory=12_000, policy=policy, page_rows=8, buckets=5)
    operator = build(plan, MemorySpace())
    assert isinstance(operator, BudgetedJoin)
    found: Counter[tuple[object, ...]] = Counter()
    flushed = 0.0
    for number, arrival in enumerate(script):
        batch = batch_of(plan, number, arrival)
        found += rows_of(advance(operator, batch))
        resident = sum(store.nbytes for store in operator.sides)
        assert sum(operator.metrics.counters[f"resident_bytes.{name}"] for name in ("left", "right")) == resident
        assert resident + 0.9 * sum(table.nbytes for table in batch.rows.values()) <= 12_000
        flushed += operator.metrics.counters.get("rows_flushed", 0)
    assert flushed
    assert found == inner_join(script)


def test_a_crash_in_the_middle_repeats_it_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "HOLD_BYTES", 0)  # results leave before the version is committed
    script = wide_script(batches=6, rows=40, keys=30)
    plan, directory = plan_of(memory_rows=60, buckets=3, page_rows=4, fan_in=2), StateDir(tmp_path)
    found: Counter[tuple[object, ...]] = Counter()
    for number, arrival in enumerate(script):
        batch = batch_of(plan, number, arrival)
        if number == len(script) - 1:
            crashed = runtime.run_batch(plan, directory, 0, batch, attempt="0")
            assert next(crashed).num_rows
            crashed.close()
        found += rows_of(runtime.run_batch(plan, directory, 0, batch, attempt="1"))
    assert found == inner_join(script)
    manifest = PartitionStore(directory, 0).manifest(len(script) - 1)
    assert manifest.finished
    assert (manifest.runs, manifest.values) == ([], {})


def test_rows_wait_for_nobody_once_the_other_input_has_ended() -> None:
    """With nothing of the ended input on disk, later rows of the other one need not be kept."""
    plan = plan_of(memory_rows=1000, buckets=3)
    operator = build(plan, MemorySpace())
    script = [
        Arrival({"left": [(1, 1, "")], "right": [(1, 2, "")]}, ended=frozenset(("right",))),
        Arrival({"left": [(1, 3, ""), (2, 4, "")]}, time=1),
    ]
    rows = [rows_of(advance(operator, batch_of(plan, number, arrival))) for number, arrival in enumerate(script)]
    assert [sum(found.values()) for found in rows] == [1, 1]
    assert [run.label for run in operator.save().runs] == ["right"]


def test_a_row_after_its_inputs_end_is_an_error() -> None:
    plan = plan_of(memory_rows=10)
    operator = build(plan, MemorySpace())
    list(advance(operator, batch_of(plan, 0, Arrival({"left": [(1, 1, "")]}, ended=frozenset(("left",))))))
    with pytest.raises(
        BrokenPromiseError, match="input 'left': expected no rows after its end in batch 0, found 1 rows in batch 1"
    ):
        list(advance(operator, batch_of(plan, 1, Arrival({"left": [(1, 1, "")]}))))


def test_idle_work_waits_for_idle_after() -> None:
    script = random_script(1, batches=6, batch_rows=20, idle_share=0, end=False, tick=1)
    plan = plan_of(memory_rows=10, buckets=2, page_rows=4, idle_after=100)
    operator = build(plan, MemorySpace())
    for number, arrival in enumerate(script):
        list(advance(operator, batch_of(plan, number, arrival)))
    last = script[-1].time
    for number, (later, works) in enumerate([(99, False), (100, True)]):
        list(advance(operator, batch_of(plan, len(script) + number, Arrival(time=last + later))))
        assert bool(operator.metrics.events) == works


@pytest.mark.parametrize("seed", range(6))
def test_bytes_that_do_not_divide_evenly_flush_no_row_twice(seed: int) -> None:
    script = random_script(seed, batches=10, batch_rows=12, keys=4, width=60)
    plan = plan_of(memory=1500, page_rows=4, buckets=2, flush_share=0.01)
    assert run_in_memory(plan, script).rows == inner_join(script)


@pytest.mark.parametrize(("rows", "runs"), [(262_144, 1), (262_145, 2)])
def test_runs_of_more_than_half_a_million_rows_are_not_combined(rows: int, runs: int) -> None:
    """No batch stalls."""
    plan = plan_of(memory_rows=0, buckets=1, page_rows=1 << 20, combine_runs=2)
    operator = build(plan, MemorySpace())
    assert isinstance(operator, BudgetedJoin)
    for number in range(2):
        keys = pa.array(np.arange(rows) + rows * number)
        hashes = np.sort(hash_keys([keys]))
        columns = {"_hash": hashes, "_k0": keys, "_p0": keys, "_p1": pa.nulls(rows, pa.string())}
        assert not rows_of(advance(operator, Batch(number, rows={"left": pa.table(columns)})))
    assert [run.rows for run in operator.sides[0].spilled] == ([2 * rows] if runs == 1 else [rows] * 2)


@pytest.mark.parametrize(("memory_rows", "step"), [(40, 20), (4000, 1000), (1 << 20, 1 << 18), (1 << 40, 1 << 18)])
def test_a_step_takes_a_quarter_of_the_budget_between_a_page_and_a_bound(memory_rows: int, step: int) -> None:
    operator = build(plan_of(memory_rows=memory_rows, page_rows=20), MemorySpace())
    assert isinstance(operator, BudgetedJoin)
    assert operator._step() == (memory_rows // 4, step)


def test_pairs_that_have_not_met_are_counted() -> None:
    """Rows in memory have met each other, and rows on disk those that were flushed with them."""
    plan = plan_of(memory_rows=0, buckets=1, policy="hmj", combine_runs=0)
    operator = build(plan, MemorySpace())
    assert isinstance(operator, BudgetedJoin)
    units = operator.units
    assert units.unmatched_pairs(0, (3, 5)) == 0
    for number, (left, right) in enumerate(((2, 0), (4, 3))):
        rows = {"left": [(0, i, "") for i in range(left)], "right": [(0, i, "") for i in range(right)]}
        list(advance(operator, batch_of(plan, number, Arrival(rows))))
    assert [(unit.left is not None, unit.right is not None) for unit in units.units[0]] == [(True, False), (True, True)]
    assert units.unmatched_pairs(0) == 6 * 3 - 4 * 3
    assert units.unmatched_pairs(0, (5, 7)) == 11 * 10 - 4 * 3 - 5 * 7


def test_a_dd_task_ends_when_its_pages_are_used_up() -> None:
    """The merging operation that reads the last page is finished, and no other is begun."""
    plan = plan_of(memory_rows=0, buckets=1, page_rows=4, fan_in=2, combine_runs=0, idle_pages=0)
    read = []
    for pages in (1, 8, 9):
        operator = build(plan, MemorySpace())
        assert isinstance(operator, BudgetedJoin)
        for number in range(4):
            rows = {name: [(0, 4 * number + i, "") for i in range(4)] for name in ("left", "right")}
            list(advance(operator, batch_of(plan, number, Arrival(rows))))
        begun = operator.tasks.pages
        list(operator.tasks.dd(0, fan_in=2, max_pages=pages))
        read.append((operator.tasks.pages - begun, len(operator.units.units[0])))
    assert read[:2] == [(8, 3), (8, 3)]  # four pages are read and written: of four units two become one
    assert read[2] == (16, 2)


def test_a_row_alone_in_its_bucket_is_certain_when_the_other_input_ends() -> None:
    """It came before the other input's rows of its bucket were flushed: it has been compared with all of them."""
    tuning = {"memory_rows": 12, "page_rows": 4, "flush": "largest", "flush_share": 0.5}
    plan = make_plan("rpj", options={"policy": "rpj", "buckets": 1}, tuning=tuning, how="left")
    operator = build(plan, MemorySpace())
    assert isinstance(operator, BudgetedJoin)
    script = [
        Arrival({"left": [(1, 1, "")], "right": [(key, key, "") for key in range(10, 13)]}, time=0),
        Arrival({"right": [(key, key, "") for key in range(13, 21)]}, time=1),
    ]
    for number, arrival in enumerate(script):
        assert rows_of(advance(operator, batch_of(plan, number, arrival))) == Counter()
    assert [(store.bucket_rows.tolist(), len(store.spilled)) for store in operator.sides] == [([1], 0), ([0], 1)]
    ends = Arrival({}, ended=frozenset({"right"}), time=2)
    assert rows_of(advance(operator, batch_of(plan, 2, ends))) == Counter([(1, 1, "", None, None)])


def test_an_heir_is_as_far_as_the_furthest_of_its_origins() -> None:
    plan = plan_of(memory_rows=100, buckets=1)
    origins = []
    for number, time in enumerate((4_000_000, 9_000_000, 6_000_000)):
        former = build(plan, MemorySpace())
        list(advance(former, batch_of(plan, 0, Arrival({"left": [(number, 0, "")]}, time=time))))
        origins.append(Origin(Partition(number, 3), former))
    heir = build(plan, MemorySpace())
    assert isinstance(heir, BudgetedJoin)
    heir.inherit(Partition(0, 1), origins, 0)
    assert (heir.clock, heir.last_arrival, heir.batch) == (9_000_000, 9_000_000, 0)
