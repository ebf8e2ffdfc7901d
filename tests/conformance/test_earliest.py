"""Every unmatched row in the first batch after which no continuation that keeps its promises could match it.

Small domains (two or three keys, four times, few promises), but all of what follows from each choice: histories form a
tree, the operator's state is saved at every branch and taken up again, and after every batch the unmatched rows emitted
must be exactly those that `earliest.rules` says are owed. Nothing too early, nothing too late. The operators are then
broken on purpose, and the same check must notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings

from tests.conformance.earliest.histories import Choices, RelativeWalk, Walk
from tests.conformance.earliest.rules import PRESERVED, SIDES, History, Row, Rules, Step
from watersmeet.combined.promised_window import PromisedWindowJoin
from watersmeet.join.clock import Clock
from watersmeet.join.operator import Batch, Operator
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.punctuated.generations import Generations
from watersmeet.punctuated.promises.constraints import ClusterTracker, OrderTracker
from watersmeet.punctuated.punctuated_join import PunctuatedJoin
from watersmeet.punctuated.scheduling import WaitingPool
from watersmeet.punctuated.violations import Violations
from watersmeet.state.parts import Part
from watersmeet.testing.arrivals import make_plan
from watersmeet.window.window_join import WindowJoin

BOTH = frozenset(SIDES)
DEEP, BROAD, SHORT = (9, 3), (28, 2), (9, 2)  # choices per batch, batches
LIMITED = (9, 3, 40), (28, 2, 14)  # DEEP and BROAD, and how many histories of one length go on


@dataclass(frozen=True)
class Tree:
    """An operator, and the rules of its join."""

    name: str
    operator: str
    rules: Rules
    options: dict[str, Any] = field(default_factory=dict)
    tuning: dict[str, Any] = field(default_factory=dict)

    def of(self, how: str) -> Tree:
        return replace(self, rules=replace(self.rules, how=how))

    def walk(self, kind: type[Walk] = Walk) -> Walk:
        payload = (pa.int64(), pa.int64()) if self.rules.window else (pa.int64(),)
        plan = make_plan(self.operator, options=self.options, tuning=self.tuning, how=self.rules.how, payload=payload)
        return kind(plan, self.rules)

    def __str__(self) -> str:
        return self.name


def window(
    name: str, lengths: tuple[int | None, int | None], lateness: int = 0, *, arrival: bool = False, **tuning: Any
) -> Tree:
    columns = None if arrival else ["_p1", "_p1"]
    options = {"window": list(lengths), "lateness": lateness, "time_columns": columns}
    timeout = tuning.get("idle_timeout")
    rules = Rules("full", window=lengths, lateness=lateness, arrival_clock=arrival, timeout=timeout)
    return Tree(f"window, {name}", "window", rules, options, tuning)


def punctuated(name: str, *constraints: dict[str, Any], keys: int = 2, **tuning: Any) -> Tree:
    order = tuple(
        (one["input"], "clustered" if one["kind"] == "clustered" else one.get("direction", "ascending"))
        for one in constraints
        if one["kind"] != "one_to_many"
    )
    mode = tuning.get("on_violation", "raise")
    rules = Rules(
        "full",
        keys=tuple(range(1, keys + 1)),
        punctuated=True,
        one=frozenset(one["one"] for one in constraints if one["kind"] == "one_to_many"),
        order=order,
        sequence=any("sequence" in one for one in constraints),
        on_violation=mode,
        further=1 if mode == "keep" else 0,
    )
    options = {"constraints": list(constraints), "buckets": 4}
    return Tree(f"punctuated, {name}", "punctuated", rules, options, tuning)


def combined(tree: Tree, lengths: tuple[int, int], lateness: int = 0, **tuning: Any) -> Tree:
    """Windows and promises together."""
    rules = replace(tree.rules, window=lengths, lateness=lateness)
    constraints = tree.options["constraints"]
    options = {
        "window": list(lengths),
        "lateness": lateness,
        "time_columns": ["_p1", "_p1"],
        "constraints": constraints,
    }
    name = tree.name.replace("punctuated", f"promised window of {lengths}")
    return Tree(name, "promised_window", rules, options, {**tree.tuning, **tuning})


def one(side: str) -> dict[str, Any]:
    return {"kind": "one_to_many", "one": side}


SEQUENCE = {"sequence": "_p0"}
SYMMETRIC = Tree("symmetric", "symmetric", Rules("full"))
HASHED = window("hashed", (2, 1), 1, algorithm="HH")
IDLE = window("idle timeout", (2, 1), 1, idle_timeout=2)
AFTER = window("between 1 and 2", (2, -1), 1, algorithm="HH")
OPEN = window("from 1", (None, -1), 0)
PLAIN = punctuated("many-to-many")
CLUSTERED = punctuated("clustered", {"kind": "clustered", "input": "right"}, keys=3)
ASCENDING = punctuated("ascending", {"kind": "ordered", "input": "right"}, keys=3)
KEEP = punctuated("promises taken back", on_violation="keep")
COMBINED = combined(PLAIN, (2, 1), 1)
KEEP_ONE = punctuated("promises taken back, one-to-many", one("left"), on_violation="keep")
TREES = [
    SYMMETRIC,
    HASHED,
    window("scanned", (1, 2), 0, algorithm="NN"),
    window("of no length", (0, 0), 1),
    window("on disk", (2, 2), 0, algorithm="HN", memory=1),
    window("arrival clock", (2, 1), arrival=True),
    AFTER,
    window("between -3 and -1", (-1, 3), 0, algorithm="HN"),
    window("between 1 and 1", (1, -1), 0, algorithm="NN"),
    window("between 1 and 2, on disk", (2, -1), 0, memory=1),
    window("between 1 and 2, arrival clock", (2, -1), arrival=True),
    OPEN,
    window("up to 1", (1, None), 0, algorithm="HN"),
    window("up to -1, on disk", (-1, None), 0, memory=1),
    PLAIN,
    punctuated("purged in batches", purge="batch"),
    punctuated("one-to-many", one("left")),
    punctuated("one-to-one", one("left"), one("right")),
    CLUSTERED,
    punctuated("clustered by a sequence", one("left"), {"kind": "clustered", "input": "right", **SEQUENCE}, keys=3),
    ASCENDING,
    punctuated(
        "descending by a sequence",
        {"kind": "ordered", "input": "left", "direction": "descending", **SEQUENCE},
        keys=3,
    ),
    punctuated("violations dropped", on_violation="drop"),
    KEEP,
    COMBINED,
    combined(PLAIN, (2, 2), memory=1),
    combined(CLUSTERED, (2, 1)),
    combined(ASCENDING, (1, 2), 1),
    combined(punctuated("violations dropped", on_violation="drop"), (1, 1), 1),
    combined(KEEP, (1, 0)),
    combined(KEEP_ONE, (1, 1)),
    KEEP_ONE,
    punctuated("promises taken back, one-to-one", one("left"), one("right"), on_violation="keep"),
    IDLE,
    window("idle timeout, no lateness", (1, 1), 0, idle_timeout=1, algorithm="NH"),
    window("right rows in cells", (1, 8), 0, algorithm="HH"),
]


def shapes(tree: Tree, how: str) -> list[tuple[int, tuple[int, ...]]]:
    """Seeds, and the shapes of their trees. The soak profile takes many for every type, and whole trees."""
    if settings.get_current_profile_name() != "ci":
        return [(seed, BROAD if seed % 2 else DEEP) for seed in range(20)]
    if how != "full":
        return [(2, SHORT)]
    deep, broad = LIMITED
    return [(1, broad) if tree in RELATIVE or TREES.index(tree.of("full")) % 2 else (0, deep)]


every_type = pytest.mark.parametrize("how", PRESERVED)


@pytest.mark.parametrize("tree", TREES, ids=str)
@every_type
def test_every_unmatched_row_at_the_earliest_moment(tree: Tree, how: str) -> None:
    for seed, shape in shapes(tree, how):
        assert tree.of(how).walk().through(seed, *shape) > shape[0]


# -- where comparisons are owed: rows on disk, and rows that wait for a quota


def progressive(policy: str, memory_rows: int, idle_pages: int) -> Tree:
    chosen = ProgressiveOptions(
        policy=policy,
        memory_rows=memory_rows,
        idle_pages=idle_pages,
        buckets=2,
        page_rows=2,
        fan_in=2,
        combine_runs=2,
        flush_share=0.3,
    )
    return Tree(f"{policy}, {memory_rows} rows", chosen.operator, Rules("full"), chosen.identity(), chosen.tuning())


SPILLING = punctuated("spilling", memory=60, idle_pages=1)
WAITING = punctuated("quota", quota=1)
RELATIVE = [progressive("rpj", 2, 1), progressive("xjoin", 1, 2), progressive("hmj", 2, 1), SPILLING, WAITING]


@pytest.mark.parametrize("tree", RELATIVE, ids=str)
@every_type
def test_rows_that_owe_comparisons_are_never_early_and_complete_at_the_end(tree: Tree, how: str) -> None:
    for seed, shape in shapes(tree, how):
        walk = tree.of(how).walk(RelativeWalk)
        assert walk.through(seed, *shape) > shape[0]
        assert isinstance(walk, RelativeWalk)
        # The check is not an empty one: some rows are certain and not emitted yet.
        assert how != "full" or any(owed.unmatched for owed in walk.owed.values())


# -- the rules themselves


@pytest.mark.parametrize(
    "rules",
    [
        Rules("full", punctuated=True),
        Rules("full", window=(1, 0)),
        Rules("full", window=(0, 1), lateness=1),
        Rules("full", window=(1, 1), timeout=2),
        Rules("full", window=(1, -1)),
        Rules("full", window=(-1, None)),
        Rules("full", punctuated=True, order=(("right", "clustered"),)),
        Rules("full", order=(("left", "descending"), ("right", "ascending")), one=frozenset({"left"})),
    ],
    ids=str,
)
def test_one_further_row_is_enough(rules: Rules) -> None:
    """Continuations of three batches match nothing that a single row in the next batch could not match."""
    rng, judged = random.Random(7), {False: 0, True: 0}
    while min(judged.values()) < 20:
        history: History = ()
        for number in range(rng.randint(1, 3)):
            steps = list(rules.continuations(history))
            step = rng.choice(steps)
            rows = tuple(replace(row, number=10 * number + at) for at, row in enumerate(step.rows))
            history = (*history, replace(step, rows=rows))
        for x in (row for step in history for row in step.rows):
            soon = rules.within(history, x, 0)
            judged[soon] += 1
            if judged[soon] <= 20 and not soon:
                assert not rules.within(history, x, 2), (history, x)


def test_a_row_that_breaks_a_promise_makes_others_legal_again() -> None:
    """Why one further row says nothing where promises are taken back."""
    x, y = Row("left", 1, 1), Row("right", 2, 1)
    history: History = (Step((x,), (("right", 1, 1),)),)
    assert not KEEP.rules.can_match(history, x)
    assert KEEP.rules.can_match((*history, Step((y,))), x)
    assert not PLAIN.rules.can_match((*history, Step((y,))), x)


def test_the_rules_know_what_may_come() -> None:
    row = Row("right", 9, 2)
    seen = (Step((Row("right", 1, 1), Row("right", 2, 2))),)
    assert CLUSTERED.rules.legal(seen, row)  # it may have been the last one
    assert not CLUSTERED.rules.legal((*seen, Step((Row("right", 3, 1),))), row)
    assert not CLUSTERED.rules.legal((*seen, Step((Row("right", 3, 3),))), row)
    assert ASCENDING.rules.legal(seen, row)
    assert not ASCENDING.rules.legal((*seen, Step((Row("right", 3, 3),))), row)
    late = (Step((Row("right", 1, 1, 5), Row("left", 2, 1, 2))),)
    assert HASHED.rules.can_match(late, Row("left", 2, 1, 2))  # 5 - 1 is 2 + 2
    assert not HASHED.rules.can_match(late, Row("left", 2, 1, 1))


def test_an_end_is_not_taken_back() -> None:
    """Rows after an end are refused whatever the mode: what waits for them is certain, also for a key whose promises
    have been taken back."""
    for said in (((("right", 1, 1), ("left", 1, 1))), ((("right", 0, 9), ("left", 1, 1)))):
        walk, node = KEEP.walk(), None
        for step in (
            Step((), said),
            Step((Row("right", 1, 1),)),  # breaks its promise, and leaves: left has promised its key away
            Step((Row("left", 2, 1),)),  # breaks its promise, and waits for the key that right has sent again
            Step((), (), frozenset({"right"})),
        ):
            node = walk.go_on(node or walk.start(), step)


def test_a_row_on_disk_leaves_at_its_first_match() -> None:
    for tree in TREES:
        if "memory" in tree.tuning:
            walk = tree.of("left_anti").walk()
            node = walk.go_on(walk.start(), Step((Row("left", 1, 1, 0),)))
            assert node.state is not None
            assert [run.tier for run in node.state.runs] == ["spilled"]
            node = walk.go_on(node, Step((Row("right", 2, 1, 1),)))
            walk.go_on(node, Step((), (), BOTH))


def test_the_awkward_batches_are_drawn() -> None:
    """Late rows, null keys, ends, promises with rows of their key, rows at the window's edge: in every tree."""
    seen = set()
    for tree in (HASHED, PLAIN):
        history = (Step((Row("left", 1, 1, 3), Row("right", 2, 1, 3))),)
        for step in Choices(tree.rules, history, random.Random(0)).draw(9):
            keys = {row.key for row in step.rows}
            seen |= {"empty"} if not step.rows and not step.ended and not step.said else set()
            seen |= {f"{len(step.ended)} ended"} | ({"null"} if None in keys else set())
            seen |= {"promise" for _, low, _ in step.said if low in keys}
            seen |= {"late" for row in step.rows if row.time is not None and row.time < 2}
            times = [row.time for row in step.rows if row.time is not None]
            seen |= {"edge"} if times and max(times) - min(times) >= 1 else set()
    assert {"empty", "null", "promise", "late", "edge", "0 ended", "1 ended", "2 ended"} <= seen


