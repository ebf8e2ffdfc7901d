"""Keys that both inputs have often: one input copied to all partitions of a key, and a grid of them.

    python benchmarks/grid.py

Of a hot key one input is divided among k partitions, and the other copied to all of them. In a grid of a x b
partitions a row of the one goes to a line of the grid, a row of the other to a column: b - 1 and a - 1 copies. Results
are divided either way. What a grid saves is copies, and the state that they are.

This counts, for Zipf laws on both inputs and the decisions of the join itself (`engine.spreading.decide`), without a
row being joined: rows that come, copies, results and rows held of every partition, from the fourth of ten micro-batches
on. It takes seconds, and gives the same figures on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import harness as h
import numpy as np
import numpy.typing as npt

from watersmeet.engine.heat import DECAY, KEEP, RARE, Heat, KeyHeat
from watersmeet.engine.spreading import decide
from watersmeet.plan.hot_table import HotKey, HotTable, home_of, routes

BATCHES, STEADY = 10, 3
TRACKED = 4096  # keys that are told apart; the rows of the others are everywhere
SIDES = ("left", "right")
# Exponent, rows of an input (as in `skew.py`), partitions.
SETTINGS = [(1.0, 100_000, 8), (1.5, 20_000, 8), (1.0, 100_000, 64), (1.5, 20_000, 64)]

Amounts = npt.NDArray[np.float64]


@dataclass
class Join:
    """A join of two inputs, as numbers: rows by key and partition."""

    partitions: int
    keys: list[int]  # their hashes
    both: bool  # whether a key may be divided by both inputs
    held: dict[str, Amounts] = field(default_factory=dict)
    rows: dict[str, Amounts] = field(default_factory=dict)  # held by key, without copies
    heats: list[Heat] = field(default_factory=list)
    table: HotTable = field(default_factory=HotTable)

    def __post_init__(self) -> None:
        for side in SIDES:
            self.held[side] = np.zeros((len(self.keys), self.partitions))
            self.rows[side] = np.zeros(len(self.keys))
        self.heats = [Heat() for _ in range(self.partitions)]

    def batch(self, came: dict[str, Amounts], others: float) -> dict[str, Amounts]:
        """A micro-batch with rows of the tracked keys, and so many of others. Returns by partition what is done and
        held, and by key the copies that come and that are held."""
        before, self.table = self.table, decide(self.table, self.heats, SIDES, both=self.both)
        new = {side: np.zeros_like(self.held[side]) for side in SIDES}
        fresh = {side: np.zeros_like(self.held[side]) for side in SIDES}  # without copies
        for at, number in enumerate(self.keys):
            key, home = self.table.keys.get(number), home_of(number, self.partitions)
            if key is None:
                for side in SIDES:
                    new[side][at, home] = fresh[side][at, home] = came[side][at]
                continue
            self._join_in(at, before.keys.get(number), key, home)
            for route in routes(HotTable.of([key]), SIDES):
                rows = came[route.input][at] / len(route.targets)
                np.add.at(new[route.input][at], list(route.targets), rows)
                if not route.is_copy:
                    np.add.at(fresh[route.input][at], list(route.targets), rows)
        left, right = SIDES
        found = {
            left: new[left] * (self.held[right] + new[right] / 2),
            right: new[right] * (self.held[left] + new[left] / 2),
        }
        for side in SIDES:
            self.held[side] += new[side]
            self.rows[side] += came[side]
        work = sum(new[side] + found[side] for side in SIDES)
        load = work.sum(axis=0) + others / self.partitions
        self._measure(work, load, fresh, found)
        return {
            "work": load,
            "held": sum(self.held[side].sum(axis=0) for side in SIDES),
            "copies": sum((new[side] - fresh[side]).sum(axis=1) for side in SIDES),
        }

    def _join_in(self, at: int, before: HotKey | None, key: HotKey, home: int) -> None:
        """New partitions of a grid take the rows of their line or of their column."""
        there = {home} if before is None else {*before.holders}
        was = {side: self.held[side][at].copy() for side in SIDES}
        for one in set(key.holders) - there:
            origin, of_split = key.origin(*key.cell(one) or (0, 0))
            for side in (side for side in SIDES if (side == key.split) == of_split):
                self.held[side][at, one] = was[side][origin]

    def _measure(self, work: Amounts, load: Amounts, came: dict[str, Amounts], found: dict[str, Amounts]) -> None:
        """What every partition keeps of its hottest keys (as `engine.heat` does)."""
        for partition, before in enumerate(self.heats):
            heat = Heat(before.load * DECAY + float(load[partition]))
            heat.held = int(sum(self.held[side][:, partition].sum() for side in SIDES))
            hottest = np.argsort(-work[:, partition], kind="stable")[:KEEP]
            for at in {*hottest.tolist(), *(self.keys.index(number) for number in before.keys)}:
                was = before.keys.get(self.keys[at], KeyHeat())
                rows = {side: was.rows.get(side, 0.0) * DECAY + came[side][at, partition] for side in SIDES}
                made = {side: was.found.get(side, 0.0) * DECAY + found[side][at, partition] for side in SIDES}
                held = {side: int(self.held[side][at, partition]) for side in SIDES}
                heat.keys[self.keys[at]] = KeyHeat(was.work * DECAY + work[at, partition], rows, "", {}, made, held)
            kept = sorted(heat.keys.items(), key=lambda item: (-item[1].work, item[0]))[:KEEP]
            heat.keys = {number: one for number, one in kept if one.work * RARE >= heat.load}
            self.heats[partition] = heat


def measure(exponent: float, rows: int, partitions: int, *, both: bool) -> dict[str, float]:
    """One setting."""
    rng = np.random.default_rng(7)
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    weights /= weights.sum()
    tracked = min(TRACKED, rows)
    join = Join(partitions, [int(one) for one in rng.integers(0, 1 << 63, tracked, dtype=np.uint64)], both)
    per_batch = rows / BATCHES
    most_work, most_state, work, copies = [], [], 0.0, 0.0
    for number in range(BATCHES):
        came = {side: rng.poisson(weights[:tracked] * per_batch).astype(np.float64) for side in SIDES}
        done = join.batch(came, 2 * per_batch * float(weights[tracked:].sum()))
        if number >= STEADY:
            most_work.append(float(done["work"].max() / done["work"].mean()))
            most_state.append(float(done["held"].max() / done["held"].mean()))
            work += float(done["work"].sum())
            copies += float(done["copies"].sum())
    plain = sum(float(join.rows[side].sum()) for side in SIDES) + 2 * rows * float(weights[tracked:].sum())
    copied = sum(float((join.held[side].sum(axis=1) - join.rows[side]).sum()) for side in SIDES)
    return {
        "hot_keys": len(join.table.keys),
        "widest": max((len(key.holders) for key in join.table.keys.values()), default=0),
        "most_columns": max((len(key.grid[0]) for key in join.table.keys.values()), default=0),
        "busiest_over_mean_work": round(max(most_work), 3),
        "busiest_in_the_last_batch": round(most_work[-1], 3),
        "fullest_over_mean_state": round(max(most_state), 3),
        "copies_of_work": round(copies / work, 5),
        "state_over_rows": round(1 + copied / plain, 3),
    }


def main() -> None:
    """Count, print, save."""
    found = []
    for exponent, rows, partitions in SETTINGS:
        setting = {"exponent": exponent, "rows": 2 * rows, "partitions": partitions}
        ways = {name: measure(exponent, rows, partitions, both=name == "grid") for name in ("copied", "grid")}
        found.append({**setting, **ways})
        lines = [(way, *numbers.values()) for way, numbers in ways.items()]
        h.table(f"Zipf {exponent}, {partitions} partitions", ["", *ways["grid"]], lines)
    h.save("grid", {"settings": found})


if __name__ == "__main__":
    main()
