"""Full joins with windows and conditions, of which a hot key's rows are divided: partitions vote on the others."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conformance.cases.window import SECOND, case, crowded_script, micros
from tests.conformance.sampling import SOAK
from tests.conformance.test_divisions import script_of
from tests.conformance.test_spreading import ALL, PARTITIONS, deciding, feverish, plan_of
from tests.faults.memory_dir import MemoryDir
from watersmeet.engine.inheritance import bring_up
from watersmeet.engine.registry import build, operator_class
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.join.operator import Operator
from watersmeet.join.votes import Judge, ballot_schema, by_home
from watersmeet.plan import JoinPlan
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import accounting
from watersmeet.testing.arrivals import Row, Script, ending_script
from watersmeet.testing.cases import Case
from watersmeet.testing.spreading import run_spread

VOTED = [case for case in ALL if operator_class(case.operator).votes(case.plan())]
NAMES = (
    "symmetric, full, where",
    "rpj memory_rows=3 idle_pages=4, full, where",
    "xjoin memory_rows=10 idle_pages=2, full, where",
    "hmj memory_rows=10 idle_pages=3, full, where",
    "window-HN, full, where",
    "window-disk, full, where",
    "window-between 1 and 5, full, where",
    "window-full, HN",
    "window-full, disk",
    "window-full, none, rpj largest",
    "window-full, auto-eager",
    "window-full, far",
    "window-full, between -5 and -1, disk",
    "window-full, from 1",
)
SOME = VOTED if SOAK else [case for case in VOTED if case.name in NAMES]
WINDOWS = [case for case in SOME if case.operator == "window"]
SIDES = ("left", "right")

some_cases = pytest.mark.parametrize("case", SOME, ids=str)


def test_which_joins_vote() -> None:
    assert {case.operator for case in VOTED} == {"symmetric", "rpj", "xjoin", "hmj", "window"}
    assert {case.how for case in VOTED} == {"full"}
    assert all(case.condition or case.operator == "window" for case in VOTED)
    assert {case.name for case in VOTED}.issuperset(NAMES)
    for one in VOTED:
        assert operator_class(one.operator).splits(one.plan()) == SIDES
        assert not operator_class(one.operator).divides_both(one.plan())


def counters(directory: MemoryDir, batches: int) -> Counter[str]:
    """What all partitions have counted in all batches that are still there."""
    found: Counter[str] = Counter()
    for number in range(max(0, batches - 2), batches):
        for partition in range(PARTITIONS):
            found.update(PartitionStore(directory, partition).manifest(number).metrics["counters"])
    return found


def operators(plan: JoinPlan, directory: MemoryDir, batches: int) -> list[Operator]:
    """All partitions as they are after so many batches."""
    found = []
    for partition in range(PARTITIONS):
        space = MemorySpace()
        space.partition = partition
        operator = build(plan, space)
        bring_up(operator, PartitionStore(directory, partition), batches, "in-process", "x")
        found.append(operator)
    return found


class Counting:
    """Adds up what the votes of a run were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.votes: Counter[str] = Counter()
        verdict = Judge.verdict

        def counted(judge: Judge) -> pa.Table:
            for batch in judge.votes:
                by = batch.column(batch.num_columns - 3).to_numpy()
                self.votes["candidates"] += int((by < 0).sum())
                self.votes["matched"] += int((by >= 0).sum())
            found = verdict(judge)
            self.votes["emitted"] += found.num_rows
            return found

        monkeypatch.setattr(Judge, "verdict", counted)

    def check(self, least: int) -> None:
        """There was something to judge, one way and the other."""
        assert self.votes["emitted"] >= least
        assert self.votes["candidates"] - self.votes["emitted"] >= least
        assert self.votes["matched"] >= least


@some_cases
def test_unmatched_rows_of_copied_inputs_are_emitted_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch)
    for seed, batch_rows in enumerate([4, 12, 12, 20]):
        script = script_of(case, seed, batch_rows=batch_rows, batches=14, keys=4)
        with deciding(seed) as whim:
            found: Counter[Row] = sum(run_spread(plan_of(case), script, MemoryDir({})), Counter())
        assert found == case.expected(script)
        assert whim.spread
    counting.check(1 if case.condition else 0)
    assert min(counting.votes["candidates"], counting.votes["matched"])


@some_cases
def test_inputs_that_end_one_after_the_other(case: Case) -> None:
    for seed, silent in ((1, False), (2, True), (3, False)):
        script = script_of(case, seed, batch_rows=14, batches=10, keys=3, end=False)
        script = ending_script(script, SIDES, seed, silent=silent)
        with deciding(seed):
            found: Counter[Row] = sum(run_spread(plan_of(case), script, MemoryDir({})), Counter())
        assert found == case.expected(script)


@some_cases
def test_every_row_is_accounted_for(case: Case) -> None:
    """Votes are told by rows that leave: what is held and what left is what it would be without them."""
    for seed, batch_rows in enumerate([6, 25]):
        script = script_of(case, seed, batch_rows=batch_rows, batches=9, keys=4, end=False)
        directory, plan = MemoryDir({}), plan_of(case)
        with deciding(seed):
            list(run_spread(plan, script, directory))
        came: Counter[str] = Counter()
        for operator in operators(plan, directory, len(script)):
            for store in operator.row_stores():
                accounting.check_store(store)
            for spec in plan.inputs:
                held = sum(store.held for store in operator.row_stores() if store.input == spec.name)
                assert operator.accounts.held(spec.name) == held
                came[spec.name] += operator.accounts.came.get(spec.name, 0)
        for spec in plan.inputs:
            assert came[spec.name] == accounting.came(script, len(script), spec.name)


