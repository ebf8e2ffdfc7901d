"""The moving window join of two unbounded streams.

Semantics     a left row l and a right row r are a result iff their keys are equal and
              -window_right <= r.time - l.time <= window_left, both ends included. Each pair once, in the batch in which
              its later row arrives. Rows with a null key or a null time match nothing.
Late rows     a row more than `lateness` behind its input's newest time of earlier batches is counted, and joined with
              what the windows still must hold, no more: its partners may be gone. A row that is not late finds all.
State         per input a `StoredWindow`: runs bounded in time, sorted (`hash`) or as they came (`loop`).
Overload      keep: exact, runs beyond the memory go to disk. shed: rows are dropped before they are joined or stored.
              shrink: the windows are shortened until they fit. All of it is in the metrics.
Batch         1 new left rows meet the stored right ones   2 stored left rows meet the new right ones
              3 new rows meet each other   4 expire, store, merge   5 keep within memory   6 choose the structures
Cost          per batch of b rows: see `batch_costs`; a run that is wholly expired is dropped unread.

Jaewoo Kang, Jeffrey F. Naughton, Stratis D. Viglas: Evaluating Window Joins over Unbounded Streams.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.arrow import Indices, drop_null_keys
from watersmeet.matching import equal_keys
from watersmeet.operator import Batch, Operator, OperatorState
from watersmeet.plan import JoinPlan
from watersmeet.state.space import RunSpace
from watersmeet.window.batch_costs import KernelCosts, index_cost, scan_cost
from watersmeet.window.choice import Choice
from watersmeet.window.kernels import Reach, pairs
from watersmeet.window.options import WindowOptions
from watersmeet.window.overload import Overload
from watersmeet.window.stored_window import Rows, StoredWindow
from watersmeet.window.times import NEVER, TIME, Watermarks

METHODS = {"H": "hash", "N": "loop"}


class WindowJoin(Operator):
    """Joins two inputs within moving windows."""

    name = "window"

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.options = WindowOptions(**plan.options, **plan.tuning)
        self.left, self.right = (spec.name for spec in plan.inputs)
        self.other = {self.left: self.right, self.right: self.left}
        self.windows = dict(zip((self.left, self.right), self.options.window, strict=True))
        self.reach = Reach(-self.windows[self.right], self.windows[self.left])
        columns = self.options.time_columns or (TIME, TIME)
        self.time_columns = dict(zip((self.left, self.right), columns, strict=True))
        lateness = self.options.lateness if self.options.time_columns else 0
        self.watermarks = Watermarks(self.windows, lateness)
        self.clock: int | None = None
        self.costs = self.options.costs or KernelCosts()
        self.choices = {name: Choice() for name in self.windows}
        self.overload = Overload(self.options, plan.partitions, (self.left, self.right))
        self.stored: dict[str, StoredWindow] = {}
        self._store_runs(OperatorState())
        self.projection = plan.projection

    # -- the batch

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """The rows of the batch meet what is stored and each other, then they are stored."""
        interval = self._advance_clock(batch)
        self._note_ended()
        arrived = {name: self._arrived(batch, name) for name in self.windows}
        arrived = self.overload.shed(arrived, batch.number, interval, self.metrics, self._keys())
        self._count_late(arrived)
        yield from self._join_stored(arrived)
        yield from self._join_new(arrived)
        self._store(arrived, batch.number)
        self._stay_within_memory()
        self._choose(arrived)
        self._report()

    def _advance_clock(self, batch: Batch) -> float:
        """Seconds since the batch before; the clock never goes back, whatever the machine's does."""
        before = self.clock
        if batch.time:
            self.clock = max(batch.time, before or batch.time)
        return 0.0 if before is None or self.clock is None else (self.clock - before) / 1e6

    def _note_ended(self) -> None:
        for name, other in self.other.items():
            if self.has_ended(other):
                self.stored[name].expire(NEVER)

    def _arrived(self, batch: Batch, name: str) -> Rows:
        """An input's rows that can match at all."""
        table = batch.rows.get(name)
        column = self.time_columns[name]
        if table is None:
            table = self.plan.input(name).schema.empty_table()
        table = drop_null_keys(table.combine_chunks())
        if column == TIME:
            clock = np.full(table.num_rows, self.clock or 0, dtype=np.int64)
            return Rows(table.append_column(TIME, pa.array(clock)), TIME)
        if without := table.column(column).null_count:
            self.metrics.count(f"null_time.{name}", without)
            table = table.filter(pc.is_valid(table.column(column)))
        return Rows(table.combine_chunks(), column)

    def _count_late(self, arrived: dict[str, Rows]) -> None:
        for name, rows in arrived.items():
            bound = self.watermarks.bound(name)
            late = 0 if bound is None else int(np.count_nonzero(rows.times < bound))
            if late:
                self.metrics.count(f"late.{name}", late)

    # -- joining

    def _join_stored(self, arrived: dict[str, Rows]) -> Iterator[pa.Table]:
        for name, rows in arrived.items():
            if not len(rows):
                continue
            window = self.stored[self.other[name]]
            reach = self.reach if name == self.left else self.reach.reversed()
            earliest, latest = int(rows.times.min()) + reach.low, int(rows.times.max()) + reach.high
            for met in window.meet(earliest, latest, rows.ordered):
                self.metrics.count("runs_probed", len(met.tables))
                self.metrics.count("rows_probed", len(met.rows.hashes))
                for mine, others in pairs(rows.ordered, met.rows, reach):
                    for table, which, numbers in met.split(others):
                        new, old = (rows.table, mine[which]), (table, numbers)
                        yield from self._results(new, old) if name == self.left else self._results(old, new)

    def _join_new(self, arrived: dict[str, Rows]) -> Iterator[pa.Table]:
        left, right = arrived[self.left], arrived[self.right]
        if len(left) and len(right):
            for i, j in pairs(left.ordered, right.ordered, self.reach):
                yield from self._results((left.table, i), (right.table, j))

    def _results(self, left: tuple[pa.Table, Indices], right: tuple[pa.Table, Indices]) -> Iterator[pa.Table]:
        """Output rows for pairs of rows of two tables, less those whose keys only hash alike."""
        same = equal_keys(*left, *right)
        if not same.all():
            left, right = (left[0], left[1][same]), (right[0], right[1][same])
        if same.any():
            yield self.projection.gather({self.left: left, self.right: right})

    # -- storing

    def _store(self, arrived: dict[str, Rows], batch: int) -> None:
        for name, rows in arrived.items():
            if self.options.time_columns is None:
                if self.clock is not None:
                    self.watermarks.see(name, self.clock)
            elif len(rows):
                self.watermarks.see(name, int(rows.times.max()))
        for name, rows in arrived.items():
            window = self.stored[name]
            before, other = window.horizon, self.other[name]
            horizon = NEVER if self.has_ended(other) else self.watermarks.horizon(name, other)
            runs, expired = window.expire(horizon)
            expired += window.compact()
            if window.horizon is not None:
                live = rows.times >= window.horizon
                expired += len(rows) - int(np.count_nonzero(live))
                rows = rows.select(live)
            advance = 0 if before is None or horizon is None else horizon - before
            window.add(rows, batch, ordered=self._method(name) == "hash", advance=min(advance, NEVER >> 8))
            window.close(self.watermarks.bound(name))
            self.metrics.count(f"expired_rows.{name}", expired)
            self.metrics.count(f"expired_runs.{name}", runs)

    def _method(self, name: str) -> str:
        if self.options.algorithm == "auto":
            return self.choices[name].method
        return METHODS[self.options.algorithm[0 if name == self.left else 1]]

    def _stay_within_memory(self) -> None:
        bounds = {name: self.watermarks.bound(other) for name, other in self.other.items()}
        self.overload.stay_within_memory(self.stored, self.windows, bounds, self.metrics)

    # -- choosing

    def _choose(self, arrived: dict[str, Rows]) -> None:
        for name, window in self.stored.items():
            choice = self.choices[name]
            choice.observe(len(arrived[name]), len(arrived[self.other[name]]))
            if self.options.algorithm != "auto":
                continue
            self._index_lazily(window)
            load = choice.load(window.rows, window.keys, len(window.runs))
            if choice.decide(load, self.costs):
                self.metrics.event("algorithm", window=name, method=choice.method, **choice.costs, **load.__dict__)
            for method, cost in choice.costs.items():
                self.metrics.gauge(f"cost_ns.{name}.{method}", cost)

    def _index_lazily(self, window: StoredWindow) -> None:
        """Sort a run once it has been scanned for as much as sorting it costs: never twice the best possible price."""
        for run, candidates in window.scanned:
            if not any(run is kept for kept in window.resident):
                continue  # expired or merged meanwhile
            spent = run.attributes["spent"] + round(scan_cost(run.rows, candidates, self.costs))
            if spent >= index_cost(run.rows, self.costs):
                window.index(run)
                self.metrics.event("index", window=window.name, rows=run.rows, spent_ns=spent)
            else:
                window.note(run, spent)

    def _keys(self) -> dict[str, float]:
        return {name: window.keys for name, window in self.stored.items()}

    def _report(self) -> None:
        for name, window in self.stored.items():
            self.metrics.gauge(f"window_rows.{name}", window.rows)
            self.metrics.gauge(f"window_keys.{name}", round(window.keys))
            self.metrics.gauge(f"window_runs.{name}", len(window.runs))
            self.metrics.gauge(f"hash.{name}", int(self._method(name) == "hash"))
            self.metrics.count("rows_merged", window.rows_rewritten)
            window.rows_rewritten = 0
            window.scanned = []

    # -- state

    def finish(self) -> Iterator[pa.Table]:
        """Nothing is owed: every pair was reported when its later row came."""
        self._store_runs(OperatorState())
        return iter(())

    def save(self) -> OperatorState:
        """The runs of both windows, less those that wait for an input that has ended."""
        runs = [
            run for name, window in self.stored.items() if not self.has_ended(self.other[name]) for run in window.runs
        ]
        return OperatorState(
            runs,
            {
                "clock": self.clock,
                "newest": dict(self.watermarks.newest),
                "horizons": {name: window.horizon for name, window in self.stored.items()},
                "slices": {name: window.slice for name, window in self.stored.items()},
                "choices": {name: choice.as_json() for name, choice in self.choices.items()},
                "overload": self.overload.as_json(),
            },
        )

    def restore(self, state: OperatorState) -> None:
        """Take everything up again."""
        values = state.values
        self.clock = values["clock"]
        self.watermarks.newest = dict(values["newest"])
        self.choices = {name: Choice(**saved) for name, saved in values["choices"].items()}
        self.overload.restore(values["overload"], state.history)
        self._store_runs(state)
        for name, window in self.stored.items():
            window.horizon, window.slice = values["horizons"][name], values["slices"][name]

    def _store_runs(self, state: OperatorState) -> None:
        self.stored = {
            name: StoredWindow(
                name,
                self.time_columns[name],
                length + self.watermarks.lateness,
                self.space,
                [run for run in state.runs if run.label == name],
            )
            for name, length in self.windows.items()
        }
