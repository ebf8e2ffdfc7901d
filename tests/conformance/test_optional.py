"""Combinations that lack an optional input, each in the first batch in which that is certain, on a small domain.

    final(history)    the results if everything ended now
    known(history)    the oracle's: results that are certain

A result that lacks an input is certain if every further row that may come leaves it in `final`, and one that is not
certain can be spoilt by a single row: by the one that fits. Checked against all rows that may come, from the definition
of lateness and ends alone. The operator is then run through trees of histories and compared with the oracle batch by
batch, and it is broken on purpose, which the same check must notice.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings

from tests.conformance.earliest.histories import make_eager
from watersmeet.engine.registry import build
from watersmeet.join.clock import Clock
from watersmeet.join.operator import OperatorState, advance, resume, saved
from watersmeet.multiway import debts, passing
from watersmeet.multiway.absence import Absence
from watersmeet.multiway.horizons import Horizons
from watersmeet.multiway.mjoin import MJoin
from watersmeet.multiway.passing import Passing
from watersmeet.plan import JoinPlan
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, Script, accounting, batch_of, make_plan
from watersmeet.testing.arrivals import Row
from watersmeet.testing.harness import rows_of
from watersmeet.testing.oracle import OptionalOracle

TIMES, KEYS = range(6), (1, 2)


@dataclass(frozen=True)
class Tree:
    """A join of a few inputs, some of them optional."""

    inputs: tuple[str, ...]
    optional: tuple[str, ...]
    window: int | None = None
    lateness: int = 0
    memory: int | None = None

    @property
    def oracle(self) -> OptionalOracle:
        return OptionalOracle(self.inputs, self.optional, window=self.window, lateness=self.lateness)

    def plan(self) -> JoinPlan:
        options: dict[str, Any] = {"optional": list(self.optional), "buckets": 2}
        if self.window is not None:
            options |= {"window": self.window, "lateness": self.lateness, "time": dict.fromkeys(self.inputs, "_p0")}
        tuning = {"memory": self.memory, "page_rows": 2, "idle_pages": 2}
        return make_plan("mjoin", self.inputs, options, payload=(pa.int64(), pa.int64()), tuning=tuning)

    def bound(self, history: Script, name: str) -> float:
        """The earliest time at which a row may come."""
        if any(name in arrival.ended for arrival in history):
            return float("inf")
        times = [row[1] for arrival in history for row in arrival.rows.get(name, ()) if row[0] is not None]
        return max(times) - self.lateness if times and self.window is not None else float("-inf")

    def further(self, history: Script) -> Iterator[Arrival]:
        """Every batch of one row that may come."""
        times = TIMES if self.window is None else range(-8, 16)
        for name in self.inputs:
            for time in times:
                for key in KEYS:
                    if time >= self.bound(history, name):
                        yield Arrival({name: [(key, time, 10**6)]})

    def final(self, history: Script) -> Counter[Row]:
        """All results if nothing more came."""
        return self.oracle.known([*history, Arrival(ended=frozenset(self.inputs))])

    def choices(self, history: Script, rng: random.Random, count: int) -> Iterator[Arrival]:
        """Next batches: nothing, ends, rows of one key at the window's edge, null keys, and others at random."""
        ended = {name for arrival in history for name in arrival.ended}
        for number in range(count):
            going = [name for name in self.inputs if name not in ended]
            wanted = [rng.choice(going) for _ in range(rng.randint(1, 5))] if going else []
            rows: dict[str, list[Row]] = {}
            time = rng.choice(TIMES)
            for name in wanted:
                time = rng.choice([time, rng.choice(TIMES), time + (self.window or 0) + rng.choice((0, 1))])
                key = None if rng.random() < 0.05 else KEYS[rng.random() < 0.35]
                ident = sum(map(len, rows.values())) + 10 * sum(1 for _ in history)
                if number == 1:  # at the window's edge: in the next tick it would be certain
                    key, time = (
                        (KEYS[1], TIMES[1] + (self.window or 0)) if name in self.optional else (KEYS[0], TIMES[1])
                    )
                if time >= self.bound(history, name):
                    rows.setdefault(name, []).append((key, time, ident))
            ends = {0: [], 1: [], 2: rng.sample(going, min(1, len(going))), 3: going}[number % 4 if number < 4 else 0]
            yield Arrival({} if number == 0 else rows, ended=frozenset(ends))

    def __str__(self) -> str:
        parts = [*self.inputs, "optional", *self.optional]
        parts += [] if self.window is None else [f"window {self.window} lateness {self.lateness}"]
        return " ".join([*parts, *([f"memory {self.memory}"] if self.memory else [])])


