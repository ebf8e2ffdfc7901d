"""The rows of one input that are kept in memory: hash-sorted runs from which rows can be purged without a scan.

    run 12   a a b c d d e f      rows, never changed
    dead     . x . . x x . .      a bit per row, written anew when a purge hits the run
    order    3 0 7 1 ...          row numbers by the value of a key column, made when a range is first purged

A single key is found by its hash, a range by binary search in `order`: a purge costs what it purges. A run of which
more than half is dead is rewritten, which is paid for by the rows that died. Runs of similar size are merged four at a
time, so a batch meets O(log state) of them. Bytes are counted as they are held, dead rows, bits and orders included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.arrow import Indices, gather, key_name, merge_by_hash, numpy_of, take
from watersmeet.matching import matches, ranges
from watersmeet.punctuated.codes import Codes, argsort, bisect
from watersmeet.punctuated.intervals import Intervals, Mask
from watersmeet.punctuated.ordering import Ordering
from watersmeet.state.buckets import Buckets
from watersmeet.state.run import Run, resident_run

FANOUT = 4
MAX_ROWS = 1 << 21  # no merge makes a longer run
SMALLEST = 1024  # runs up to this length count as equally long, longer ones if many rows meet them
SCAN_ROWS = 4096  # up to this length looking at every row is cheaper than an order

Found = list[tuple[Run, Indices]]  # rows of runs


class StoredRows:
    """Runs of one label, the dead rows in them and their orders."""

    def __init__(self, label: str, kinds: Sequence[pa.DataType]) -> None:
        self.label = label
        self.kinds = tuple(kinds)
        self.runs: list[Run] = []
        self.dead: dict[int, Mask] = {}
        self._dead_count: dict[int, int] = {}
        self._side: dict[tuple[int, str], Run] = {}  # (run, "dead" or an order's name) -> its own run
        self._next = 0

    @property
    def rows(self) -> int:
        """Rows that are alive."""
        return sum(self.alive(run) for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Bytes held, dead rows included."""
        return sum(run.nbytes for run in [*self.runs, *self._side.values()])

    def alive(self, run: Run) -> int:
        """How many of a run's rows are alive."""
        return run.rows - self._dead_count.get(run.attributes["id"], 0)

    def add(self, table: pa.Table, oldest: int, newest: int | None = None) -> None:
        """Store rows that are sorted by hash."""
        if table.num_rows:
            self._append(table, oldest, oldest if newest is None else newest)

    def _append(self, table: pa.Table, oldest: int, newest: int) -> None:
        self.runs.append(resident_run(self.label, table, oldest=oldest, newest=newest, id=self._next))
        self._next += 1

    def living(self, run: Run, rows: Indices) -> Indices:
        """Those of a run's rows that are alive."""
        dead = self.dead.get(run.attributes["id"])
        return rows if dead is None else rows[~dead[rows]]

    def meet(self, table: pa.Table) -> Iterator[tuple[Run, Indices, Indices]]:
        """Pairs of rows of a hash-sorted table and living stored rows with equal keys."""
        if not table.num_rows:
            return
        for run in self.runs:
            dead = self.dead.get(run.attributes["id"])
            for i, j in matches(table, run.table):
                if dead is not None:
                    alive = ~dead[j]
                    i, j = i[alive], j[alive]
                if len(i):
                    yield run, i, j

    def has(self, table: pa.Table) -> Mask:
        """Which rows of a hash-sorted table have a stored row with their key."""
        found = np.zeros(table.num_rows, np.bool_)
        for _, i, _ in self.meet(table):
            found[i] = True
        return found

    def at(self, points: pa.Table) -> Found:
        """Living rows whose keys are among those of a hash-sorted table."""
        found: dict[int, list[Indices]] = {}
        by_id = {run.attributes["id"]: run for run in self.runs}
        for run, _, j in self.meet(points):
            found.setdefault(run.attributes["id"], []).append(j)
        return [(by_id[number], np.unique(np.concatenate(rows))) for number, rows in found.items()]

    def within(self, column: int, pieces: Intervals) -> Found:
        """Living rows whose value in a key column lies in one of some disjoint intervals."""
        found = ((run, self.living(run, self._rows_within(run, column, pieces))) for run in self.runs)
        return [(run, rows) for run, rows in found if len(rows)]

    def all(self) -> Found:
        """All living rows."""
        return [(run, self.living(run, np.arange(run.rows))) for run in self.runs]

    def _rows_within(self, run: Run, column: int, pieces: Intervals) -> Indices:
        ordering, name = Ordering(self.kinds[column]), key_name(column)
        values = run.table.column(name)
        if run.rows <= SCAN_ROWS:
            return np.flatnonzero(pieces.find(ordering.codes(values)) >= 0)
        order = self._order(run, column, ordering)
        first = _bisect(values, order, ordering, pieces.low)
        last = np.where(pieces.endless, len(order), _bisect(values, order, ordering, pieces.high))
        return np.sort(order[ranges(first, last)]).astype(np.int64)

    def _order(self, run: Run, column: int, ordering: Ordering) -> npt.NDArray[np.uint32]:
        key = (run.attributes["id"], f"order{column}")
        if key not in self._side:
            order = argsort(ordering.codes(run.table.column(key_name(column)))).astype(np.uint32)
            self._side[key] = self._side_run(key, pa.table({"_row": pa.array(order)}), run)
        return numpy_of(self._side[key].table.column("_row")).view(np.uint32)

    def kill(self, run: Run, rows: Indices) -> int:
        """Mark rows (each given once) as dead; returns how many were alive."""
        number = run.attributes["id"]
        if number not in self.dead:
            self.dead[number] = np.zeros(run.rows, np.bool_)
        elif (number, "dead") in self._side:
            self.dead[number] = self.dead[number].copy()  # the bits of a stored run are not ours to change
        dying = int(np.count_nonzero(~self.dead[number][rows]))
        self.dead[number][rows] = True
        self._dead_count[number] = self._dead_count.get(number, 0) + dying
        self._side.pop((number, "dead"), None)
        return dying

    def settle(self, met_by: int = 0, *, all_dead: bool = False) -> int:
        """Rewrite runs that are mostly dead (with `all_dead` every run that has a dead row) and merge those of similar
        size; returns how many rows were written. Each run is met by so many rows of a batch: to merge what is shorter
        than half of them is cheaper than to meet it."""
        written = 0
        for run in list(self.runs):
            dead = run.rows - self.alive(run)
            if dead and (all_dead or 2 * dead > run.rows):
                written += self._rewrite([run])
        while chosen := self._mergeable(max(SMALLEST, met_by // 2)):
            written += self._rewrite(chosen)
        return written

    def _mergeable(self, smallest: int) -> list[Run]:
        levels: dict[int, list[Run]] = {}
        for run in self.runs:
            levels.setdefault(_level(self.alive(run), smallest), []).append(run)
        for level in sorted(levels):
            runs = levels[level]
            if len(runs) >= FANOUT and sum(self.alive(run) for run in runs) <= MAX_ROWS:
                return runs
        return []

    def _rewrite(self, old: Sequence[Run]) -> int:
        tables = [self.living_table(run) for run in old]
        merged = merge_by_hash(tables)
        self.drop(old)
        if merged.num_rows:
            self._append(merged, min(run.oldest for run in old), max(run.newest for run in old))
        return int(merged.num_rows)

    def living_table(self, run: Run) -> pa.Table:
        """A run's living rows."""
        dead = self.dead.get(run.attributes["id"])
        return run.table if dead is None else take(run.table, np.flatnonzero(~dead))

    def drop(self, old: Iterable[Run]) -> None:
        """Let go of whole runs."""
        gone = {run.attributes["id"] for run in old}
        self.runs = [run for run in self.runs if run.attributes["id"] not in gone]
        self.dead = {number: bits for number, bits in self.dead.items() if number not in gone}
        self._dead_count = {number: count for number, count in self._dead_count.items() if number not in gone}
        self._side = {key: run for key, run in self._side.items() if key[0] not in gone}

    def bucket_rows(self, buckets: Buckets) -> npt.NDArray[np.int64]:
        """Living rows per bucket."""
        counts = np.zeros(buckets.count, np.int64)
        for run in self.runs:
            dead = self.dead.get(run.attributes["id"])
            offsets = buckets.offsets(run.hashes)
            if dead is None:
                counts += np.diff(offsets)
            else:
                counts += np.diff(np.concatenate(([0], np.cumsum(~dead)))[offsets])
        return counts

    def take_buckets(self, chosen: Mask, buckets: Buckets, schema: pa.Schema) -> pa.Table:
        """Remove the rows of some buckets and return them, sorted by hash."""
        taken = []
        for run in self.runs:
            rows = self.living(run, np.flatnonzero(chosen[buckets.of(run.hashes)]))
            if len(rows):
                taken.append(take(run.table, rows))
                self.kill(run, rows)
        return merge_by_hash(taken) if taken else schema.empty_table()

    def save(self) -> tuple[list[Run], int]:
        """Runs and the next run's number."""
        for run in self.runs:
            key = (run.attributes["id"], "dead")
            if key[0] in self.dead and key not in self._side:
                bits = np.packbits(self.dead[key[0]], bitorder="little")
                self._side[key] = self._side_run(key, pa.table({"_bits": pa.array(bits)}), run)
        return [*self.runs, *(self._side[key] for key in sorted(self._side))], self._next

    def _side_run(self, key: tuple[int, str], table: pa.Table, run: Run) -> Run:
        span: dict[str, Any] = {"oldest": run.oldest, "newest": run.newest}
        return resident_run(f"{self.label}.{key[1]}", table, **span, of=key[0])

    def restore(self, runs: Iterable[Run], next_number: int) -> None:
        """What `save` returned; runs of other labels are passed over."""
        self._next = next_number
        runs = list(runs)
        self.runs = [run for run in runs if run.label == self.label]
        rows = {run.attributes["id"]: run.rows for run in self.runs}
        for run in runs:
            kind = run.label.removeprefix(f"{self.label}.")
            if "of" in run.attributes and run.label == f"{self.label}.{kind}" and "." not in kind:
                number = run.attributes["of"]
                self._side[number, kind] = run
                if kind == "dead":
                    bits = numpy_of(run.table.column("_bits")).view(np.uint8)
                    self.dead[number] = np.unpackbits(bits, count=rows[number], bitorder="little").view(np.bool_)
                    self._dead_count[number] = int(np.count_nonzero(self.dead[number]))


def _level(rows: int, smallest: int) -> int:
    """0 up to `smallest` rows, one more for every factor of `FANOUT`."""
    return (((max(rows, 1) - 1) // smallest).bit_length() + 1) // 2


def _bisect(values: pa.ChunkedArray, order: npt.NDArray[np.uint32], ordering: Ordering, wanted: Codes) -> Indices:
    """For each wanted code how many rows come before it."""
    return bisect(len(wanted), len(order), lambda at: ordering.codes(gather(values, pa.array(order[at]))) < wanted)
