"""What an idle batch works on: each task is the best one by owed pairs and costs, counted again from the rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import hash_keys, hashes_of
from watersmeet.columns.partitions import partition_of
from watersmeet.engine.registry import build
from watersmeet.join.operator import Operator, OperatorState, advance
from watersmeet.progressive.budgeted import BudgetedJoin, Task
from watersmeet.progressive.disk_tasks import DiskTasks
from watersmeet.progressive.options import OPERATOR, ProgressiveOptions
from watersmeet.state.buckets import Buckets
from watersmeet.state.directory import StateDir
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, Outcome, batch_of, inner_join, make_plan, random_script, run_in_memory
from watersmeet.testing.divisions import run_divided
from watersmeet.testing.oracle import BinaryOracle

NAMES = ("left", "right")
BUCKETS, PAGE_ROWS, FAN_IN, RANDOM, SEQUENTIAL = 3, 2, 3, 7.0, 2.0


@dataclass
class Bucket:
    """A bucket of one input: arrival batches in memory; on disk (arrival, departure) of rows, and pages per run."""

    memory: list[int]
    disk: list[tuple[int, int]]
    pages: list[int]


def contents(saved: OperatorState) -> dict[tuple[int, int], Bucket]:
    """What a saved state holds, while no md-task has run: what a spilled row is owed says when it came."""
    buckets = Buckets(BUCKETS)
    found = {(index, bucket): Bucket([], [], []) for index in (0, 1) for bucket in range(BUCKETS)}
    for run in saved.runs:
        index = NAMES.index(run.label)
        if run.tier == "resident":
            for table in run.parts:
                for bucket, came in zip(buckets.of(hashes_of(table)), table.column("_ats").to_pylist(), strict=True):
                    found[index, int(bucket)].memory.append(came)
            continue
        for bucket in range(BUCKETS):
            pages = list(run.read(bucket))
            if pages:
                found[index, bucket].pages.append(len(pages))
            for page in pages:
                rows = zip(page.column("_owed").to_pylist(), page.column("_dts").to_pylist(), strict=True)
                found[index, bucket].disk += list(rows)
    return found


def candidates(held: dict[tuple[int, int], Bucket]) -> dict[tuple[str, str | None, int], tuple[int, float]]:
    """Each task with the pairs it is owed and its cost."""
    tasks: dict[tuple[str, str | None, int], tuple[int, float]] = {}
    for bucket in range(BUCKETS):
        sides = held[0, bucket], held[1, bucket]
        for index in (0, 1):
            mine, other = sides[index], sides[1 - index]
            owed = sum(left < came for came in mine.memory for _, left in other.disk)
            runs, pages = len(other.pages), sum(other.pages)
            tasks["md", NAMES[index], bucket] = owed, runs * RANDOM + (pages - runs) * SEQUENTIAL
        owed = sum(b[1] < a[0] or a[1] < b[0] for a in sides[0].disk for b in sides[1].disk)
        passes = max(1, *(math.ceil(math.log(max(1, len(side.pages)), FAN_IN) - 1e-9) for side in sides))
        tasks["dd", None, bucket] = owed, 2 * RANDOM * sum(sum(side.pages) for side in sides) * passes
    return {name: task for name, task in tasks.items() if task[0]}


def after_arrivals(seed: int, policy: str, **settings: object) -> tuple[Operator, list[Arrival], float]:
    """A join that has flushed and never been idle, its script, and the share of pairs of a bucket that matched."""
    script = random_script(seed, batches=9, batch_rows=9, keys=15, idle_share=0, end=False)
    options = ProgressiveOptions(
        policy=policy, memory_rows=14, buckets=BUCKETS, page_rows=PAGE_ROWS, flush_share=0.1,
        random_page_cost=RANDOM, sequential_page_cost=SEQUENTIAL, **{"idle_pages": 10**6, "fan_in": FAN_IN, **settings},
    )  # fmt: skip
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    operator = build(plan, MemorySpace())
    met = results = 0
    for number, arrival in enumerate(script):
        before = contents(operator.save())
        batch = batch_of(plan, number, arrival)
        results += sum(table.num_rows for table in advance(operator, batch))
        buckets = Buckets(BUCKETS)
        came = [[0] * BUCKETS, [0] * BUCKETS]
        for index, name in enumerate(NAMES):
            table = batch.rows[name].drop_null()
            for bucket in buckets.of(hashes_of(table)):
                came[index][int(bucket)] += 1
        for bucket in range(BUCKETS):
            held = [len(before[index, bucket].memory) for index in (0, 1)]
            met += (held[0] + came[0][bucket]) * (held[1] + came[1][bucket]) - held[0] * held[1]
    return operator, script, max(results, 1) / max(met, 1)


def idle(operator: Operator, batches: int, later: int) -> list[dict[str, object]]:
    """The tasks of an idle batch."""
    list(advance(operator, batch_of(operator.plan, batches, Arrival(time=later * 1_000_000))))
    return [event for event in operator.metrics.events if event["kind"].endswith("_task")]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", ["rpj", "rpj-md", "rpj-dd"])
def test_the_task_with_the_highest_output_rate_comes_first(policy: str, seed: int) -> None:
    operator, script, probability = after_arrivals(seed, policy)
    tasks = candidates(contents(operator.save()))
    tasks = {name: task for name, task in tasks.items() if policy in ("rpj", f"rpj-{name[0]}")}
    assert tasks
    merged: set[int] = set()  # buckets whose runs on disk have changed since
    for event in idle(operator, len(script), 20):
        name = (event["kind"].removesuffix("_task"), event["input"], event["bucket"])
        owed, cost = tasks.pop(name, (0, 0.0))
        if event["bucket"] not in merged:
            assert event["expected"] == pytest.approx(owed * probability)
            assert event["cost"] == pytest.approx(cost)
        better = [
            other for other, (pairs, price) in tasks.items()
            if other[2] not in merged and pairs * probability / price > event["expected"] / event["cost"] * (1 + 1e-9)
        ]  # fmt: skip
        assert better == []
        if name[0] == "dd":
            merged.add(event["bucket"])
    assert tasks == {}


@pytest.mark.parametrize("seed", range(8))
def test_xjoin_works_on_the_largest_bucket_in_memory_and_on_no_other(seed: int) -> None:
    operator, script, _ = after_arrivals(seed, "xjoin")
    held = contents(operator.save())
    largest = min(held, key=lambda place: (-len(held[place].memory), place))
    owing = [(name[1], name[2]) for name in candidates(held) if name[0] == "md"]
    task = (NAMES[largest[0]], largest[1])
    events = idle(operator, len(script), 20)
    assert [(event["input"], event["bucket"]) for event in events] == ([task] if task in owing else [])


def test_xjoin_does_not_go_on_to_another_bucket() -> None:
    operator, script, _ = after_arrivals(0, "xjoin")
    assert len(idle(operator, len(script), 20)) == 1
    assert operator.expected.memory.any()  # type: ignore[attr-defined]
    assert not idle(operator, len(script) + 1, 21)  # nothing is new in the largest bucket


@pytest.mark.parametrize("seed", range(8))
def test_xjoin_fresh_takes_the_largest_bucket_that_is_owed_results(seed: int) -> None:
    operator, script, _ = after_arrivals(seed, "xjoin-fresh")
    held = contents(operator.save())
    owing = [(name[1], name[2]) for name in candidates(held) if name[0] == "md"]
    owing.sort(key=lambda task: (-len(held[NAMES.index(task[0]), task[1]].memory), NAMES.index(task[0]), task[1]))
    assert [(event["input"], event["bucket"]) for event in idle(operator, len(script), 20)] == owing


@pytest.mark.parametrize("seed", range(4))
def test_hmj_takes_bucket_after_bucket(seed: int) -> None:
    operator, script, _ = after_arrivals(seed, "hmj")
    owing = [name[2] for name in candidates(contents(operator.save())) if name[0] == "dd"]
    assert [event["bucket"] for event in idle(operator, len(script), 20)] == owing
    for run in operator.save().runs:  # a merged run names all batches of its rows
        if run.tier == "spilled":
            pages = [page for bucket in range(BUCKETS) for page in run.read(bucket)]
            assert run.newest == max(left for page in pages for left in page.column("_dts").to_pylist())
            assert run.oldest <= min(came for page in pages for came in page.column("_owed").to_pylist())


def test_an_md_task_reads_the_other_inputs_pages_and_no_more_than_a_batch_may() -> None:
    operator, script, _ = after_arrivals(3, "rpj-md", idle_pages=1)
    held = contents(operator.save())
    for later in range(20, 30):
        events = idle(operator, len(script) + later, later)
        if not events:
            break
        assert len(events) == 1  # the first task uses up the page
        other = 1 - NAMES.index(events[0]["input"])
        read = operator.metrics.counters["pages_read"]
        assert events[0]["pages"] == sum(held[other, events[0]["bucket"]].pages) == read
    else:
        pytest.fail("the md-tasks never end")


@pytest.mark.parametrize(("fan_in", "again"), [(50, False), (2, True)])
def test_the_clean_up_reads_each_page_once_if_the_runs_can_be_merged_at_once(fan_in: int, again: bool) -> None:
    operator, script, _ = after_arrivals(5, "rpj", fan_in=fan_in)
    held, pages = contents(operator.save()), 0
    for bucket in range(BUCKETS):
        left, right = held[0, bucket], held[1, bucket]
        if (left.disk and (right.disk or right.memory)) or (right.disk and left.memory):
            pages += sum(left.pages) + sum(right.pages)
    list(advance(operator, batch_of(operator.plan, len(script), Arrival(time=0, ended=frozenset(NAMES)))))
    read, written = (operator.metrics.counters.get(f"pages_{done}", 0) for done in ("read", "written"))
    assert (read > pages, written > 0) == (again, again)
    assert again or read == pages


def finished(script: list[Arrival], **settings: object) -> Outcome:
    options = ProgressiveOptions(buckets=1, page_rows=1, idle_pages=0, **settings)
    return run_in_memory(make_plan(options.operator, options=options.identity(), tuning=options.tuning()), script)


@pytest.mark.parametrize(("memory_rows", "passes"), [(40, False), (32, False), (24, True)])
def test_the_clean_up_merges_as_many_runs_as_a_quarter_of_the_budget_has_pages(memory_rows: int, passes: bool) -> None:
    """Every batch of the left input is flushed. A quarter of 32 rows is 8 pages of a row: 4 runs of each input."""
    left = [[(key, 100 * batch + key, "") for key in range(memory_rows // 2 + 1)] for batch in range(4)]
    script = [Arrival({"left": rows, "right": []}, time=number) for number, rows in enumerate(left)]
    script.append(Arrival({"left": [], "right": [(0, 9, "")]}, time=9))
    script.append(Arrival(time=10, ended=frozenset(NAMES)))
    outcome = finished(script, policy="xjoin", flush="all", fan_in=2, memory_rows=memory_rows)
    assert outcome.rows == inner_join(script)
    assert outcome.operator is not None
    spilled = sum(len(rows) for rows in left)  # pages of a row each; the right row is in memory
    read, written = (outcome.operator.metrics.counters.get(f"pages_{done}", 0) for done in ("read", "written"))
    assert (read > spilled, written > 0) == (passes, passes)
    assert passes or read == spilled


def test_the_clean_up_takes_steps_of_a_quarter_of_the_budget() -> None:
    """Every key matches, so every step gives a table: 2,000 rows on disk in steps of at most 100 rows of an input."""
    rows = [[(100 * batch + i, 100 * batch + i, "") for i in range(100)] for batch in range(10)]
    script = [Arrival({"left": some, "right": []}, time=number) for number, some in enumerate(rows)]
    script += [Arrival({"left": [], "right": some}, time=10 + number) for number, some in enumerate(rows)]
    options = ProgressiveOptions(policy="xjoin", flush="all", buckets=1, page_rows=5, idle_pages=0, memory_rows=400)
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    operator = build(plan, MemorySpace())
    for number, arrival in enumerate(script):
        list(advance(operator, batch_of(plan, number, arrival)))
    end = Arrival(time=100, ended=frozenset(NAMES))
    tables = [table.num_rows for table in advance(operator, batch_of(plan, len(script), end))]
    assert sum(tables) == operator.metrics.counters["stage_results.clean_up"] > 500
    assert max(tables) <= 100
    assert len(tables) <= 60


TASKS = 200  # more than an idle batch of these tests has use for


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle work without an end fails in place of hanging."""
    run, taken = BudgetedJoin._run, [0]

    def counting(join: BudgetedJoin, task: Task, max_pages: int) -> Iterator[pa.Table]:
        taken[0] += 1
        assert taken[0] <= TASKS, f"{task} again and again"
        return run(join, task, max_pages)

    monkeypatch.setattr(BudgetedJoin, "_run", counting)