@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_all_partitions_go_by_one_clock(case: Case) -> None:
    """Their horizons are the same after every batch, and that of the inputs' newest times of two batches ago."""
    script = script_of(case, 5, batch_rows=9, batches=8, keys=6, end=False)
    directory, plan = MemoryDir({}), plan_of(case)
    moved = 0
    with deciding(5):
        for number, _ in enumerate(run_spread(plan, script, directory), start=1):
            for name in SIDES:
                stores = [operator.stores[name] for operator in operators(plan, directory, number)]
                times = {store.rule.time for store in stores if isinstance(store.rule, Horizon)}
                assert len(times) == 1
                moved += times != {None}
    assert moved > 6


# -- equal rows, and late ones


class Answer:
    """What a join has emitted, by the rows it is about."""

    def __init__(self, found: Counter[Row]) -> None:
        self.alone: dict[str, Counter[Row]] = {side: Counter() for side in SIDES}
        self.pairs: Counter[tuple[Row, Row]] = Counter()
        for row, count in found.items():
            left, right = ((row[0], *row[1:4]), (row[0], *row[4:7]))
            if right[1] is None:
                self.alone["left"][left] += count
            elif left[1] is None:
                self.alone["right"][right] += count
            else:
                self.pairs[left, right] += count

    def matched(self, side: str) -> dict[Row, Counter[Row]]:
        """By row of an input, how many pairs it has with each row of the other."""
        found: dict[Row, Counter[Row]] = defaultdict(Counter)
        for (left, right), count in self.pairs.items():
            mine, other = (left, right) if side == "left" else (right, left)
            found[mine][other] += count
        return found


def again(script: Script, side: str, seed: int) -> Script:
    """The script, with rows of an input that come once more, some of them much later."""
    rng = random.Random(seed)
    came: list[Row] = []
    made = []
    for arrival in script:
        rows = {name: list(rows) for name, rows in arrival.rows.items()}
        fresh = [row for row in rows.get(side, ()) if row[0] is not None and row[-1] is not None]
        more = [rng.choice(came) for _ in range(rng.randrange(6))] if came and side in rows else []
        more += [row for row in fresh if rng.random() < 0.3]
        if side in rows:
            rows[side] += more
        came += fresh
        made.append(replace(arrival, rows=rows))
    return made


def without_equal_rows(script: Script) -> Script:
    """The script, with every row once."""
    seen: set[Row] = set()
    made = []
    for arrival in script:
        rows: dict[str, list[Row]] = {}
        for name, some in arrival.rows.items():
            rows[name] = [row for row in some if (row[0], row[1]) not in seen]
            rows[name] = list({row[1]: row for row in rows[name]}.values())
            seen |= {(row[0], row[1]) for row in rows[name]}
        made.append(replace(arrival, rows=rows))
    return made


LATE = [
    replace(case("full, late", (3, 2), 1, how="full", algorithm="HH"), script=crowded_script),
    replace(case("full, late, disk", (5, 9), 2, how="full", memory=600), script=crowded_script),
    replace(case("full, late, no lateness", (1, 1), 0, how="full", algorithm="NN"), script=crowded_script),
    replace(case("full, late, ahead", (4, -1), 1, how="full", algorithm="HN"), script=crowded_script),
]


@pytest.mark.parametrize("case", LATE, ids=str)
@pytest.mark.parametrize("hot", ["at random", "most"])
def test_equal_rows_and_late_ones(case: Case, hot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What late rows find is what is still there. Whatever that is, a row is emitted alone if and only if it is in no
    pair; and of equal rows those are alone that came last."""
    counting = Counting(monkeypatch)
    for seed in range(8):
        side = SIDES[seed % 2]
        script = without_equal_rows(case.random_script(seed, batch_rows=12, batches=14, keys=3, null_share=0.0))
        script = again(script, side, seed)
        with deciding(seed) if hot == "at random" else feverish():
            answer = Answer(sum(run_spread(plan_of(case), script, MemoryDir({})), Counter()))
        rows = {name: Counter[Row]() for name in SIDES}
        for arrival in script:
            for name in SIDES:
                rows[name].update(arrival.rows.get(name, ()))
        for name in SIDES:
            matched = answer.matched(name)
            for row, count in rows[name].items():
                # Of equal rows so many have matched as are in pairs with the row that has found most of them. Among
                # rows of the other input none are equal; and those that this one has several of, each of them finds.
                most = max(matched[row].values(), default=0) if name == side else bool(matched[row])
                if name == side:
                    assert answer.alone[name][row] <= count - most, f"{name}: {row}"
                    assert answer.alone[name][row] >= count - sum(matched[row].values()), f"{name}: {row}"
                else:
                    assert answer.alone[name][row] == count - most, f"{name}: {row}"
        assert all(count <= rows["left"][left] * rows["right"][right] for (left, right), count in answer.pairs.items())
        assert owed(case, script) <= answer.pairs
    counting.check(3)


def owed(case: Case, script: Script) -> Counter[tuple[Row, Row]]:
    """The pairs of rows that were not late when they came, by the newest time of their input."""
    newest: dict[str, int] = {}
    in_time: dict[str, list[Row]] = {name: [] for name in SIDES}
    for arrival in script:
        now = dict(newest)
        for name, rows in arrival.rows.items():
            for row in rows:
                if row[-1] is None:
                    continue
                time = micros(row[-1])
                if name not in newest or time >= newest[name] - case.options["lateness"]:
                    in_time[name].append(row)
                now[name] = max(time, now.get(name, time))
        newest = now
    after, before = case.options["window"]
    return Counter(
        (left, right)
        for left in in_time["left"]
        for right in in_time["right"]
        if left[0] == right[0] and -before <= micros(right[-1]) - micros(left[-1]) <= after
    )
