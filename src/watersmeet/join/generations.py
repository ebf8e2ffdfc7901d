"""Rows that memory had no room for: flushed bucket by bucket, all inputs together, and joined when there is time.

When a bucket is flushed, everything stored in it on all inputs goes to disk as one *generation*. Rows in memory have
been joined with each other, so all that matches inside a generation is out, and nothing that takes rows of two is:

    bucket 5    generation 1    generation 4    in memory       owed: 1-4, 1-memory, 4-memory
                a  b  c         a  b  c         a  b  c

A bucket's generations are read side by side in hash order, in steps that fit in memory, and written as one. Which of
their rows leave, and how they are joined, is the join's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import merge_by_hash
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import due_by_size
from watersmeet.state.pages import Cursor, steps
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run
from watersmeet.state.sharing import Facts
from watersmeet.state.space import PAGE_ROWS, BucketPage, SpillWriter, cut_into_pages

STEP_ROWS = 1 << 18

FANOUT = 4
SMALLEST = 1024  # generations up to so many rows count as equally large
LARGEST = 1 << 19  # rows that are merged at once: no batch stalls, and there are as many larger ones as the state needs

Counts = npt.NDArray[np.int64]
Batches = tuple[int, int]  # the oldest and the newest
Stretch = dict[str, list[pa.Table]]  # per input its generations' rows, the ones in memory last


def came_of(runs: Sequence[Run]) -> Batches:
    """The batches in which the rows of some runs came."""
    return min((run.oldest for run in runs), default=0), max((run.newest for run in runs), default=0)


class Rewriting:
    """Runs of all inputs that are written side by side: buckets ascending, and the rows of a bucket by hash."""

    def __init__(self, generations: Generations) -> None:
        self.stores, self.page_rows = generations.stores, generations.page_rows
        self._writers: dict[str, SpillWriter] = {}
        self._came: dict[str, list[Batches]] = {}

    def add(self, name: str, bucket: int, rows: pa.Table, came: Batches) -> None:
        """The next rows of an input, and the batches in which they came."""
        for start in range(0, rows.num_rows, self.page_rows):
            if name not in self._writers:
                self._writers[name], self._came[name] = self.stores[name].writer(), []
            self._writers[name].add(bucket, rows.slice(start, self.page_rows))
            self._came[name].append(came)

    def adopt(self, generation: int) -> None:
        """All has been written: it is part of the stores now."""
        for name, writer in self._writers.items():
            oldest, newest = zip(*self._came[name], strict=True)
            self.stores[name].adopt(writer, oldest=min(oldest), newest=max(newest), slot=generation)


class Generations:
    """What of all inputs is on disk, and which of it has been joined. A run's slot is its generation."""

    def __init__(self, stores: Mapping[str, RowStore], buckets: Buckets, page_rows: int = PAGE_ROWS) -> None:
        self.stores = stores
        self.buckets = buckets
        self.page_rows = page_rows
        self.number = 0
        self.apart: frozenset[int] = frozenset()  # generations that are merged with all of their buckets only

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on disk."""
        return not any(store.spilled for store in self.stores.values())

    @property
    def resident(self) -> Counts:
        """Rows in memory, per bucket."""
        return np.asarray(sum(store.bucket_rows for store in self.stores.values()))

    @property
    def disk(self) -> Counts:
        """Rows on disk, per bucket."""
        return np.asarray(sum(store.disk_rows() for store in self.stores.values()))

    def numbers(self, bucket: int) -> dict[int, int]:
        """The generations that a bucket has on disk, and how many rows of it they hold."""
        found: dict[int, int] = {}
        for run in self._runs(bucket):
            found[run.slot] = found.get(run.slot, 0) + run.places[bucket].rows
        return found

    def pages(self, bucket: int) -> int:
        """How many pages a bucket has on disk."""
        return sum(len(run.places[bucket].pages) for run in self._runs(bucket))

    def nbytes(self, bucket: int) -> int:
        """About how many bytes a bucket has on disk, before compression."""
        return sum(run.nbytes * run.places[bucket].rows // run.rows for run in self._runs(bucket))

    def came(self, name: str, bucket: int, numbers: Collection[int] | None = None) -> Batches:
        """The batches in which an input's rows of a bucket came, of some generations or of all there are."""
        store = self.stores[name]
        runs = [run for run in store.spilled if bucket in run.places and (numbers is None or run.slot in numbers)]
        runs += store.resident if numbers is None and store.bucket_rows[bucket] else []
        return came_of(runs)

    def flush(self, buckets: list[int]) -> list[Run]:
        """Move some buckets of all inputs out of memory as one generation."""
        self.number += 1
        runs = []
        for store in self.stores.values():
            before = store.resident
            taken = {bucket: tables for bucket, tables in sorted(store.take(buckets).items()) if tables}
            store.compact()
            if taken:
                oldest, newest = min(run.oldest for run in before), max(run.newest for run in before)
                runs.append(store.spill(self._pages(taken), oldest=oldest, newest=newest, slot=self.number))
        return runs

    def adopt(self, written: Rewriting) -> None:
        """All has been written: it is a new generation."""
        self.number += 1
        written.adopt(self.number)

    def _pages(self, taken: Mapping[int, list[pa.Table]]) -> Iterator[BucketPage]:
        for tables in taken.values():
            yield from cut_into_pages(merge_by_hash(tables), self.buckets, self.page_rows)

    def due(self) -> list[int]:
        """Generations to merge now, because there are too many of their size."""
        rows: dict[int, int] = {}
        for store in self.stores.values():
            for run in store.spilled:
                if run.slot not in self.apart:
                    rows[run.slot] = rows.get(run.slot, 0) + run.rows
        numbers = sorted(rows)
        chosen = due_by_size([rows[number] for number in numbers], fanout=FANOUT, smallest=SMALLEST, largest=LARGEST)
        return [numbers[at] for at in chosen]

    def buckets_of(self, numbers: Collection[int]) -> list[int]:
        """The buckets of some generations, ascending."""
        runs = [run for store in self.stores.values() for run in store.spilled if run.slot in numbers]
        return sorted({bucket for run in runs for bucket in run.places})

    def release(self, bucket: int, numbers: Collection[int] | None = None) -> None:
        """A bucket's rows on disk, of all generations or of some, have been taken up."""
        for store in self.stores.values():
            store.release(bucket, [run.id for run in store.spilled if numbers is None or run.slot in numbers])

    def read(
        self,
        bucket: int,
        resident: Mapping[str, pa.Table],
        numbers: Collection[int] | None = None,
        step_rows: int = STEP_ROWS,
    ) -> Iterator[Stretch]:
        """A bucket's generations (all, unless some are named) in hash order, stretch by stretch of the hash; `resident`
        rows are the last one."""
        runs = {
            name: [run for run in store.spilled if bucket in run.places and (numbers is None or run.slot in numbers)]
            for name, store in self.stores.items()
        }
        found = sorted({run.slot for mine in runs.values() for run in mine})
        cursors = {
            name: [[Cursor(self.stores[name].read(run, bucket)) for run in mine if run.slot == slot] for slot in found]
            for name, mine in runs.items()
        }
        for name, sources in cursors.items():
            sources.append([Cursor(iter([resident[name]]))])
        rows = sum(run.places[bucket].rows for mine in runs.values() for run in mine)
        rows += sum(table.num_rows for table in resident.values())
        for bound in steps(*self.buckets.span(bucket), rows, step_rows):
            yield {name: [self._together(name, group, bound) for group in groups] for name, groups in cursors.items()}

    def _together(self, name: str, cursors: list[Cursor], bound: int | None) -> pa.Table:
        """The next rows of one generation: its runs hold different stretches of the hash, written in hash order."""
        tables = [table for cursor in cursors for table in cursor.below(bound)]
        if len(tables) == 1:
            return tables[0]
        return pa.concat_tables(tables).combine_chunks() if tables else self.stores[name].schema.empty_table()

    def renumbered(self) -> Facts:
        """What changes in runs of a former partition that are taken up now: their generations follow those there are.

        Rows of two partitions have no keys in common, so their generations owe each other nothing; but one generation
        must not have two runs of one stretch of the hash.
        """
        before = self.number
        return lambda run: {"slot": run.slot + before} if run.tier == "spilled" else {}

    def rewriting(self) -> Rewriting:
        """A generation in the making, out of others."""
        return Rewriting(self)

    def _runs(self, bucket: int) -> list[Run]:
        return [run for store in self.stores.values() for run in store.spilled if bucket in run.places]
