"""Rows that a source had promised not to send: found before they are joined, so that the answer does not depend on when
the state was purged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, hashes_of, key_names, numpy_of, python_value
from watersmeet.errors import BrokenPromiseError
from watersmeet.plan.metrics import Metrics
from watersmeet.punctuated.promises.constraints import ClusterTracker, OrderTracker, duplicate_keys, unplaced
from watersmeet.punctuated.promises.intervals import Mask
from watersmeet.punctuated.promises.punctuation import PunctuatedRange, reason_of
from watersmeet.state.accounts import Accounts

Tracker = ClusterTracker | OrderTracker
Rule = str | Callable[[pa.Table], str]  # what was promised, in words; it may depend on the row


class Violations:
    """Checks the rows of one input and deals with those that break a promise."""

    def __init__(
        self, name: str, mode: str, promises: PunctuatedRange, trackers: Sequence[Tracker], accounts: Accounts
    ) -> None:
        self.name, self.mode, self.accounts = name, mode, accounts
        self.promises, self.trackers = promises, tuple(trackers)
        self.copied: Hashes = np.empty(0, np.uint64)  # keys of which another partition counts the rows

    def admit(
        self, table: pa.Table, batch: int, metrics: Metrics, is_known: Callable[[pa.Table], Mask] | None
    ) -> pa.Table:
        """The rows to join: all of them, less what is diverted. `is_known` tells, for an input on which keys are
        unique, which keys it has stored already."""
        table = self._promised(table, batch, metrics)
        for tracker in self.trackers:
            kind = "clustered" if isinstance(tracker, ClusterTracker) else "ordered"
            order = "clustered" if kind == "clustered" else _direction(tracker)
            rule = f"the keys of input {self.name!r} to come {order}"
            if tracker.sequence is not None:
                placed = f"a value in the sequence column of every row of input {self.name!r}, whose keys come {order}"
                table = self._divert(table, unplaced(table, tracker.sequence), kind, batch, metrics, placed)
            wrong = tracker.violations(table)
            table = self._divert(table, wrong, kind, batch, metrics, rule)
        if is_known is not None:
            unique = f"every key at most once on input {self.name!r}"
            # Which of several copies in one batch came first cannot be known: none of them is let in.
            table = self._divert(table, duplicate_keys(table), "one_to_many", batch, metrics, unique)
            table = self._divert(table, is_known(table), "one_to_many", batch, metrics, unique)
        return table

    def _promised(self, table: pa.Table, batch: int, metrics: Metrics) -> pa.Table:
        sources = self.promises.find(table)

        def promise(row: pa.Table) -> str:
            return f"no row of input {self.name!r} with a key in {self.promises.explain(row)}"

        for bits in np.unique(sources[sources > 0]).tolist():
            wrong = self.promises.find(table) == bits
            table = self._divert(table, wrong, reason_of(bits), batch, metrics, promise)
        return table

    def _divert(
        self,
        table: pa.Table,
        wrong: Mask,
        reason: str,
        batch: int,
        metrics: Metrics,
        rule: Rule,
    ) -> pa.Table:
        count = int(np.count_nonzero(wrong))
        if not count:
            return table
        broken = table.filter(pa.array(wrong))
        if self.mode == "raise":
            row = broken.slice(int(np.argmin(numpy_of(broken.column("_hash")))), 1)
            keys = [python_value(row.column(name)[0]) for name in key_names(row.schema)]
            key = keys[0] if len(keys) == 1 else tuple(keys)
            raise BrokenPromiseError(
                "punctuated_join",
                expected=rule if isinstance(rule, str) else rule(row),
                found=f"{count} row(s) that break this in batch {batch}, among them key {key!r}",
                hint="Correct the source, or set on_violation to 'drop' or 'keep'; this batch is not committed.",
                input=self.name,
            )
        own = count - int(np.count_nonzero(np.isin(hashes_of(broken), self.copied)))
        if own:
            metrics.count(f"violations.{self.name}.{reason}", own)
            metrics.event("violation", input=self.name, reason=reason, rows=own, mode=self.mode)
        if self.mode == "drop":
            self.accounts.leave(self.name, "violation", count)
            return table.filter(pa.array(~wrong))
        if reason != "one_to_many":  # a second row of a key says nothing about whether more will come
            self.promises.void(broken, batch)
        return table


def _direction(tracker: Tracker) -> str:
    return "ascending" if isinstance(tracker, OrderTracker) and tracker.ascending else "descending"
