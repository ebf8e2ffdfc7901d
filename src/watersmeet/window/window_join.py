"""The moving window join of two unbounded streams.

Semantics     a left row l and a right row r are a result iff their keys are equal and
              -window_right <= r.time - l.time <= window_left, both ends included. Each pair once, in the batch in which
              its later row arrives. Rows with a null key or a null time match nothing.
              A length may be negative (see `interval`): such a row leaves once the rows before it have come.
Late rows     a row more than `lateness` behind its input's newest time of earlier batches is counted, and joined with
              what the windows still must hold, no more: its partners may be gone. A row that is not late finds all.
              With late="drop" it leaves before it is joined.
State         per input a store in slices of time: runs sorted (`hash`) or as they came (`loop`).
Semi, anti    of the right input only keys and times are kept, and of those two per key and cell of time (`cells`).
Overload      keep: exact, runs beyond the memory go to disk. shed: rows are dropped before they are joined or stored.
              shrink: the windows are shortened until they fit. All of it is in the metrics.
Batch         1 new rows probe the stored ones of the other input   2 and each other   3 expire, store, merge
              4 keep within memory   5 choose the structures
Cost          per batch of b rows: see `batch_costs`; a run that is wholly expired is dropped unread.

Jaewoo Kang, Jeffrey F. Naughton, Stratis D. Viglas: Evaluating Window Joins over Unbounded Streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, hashes_of, key_names, take, times_of
from watersmeet.columns.grouping import between
from watersmeet.columns.matching import with_equal_keys
from watersmeet.columns.partitions import Partition
from watersmeet.join.binary import BinaryJoin
from watersmeet.join.clock import Clock
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.join.expiry import behind, expiring, inherit_horizon, passed, spill_victims
from watersmeet.join.hand import Hand
from watersmeet.join.join_type import MATCHED
from watersmeet.join.operator import Batch, OperatorState, Origin
from watersmeet.join.prologue import Prologue
from watersmeet.join.victims import Victims
from watersmeet.join.waits import WaitingRows, waits_for_times
from watersmeet.plan import InputSpec, JoinPlan
from watersmeet.plan.options import MAX_DURATION
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import TimeSlices
from watersmeet.state.parts import All, Before, Part
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon, Mask
from watersmeet.state.space import RunSpace
from watersmeet.window.batch_costs import SLICES, KernelCosts, index_cost, scan_cost
from watersmeet.window.cells import cell_length, cell_start
from watersmeet.window.choice import Choice
from watersmeet.window.interval import reach_of
from watersmeet.window.kernels import Reach, distinct, pairs
from watersmeet.window.options import WindowOptions
from watersmeet.window.overload import Overload
from watersmeet.window.scan import TIME, Rows, Scanned, candidates, distinct_keys

METHODS = {"H": "hash", "N": "loop"}
DISK_BUCKETS = 16
MAX_ADVANCE = 1 << 54  # slices that are wider than this hold all times


class WindowJoin(BinaryJoin):
    """Joins two inputs within moving windows."""

    name = "window"
    leaves_together: ClassVar[bool] = True  # by the clock that they share, and with the end of the other input
    OPTIONS: ClassVar[type[WindowOptions]] = WindowOptions

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.options = self.OPTIONS(**plan.options, **plan.tuning)
        self.windows = dict(zip(self.names, reach_of(self.options.window), strict=True))
        self.reach = Reach(-self.windows[self.right], self.windows[self.left])
        columns = self.options.time_columns or (TIME, TIME)
        self.time_columns = dict(zip(self.names, columns, strict=True))
        self.event_time = self.options.time_columns is not None
        self.emitter = BinaryEmitter(plan, self.accounts, self.metrics, beside=self.time_columns, distinct=False)
        self.clock = Clock(self.windows, self.options.lateness if self.event_time else 0)
        if plan.hot_keys and self.votes(plan):
            self.clock.shared = {}
        times = self.time_columns if self.event_time else None
        preserved = self.emitter.preserved
        self.prologue = Prologue(
            plan,
            self.accounts,
            self.metrics,
            times=times,
            clock=self.clock,
            preserved=preserved,
            drop_late=self.options.late == "drop",
        )
        self.now: int | None = None  # the batch's clock, which never goes back, whatever the machine's does
        self.active: dict[str, int] = {}  # when each input last had rows, by the batch's clock
        self.costs = self.options.costs or KernelCosts()
        self.choices = {name: Choice() for name in self.names}
        # The input of which few times are kept: rows of a key must not differ in what the condition needs.
        others = set(self.emitter.needed(self.right)) - set(key_names(plan.input(self.right).schema))
        self.thinned = None if others else self.emitter.keys_only
        self.given: dict[str, str] = {}  # structures that are not chosen
        if self.options.algorithm != "auto":
            self.given = {name: METHODS[one] for name, one in zip(self.names, self.options.algorithm, strict=True)}
        elif self.thinned:  # in the order of keys and times it is seen what is redundant
            self.given = {self.thinned: METHODS["H"]}
        self.overload = Overload(self.options, plan.partitions, self.names, preserved)
        self.layouts = {
            name: TimeSlices(span=min(max(wait, 0), MAX_DURATION) + self.clock.lateness, share=SLICES)
            for name, wait in self.windows.items()
        }
        if self.thinned:
            self.cell = cell_length(sum(self.windows.values()), self.layouts[self.right].span)
            # Only runs of one slice are merged: with a cell to a slice, what they make redundant is found.
            self.layouts[self.right].width = max(self.cell, self.layouts[self.right].width)
        self.stores = {spec.name: self._store(spec) for spec in plan.inputs}
        self.victims: Victims | None = None
        if self.options.policy != "soonest":
            self.victims = Victims(self.options.policy, Buckets(DISK_BUCKETS), flush=self.options.flush)
            self.given = dict.fromkeys(self.names, METHODS["H"])
        self.scanned: dict[str, Scanned] = {}

    def _store(self, spec: InputSpec) -> RowStore:
        column = self.time_columns[spec.name]
        schema = spec.schema if self.event_time else spec.schema.append(pa.field(TIME, pa.int64()))
        return RowStore(
            spec.name,
            self.emitter.stored_schema(spec.name, schema),
            self.layouts[spec.name],
            self.space,
            self.accounts,
            time=column,
            rule=Horizon(column),
            flags=self.emitter.flags(spec.name),
            buckets=Buckets(DISK_BUCKETS),
            describe=lambda table: {"keys": distinct(hashes_of(table))},
            merges_spilled=True,
            # Not a method of this object: a cycle would keep the rows of a batch in memory until it is found.
            redundant=partial(_redundant, column, self.cell) if spec.name == self.thinned else None,
        )

    # -- the batch

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """The rows of the batch probe what is stored and each other, then they are stored."""
        interval = self._advance_clock(batch)
        arrived = {name: self._arrived(batch, name) for name in self.names}
        yield from self.turned_away()
        admitted = self.overload.shed(arrived, batch.number, interval, self.metrics, self._keys)
        for name in self.names:
            self.accounts.leave(name, "shed", len(arrived[name]) - len(admitted[name]))
        self.scanned = {name: [] for name in self.names}
        hand = Hand(self.emitter, {name: rows.table for name, rows in admitted.items()})
        yield from self._probe_stored(admitted, hand)
        yield from self._probe_new(admitted, hand)
        yield from hand.settle()
        yield from self._keep_all(admitted, hand, batch)
        self._stay_within_memory(admitted, batch)
        self._choose(admitted)

    def _advance_clock(self, batch: Batch) -> float:
        """Seconds since the batch before."""
        before = self.now
        if batch.time:
            self.now = max(batch.time, before or batch.time)
        return 0.0 if before is None or self.now is None else (self.now - before) / 1e6

    def _keys(self, name: str) -> float:
        return distinct_keys(self.stores[name])

    def _arrived(self, batch: Batch, name: str) -> Rows:
        table = self.prologue.admit(batch, name, in_order=False)
        if not self.event_time:
            now = np.full(table.num_rows, self.now or 0, dtype=np.int64)
            table = table.append_column(TIME, pa.array(now))
        return Rows(table, self.time_columns[name])

    # -- probing

    def _probe_stored(self, arrived: dict[str, Rows], hand: Hand) -> Iterator[pa.Table]:
        for name, rows in arrived.items():
            if not len(rows):
                continue
            other = self.other[name]
            reach = self.reach if name == self.left else self.reach.reversed()
            earliest, latest = int(rows.times.min()) + reach.low, int(rows.times.max()) + reach.high
            for found in candidates(self.stores[other], earliest, latest, rows.ordered, self.scanned[other]):
                self.metrics.count("runs_probed", len(found.parts))
                self.metrics.count("rows_probed", len(found.rows.hashes))
                for mine, others in pairs(rows.ordered, found.rows, reach):
                    for part, which, j in found.split(others):
                        i, j = with_equal_keys(rows.table, mine[which], part.table, j)
                        if part.run.foreign and (there := part.unmarked(j)) is not None:
                            i, j = i[there], j[there]
                        if len(i):
                            yield from hand.stored(name, i, part, j)

    def _probe_new(self, arrived: dict[str, Rows], hand: Hand) -> Iterator[pa.Table]:
        left, right = arrived[self.left], arrived[self.right]
        if len(left) and len(right):
            for i, j in pairs(left.ordered, right.ordered, self.reach):
                i, j = with_equal_keys(left.table, i, right.table, j)
                if len(i):
                    yield from hand.pairs(i, j)

    # -- storing

    def _keep_all(self, arrived: dict[str, Rows], hand: Hand, batch: Batch) -> Iterator[pa.Table]:
        late = {name: self.clock.bound(name) for name in self.names}
        for name, rows in arrived.items():
            if self.event_time:
                self.clock.see_all(name, rows.times)
            elif self.now is not None:
                self.clock.see(name, self.now)
        for name, rows in arrived.items():
            self._follow(name, len(rows))
        for name, rows in arrived.items():
            if self.ends(self.other[name], batch):
                yield from self.emitter.departed(self.stores[name].remove(All(), "ended"))
                yield from hand.leave_all(name, "ended")
            else:
                if hand.tables[name] is not rows.table:  # some rows have left
                    rows = Rows(hand.tables[name], self.time_columns[name])
                yield from self._keep(name, rows, hand, batch.number, late[name])

    def _follow(self, name: str, rows: int) -> None:
        """The clock of an input that has been silent for too long follows the other one's."""
        if self.options.idle_timeout is None or self.now is None:
            return
        if rows or name not in self.active:
            self.active[name] = self.now
        other = self.other[name]
        if self.now - self.active[name] >= self.options.idle_timeout and other in self.clock.newest:
            self.clock.see(name, self.clock.newest[other])

    def _keep(self, name: str, rows: Rows, hand: Hand, batch: int, late: int | None) -> Iterator[pa.Table]:
        """Expire what can match nothing any more, and store the other new rows."""
        store, layout = self.stores[name], self.layouts[name]
        assert isinstance(store.rule, Horizon)
        before, horizon = store.rule.time, self._horizon(name)
        self._tell_matched(name, before, horizon)
        gone = [] if horizon is None else store.remove(Before(horizon), "expired")
        self.metrics.count(f"runs_expired.{name}", len(gone))
        yield from self.emitter.departed(gone)
        if name in self.emitter.preserved:
            yield from self.emitter.departed(passed(store, before))
        reasons = behind(store, rows.times, late)
        yield from hand.leave_by(name, reasons)
        for mask in reasons.values():
            if mask.any():
                rows = Rows(hand.tables[name], self.time_columns[name])
        order = rows.ordered.rows if self._method(name) == "hash" else None
        layout.bound = self.clock.bound(name)
        layout.advance = 0 if before is None or horizon is None else min(horizon - before, MAX_ADVANCE)
        table = hand.rest(name)
        if order is not None:
            table = take(table, order)
        if self._method(name) == "hash":
            store.add(store.without_redundant(table), batch)
        else:
            store.add(table, batch, order="arrival")
        self.metrics.count("rows_rewritten", store.settle())

    def _tell_matched(self, name: str, before: int | None, horizon: int | None) -> None:
        """Say of the rows that expire now, and that partitions vote on, that they have matched. Those that have not are
        found as ever."""
        ballots = self.emitter.ballots
        if horizon is None or ballots is None or name not in ballots.keys:
            return
        for part, rows in expiring(self.stores[name], ballots.keys[name], before, horizon):
            self.emitter.matched(name, part.table, rows[part.flag(MATCHED, rows)])

    def _horizon(self, name: str) -> int | None:
        """The time before which rows of an input are of no use; where cells are kept, the start of one."""
        horizon = self.clock.horizon(name, [self.other[name]])
        return horizon if horizon is None or name != self.thinned else cell_start(horizon, self.cell)

    def _method(self, name: str) -> str:
        return self.given.get(name) or self.choices[name].method

    def _stay_within_memory(self, arrived: dict[str, Rows], batch: Batch) -> None:
        memory = self.overload.memory
        if self.victims is not None and memory is not None:
            self.victims.observe([hashes_of(rows.table) for rows in arrived.values()], self.now or 0)
            ended = [index for index, name in enumerate(self.names) if self.ends(name, batch)]
            spill_victims(self.stores, memory, self.victims, ended, self.metrics, self.emitter.preserved)
        bounds = {name: self.clock.bound(other) for name, other in self.other.items()}
        self.overload.stay_within_memory(self.stores, self.layouts, self.windows, bounds, self.metrics)

    # -- choosing

    def _choose(self, arrived: dict[str, Rows]) -> None:
        for name, store in self.stores.items():
            choice = self.choices[name]
            choice.observe(len(arrived[name]), len(arrived[self.other[name]]))
            if name in self.given:
                continue
            load = choice.load(store.rows, distinct_keys(store), len(store.runs))
            if choice.decide(load, self.costs):
                self.metrics.event("algorithm", input=name, method=choice.method, **choice.costs, **load.__dict__)
            if choice.method == "hash":
                self._index_lazily(name, store)
            for method, cost in choice.costs.items():
                self.metrics.gauge(f"cost_ns.{name}.{method}", cost)

    def _index_lazily(self, name: str, store: RowStore) -> None:
        """Sort a run of before the choice once it has been scanned for as much as sorting it costs: that is never twice
        the best possible price. While scanning is the choice, its runs expire before that would pay."""
        for run, found in self.scanned[name]:
            if not store.holds(run):
                continue  # expired or merged meanwhile
            spent = run.spent + round(scan_cost(run.rows, found, self.costs))
            if spent >= index_cost(run.rows, self.costs):
                store.reorder(run)
                self.metrics.count("rows_rewritten", run.rows + store.settle())
                self.metrics.event("index", input=name, rows=run.rows, spent_ns=spent)
            else:
                store.update(run, spent=spent)

    def report(self) -> None:
        """What the choice of an algorithm rests on."""
        for name, store in self.stores.items():
            self.metrics.gauge(f"keys.{name}", round(distinct_keys(store)))
            self.metrics.gauge(f"uses_hash.{name}", int(self._method(name) == "hash"))

    def waits(self, part: Part, rows: Indices) -> WaitingRows:
        """Until the other input has passed the window."""
        return waits_for_times(part, rows, self.clock, self.going_on(part.store.input))

    # -- state

    @classmethod
    def splits(cls, plan: JoinPlan) -> tuple[str, ...]:
        """As other joins, if rows have times of their own, none is dropped, and silence says nothing: those that a
        partition takes from another one come late."""
        options = cls.OPTIONS(**plan.options, **plan.tuning)
        drops = options.late == "drop" or options.on_overload != "keep" or options.idle_timeout is not None
        return () if drops or options.time_columns is None else super().splits(plan)

    @classmethod
    def witnessed(cls, plan: JoinPlan) -> tuple[str, ...]:
        """None: a row matches those of its window."""
        return ()

    def newest_times(self) -> dict[str, int]:
        """Those of the clock of this partition."""
        return dict(self.clock.newest)

    def follow(self, newest: Mapping[str, int]) -> None:
        """The clock goes by them."""
        self.clock.shared = dict(newest)

    def inherit(self, heir: Partition, origins: Sequence[Origin], version: int) -> None:
        """The rows, the clocks that are furthest behind, and averages in proportion to the partitions."""
        super().inherit(heir, origins, version)
        former = [one.operator for one in origins if isinstance(one.operator, WindowJoin)]
        share = origins[0].partition.of / heir.of
        self.now = max((one.now for one in former if one.now is not None), default=None)
        for name in self.names:
            if active := [one.active[name] for one in former if name in one.active]:
                self.active[name] = max(active)
            inherit_horizon(self.stores[name], [one.stores[name] for one in former])
            self.layouts[name].width = min(one.layouts[name].width for one in former)
            self.choices[name] = former[0].choices[name].scaled(share)
        self.clock.inherit([one.clock for one in former])
        if self.victims is not None:
            self.victims.inherit([one.victims for one in former])
        counted = [heir.is_first_heir(origin.partition) for origin in origins]
        self.overload.inherit([one.overload for one in former], counted, share)

    def save(self) -> OperatorState:
        """The stores, and what is known of time, load and costs."""
        state = super().save()
        state.values = {
            "now": self.now,
            "active": dict(self.active),
            "newest": dict(self.clock.newest),
            "widths": {name: layout.width for name, layout in self.layouts.items()},
            "choices": {name: choice.as_json() for name, choice in self.choices.items()},
            "overload": self.overload.as_json(),
            **({} if self.clock.shared is None else {"shared": dict(self.clock.shared)}),
            **({} if self.victims is None else {"victims": self.victims.save()}),
        }
        return state

    def restore(self, state: OperatorState) -> None:
        """Take up what `save` returned."""
        super().restore(state)
        values = state.values
        self.now, self.active = values["now"], dict(values["active"])
        self.clock.newest = dict(values["newest"])
        if self.clock.shared is not None:
            self.clock.shared = dict(values["shared"])
        self.choices = {name: Choice(**saved) for name, saved in values["choices"].items()}
        self.overload.restore(values["overload"], state.history)
        if self.victims is not None:
            self.victims.restore(values.get("victims"))
        for name, layout in self.layouts.items():
            layout.width = values["widths"][name]


def _redundant(time: str, cell: int, table: pa.Table) -> Mask:
    return between(table, times_of(table, time), cell)
