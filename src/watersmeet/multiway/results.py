"""From a probe that has visited all inputs to output rows: the limit, the window, the combinations in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import key_names, python_value, times_of
from watersmeet.errors import FanOutError
from watersmeet.join.condition import Condition, Taken
from watersmeet.join.emitter import Emitter
from watersmeet.multiway.combinations import combinations, sizes_of
from watersmeet.multiway.options import MultiwayOptions
from watersmeet.multiway.probe import ABSENT, Matches, Probe
from watersmeet.multiway.window import in_window, within_window
from watersmeet.plan.join_plan import JoinPlan
from watersmeet.plan.metrics import Metrics

# A key with more combinations than this in one step is reported in the metrics.
LARGE_FAN_OUT = 1_000_000


class Results:
    """Builds output rows."""

    def __init__(self, plan: JoinPlan, options: MultiwayOptions, metrics: Metrics) -> None:
        self.options, self.metrics = options, metrics
        self.emitter = Emitter(plan.output)
        self.names = [spec.name for spec in plan.inputs]
        self.condition = None if plan.condition is None else Condition.of(plan.condition)
        needed = [(column.input, column.column) for column in plan.output] + list(options.time.items())
        needed += [(column.input, column.null_if) for column in plan.output if column.null_if]
        if self.condition is not None:
            needed += [(name, column) for name in self.names for column in self.condition.columns(name)]
        self.columns = [sorted({column for name, column in needed if name == mine}) for mine in self.names]
        self.optional = options.optional
        self.first = next(name for name in self.names if name not in options.optional)

    def of(self, probe: Probe, driver: int, allowed: int) -> Iterator[pa.Table]:
        """All combinations of the groups that every input had a match for, in blocks; at most `allowed`."""
        if not len(probe.alive):
            return
        self._warn_of_fan_out(probe)
        matches = [
            probe.driver_matches() if index == driver else probe.matches(index, self.columns[index])
            for index in range(len(self.names))
        ]
        window = self.options.window
        if window is None:
            self.check_limit(dict(zip(self.names, matches, strict=True)), allowed)
            blocks = combinations(matches)
        else:
            times = [
                times_of(match.table, self.options.time[name]) for name, match in zip(self.names, matches, strict=True)
            ]
            matches = within_window(matches, times, driver, window)
            self.check_limit(dict(zip(self.names, matches, strict=True)), allowed)
            blocks = in_window(combinations(matches), times, window)
        tables = [match.table for match in matches]
        for block in blocks:
            taken = dict(zip(self.names, zip(tables, block, strict=True), strict=True))
            yield from self.built(self._matching(taken), "ended")

    def _matching(self, taken: Mapping[str, Taken]) -> Mapping[str, Taken]:
        """The combinations for which the condition holds."""
        if self.condition is None:
            return taken
        holds = self.condition.holds_of(taken)
        self.metrics.count("pairs_rejected", len(holds) - int(np.count_nonzero(holds)))
        return {name: (table, rows[holds]) for name, (table, rows) in taken.items()}

    def alone(self, name: str, table: pa.Table, reason: str) -> Iterator[pa.Table]:
        """Rows of the only required input, which can match nothing."""
        rows = {other: (pa.table({}), np.full(table.num_rows, ABSENT)) for other in self.optional}
        return self.built({name: (table, np.arange(table.num_rows)), **rows}, reason)

    def built(self, taken: Mapping[str, Taken], reason: str) -> Iterator[pa.Table]:
        """Output rows; those without a row of an optional input are counted, by what proved that it has none."""
        if self.optional:
            lacking = {name: taken[name][1] < 0 for name in self.optional}
            for name, lacks in lacking.items():
                self.metrics.count(f"absent.{name}", int(np.count_nonzero(lacks)))
            unmatched = int(np.count_nonzero(np.logical_or.reduce(list(lacking.values()))))
            self.metrics.count(f"unmatched.{self.first}.{reason}", unmatched)
        yield from self.emitter.rows(taken, self.optional)

    def check_limit(self, matches: Mapping[str, Matches], allowed: int) -> None:
        """Fail if there are more combinations of some inputs' rows than `allowed`."""
        wanted = float(sizes_of(list(matches.values())).sum())
        if wanted > allowed:
            most = {name: int(match.counts.max()) for name, match in matches.items()}
            self.refuse(f"{wanted:.3g} more combinations to build; the most rows of one key are {most}")

    def refuse(self, found: str) -> None:
        """A batch has more results than it may have."""
        raise FanOutError(
            "multiway_join",
            expected=f"at most max_results={self.options.max_results} results in one batch of one partition",
            found=found,
            hint="A key that is frequent in several inputs multiplies: filter it, aggregate an input first, give a "
            "window, or raise max_results and restart.",
        )

    def _warn_of_fan_out(self, probe: Probe) -> None:
        largest = float(probe.combinations.max())
        self.metrics.gauge("largest_fan_out", max(largest, self.metrics.counters.get("largest_fan_out", 0)))
        if largest > LARGE_FAN_OUT:
            group = probe.alive[int(np.argmax(probe.combinations))]
            row = probe.buffer.slice(int(probe.rows[probe.begins[group]]), 1)
            key = [str(python_value(row.column(name)[0])) for name in key_names(row.schema)]
            self.metrics.event("fan_out", key=key, combinations=largest)
