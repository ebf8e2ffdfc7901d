"""Full joins with windows and conditions, of which a hot key's rows are divided: partitions vote on the others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from unittest.mock import patch

import pyarrow as pa
import pytest

import watersmeet.engine.hot_tables
from tests.conformance.cases.conditions import CONDITION, holds
from tests.conformance.cases.window import EPOCH, NEVER, WindowOracle, case, crowded_script
from tests.conformance.sampling import SOAK, examples
from tests.conformance.test_divisions import script_of
from tests.conformance.test_spreading import ALL, PARTITIONS, deciding, feverish, plan_of
from tests.faults.memory_dir import MemoryDir
from watersmeet.columns.arrow import hash_keys
from watersmeet.columns.partitions import partition_of
from watersmeet.engine.inheritance import bring_up
from watersmeet.engine.registry import build, operator_class
from watersmeet.join import expiry
from watersmeet.join.operator import Operator
from watersmeet.join.votes import Judge, by_home
from watersmeet.plan import JoinPlan
from watersmeet.plan.hot_table import HotKey, HotTable, home_of
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import accounting
from watersmeet.testing.arrivals import Arrival, Row, Script, ending_script
from watersmeet.testing.cases import Case
from watersmeet.testing.oracle import Held
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
                homes = partition_of(hash_keys([batch.column(0)]), PARTITIONS)
                assert (by[by < 0] == by_home(homes[by < 0])).all(), "only the home says what is to be emitted"
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


class SharedClock(WindowOracle):
    """Rows expire by the newest times of all rows of two batches ago. With one clock for all it makes no difference
    where rows are: also what late rows find is what they would find in one partition that has this clock."""

    def __init__(self, case: Case) -> None:
        where = holds if case.condition else None
        window, lateness = case.options["window"], case.options["lateness"]
        super().__init__("full", window, lateness, arrival_clock=False, where=where)
        self.times: list[dict[str, int]] = []

    def learn(self, number: int, arrival: Arrival, new: Mapping[str, Sequence[Held]]) -> None:
        before = self.times[-1] if self.times else {}
        latest = {side: [one.time for one in new[side]] for side in SIDES}
        self.times.append({side: max([*latest[side], before.get(side, NEVER)]) for side in SIDES})
        self.newest = self.times[number - 2] if number > 1 else dict.fromkeys(SIDES, NEVER)
        super().learn(number, arrival, dict.fromkeys(SIDES, ()))


def again(script: Script, seed: int) -> Script:
    """The script, with rows that come once more, most of them from long ago."""
    rng = random.Random(seed)
    came: dict[str, list[Row]] = {name: [] for name in SIDES}
    made = []
    for arrival in script:
        rows = {name: list(rows) for name, rows in arrival.rows.items()}
        for name in rows:
            fresh = [row for row in rows[name] if row[0] is not None]
            rows[name] += [rng.choice(came[name]) for _ in range(rng.randrange(6))] if came[name] else []
            rows[name] += [row for row in fresh if rng.random() < 0.2]
            came[name] += fresh
        made.append(replace(arrival, rows=rows))
    return made


EQUAL = [
    case("full, late", (3, 2), 1, how="full", algorithm="HH", script=crowded_script),
    case("full, late, disk", (5, 9), 2, how="full", memory=600, script=crowded_script),
    case("full, late, no lateness", (1, 1), 0, how="full", algorithm="NN", script=crowded_script),
    case("full, late, ahead", (4, -1), 1, how="full", algorithm="HN", script=crowded_script),
    case("full, late, uneven", (0, 12), 1, how="full", algorithm="HH", script=crowded_script),
    case("full, late, uneven, disk", (12, 0), 1, how="full", memory=500, script=crowded_script),
]
EQUAL += [replace(one, name=f"{one.name}, where", condition=CONDITION) for one in EQUAL]


@pytest.mark.parametrize(
    ("case", "hot"), [(case, "random") for case in EQUAL] + [(case, "most") for case in EQUAL[::4]], ids=str
)
def test_equal_rows_and_late_ones(case: Case, hot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every batch what one partition with the same clock would give."""
    counting = Counting(monkeypatch)
    for seed in range(examples(4)):
        script = again(case.random_script(seed, batch_rows=[4, 12][seed % 2], batches=14, keys=3, end=False), seed)
        script = ending_script(script, SIDES, seed) if seed % 3 else script
        with deciding(seed) if hot == "random" else feverish():
            found = list(run_spread(plan_of(case), script, MemoryDir({})))
        for number, expected in enumerate(SharedClock(case).answer(script)):
            assert found[number] == expected, f"batch {number} of seed {seed}"
    assert min(counting.votes["emitted"], counting.votes["matched"])


