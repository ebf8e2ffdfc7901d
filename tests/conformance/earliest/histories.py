"""Histories form a tree: a batch, then every choice of a next one, and so on. All choices are made from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from tests.conformance.earliest.rules import OTHER, SIDES, Answer, Held, History, Row, Rules, Step
from watersmeet.engine.registry import build
from watersmeet.join.operator import Operator, OperatorState, advance, resume, saved
from watersmeet.plan import JoinPlan
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.state.layouts import HashTiers, Layout, SizeTiers, TimeSlices
from watersmeet.state.space import MemorySpace
from watersmeet.testing.arrivals import KEYS, Arrival, batch_of

TIMES = range(4)


class Choices:
    """Next batches of a history: each of the awkward ones, and others at random."""

    def __init__(self, rules: Rules, history: History, rng: random.Random) -> None:
        self.rules, self.history, self.rng = rules, history, rng
        self.clock = max((step.clock for step in history), default=1) + rng.choice((0, 1, 1, 2))
        self.ended = frozenset(side for step in history for side in step.ended)

    def draw(self, count: int) -> Iterator[Step]:
        """So many different ones, at least the awkward ones."""
        rng, key = self.rng, self.rng.choice(self.rules.keys)
        side = rng.choice(SIDES)
        awkward = [
            self.step(),
            self.step(*((name, key, rng.choice(TIMES)) for name in SIDES)),
            self.step((side, key, rng.choice(TIMES))),
            self.promise(side, key, *((name, key, rng.choice(TIMES)) for name in rng.sample(SIDES, rng.randint(0, 2)))),
            self.step((OTHER[side], key, rng.choice(TIMES)), end=[side]),
            self.step(*((name, rng.choice(self.rules.keys), rng.choice(TIMES)) for name in SIDES), end=SIDES),
            self.step((side, key, TIMES[-1]), (side, key, TIMES[0]), (OTHER[side], key, TIMES[0])),
            self.step((side, None, 0), (OTHER[side], None, TIMES[-1]), (side, key, None if rng.random() < 0.3 else 0)),
            self.edge(side, key),
        ]
        seen = set()
        for step in awkward:
            if step not in seen:
                seen.add(step)
                yield step
        for _ in range(3 * count):
            if len(seen) >= count:
                break
            step = self.any()
            if step not in seen:
                seen.add(step)
                yield step

    def step(self, *rows: tuple[str, int | None, int | None], end: tuple[str, ...] | list[str] = ()) -> Step:
        """A batch of those of some rows that may come."""
        number = sum(len(step.rows) for step in self.history)
        taken: list[Row] = []
        for side, key, time in rows:
            shown = self.clock if self.rules.arrival_clock else time if self.rules.window else 0
            row = Row(side, number + len(taken) + 1, key, shown)
            if side in self.ended:
                continue  # no mode lets rows come after an end
            if self.rules.on_violation != "raise" or self.rules.legal(self.history, *taken, row):
                taken.append(row)
        return Step(tuple(taken), (), frozenset(end) - self.ended, self.clock)

    def promise(self, side: str, key: int, *rows: tuple[str, int | None, int | None]) -> Step:
        """A batch with a punctuation on one key, or on a range of keys."""
        step = self.step(*rows)
        if not self.rules.punctuated:
            return step
        high = self.rng.choice([key, key, key + 1])
        return replace(step, said=((side, key, high),))

    def edge(self, side: str, key: int) -> Step:
        """Rows as far from each other as they may be to match, and one tick farther."""
        if self.rules.window is None:
            return self.any()
        time, reach = self.rng.choice(TIMES), self.rules.window[SIDES.index(side)]
        beyond = self.rng.choice((0, 1))
        return self.step((side, key, time), (OTHER[side], key, time + (TIMES[-1] if reach is None else reach + beyond)))

    def any(self) -> Step:
        """Up to three rows, and now and then an end or a promise."""
        rng = self.rng
        rows = [(rng.choice(SIDES), rng.choice(self.rules.keys), rng.choice(TIMES)) for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.4:
            return self.promise(rng.choice(SIDES), rng.choice(self.rules.keys), *rows)
        return self.step(*rows, end=[rng.choice(SIDES)] if rng.random() < 0.15 else ())


@dataclass(frozen=True)
class Node:
    """A history, and what is held after it: by the rules, and by the operator."""

    history: History
    held: Held
    state: OperatorState | None


class Walk:
    """Runs an operator through a tree of histories and compares each batch with what the rules say is owed."""

    def __init__(self, plan: JoinPlan, rules: Rules) -> None:
        self.plan, self.rules = plan, rules
        self.space = MemorySpace()

    @staticmethod
    def start() -> Node:
        """Nothing has come."""
        return Node((), (), None)

    def through(self, seed: int, branching: int, depth: int, most: int | None = None) -> int:
        """All histories of a seed; returns how many batches were compared. With `most`, so many of the histories of one
        length go on, spread evenly."""
        rng, nodes, count = random.Random(seed), [self.start()], 0
        for level in range(depth):
            after = []
            for node in nodes:
                for step in Choices(self.rules, node.history, rng).draw(branching):
                    child = self.go_on(node, step)
                    count += 1
                    if level + 1 < depth and child.history[-1].ended < frozenset(SIDES):
                        after.append(child)
            nodes = after[:: -(-len(after) // most)] if most and after else after
        return count

    def go_on(self, node: Node, step: Step) -> Node:
        """One batch more."""
        operator = build(self.plan, self.space)
        for store in operator.row_stores():
            make_eager(store.layout)
        if node.state is not None:
            resume(operator, node.state)
        tables = list(advance(operator, batch_of(self.plan, len(node.history), self.arrival(step))))
        history = (*node.history, self.rules.admitted(node.history, step))
        answer = self.rules.follow(history, node.held)
        self.compare(history, answer, operator, found(tables, self.rules.how))
        return Node(history, answer.held, saved(operator))

    def compare(self, history: History, answer: Answer, operator: Operator, output: Answer) -> None:
        """Each pair and each unmatched row in its batch: nothing too early, nothing too late."""
        early, late = output.unmatched - answer.unmatched, answer.unmatched - output.unmatched
        assert not early, f"too early: {sorted(early)}\n{told(history)}"
        assert not late, f"too late: {sorted(late)}\n{told(history)}"
        if self.rules.how != "left_anti":
            assert output.pairs == answer.pairs, f"pairs\n{told(history)}"

    def arrival(self, step: Step) -> Arrival:
        """The batch as the operators of the suite take it."""
        payload = len(self.plan.inputs[0].payload)
        rows = {
            side: [(row.key, row.number, row.time)[: 1 + payload] for row in step.rows if row.side == side]
            for side in SIDES
        }
        promises = {
            side: punctuation_table(
                KEYS, [[Pattern.between(low, high)] for name, low, high in step.said if name == side]
            )
            for side in {name for name, _, _ in step.said}
        }
        return Arrival(rows, step.clock, step.ended, promises)


def make_eager(layout: Layout) -> None:
    """Runs are merged as soon as there are two, and a slice of a window holds several times: so that rows are rewritten
    and runs are partly expired within a few batches."""
    if isinstance(layout, TimeSlices):
        layout.width = 3
        layout = layout.tiers
    if isinstance(layout, HashTiers | SizeTiers):
        layout.fanout = 2
    if isinstance(layout, HashTiers):
        layout.lag = 0


class RelativeWalk(Walk):
    """Where comparisons are put off (rows on disk, rows that wait for a quota) a row may come later than it is certain:
    never before, all of them by the end, and at once where nothing is put off."""

    def __init__(self, plan: JoinPlan, rules: Rules) -> None:
        super().__init__(plan, rules)
        self.owed: dict[History, Answer] = {}  # not emitted yet, after each history

    def compare(self, history: History, answer: Answer, operator: Operator, output: Answer) -> None:
        """Only what is owed now or was owed before."""
        before = self.owed.get(history[:-1], Answer(frozenset(), frozenset(), ()))
        unmatched, pairs = before.unmatched | answer.unmatched, before.pairs | answer.pairs
        early = output.unmatched - unmatched
        assert not early, f"too early: {sorted(early)}\n{told(history)}"
        if self.rules.how == "left_anti":
            pairs = output.pairs
        assert output.pairs <= pairs, f"pairs\n{told(history)}"
        rest = self.owed[history] = Answer(pairs - output.pairs, unmatched - output.unmatched, ())
        put_off = any(
            store.spilled_rows or (store.name != store.input and store.rows) for store in operator.row_stores()
        )
        if operator.finished or not put_off:
            assert not rest.unmatched, f"too late: {sorted(rest.unmatched)}\n{told(history)}"
            assert not rest.pairs, f"pairs\n{told(history)}"


def found(tables: list[pa.Table], how: str) -> Answer:
    """The output of a batch: numbers of rows, alone or in pairs. No row may come twice."""
    pairs, alone = [], []
    for table in tables:
        lefts = table.column("left_0").to_pylist()
        rights = [None] * len(lefts) if how == "left_anti" else table.column("right_0").to_pylist()
        for left, right in zip(lefts, rights, strict=True):
            if left is not None and right is not None:
                pairs.append((left, right))
            else:
                alone.append(("right", right) if left is None else ("left", left))
    assert len(pairs) == len(set(pairs)), f"a pair came twice: {sorted(pairs)}"
    assert len(alone) == len(set(alone)), f"an unmatched row came twice: {sorted(alone)}"
    return Answer(frozenset(pairs), frozenset(alone), ())


def told(history: History) -> str:
    """A history in words, a line per batch."""
    lines = []
    for number, step in enumerate(history):
        rows = [f"{row.side} {row.number}: key {row.key} time {row.time}" for row in step.rows]
        said = [f"{side} promises {low} to {high}" for side, low, high in step.said]
        ends = [f"{side} ends" for side in sorted(step.ended)]
        lines.append(f"batch {number} at {step.clock}: " + "; ".join([*rows, *said, *ends]))
    return "\n".join(lines)
