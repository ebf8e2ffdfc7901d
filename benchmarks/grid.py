"""Keys that both inputs have often: what a grid of partitions would save over copying one input.

    python benchmarks/grid.py

Of a hot key one input is divided among k partitions, and the other copied to all of them. In a grid of a x b = k
partitions a row of the one would go to a row of the grid, a row of the other to a column: b - 1 and a - 1 copies.
Results are divided by k either way. So a grid can save copies, and the state that they are.

This counts, for Zipf laws on both inputs and the decisions of the join itself (`engine.spreading.decide`), without a
row being joined: rows that come, copies, results and rows held of every partition, from the fourth of ten micro-batches
on. The grid is better than any real one: a and b need not be whole, and it is there from the first row of a key on. It
takes seconds, and gives the same figures on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import harness as h
import numpy as np
import numpy.typing as npt

from watersmeet.engine.heat import DECAY, KEEP, RARE, Heat, KeyHeat
from watersmeet.engine.spreading import decide
from watersmeet.plan.hot_table import HotKey, HotTable, home_of

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
        self.table = decide(self.table, self.heats, SIDES)
        new = {side: np.zeros_like(self.held[side]) for side in SIDES}
        fresh = {side: np.zeros_like(self.held[side]) for side in SIDES}  # without copies
        for at, number in enumerate(self.keys):
            key, home = self.table.keys.get(number), home_of(number, self.partitions)
            for side in SIDES:
                rows = came[side][at]
                if key is None:
                    new[side][at, home] = fresh[side][at, home] = rows
                elif side == key.split:
                    np.add.at(new[side][at], list(key.targets), rows / len(key.targets))
                    fresh[side][at] = new[side][at]
                else:
                    self._join_in(at, key, side, home)
                    new[side][at, list(key.holders)] = rows
                    fresh[side][at, home] = rows
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

    def _join_in(self, at: int, key: HotKey, side: str, home: int) -> None:
        """New holders take the rows that the home has."""
        for holder in key.holders:
            self.held[side][at, holder] = self.held[side][at, home]

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
                heat.keys[self.keys[at]] = KeyHeat(was.work * DECAY + work[at, partition], rows, "", {}, made)
            kept = sorted(heat.keys.items(), key=lambda item: (-item[1].work, item[0]))[:KEEP]
            heat.keys = {number: one for number, one in kept if one.work * RARE >= heat.load}
            self.heats[partition] = heat


def in_a_grid(k: int, rows: dict[str, float]) -> float:
    """The copies of rows of a key in the best grid of k partitions."""
    left, right = (max(rows[side], 1e-9) for side in SIDES)
    columns = min(max((k * right / left) ** 0.5, 1.0), k)  # where the sum is smallest
    return left * (columns - 1) + right * (k / columns - 1)


def measure(exponent: float, rows: int, partitions: int) -> dict[str, float]:
    """One setting."""
    rng = np.random.default_rng(7)
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    weights /= weights.sum()
    tracked = min(TRACKED, rows)
    join = Join(partitions, [int(one) for one in rng.integers(0, 1 << 63, tracked, dtype=np.uint64)])
    per_batch = rows / BATCHES
    most_work, most_state, work, copies, ideal = [], [], 0.0, 0.0, 0.0
    for number in range(BATCHES):
        came = {side: rng.poisson(weights[:tracked] * per_batch).astype(np.float64) for side in SIDES}
        done = join.batch(came, 2 * per_batch * float(weights[tracked:].sum()))
        if number >= STEADY:
            most_work.append(float(done["work"].max() / done["work"].mean()))
            most_state.append(float(done["held"].max() / done["held"].mean()))
            work += float(done["work"].sum())
            copies += float(done["copies"].sum())
            for at, number_of_key in enumerate(join.keys):
                if (key := join.table.keys.get(number_of_key)) is not None:
                    ideal += in_a_grid(len(key.holders), {side: float(came[side][at]) for side in SIDES})
    plain = sum(float(join.rows[side].sum()) for side in SIDES) + 2 * rows * float(weights[tracked:].sum())
    copied = sum(float((join.held[side].sum(axis=1) - join.rows[side]).sum()) for side in SIDES)
    best = sum(
        in_a_grid(len(key.holders), {side: float(join.rows[side][join.keys.index(number)]) for side in SIDES})
        for number, key in join.table.keys.items()
    )
    return {
        "exponent": exponent,
        "rows": 2 * rows,
        "partitions": partitions,
        "hot_keys": len(join.table.keys),
        "widest": max((len(key.holders) for key in join.table.keys.values()), default=0),
        "busiest_over_mean_work": round(max(most_work), 3),
        "busiest_in_the_last_batch": round(most_work[-1], 3),
        "fullest_over_mean_state": round(max(most_state), 3),
        "copies_of_work": round(copies / work, 5),
        "copies_of_work_grid": round(ideal / work, 5),
        "state_over_rows": round(1 + copied / plain, 3),
        "state_over_rows_grid": round(1 + best / plain, 3),
    }


def main() -> None:
    """Count, print, save."""
    found = [measure(*setting) for setting in SETTINGS]
    h.table("one input copied, and an ideal grid", list(found[0]), [tuple(one.values()) for one in found])
    h.save("grid", {"settings": found})


if __name__ == "__main__":
    main()