# -- operators that are broken on purpose

Break = Callable[[pytest.MonkeyPatch], None]


def horizon(ticks: int) -> Break:
    right = Clock.horizon

    def wrong(self: Clock, name: str, others: list[str]) -> int | None:
        found = right(self, name, others)
        return None if found is None else found + ticks

    return lambda patch: patch.setattr(Clock, "horizon", wrong)


def silence_one_batch_late(patch: pytest.MonkeyPatch) -> None:
    """How long an input has been silent is told by the clock of the batch before."""
    advance, follow = WindowJoin._advance_clock, WindowJoin._follow
    before: list[int | None] = []

    def advance_clock(self: WindowJoin, batch: Batch) -> float:
        before[:] = [self.now]
        return advance(self, batch)

    def wrong(self: WindowJoin, name: str, rows: int) -> None:
        if rows or name not in self.active:
            follow(self, name, rows)
            return
        now, self.now = self.now, before[0]
        follow(self, name, rows)
        self.now = now

    patch.setattr(WindowJoin, "_advance_clock", advance_clock)
    patch.setattr(WindowJoin, "_follow", wrong)


def silence_one_batch_early(patch: pytest.MonkeyPatch) -> None:
    """An input that is silent counts as silent for as long as it will have been in the next batch."""
    follow = WindowJoin._follow

    def wrong(self: WindowJoin, name: str, rows: int) -> None:
        if rows or name not in self.active or self.now is None:
            follow(self, name, rows)
            return
        self.now += 1
        follow(self, name, rows)
        self.now -= 1

    patch.setattr(WindowJoin, "_follow", wrong)