def keyed(*keys: int) -> list[tuple[int, int, str]]:
    return [(key, number, "") for number, key in enumerate(keys)]


# Rows leave at their first match and what was expected of them stays, also when nothing on disk is owed any more.
MATCHED_ON_DISK = [
    {"left": keyed(1, 3, 1, 3, 2), "right": keyed(1, 1, 2, 1)},
    {"left": [], "right": keyed(3)},
    {"left": keyed(2, 3, 1), "right": keyed(0, 3, 3, 0, 3)},
    {"left": [], "right": keyed(0)},
    {},
    {"left": keyed(1, 1, 3), "right": keyed(0, 3, 1, 2, 2)},
    {},
]


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("how", ["left_semi", "left_anti"])
@pytest.mark.parametrize("policy", list(OPERATOR))
def test_idle_work_ends_where_what_was_expected_has_left(policy: str, how: str) -> None:
    options = ProgressiveOptions(
        policy=policy, buckets=1, memory_rows=12, page_rows=2, fan_in=2, combine_runs=2, idle_pages=6
    )
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning(), how=how)
    script = [Arrival(rows, time=2_000_000 * number) for number, rows in enumerate(MATCHED_ON_DISK)]
    script.append(Arrival(time=2_000_000 * len(script), ended=frozenset(NAMES)))
    assert run_in_memory(plan, script).rows == sum(BinaryOracle(how).answer(script), Counter())


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("policy", list(OPERATOR))
def test_idle_work_ends_in_a_partition_that_inherits_expectations_of_keys_that_went_to_another(
    policy: str, tmp_path: Path
) -> None:
    """Each heir takes up what was expected of all rows in memory. The second one flushes its own, of which nothing on
    disk is owed to any."""
    keys = np.arange(40)
    owners = partition_of(hash_keys([pa.array(keys)]), 2)
    here, there = (keys[owners == partition].tolist() for partition in (0, 1))
    script = [
        Arrival({"left": [], "right": keyed(*[here[0]] * 5)}),
        Arrival({"left": keyed(*there[:2]), "right": []}, time=1_000_000),
        Arrival({"left": keyed(there[2]), "right": keyed(*[there[0]] * 3)}, time=2_000_000),
        Arrival(time=10_000_000),
        Arrival(time=11_000_000),
        Arrival(time=12_000_000, ended=frozenset(NAMES)),
    ]
    options = ProgressiveOptions(policy=policy, flush="all", buckets=1, memory_rows=8, page_rows=4)
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    found = sum(run_divided(plan, script, StateDir(tmp_path), [1, 1, 2, 2, 2, 2]), Counter())
    assert found == inner_join(script)
    assert found.total() == 3


@pytest.mark.usefixtures("counted")
def test_a_task_that_changes_nothing_is_the_last_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, script, _ = after_arrivals(0, "hmj")
    monkeypatch.setattr(DiskTasks, "dd", lambda *_: iter(()))
    assert len(idle(operator, len(script), 20)) == 1


@pytest.mark.parametrize("policy", ["hmj", "rpj-dd"])
def test_a_bucket_of_which_too_much_is_expected_does_not_keep_the_others_waiting(policy: str) -> None:
    operator, script, _ = after_arrivals(0, policy)
    assert isinstance(operator, BudgetedJoin)
    owing = [name[2] for name in candidates(contents(operator.save())) if name[0] == "dd"]
    assert len(owing) > 1
    list(operator.tasks.dd(owing[0], FAN_IN, 10**6))
    operator.expected.disk[owing[0]] = 10**6
    events = idle(operator, len(script), 20)
    assert sorted(event["bucket"] for event in events) == owing
    assert not operator.expected.disk.any()
