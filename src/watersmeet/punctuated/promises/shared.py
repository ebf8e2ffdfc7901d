"""Promises in a partition that also has rows of keys that belong to others (`plan.hot_table`).

What is promised of its own keys is bridged over gaps that are keys of others (`elsewhere`): it says nothing of these.
So what is promised of theirs is held apart, and asked for theirs alone. Patterns of many keys are about both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, hashes_of, take
from watersmeet.columns.partitions import partition_of
from watersmeet.punctuated.promises.intervals import Sources
from watersmeet.punctuated.promises.patterns import Shaped
from watersmeet.punctuated.promises.punctuation import Delta, PunctuatedRange
from watersmeet.state.side_table import SideTable

OTHERS = "others"  # among the values that are saved: what was promised of keys of other partitions


class SharedRange(PunctuatedRange):
    """The promises of one input, of a partition's own keys and of others'."""

    def __init__(self, name: str, kinds: Sequence[pa.DataType], partitions: int, here: int) -> None:
        super().__init__(name, kinds, partitions)
        self.here = here
        self.others = PunctuatedRange(f"{name}@{OTHERS}", kinds)

    def __len__(self) -> int:
        return super().__len__() + len(self.others)

    def _away(self, table: pa.Table) -> Indices:
        """The rows with keys of other partitions."""
        return np.flatnonzero(partition_of(hashes_of(table), self.partitions) != self.here)

    def find(self, table: pa.Table) -> Sources:
        """Of each row by what was promised of its key where it belongs."""
        found, away = super().find(table), self._away(table)
        if len(away):
            found[away] = self.others.find(take(table, away))
        return found

    def explain(self, row: pa.Table) -> str:
        """The same for one row."""
        return self.others.explain(row) if len(self._away(row)) else super().explain(row)

    def add_everything(self, source: str, batch: int) -> Delta:
        """Of all keys."""
        self.others.add_everything(source, batch)
        return super().add_everything(source, batch)

    def add_keys(self, table: pa.Table, batch: int, source: str) -> Delta:
        """Each key where it belongs."""
        away = self._away(table)
        if not len(away):
            return super().add_keys(table, batch, source)
        delta = super().add_keys(take(table, np.delete(np.arange(table.num_rows), away)), batch, source)
        delta.add(self.others.add_keys(take(table, away), batch, source))
        return delta

    def _add_shaped(self, shaped: Shaped, batch: int, source: str) -> Delta:
        delta, away = super()._add_shaped(shaped, batch, source), self.others._add_shaped(shaped, batch, source)
        count = max(delta.count, away.count)
        delta.add(away)
        delta.count = count
        return delta

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """Both, under names of their own."""
        tables, values = super().save()
        more, known = self.others.save()
        return tables | more, values | {OTHERS: known}

    def restore(self, tables: Mapping[str, SideTable], everything: Mapping[str, Any]) -> None:
        """What `save` returned; tables of other labels are passed over."""
        super().restore(tables, {name: value for name, value in everything.items() if name != OTHERS})
        self.others.restore(tables, everything[OTHERS])