@pytest.mark.parametrize("hot", ["random", "most"])
def test_rows_of_large_runs_are_put_in_the_order_of_their_times(hot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the keys that partitions vote on in a batch: it does not look through all rows of a run."""
    monkeypatch.setattr(expiry, "SCANNED_ROWS", 0)
    wide = case("full, late, wide", (24, 1), 1, how="full", algorithm="HH", script=crowded_script)
    for seed in range(2):
        script = again(wide.random_script(seed, batch_rows=8, batches=40, keys=3), seed)
        with deciding(seed) if hot == "random" else feverish():
            found = list(run_spread(plan_of(wide), script, MemoryDir({})))
        assert found == SharedClock(wide).answer(script)


@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_rows_come_when_the_shared_clock_says(case: Case) -> None:
    """Not in the batch that makes it certain, but two batches later; at the end of an input at once."""
    for seed in range(2):
        script = case.random_script(seed, batch_rows=10, batches=10, keys=4)
        with deciding(seed):
            found = list(run_spread(plan_of(case), script, MemoryDir({})))
        assert found == SharedClock(case).answer(script)


# -- what a partition says once


@pytest.mark.parametrize("leaves", ["with its run", "before its run", "before the end"])
def test_it_is_told_once_that_a_row_has_matched(leaves: str) -> None:
    """Of two equal right rows the first one matches, in another partition than home, and the second one comes when its
    partner has expired. If the first one were counted twice, the second one would be gone."""

    def at(seconds: float) -> datetime:
        return EPOCH + timedelta(seconds=seconds)

    row, beside = (7, 1, "r", at(10)), (7, 2, "r", at(10.4))
    script = [Arrival({}) for _ in range(14)]
    rights = [row] if leaves == "with its run" else [row, beside]
    script[2] = Arrival({"left": [(7, 3, "l", at(10))], "right": rights})
    script[3] = Arrival({"right": [(8, 4, "r", at(20))]})  # the left row expires in batch 5
    script[7] = Arrival({"left": [(8, 5, "l", at(40 if leaves == "with its run" else 23.2))]})  # the right ones in 9
    if leaves == "before the end":  # its run is still there when an equal row leaves in the batch of its coming
        script[11] = Arrival({"right": [row]}, ended=frozenset({"left"}))
    else:
        script[6] = Arrival({"right": [row]})
    one = case("full, uneven", (0, 12), 1, how="full", algorithm="HH")
    with patch.object(watersmeet.engine.hot_tables, "decide", Fixed(7)):
        found = list(run_spread(plan_of(one), script, MemoryDir({})))
    assert found == SharedClock(one).answer(script)
    assert found[11 if leaves == "before the end" else 9][7, None, None, None, *row[1:]] == 1


# -- what is on disk


class Fixed:
    """Decides that new left rows of one key go to another partition than its home."""

    def __init__(self, key: int) -> None:
        number = int(hash_keys([pa.array([key], pa.int64())])[0])
        home = home_of(number, PARTITIONS)
        grid = ((home,), ((home + 1) % PARTITIONS,))
        self.key = HotKey(number, "left", grid, ((0, 1), (0,)), lines=(1,))

    def __call__(self, *args: object, both: bool) -> HotTable:
        return HotTable.of([self.key])


@pytest.mark.parametrize("name", [name for name in NAMES if "memory_rows" in name])
@pytest.mark.parametrize("memory", [8, 14])
def test_rows_that_owe_pairs_in_one_partition_alone(name: str, memory: int) -> None:
    """A right row that matches in the other partition, where it has met all left rows when they end. At home there are
    left rows on disk, which it meets later. Both let it go at the end."""
    case = next(case for case in SOME if case.name == name)
    case = replace(case, tuning={**case.tuning, "memory_rows": memory * PARTITIONS})
    old = {"left": [(7, 1000 + 2 * i, "a") for i in range(16)], "right": [(7, 2000 + i, "b") for i in range(6)]}
    new = {"left": [(7, 5000, "a")], "right": [(7, 5001, "b"), (7, 9001, "b")]}
    arrivals = [Arrival(old), Arrival({}), Arrival(new), Arrival({}, ended=frozenset({"left"}))]
    arrivals += [Arrival({}), Arrival({}), Arrival({"right": [(7, 7000, "b")]}), Arrival({})]
    script = [*arrivals, Arrival({}, ended=frozenset({"right"}))]
    script = [replace(arrival, time=10 * number * 1_000_000) for number, arrival in enumerate(script)]
    with patch.object(watersmeet.engine.hot_tables, "decide", Fixed(7)):
        found: Counter[Row] = sum(run_spread(plan_of(case), script, MemoryDir({})), Counter())
    assert found == case.expected(script)
    assert found[7, 5000, "a", 5001, "b"] == 1
