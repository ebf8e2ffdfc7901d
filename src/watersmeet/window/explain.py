"""Why a window join keeps its windows as it does: the four costs, the cross-over and the choice, in numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from watersmeet.state.directory import StateDir
from watersmeet.state.history import newest_manifests
from watersmeet.state.layouts import FANOUT
from watersmeet.window.batch_costs import SLICES, KernelCosts, Load, batch_cost, hash_cost, loop_cost
from watersmeet.window.cost_model import Stream, Weights, crossover, full_join_costs


def expected_load(stored: Stream, probing: Stream, interval: float) -> Load:
    """What a window has to bear per batch, when a batch is run every `interval` seconds."""
    inserted, batches = stored.rate * interval, stored.window / interval
    per_slice = batches / SLICES
    open_slice = (FANOUT - 1) * (1 + math.log(per_slice, FANOUT)) if per_slice > 1 else 0.0
    runs = min(batches, SLICES) + 1 + open_slice
    return Load(inserted, probing.rate * interval, stored.rows, min(stored.keys, stored.rows), runs)


@dataclass(frozen=True)
class Explanation:
    """The loads of both windows and what follows from them. Costs are nanoseconds per micro-batch."""

    left: Load
    right: Load
    costs: KernelCosts
    streams: tuple[Stream, Stream] | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)  # by window, a structure that is not chosen

    def full_costs(self) -> dict[str, float]:
        """The four combinations, the left window's structure first."""
        return {
            a + b: batch_cost(a, self.left, self.costs) + batch_cost(b, self.right, self.costs)
            for a in "HN"
            for b in "HN"
        }

    @property
    def choice(self) -> str:
        """The cheapest combination of those that can be chosen."""
        costs = self.full_costs()
        open_to = {
            name: cost
            for name, cost in costs.items()
            if all(self.fixed.get(side, one) == one for side, one in zip(("left", "right"), name, strict=True))
        }
        return min(open_to, key=lambda name: open_to[name])

    @staticmethod
    def crossover(load: Load, costs: KernelCosts) -> float | None:
        """The number of probes a batch from which on `hash` is cheaper; None if it never or always is."""

        def better(probes: float) -> bool:
            changed = replace(load, probes=probes, probing=1.0)
            return hash_cost(changed, costs) < loop_cost(changed, costs)

        low, high = 1e-3, 1e9
        if better(low) or not better(high):
            return None
        for _ in range(80):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if better(middle) else (middle, high)
        return high

    def __str__(self) -> str:
        lines = ["costs of this implementation, ms per micro-batch and partition (left window's structure first):"]
        for name, cost in self.full_costs().items():
            lines.append(f"  {name}  {cost / 1e6:12.3f}{'   <- chosen' if name == self.choice else ''}")
        for side, load in (("left", self.left), ("right", self.right)):
            lines.append(
                f"{side} window: {load.rows:,.0f} rows, {load.keys:,.0f} distinct keys, {load.runs:.0f} runs; "
                f"{load.inserted:,.0f} rows in and {load.probes:,.0f} probes a batch"
            )
            if side in self.fixed:
                lines.append("  hash in any case: of its rows only keys and times are kept, in their order")
                continue
            turn = self.crossover(load, self.costs)
            always = "hash" if hash_cost(load, self.costs) < loop_cost(load, self.costs) else "nested loops"
            lines.append(
                f"  {always} at any number of probes"
                if turn is None
                else f"  nested loops up to {turn:,.1f} probes a batch, hash from there on"
            )
        if self.streams:
            lines += self._paper()
        return "\n".join(lines)

    def _paper(self) -> list[str]:
        assert self.streams is not None
        left, right = self.streams
        costs = full_join_costs(left, right)
        best = min(costs, key=lambda name: costs[name])
        lines = ["the same by the paper's model of a tuple-at-a-time engine (Eq. 2 to 6), rows touched per second:"]
        lines += [f"  {name}  {cost:12,.0f}{'   <- cheapest' if name == best else ''}" for name, cost in costs.items()]
        for side, stored, probing in (("left", left, right), ("right", right, left)):
            lines.append(
                f"  {side} window: nested loops from a rate ratio of {crossover(stored.keys):.1f} (Eq. 7) on; "
                f"it is {stored.rate / probing.rate:.2f}"
            )
        lines.append(f"  C_h / C_n = {Weights().ratio:.1f}")
        return lines


def explain_rates(
    window: tuple[int, int], rates: tuple[float, float], keys: tuple[float, float], interval: int, costs: KernelCosts
) -> Explanation:
    """From arrival rates (rows per second), distinct keys, window lengths and the trigger interval (microseconds)."""
    left, right = (Stream(rate, length / 1e6, count) for rate, length, count in zip(rates, window, keys, strict=True))
    loads = expected_load(left, right, interval / 1e6), expected_load(right, left, interval / 1e6)
    return Explanation(*loads, costs, (left, right))


def _fixed(names: Sequence[str], counters: Mapping[str, float]) -> dict[str, str]:
    """The window that is kept by hash while the other one's structure is chosen: that of a semi or anti join of which
    only keys and times are kept. An algorithm that was given for both is compared with all others."""
    chosen = {name for name in names if f"cost_ns.{name}.hash" in counters}
    sides = zip(("left", "right"), names, strict=True)
    return {side: "H" for side, name in sides if chosen and name not in chosen}


def explain_state(directory: StateDir, costs: KernelCosts) -> Explanation | None:
    """From what a running join has observed, in the partition with the most rows; None if it has not run yet."""
    best: tuple[int, Explanation] | None = None
    for manifest in newest_manifests(directory):
        if not manifest.history:  # no batch yet since the state was divided anew
            continue
        counters = manifest.history[-1]["counters"]
        loads = [
            Load(
                saved["inserted"] or 0.0,
                saved["probes"] or 0.0,
                counters.get(f"held_rows.{name}", 0),
                counters.get(f"keys.{name}", 0),
                counters.get(f"runs.{name}", 0),
                saved["probing"] or 0.0,
            )
            for name, saved in manifest.values["choices"].items()
        ]
        rows = int(sum(load.rows for load in loads))
        if best is None or rows > best[0]:
            best = (
                rows,
                Explanation(loads[0], loads[1], costs, fixed=_fixed(list(manifest.values["choices"]), counters)),
            )
    return None if best is None else best[1]
