"""Rows that memory had no room for: flushed bucket by bucket, both inputs together, and joined when there is time.

When a bucket is flushed, everything stored in it on both inputs goes to disk as one *generation*. Rows in memory have
been joined with each other, so all pairs inside a generation are out, and no pair of two generations is:

    bucket 5    generation 1    generation 4    in memory       owed: 1-4, 1-memory, 4-memory
                L  R            L  R            L  R

Merging a bucket reads its generations side by side in hash order, in steps that fit in memory, joins what is owed,
purges what has no future, and leaves the rest as one generation (or in memory, if there is room again). A row in memory
whose bucket has a part on disk may still owe results, so it is not purged before its bucket is merged.

Generations of similar size are merged in all their buckets as soon as there are `FANOUT` of them, whether or not there
is time: else a batch would cost more the more batches were before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import hashes_of
from watersmeet.punctuated.promises.intervals import Mask
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import due_by_size
from watersmeet.state.pages import Cursor, steps
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run
from watersmeet.state.space import cut_into_pages

STEP_ROWS = 1 << 18

FANOUT = 4
SMALLEST = 1024  # generations up to so many rows count as equally large
LARGEST = 1 << 19  # rows that are merged at once: no batch stalls, and there are as many larger ones as the state needs

Counts = npt.NDArray[np.int64]
Stretch = dict[str, list[pa.Table]]  # per input its generations' rows, the ones in memory last


class Generations:
    """What of both inputs is on disk, and which of it has been joined. A run's slot is its generation."""

    def __init__(self, stores: Mapping[str, RowStore], buckets: Buckets) -> None:
        self.stores = stores
        self.buckets = buckets
        self.number = 0
        self.merged_at: dict[int, int] = {}  # bucket -> how many promises were known when it was last merged

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on disk."""
        return not any(store.spilled for store in self.stores.values())

    @property
    def resident(self) -> Counts:
        """Rows in memory, per bucket."""
        total: Counts = np.zeros(self.buckets.count, np.int64)
        for store in self.stores.values():
            total += store.bucket_rows
        return total

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
        return bool(self.resident[bucket] > 0) or self.count(bucket) > 1

    def count(self, bucket: int) -> int:
        """How many generations a bucket has on disk."""
        return len({run.slot for run in self._runs(bucket)})

    def pages(self, bucket: int) -> int:
        """How many pages a merge of the bucket reads."""
        return sum(len(run.places[bucket].pages) for run in self._runs(bucket))

    def write(self, tables: Mapping[str, pa.Table], batch: int, *, new: bool = True) -> int:
        """Flush hash-sorted rows of both inputs as one generation; returns how many."""
        self.number += new
        for name, table in tables.items():
            if table.num_rows:
                pages = cut_into_pages(table, self.buckets)
                self.stores[name].spill(pages, oldest=batch, newest=batch, slot=self.number)
        return sum(table.num_rows for table in tables.values())

    def due(self) -> list[int]:
        """Generations to merge now, because there are too many of their size."""
        rows: dict[int, int] = {}
        for store in self.stores.values():
            for run in store.spilled:
                rows[run.slot] = rows.get(run.slot, 0) + run.rows
        numbers = sorted(rows)
        chosen = due_by_size([rows[number] for number in numbers], fanout=FANOUT, smallest=SMALLEST, largest=LARGEST)
        return [numbers[at] for at in chosen]

    def runs_of(self, name: str, numbers: Collection[int]) -> list[Run]:
        """An input's runs of some generations."""
        return [run for run in self.stores[name].spilled if run.slot in numbers]

    def buckets_of(self, numbers: Collection[int]) -> dict[int, bool]:
        """The buckets of some generations, ascending, and whether a bucket has no other generation on disk."""
        inside: set[int] = set()
        outside: set[int] = set()
        for store in self.stores.values():
            for run in store.spilled:
                (inside if run.slot in numbers else outside).update(run.places)
        return {bucket: bucket not in outside for bucket in sorted(inside)}

    def release(self, bucket: int) -> None:
        """A bucket's rows on disk have been taken up."""
        for store in self.stores.values():
            store.release(bucket)

    def read(
        self, bucket: int, resident: Mapping[str, pa.Table], numbers: Collection[int] | None = None
    ) -> Iterator[Stretch]:
        """A bucket's generations (all, unless some are named) in hash order, stretch by stretch of the hash; `resident`
        rows are the last one."""
        runs = {
            name: [run for run in store.spilled if bucket in run.places and (numbers is None or run.slot in numbers)]
            for name, store in self.stores.items()
        }
        numbers = sorted({run.slot for found in runs.values() for run in found})
        cursors = {
            name: [
                *(
                    [Cursor(self.stores[name].read(run, bucket)) for run in found if run.slot == number]
                    for number in numbers
                ),
                [Cursor(iter([resident[name]]))],
            ]
            for name, found in runs.items()
        }
        rows = sum(run.places[bucket].rows for found in runs.values() for run in found)
        rows += sum(table.num_rows for table in resident.values())
        for bound in steps(*self.buckets.span(bucket), rows, STEP_ROWS):
            yield {name: [self._together(name, group, bound) for group in groups] for name, groups in cursors.items()}

    def _together(self, name: str, cursors: list[Cursor], bound: int | None) -> pa.Table:
        """The next rows of one generation: its runs hold different stretches of the hash, written in hash order."""
        tables = [table for cursor in cursors for table in cursor.below(bound)]
        return pa.concat_tables(tables).combine_chunks() if tables else self.stores[name].schema.empty_table()

    def _runs(self, bucket: int) -> list[Run]:
        return [run for store in self.stores.values() for run in store.spilled if bucket in run.places]

    def save(self) -> dict[str, Any]:
        """The state, in JSON form."""
        return {"number": self.number, "merged_at": {str(bucket): at for bucket, at in self.merged_at.items()}}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take up what `save` returned."""
        self.number = values["number"]
        self.merged_at = {int(bucket): at for bucket, at in values["merged_at"].items()}
