"""What happens to arriving rows before any join sees them: the same for all families.

null keys    leave: a null equals nothing
null times   leave, where the join has a window
late rows    are counted: they are joined with what is still held
the others   are sorted by hash
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import drop_null_keys, rows_without_key, sort_by_hash, times_of
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
    ) -> None:
        self.plan, self.accounts, self.metrics = plan, accounts, metrics
        self.times = dict(times or {})
        self.clock = clock

    def admit(self, batch: Batch, name: str, *, in_order: bool = True) -> pa.Table:
        """The rows of an input that can match at all, sorted by hash unless they are wanted as they came."""
        table = batch.rows.get(name)
        if table is None or not table.num_rows:
            return self.plan.input(name).schema.empty_table()
        keyed = drop_null_keys(table)
        self.accounts.leave(name, "null_key", table.num_rows - keyed.num_rows)
        if name in self.times:
            column = keyed.column(self.times[name])
            self.accounts.leave(name, "null_time", column.null_count)
            if column.null_count:
                keyed = keyed.filter(pc.is_valid(column))
            self._count_late(name, keyed)
        return sort_by_hash(keyed) if in_order else keyed.combine_chunks()

    def without_key(self, batch: Batch, name: str) -> pa.Table:
        """The rows of an input that have a null in their key. They were sent apart, unless whoever drives the operator
        does not tell them from the others."""
        none = self.plan.input(name).schema.empty_table()
        mixed = rows_without_key(batch.rows.get(name, none))
        return pa.concat_tables([batch.null_rows.get(name, none), mixed]).combine_chunks()

    def _count_late(self, name: str, table: pa.Table) -> None:
        bound = self.clock.bound(name) if self.clock else None
        late = 0 if bound is None else int(np.count_nonzero(times_of(table, self.times[name]) < bound))
        if late:
            self.metrics.count(f"late.{name}", late)
