"""Generations of the punctuated join: rows on disk that promises may have made useless (see `join.generations`).

Merging a bucket reads its generations side by side, joins what is owed, purges what has no future, and leaves the rest
as one generation (or in memory, if there is room again). A row in memory whose bucket has a part on disk may still owe
results, so it is not purged before its bucket is merged.

Generations of similar size are merged in all their buckets as soon as there are a few of them, whether or not there is
time: else a batch would cost more the more batches were before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import hashes_of
from watersmeet.join import generations
from watersmeet.punctuated.promises.intervals import Mask
from watersmeet.state.buckets import Buckets
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run
from watersmeet.state.space import cut_into_pages

Stretch = generations.Stretch


class Generations(generations.Generations):
    """What of both inputs is on disk, which of it has been joined, and when it was last purged."""

    def __init__(self, stores: Mapping[str, RowStore], buckets: Buckets) -> None:
        super().__init__(stores, buckets)
        self.merged_at: dict[int, int] = {}  # bucket -> how many promises were known when it was last merged

    def on_disk(self) -> list[int]:
        """The buckets that have a part on disk."""
        return sorted({bucket for store in self.stores.values() for run in store.spilled for bucket in run.places})

    def touches(self, name: str, table: pa.Table) -> Mask:
        """Which rows lie in a bucket of which `name` has a part on disk."""
        if self.is_empty:
            return np.zeros(table.num_rows, np.bool_)
        return np.asarray(self.stores[name].disk_rows()[self.buckets.of(hashes_of(table))] > 0)

    def owes(self, table: pa.Table) -> Mask:
        """Which rows lie in a bucket where results are still owed."""
        owing = np.zeros(self.buckets.count, np.bool_)
        owing[[bucket for bucket in self.on_disk() if self.is_owing(bucket)]] = True
        return np.asarray(owing[self.buckets.of(hashes_of(table))])

    def is_owing(self, bucket: int) -> bool:
        """Whether a bucket on disk has rows that have not been joined with all others."""
        return bool(self.resident[bucket] > 0) or len(self.numbers(bucket)) > 1

    def is_complete(self, bucket: int, numbers: Collection[int]) -> bool:
        """Whether a bucket has no other generation on disk."""
        return self.numbers(bucket).keys() <= set(numbers)

    def forget_merges(self, keys: pa.Table) -> None:
        """What held the promises of some keys up in a merge is gone: their buckets count as not merged since."""
        for bucket in np.unique(self.buckets.of(hashes_of(keys))).tolist():
            self.merged_at.pop(bucket, None)

    def write(
        self, tables: Mapping[str, pa.Table], came: Mapping[str, generations.Batches], *, new: bool = True
    ) -> int:
        """Flush hash-sorted rows of both inputs, with the batches in which they came, as one generation; returns how
        many."""
        self.number += new
        for name, table in tables.items():
            if table.num_rows:
                pages = cut_into_pages(table, self.buckets)
                self.stores[name].spill(pages, oldest=came[name][0], newest=came[name][1], slot=self.number)
        return sum(table.num_rows for table in tables.values())

    def runs_of(self, name: str, numbers: Collection[int]) -> list[Run]:
        """An input's runs of some generations."""
        return [run for run in self.stores[name].spilled if run.slot in numbers]

    def save(self) -> dict[str, Any]:
        """The state, in JSON form."""
        return {"number": self.number, "merged_at": {str(bucket): at for bucket, at in self.merged_at.items()}}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take up what `save` returned."""
        self.number = values["number"]
        self.merged_at = {int(bucket): at for bucket, at in values["merged_at"].items()}