ONE = Tree(("a", "b"), ("b",))
TWO = Tree(("a", "b", "c"), ("c", "b"))
FIRST = Tree(("a", "b", "c"), ("a",))
WINDOW = Tree(("a", "b"), ("b",), 1)
LATE = Tree(("a", "b", "c"), ("c",), 2, 1)
CHAIN = Tree(("a", "b", "c"), ("c", "b"), 2)
LONG = Tree(("a", "b", "c", "d"), ("b", "a", "d"), 1, 1)
TREES = [ONE, TWO, FIRST, WINDOW, LATE, CHAIN, LONG]
SPILLING = [replace(ONE, memory=1), replace(TWO, memory=40), replace(FIRST, memory=60)]
SEEDS = range(20) if settings.get_current_profile_name() != "ci" else range(1)
BRANCHING, DEPTH = 7, 3


class Walk:
    """Runs the operator through a tree of histories."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.plan, self.space = tree, tree.plan(), MemorySpace()

    def through(self, seed: int) -> int:
        """All histories of a seed; returns how many results that lack an input were compared."""
        rng, nodes, lacking = random.Random(seed), [((), None, Counter[Row]())], 0
        for level in range(DEPTH + 1):
            branches = []
            for history, state, owed in nodes:
                last = level == DEPTH
                batches = [Arrival(ended=frozenset(self.tree.inputs))] if last else []
                for arrival in batches or self.tree.choices(history, rng, BRANCHING):
                    longer = (*history, arrival)
                    found, after = self.batch(longer, state)
                    owed_now = owed + self.expected(longer)
                    self.compare(longer, found, owed_now, last=last)
                    lacking += sum(count for row, count in found.items() if None in row[1:])
                    branches.append((longer, after, owed_now - found))
            nodes = branches
        return lacking

    def along(self, history: Script) -> None:
        """One history."""
        state, owed = None, Counter[Row]()
        for number in range(len(history)):
            found, state = self.batch(history[: number + 1], state)
            owed += self.expected(history[: number + 1])
            self.compare(history[: number + 1], found, owed, last=False)
            owed -= found

    def expected(self, history: Script) -> Counter[Row]:
        return self.tree.oracle.known(history) - self.tree.oracle.known(history[:-1])

    def batch(self, history: Script, state: OperatorState | None) -> tuple[Counter[Row], OperatorState]:
        operator = build(self.plan, self.space)
        for store in operator.row_stores():
            make_eager(store.layout)
        if state is not None:
            resume(operator, state)
        number = len(history) - 1
        found = rows_of(advance(operator, batch_of(self.plan, number, history[-1])))
        accounting.check(operator, history, len(history))
        lacks = sum(count for row, count in found.items() if None in row[1:])
        counted = sum(int(count) for name, count in operator.metrics.counters.items() if name.startswith("unmatched."))
        assert counted == lacks, f"{lacks} results lack an input, {counted} were counted"
        return found, saved(operator)

    def compare(self, history: Script, found: Counter[Row], owed: Counter[Row], *, last: bool) -> None:
        early = found - owed
        assert not early, f"too early: {early}\n{told(history)}"
        if self.tree.memory is None or last:
            assert found == owed, f"too late: {owed - found}\n{told(history)}"


def told(history: Script) -> str:
    return "\n".join(f"{number}: {dict(one.rows)} {sorted(one.ended)}" for number, one in enumerate(history))


# A row of c fits one of a, and all other rows are more than a window after it before the time of c has passed what
# lacks it: at 4 it would be too early to say that the row of a lacks c, and at 5 the row of c must still be known.
KEPT = (
    Arrival({"a": [(1, 2, 1)], "c": [(1, 0, 2)]}),
    Arrival({name: [(2, 3, 3)] for name in "abc"}),
    Arrival({"b": [(1, 4, 4)], "c": [(2, 4, 5)]}),
    Arrival({"b": [(2, 5, 6)], "c": [(2, 5, 7)]}),
)


def test_rows_of_optional_inputs_are_kept_for_two_windows() -> None:
    Walk(CHAIN).along(KEPT)


@pytest.mark.parametrize("tree", TREES + SPILLING, ids=str)
def test_what_lacks_an_input_comes_at_the_earliest_moment(tree: Tree) -> None:
    for seed in SEEDS:
        assert Walk(tree).through(seed) > 50


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_the_oracle_is_neither_early_nor_late(tree: Tree) -> None:
    rng, certain, open_ = random.Random(3), 0, 0
    for _ in range(150):
        history: list[Arrival] = []
        for _ in range(rng.randint(1, 3)):
            history.append(rng.choice(list(tree.choices(history, rng, 6))))
        known, final = tree.oracle.known(history), tree.final(history)
        further = [tree.final([*history, one]) for one in tree.further(history)]
        assert known <= final
        for row in final:
            if None in row[1:]:
                spoilt = any(one[row] < final[row] for one in further)
                if known[row] == final[row]:
                    certain += 1
                    assert not spoilt, f"{row} is not certain\n{told(history)}"
                elif final[row] == 1:
                    open_ += 1
                    assert spoilt, f"{row} is certain\n{told(history)}"
    assert min(certain, open_) > 5


@pytest.mark.parametrize("tree", [TWO, CHAIN, LONG, SPILLING[1]], ids=str)
def test_blocks_of_one_row_and_runs_in_the_order_of_time(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "BLOCK_ROWS", 1)
    monkeypatch.setattr(debts, "BLOCK_ROWS", 1)
    monkeypatch.setattr(passing, "SCANNED_ROWS", 0)
    assert Walk(tree).through(1) > 50


@pytest.mark.parametrize("tree", [WINDOW, LATE, CHAIN, LONG], ids=str)
def test_late_rows_contradict_nothing(tree: Tree) -> None:
    """Whatever comes late: no result twice, none that is not one, and none both with a row of an input and without."""
    rng, late = random.Random(5), 0
    for _ in range(60):
        history: list[Arrival] = []
        for number in range(6):
            rows = {
                name: [(1, rng.choice(TIMES) + number // 2, 10 * number + at) for at in range(rng.randint(0, 2))]
                for name in tree.inputs
            }
            history.append(Arrival(rows, ended=frozenset(tree.inputs if number == 5 else ())))
        operator, found = build(tree.plan(), MemorySpace()), Counter[Row]()
        for number, arrival in enumerate(history):
            found += rows_of(advance(operator, batch_of(tree.plan(), number, arrival)))
            accounting.check(operator, history, number + 1)
            late += sum(int(n) for name, n in operator.metrics.counters.items() if name.startswith("late."))
        assert set(found.values()) <= {1}
        taken: dict[tuple[Any, ...], set[bool]] = {}
        for row in found:
            parts = {name: row[1 + 2 * place : 3 + 2 * place] for place, name in enumerate(tree.inputs)}
            chosen = [parts[name] for name in tree.inputs if name not in tree.optional]
            for name in tree.optional:
                taken.setdefault((name, *chosen), set()).add(parts[name][0] is None)
                chosen.append(parts[name])
            times = [time for time, _ in chosen if time is not None]
            assert tree.window is not None
            assert max(times) - min(times) <= tree.window
        assert all(len(both) == 1 for both in taken.values()), f"{found}\n{told(history)}"
    assert late > 50


def test_a_late_row_of_an_optional_input_is_not_joined() -> None:
    operator = build(LATE.plan(), MemorySpace())
    history = [
        Arrival({"a": [(1, 3, 1)], "b": [(1, 3, 2)], "c": [(2, 6, 3)]}),  # 6 - 1 is 3 + 2: it may still come
        Arrival({"c": [(2, 7, 4)]}),
        Arrival({"c": [(1, 5, 5), (1, 6, 6)]}),
    ]
    found = [rows_of(advance(operator, batch_of(operator.plan, at, one))) for at, one in enumerate(history)]
    assert found == [Counter(), Counter([(1, 3, 1, 3, 2, None, None)]), Counter()]
    assert operator.accounts.left["c"]["late"] == 1
    assert operator.metrics.counters["late.c"] == 1


# -- operators that are broken on purpose


def shifted_horizon(ticks: int) -> Callable[[pytest.MonkeyPatch], None]:
    right = Horizons.passed

    def wrong(self: Horizons, name: str, *, has_ended: bool) -> float:
        return right(self, name, has_ended=has_ended) + ticks

    return lambda patch: patch.setattr(Horizons, "passed", wrong)


def kept_for_one_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Horizons, "of", lambda self, name, others: self.clock.horizon(name, others))


def not_kept_for_its_own_end(patch: pytest.MonkeyPatch) -> None:
    def others(self: MJoin, name: str, batch: Any) -> list[str]:
        return [other for other in self.names if other != name and not self.ends(other, batch)]

    patch.setattr(MJoin, "_others", others)


def only_new_rows_drive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Passing, "_crossed", lambda self, part, spans: passing.np.empty(0, passing.np.int64))


def every_driver_finds_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Passing, "_drives", lambda self, found, rows: passing.np.zeros(len(rows), bool))


def ends_one_batch_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Absence, "ending", lambda self, batch: [i for i in self.optional if self._seen(i, batch)], raising=True
    )
    patch.setattr(Absence, "_seen", lambda self, index, batch: False, raising=False)


def on_disk_counts_as_absent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Absence, "in_view", lambda self, index, hashes: passing.np.ones(len(hashes), bool))


def generations_all_reported(patch: pytest.MonkeyPatch) -> None:
    known = Absence.known

    def wrong(self: Absence, bucket: int, numbers: Sequence[int], *, with_memory: bool) -> Any:
        found = known(self, bucket, numbers, with_memory=with_memory)
        return replace(found, reported=[found.lacking for _ in found.reported])

    patch.setattr(Absence, "known", wrong)


def merged_generations_keep_their_number(patch: pytest.MonkeyPatch) -> None:
    def known(self: Absence, bucket: int, numbers: Sequence[int], *, with_memory: bool) -> Any:
        found = right(self, bucket, numbers, with_memory=with_memory)
        return replace(found, reported=[frozenset() for _ in found.reported])

    right = Absence.known
    patch.setattr(Absence, "known", known)


def bound_of_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Clock, "bound", lambda self, name: self.newest.get(name))


@pytest.mark.parametrize(
    ("tree", "wrong"),
    [
        (WINDOW, shifted_horizon(1)),
        (WINDOW, shifted_horizon(-1)),
        (CHAIN, kept_for_one_window),
        (ONE, not_kept_for_its_own_end),
        (CHAIN, only_new_rows_drive),
        (LONG, every_driver_finds_all),
        (ONE, ends_one_batch_late),
        (SPILLING[0], on_disk_counts_as_absent),
        (SPILLING[0], generations_all_reported),
        (SPILLING[1], merged_generations_keep_their_number),
        (LATE, bound_of_the_newest),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_broken_operator_is_noticed(tree: Tree, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(monkeypatch)
    with pytest.raises(AssertionError):
        notice(tree)


def notice(tree: Tree) -> None:
    """Fails if the operator is broken."""
    if tree == CHAIN:
        Walk(tree).along(KEPT)
    for seed in range(3):
        Walk(tree).through(seed)
