"""What happens to arriving rows before any join sees them: the same for all families.

null keys    leave: a null equals nothing
null times   leave, where the join has a window
             (of an input whose unmatched rows are wanted they are kept aside for that)
late rows    are counted: they are joined with what is still held, or leave if they are to be dropped
the others   are sorted by hash
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import empty, key_names, sort_by_hash, times_of
from watersmeet.join.clock import Clock
from watersmeet.join.operator import Batch
from watersmeet.plan import JoinPlan
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts


class Prologue:
    """Admits the rows of a batch. `times` are the time columns of the inputs that have one."""

    def __init__(
        self,
        plan: JoinPlan,
        accounts: Accounts,
        metrics: Metrics,
        *,
        times: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        preserved: Collection[str] = (),
        drop_late: bool = False,
    ) -> None:
        self.plan, self.accounts, self.metrics = plan, accounts, metrics
        self.times = dict(times or {})
        self.clock = clock
        self.preserved = preserved
        self.drop_late = drop_late
        self._aside: list[tuple[str, str, pa.Table]] = []

    def admit(self, batch: Batch, name: str, *, in_order: bool = True) -> pa.Table:
        """The rows of an input that can match at all, sorted by hash unless they are wanted as they came."""
        apart = batch.null_rows.get(name)
        if apart is not None and name in self.preserved:
            self._aside.append((name, "null_key", apart))
        table = batch.rows.get(name)
        if table is None or not table.num_rows:
            return empty(self.plan.input(name).schema)
        keyed = self._without(name, table, "null_key", key_names(table.schema))
        if name in self.times:
            keyed = self._without(name, keyed, "null_time", [self.times[name]])
            keyed = self._in_time(name, keyed)
        return sort_by_hash(keyed) if in_order else keyed.combine_chunks()

    def _without(self, name: str, table: pa.Table, reason: str, columns: list[str]) -> pa.Table:
        """The rows that have no null in some columns."""
        with_null = [table.column(column) for column in columns if table.column(column).null_count]
        if not with_null:
            return table
        known = reduce(pc.and_, map(pc.is_valid, with_null))
        kept = table.filter(known)
        self.accounts.leave(name, reason, table.num_rows - kept.num_rows)
        if name in self.preserved:
            self._aside.append((name, reason, table.filter(pc.invert(known)).combine_chunks()))
        return kept

    def take_aside(self) -> list[tuple[str, str, pa.Table]]:
        """Rows that can match nothing and are wanted for that, with their input and the reason; none are left."""
        aside, self._aside = self._aside, []
        return aside

    def _in_time(self, name: str, table: pa.Table) -> pa.Table:
        """All rows, or those that are not late: the others leave, and no row of the output shows that they came."""
        bound = self.clock.bound(name) if self.clock else None
        if bound is None:
            return table
        late = times_of(table, self.times[name]) < bound
        count = int(np.count_nonzero(late))
        if not count:
            return table
        self.metrics.count(f"late.{name}", count)
        if not self.drop_late:
            return table
        self.accounts.leave(name, "late", count)
        return table.filter(pa.array(~late))
