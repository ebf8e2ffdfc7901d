"""What gives way when rows come too fast or do not fit in memory, and the account of it.

keep      nothing: runs that expire soonest go to disk and are still probed
shed      rows, when they come faster than the service rate; memory as with keep
shrink    the windows, until they fit in memory; with a service rate, rows as well, both chosen together (Eq. 14)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from watersmeet.join.expiry import spill_soonest
from watersmeet.plan.metrics import Metrics
from watersmeet.state.layouts import TimeSlices
from watersmeet.state.parts import Before
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.window.choice import moving
from watersmeet.window.cost_model import Stream, output_rate
from watersmeet.window.interval import reach_of
from watersmeet.window.memory_split import Demand, regulate, slower_first, split
from watersmeet.window.options import WindowOptions
from watersmeet.window.scan import Rows, newest
from watersmeet.window.shedding import ServiceRate, expected_loss, kept, regulated, share_of_left

# Cutting a window by rows can leave too many bytes when rows differ in size; then a little more is cut.
CUTS = (1.0, 0.9, 0.75, 0.5, 0.0)


class Overload:
    """Sheds, shrinks or spills, as the options say; one partition's part of the service rate and of the memory."""

    def __init__(
        self, options: WindowOptions, partitions: int, names: tuple[str, str], preserved: Collection[str] = ()
    ) -> None:
        self.options = options
        self.preserved = preserved  # inputs whose unmatched rows are emitted when they expire
        self.names = names
        self.lengths = dict(zip(names, (length / 1e6 for length in reach_of(options.window)), strict=True))
        self.memory = None if options.memory is None else options.memory // partitions
        given = None if options.service_rate is None else options.service_rate / partitions
        self.service = ServiceRate(given, parallel=min(1.0, (options.cores or partitions) / partitions))
        self.history: Sequence[Mapping[str, Any]] = ()
        self.rows: dict[str, float] = {}  # average rows a batch
        self.row_bytes: dict[str, float] = {}
        self.first: str | None = None  # the window that is served first
        self.budgets: tuple[float, float] | None = None  # bytes, when they were chosen with the rates
        self.account: dict[str, float] = {}

    # -- rows

    def shed(
        self, arrived: dict[str, Rows], batch: int, interval: float, metrics: Metrics, keys: Callable[[str], float]
    ) -> dict[str, Rows]:
        """The rows that are let in; `interval` is the time in which they came, in seconds, `keys` says how many
        different keys an input's window has."""
        self.budgets = None
        counts = {name: len(rows) for name, rows in arrived.items()}
        if any(counts.values()):
            self.rows = {name: moving(self.rows.get(name), count) for name, count in counts.items()}
        wanted = self.options.on_overload == "shed" or (
            self.options.on_overload == "shrink" and self.options.service_rate is not None
        )
        if not wanted or interval <= 0:
            return arrived
        self.service.learn(self.history, interval)
        service_rate = self.service.rate()
        left, right = (counts[name] / interval for name in self.names)
        if service_rate is None or left + right <= service_rate:
            return arrived
        allowed = self._regulated(left, right, service_rate)
        let_in = dict(arrived)
        for name, rate, limit in zip(self.names, (left, right), allowed, strict=True):
            if limit < rate:
                rows = arrived[name]
                let_in[name] = rows.select(kept(rows.content, batch, limit / rate))
        lost = self._account(arrived, let_in, (left, right), allowed, interval, metrics, keys)
        metrics.event(
            "shed",
            expected_results_lost=lost,
            service_rate=service_rate,
            rates=[left, right],
            regulated=list(allowed),
            strategy=self.options.shedding,
        )
        return let_in

    def _regulated(self, left: float, right: float, service_rate: float) -> tuple[float, float]:
        options, sizes = self.options, [self.row_bytes.get(name, 1.0) for name in self.names]
        together = options.on_overload == "shrink" and (options.memory_split, options.shedding) == ("optimal", "equal")
        if together and self.memory is not None:
            demands = [
                Demand(rate, max(self.lengths[name], 0.0), size)
                for name, rate, size in zip(self.names, (left, right), sizes, strict=True)
            ]
            best = regulate(demands[0], demands[1], service_rate, self.memory)
            self.budgets = best.bytes
            return best.rates
        lengths = (self.lengths[self.names[0]], self.lengths[self.names[1]])
        return regulated(left, right, service_rate, share_of_left(options.shedding, left, right, lengths))

    def _account(
        self,
        arrived: Mapping[str, Rows],
        let_in: Mapping[str, Rows],
        rates: tuple[float, float],
        allowed: tuple[float, float],
        interval: float,
        metrics: Metrics,
        keys: Callable[[str], float],
    ) -> float:
        """Count what is dropped; returns how many results that costs, estimated."""
        for name in self.names:
            offered, dropped = len(arrived[name]), len(arrived[name]) - len(let_in[name])
            metrics.gauge(f"shed_share.{name}", dropped / offered if offered else 0.0)
            self._add(f"shed.{name}", dropped)
        streams = [
            Stream(rate, self.lengths[name], max(keys(name), 1.0)) for name, rate in zip(self.names, rates, strict=True)
        ]
        share = expected_loss(rates, allowed)
        lost = share * output_rate(streams[0], streams[1]) * interval
        metrics.gauge("expected_loss_share.shed", share)
        metrics.count("expected_results_lost", lost)
        self._add("expected_results_lost", lost)
        return lost

    def _add(self, name: str, amount: float) -> None:
        self.account[name] = self.account.get(name, 0) + amount

    # -- memory

    def stay_within_memory(
        self,
        stores: dict[str, RowStore],
        layouts: Mapping[str, TimeSlices],
        windows: Mapping[str, int],
        bounds: Mapping[str, int | None],
        metrics: Metrics,
    ) -> None:
        """Spill or shrink until the rows in memory are within the budget. `bounds`: what each window waits for."""
        for name, store in stores.items():
            if store.resident_rows:
                self.row_bytes[name] = store.nbytes / store.resident_rows
        if self.memory is None:
            return
        if self.options.on_overload == "shrink":
            self._shrink(stores, self.memory, metrics)
            self._report_windows(stores, layouts, windows, bounds, metrics)
        else:
            horizons = {name: None if bound is None else bound - windows[name] for name, bound in bounds.items()}
            spill_soonest(stores, self.memory, horizons, metrics, self.preserved)

    def _shrink(self, stores: dict[str, RowStore], memory: int, metrics: Metrics) -> None:
        if sum(store.nbytes for store in stores.values()) <= memory:
            return
        for store in stores.values():
            store.settle(tight=True)
        rates = [self.rows.get(name, 0.0) * self.row_bytes.get(name, 1.0) for name in self.names]
        first = slower_first(rates[0], rates[1], None if self.first is None else self._side(self.first))
        self.first = self.names[0] if first == "left" else self.names[1]
        for cut in CUTS:
            sizes = [stores[name].nbytes for name in self.names]
            if sum(sizes) <= memory:
                return
            budgets = self._budgets((sizes[0], sizes[1]), (rates[0], rates[1]), memory * cut)
            for name, size, budget in zip(self.names, sizes, budgets, strict=True):
                if size > budget:
                    rows = self._cut(stores[name], budget / size)
                    metrics.event("shrink", input=name, rows=rows, bytes=int(size), budget=int(budget))

    def _side(self, name: str) -> str:
        return "left" if name == self.names[0] else "right"

    def _budgets(self, sizes: tuple[float, float], rates: tuple[float, float], memory: float) -> tuple[float, float]:
        if self.budgets is None:
            assert self.first is not None
            return split(self.options.memory_split, self._side(self.first), rates, sizes, memory)
        total = sum(self.budgets)
        share = self.budgets[0] / total if total else 0.5
        left = min(sizes[0], memory * share)
        right = min(sizes[1], memory - left)
        return min(sizes[0], memory - right), right

    def _cut(self, store: RowStore, share: float) -> int:
        """Keep the newest rows, so large a share; returns how many have left."""
        before = store.resident_rows
        time = newest(store, int(before * share))
        if time is not None:
            store.remove(Before(time), "shrunk")
            store.settle(tight=True)
        gone = before - store.resident_rows
        self._add(f"shrunk.{store.name}", gone)
        return gone

    def _report_windows(
        self,
        stores: Mapping[str, RowStore],
        layouts: Mapping[str, TimeSlices],
        windows: Mapping[str, int],
        bounds: Mapping[str, int | None],
        metrics: Metrics,
    ) -> None:
        effective = {}
        for name, store in stores.items():
            assert isinstance(store.rule, Horizon)
            bound, horizon = bounds[name], store.rule.time
            length = windows[name] if bound is None or horizon is None else bound - horizon
            effective[name] = min(max(length, 0), windows[name])  # a negative window stays what it is
            metrics.gauge(f"effective_window_us.{name}", effective[name])
            layouts[name].narrow(effective[name])
        total = sum(windows.values())
        share = max(0.0, 1 - sum(effective.values()) / total) if total else 0.0
        metrics.gauge("expected_loss_share.shrunk", min(share, 1.0))

    # -- state

    def as_json(self) -> dict[str, Any]:
        """For the state."""
        return {
            "rows": self.rows,
            "row_bytes": self.row_bytes,
            "first": self.first,
            "account": self.account,
            "seen": [list(one) for one in self.service.seen],
        }

    def inherit(self, former: Sequence[Overload], counted: Sequence[bool], share: float) -> None:
        """Go on from former partitions; what was lost in those that are `counted` is in this account from now on. The
        service rate is learned anew."""
        first = former[0]
        self.rows = {name: rows * share for name, rows in first.rows.items()}
        self.row_bytes, self.first = dict(first.row_bytes), first.first
        for one, wanted in zip(former, counted, strict=True):
            for name, amount in one.account.items() if wanted else ():
                self._add(name, amount)

    def restore(self, saved: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """Take up the saved state; `history` is what the driver recorded of earlier batches."""
        self.rows, self.row_bytes = dict(saved["rows"]), dict(saved["row_bytes"])
        self.first, self.account = saved["first"], dict(saved["account"])
        self.service.seen = [(int(rows), float(work), float(until)) for rows, work, until in saved["seen"]]
        self.history = history