def silence_of_any_length(patch: pytest.MonkeyPatch) -> None:
    """Rows do not end a silence."""
    follow = WindowJoin._follow
    patch.setattr(
        WindowJoin, "_follow", lambda self, name, rows: follow(self, name, rows if name not in self.active else 0)
    )


def silence_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowJoin, "_follow", lambda self, name, rows: None)


def end_one_batch_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Operator, "ends", lambda self, name, batch: name in self.ended)


def promises_one_batch_late(patch: pytest.MonkeyPatch) -> None:
    """What was promised is looked at when the next batch begins."""
    join, purge = PunctuatedJoin._process, PunctuatedJoin._purge_if_due

    def process(self: PunctuatedJoin, now: Any, waited: Any, batch: Any, arrived: Any) -> Any:
        yield from purge(self, batch)
        yield from join(self, now, waited, batch, arrived)

    patch.setattr(PunctuatedJoin, "_process", process)
    patch.setattr(PunctuatedJoin, "_purge_if_due", lambda self, batch: iter(()))


def promises_only_for_stored_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows that come in the batch of a promise, or after it, are stored all the same."""
    patch.setattr("watersmeet.punctuated.punctuated_join.by_reason", lambda sources: {})


def promises_purge_nothing(patch: pytest.MonkeyPatch) -> None:
    """Rows that are stored when a promise comes wait until their window has passed."""
    patch.setattr(PromisedWindowJoin, "_purge", lambda self, name, promised: iter(()))


def straddling_cluster_over(patch: pytest.MonkeyPatch) -> None:
    """The last cluster of a batch counts as over."""
    close = ClusterTracker.close

    def wrong(self: ClusterTracker, table: pa.Table) -> pa.Table:
        ended = close(self, table)
        return pa.concat_tables([ended, self.open]) if table.num_rows else ended

    patch.setattr(ClusterTracker, "close", wrong)
    patch.setattr(Violations, "_promised", lambda self, table, batch, metrics: table)  # or the row would be refused


def last_key_passed(patch: pytest.MonkeyPatch) -> None:
    """An order counts as having passed its last key."""
    close = OrderTracker.close

    def wrong(self: OrderTracker, table: pa.Table) -> pa.Table:
        said = close(self, table)
        at = said.schema.get_field_index("_high_closed0")
        return said.set_column(at, said.schema.field(at), pa.array([True] * said.num_rows, pa.bool_()))

    patch.setattr(OrderTracker, "close", wrong)
    patch.setattr(Violations, "_promised", lambda self, table, batch, metrics: table)  # or the row would be refused


def marks_lost_at_a_merge(patch: pytest.MonkeyPatch) -> None:
    def take(self: Part, rows: Any) -> pa.Table:
        return self.table if rows is None else self.table.take(pa.array(rows))

    patch.setattr(Part, "take", take)


def matches_of_stored_rows_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("watersmeet.state.rows.RowStore.mark", lambda self, part, flag, rows: rows[:0])


def debts_on_disk_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Generations, "touches", lambda self, name, table: [False] * table.num_rows)


def waiting_rows_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WaitingPool, "waits", lambda self, name, table: [False] * table.num_rows)


MUTANTS: list[tuple[str, Break, Tree]] = [
    ("too early", horizon(1), HASHED),
    ("too late", horizon(-1), HASHED),
    ("too late", silence_one_batch_late, IDLE),
    ("too early", silence_one_batch_early, IDLE),
    ("too early", silence_of_any_length, IDLE),
    ("too late", silence_ignored, IDLE),
    ("too early", horizon(1), AFTER),
    ("too late", horizon(-1), AFTER),
    ("too late", horizon(-1), OPEN),
    ("too late", end_one_batch_late, SYMMETRIC),
    ("too late", end_one_batch_late, HASHED),
    ("too late", promises_one_batch_late, PLAIN),
    ("too late", promises_only_for_stored_rows, PLAIN),
    ("too early", horizon(1), COMBINED),
    ("too late", promises_purge_nothing, COMBINED),
    ("pairs", straddling_cluster_over, CLUSTERED),
    ("pairs", last_key_passed, ASCENDING),
    ("too early", marks_lost_at_a_merge, SYMMETRIC),
    ("too early", marks_lost_at_a_merge, PLAIN),
    ("too early", matches_of_stored_rows_forgotten, HASHED),
    ("too early", debts_on_disk_ignored, SPILLING),
    ("too early", waiting_rows_ignored, WAITING),
]


@pytest.mark.parametrize(
    ("noticed", "broken", "tree"),
    MUTANTS,
    ids=[f"{tree}, {getattr(broken, '__name__', 'horizon')}, {noticed}" for noticed, broken, tree in MUTANTS],
)
def test_a_broken_operator_is_noticed(noticed: str, broken: Break, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    walk = tree.walk(RelativeWalk if tree in RELATIVE else Walk)
    with pytest.raises(AssertionError, match=noticed):
        sum(walk.through(seed, *DEEP) for seed in range(4))
