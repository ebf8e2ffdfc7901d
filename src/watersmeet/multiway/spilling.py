"""Keeping within the memory budget without a window: flush the largest buckets, merge them when there is time.

flush     after a batch, if memory has no room for another one as large: the largest buckets leave, all inputs together,
          until half of the budget is free. The hash gives all buckets an equal share of the rows to come, so a byte of
          any bucket brings about as many results on arrival; the largest bucket frees most for each piece on disk.
tiers     generations of similar size are merged as soon as there are a few of them, whether or not there is time:
          else a batch would cost more the more batches were before it
merge     a bucket that owes results: its generations and its rows in memory are read side by side, joined, and kept as
          one: in memory while less than half of the budget is used, else on disk

What is owed, and why every combination comes once, is argued in `origins`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import data_bytes, empty, merge_by_hash
from watersmeet.join.generations import STEP_ROWS, Generations, Rewriting
from watersmeet.multiway.absence import Absence, Known
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts

# The share of the budget that a step of a merge takes, and the generations that it reads side by side at least.
STEP_SHARE = 4
FAN_IN = 8

# generations by input, and what is known of the optional inputs -> what they owe
Joined = Callable[[Sequence[Sequence[pa.Table]], Known], Iterator[pa.Table]]


class Spilling:
    """Moves rows of all inputs to disk and back; without `memory` only back."""

    def __init__(
        self,
        generations: Generations,
        absence: Absence,
        memory: int | None,
        joined: Joined,
        accounts: Accounts,
        metrics: Metrics,
    ) -> None:
        self.generations, self.stores, self.absence = generations, generations.stores, absence
        self.memory, self.joined = memory, joined
        self.accounts, self.metrics = accounts, metrics

    @property
    def resident_bytes(self) -> int:
        """Bytes in memory, of all inputs."""
        return sum(store.nbytes for store in self.stores.values())

    # -- to disk

    def make_room(self, reserve: int) -> None:
        """Flush until `reserve` more bytes fit into the budget."""
        if self.memory is None:
            return
        target = max(0, self.memory - reserve)
        # Marks of rows on disk count as well, and cannot be flushed.
        while (size := self.resident_bytes) > target and any(store.resident for store in self.stores.values()):
            chosen = self._largest(size - min(target, self.memory // 2))
            runs = self.generations.flush(chosen)
            rows = sum(run.rows for run in runs)
            self.metrics.count("runs_flushed", len(runs))
            self.metrics.count("rows_flushed", rows)
            self.metrics.event("flush", rows=rows, buckets=len(chosen))

    def _largest(self, wanted: int) -> list[int]:
        """The largest buckets that together hold at least `wanted` bytes (all, if they hold less)."""
        sizes = np.sum([store.bucket_bytes() for store in self.stores.values()], axis=0)
        order = np.argsort(-sizes, kind="stable")
        enough = int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1
        return sorted(order[:enough].tolist())

    def merge_tiers(self) -> Iterator[pa.Table]:
        """Join and merge generations of similar size until there are few of each size; memory is left as it is."""
        while chosen := self.generations.due():
            written = self.generations.rewriting()
            for bucket in self.generations.buckets_of(chosen):
                yield from self._merge_some(bucket, chosen, written)
            self.generations.adopt(written)

    def _merge_some(self, bucket: int, numbers: Collection[int], written: Rewriting) -> Iterator[pa.Table]:
        """Join some generations of a bucket and write their rows as one."""
        came = {name: self.generations.came(name, bucket, numbers) for name in self.stores}
        nothing = {name: empty(store.schema) for name, store in self.stores.items()}
        merged = [number for number in self.generations.numbers(bucket) if number in numbers]
        known = self.absence.known(bucket, merged, with_memory=False)
        for rows in self.generations.read(bucket, nothing, numbers, self._step_rows):
            yield from self.joined(list(rows.values()), known)
            for name, tables in rows.items():
                written.add(name, bucket, merge_by_hash(tables), came[name])
        self.generations.release(bucket, numbers)

    # -- and back

    def to_merge(self, pages: int) -> list[int]:
        """Buckets with so many pages to read and write (the last one may have more), those that owe most first."""
        if self.generations.is_empty:
            return []
        resident, disk = self.generations.resident, self.generations.disk
        owing = []
        for bucket in np.flatnonzero(disk).tolist():
            numbers = self.generations.numbers(bucket)
            is_owed = len(numbers) > 1 or self.absence.is_owed(numbers)
            rows = int(resident[bucket]) + (int(disk[bucket]) if is_owed else 0)
            if rows or self.memory is None:  # without a budget all of them come back
                owing.append((-rows, bucket))
        chosen: list[int] = []
        for _, bucket in sorted(owing):
            if pages <= 0:
                break
            pages -= 2 * self.generations.pages(bucket)
            chosen.append(bucket)
        return sorted(chosen)

    def merge(self, buckets: Sequence[int], done: Collection[str]) -> Iterator[pa.Table]:
        """Join what the generations of some buckets (ascending) owe, and keep their rows in one generation.

        Rows of inputs that are `done` leave, because nothing more can come for them.
        """
        if not buckets:
            return
        written = self.generations.rewriting()
        for bucket in buckets:
            yield from self._narrowed(bucket)
            came = {name: self.generations.came(name, bucket) for name in self.stores}
            known = self.absence.known(bucket, self.generations.numbers(bucket), with_memory=True)
            resident = {name: self._taken(name, bucket) for name in self.stores}
            is_kept = self._fits(bucket, resident)
            again = 0
            for rows in self.generations.read(bucket, resident, step_rows=self._step_rows):
                yield from self.joined(list(rows.values()), known)
                for name, tables in rows.items():
                    table = merge_by_hash(tables)
                    if name in done:
                        self.accounts.leave(name, "ended", table.num_rows)
                    elif is_kept:
                        oldest, newest = came[name]
                        self.stores[name].add(table, newest, oldest=oldest)
                        self.metrics.count("rows_rewritten", table.num_rows)
                    else:
                        written.add(name, bucket, table, came[name])
                        again += table.num_rows
            self.generations.release(bucket)
            self.metrics.count("buckets_merged")
            self.metrics.event("merge", bucket=bucket, rows_spilled_again=again)
        self.generations.adopt(written)
        for store in self.stores.values():
            self.metrics.count("rows_rewritten", store.settle())

    def _narrowed(self, bucket: int) -> Iterator[pa.Table]:
        """Merge the smallest generations of a bucket until a step can read a page of each of them."""
        fan_in = max(FAN_IN, self._affordable // (self.generations.page_rows * len(self.stores)))
        while len(sizes := self.generations.numbers(bucket)) > fan_in:
            free = [number for number in sizes if number not in self.generations.apart]
            if len(free) < 2:
                return
            chosen = sorted(free, key=lambda number: (sizes[number], number))[:fan_in]
            written = self.generations.rewriting()
            yield from self._merge_some(bucket, chosen, written)
            self.generations.adopt(written)

    def _taken(self, name: str, bucket: int) -> pa.Table:
        """A bucket's rows, moved out of memory and sorted by hash."""
        store = self.stores[name]
        tables = store.take([bucket]).get(bucket)
        store.compact()
        return merge_by_hash(tables) if tables else store.schema.empty_table()

    def _fits(self, bucket: int, resident: dict[str, pa.Table]) -> bool:
        """Whether all rows of a bucket find room in the half of the budget that a flush leaves filled."""
        if self.memory is None:
            return True
        size = self.generations.nbytes(bucket) + sum(data_bytes(table) for table in resident.values())
        return self.resident_bytes + size <= self.memory // 2

    @property
    def _affordable(self) -> int:
        """The rows that a step's share of the budget holds."""
        rows = sum(store.rows for store in self.stores.values())
        row_bytes = 1 + sum(store.nbytes + store.spilled_bytes for store in self.stores.values()) // max(1, rows)
        return STEP_ROWS if self.memory is None else self.memory // STEP_SHARE // row_bytes

    @property
    def _step_rows(self) -> int:
        """The rows that one step of a merge takes: its memory does not grow with the bucket."""
        return max(self.generations.page_rows, min(self._affordable, STEP_ROWS))
