"""Rows that memory had no room for: spilled bucket by bucket, both inputs together, and met again when there is time.

When a bucket is flushed, everything stored in it on both inputs goes to disk as one *generation*. Rows in memory have
met each other, so all pairs inside a generation are already out, and no pair of two generations is:

    bucket 5    generation 1    generation 4    in memory       owed: 1-4, 1-memory, 4-memory
                L  R            L  R            L  R

Merging a bucket reads its generations side by side in hash order, in slices that fit in memory, joins what is owed,
purges what has no future, and leaves the rest as one generation (or in memory, if there is room again). A row in memory
whose bucket has a part on disk may still owe results, so it is not purged before its bucket is merged.

Generations of similar size are merged in all their buckets as soon as there are `FANOUT` of them, whether or not there
is time: else a batch would cost more the more batches were before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.arrow import HASH, hashes_of, numpy_of
from watersmeet.punctuated.intervals import Mask
from watersmeet.state.buckets import Buckets
from watersmeet.state.run import Run
from watersmeet.state.space import RunSpace, SpillWriter, cut_into_pages
from watersmeet.state.tiers import due

SLICE_ROWS = 1 << 18

FANOUT = 4
SMALLEST = 1024  # generations up to so many rows count as equally large
LARGEST = 1 << 19  # rows that are merged at once: no batch stalls, and there are as many larger ones as the state needs

Generations = dict[str, list[pa.Table]]  # per input its generations' rows, oldest first, those in memory last


class Overflow:
    """The spilled generations of both inputs."""

    def __init__(self, schemas: Mapping[str, pa.Schema], buckets: Buckets, space: RunSpace) -> None:
        self.schemas = dict(schemas)
        self.buckets = buckets
        self.space = space
        self.runs: list[Run] = []
        self.generation = 0
        self.merged_at: dict[int, int] = {}  # bucket -> how many promises were known when it was last merged
        self._disk: dict[str, npt.NDArray[np.int64]] | None = None

    def rows_on_disk(self, name: str) -> npt.NDArray[np.int64]:
        """Spilled rows of an input, per bucket."""
        if self._disk is None:
            self._disk = {name: np.zeros(self.buckets.count, np.int64) for name in self.schemas}
            for run in self.runs:
                for bucket, place in run.places.items():
                    self._disk[_owner(run)][bucket] += place.rows
        return self._disk[name]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on disk."""
        return not self.runs

    def touches(self, name: str, table: pa.Table) -> Mask:
        """Which rows lie in a bucket of which `name` has a part on disk."""
        if self.is_empty:
            return np.zeros(table.num_rows, np.bool_)
        return np.asarray(self.rows_on_disk(name)[self.buckets.of(hashes_of(table))] > 0)

    def buckets_on_disk(self) -> list[int]:
        """The buckets that have a part on disk."""
        if self.is_empty:
            return []
        return np.flatnonzero(sum(self.rows_on_disk(name) for name in self.schemas)).tolist()

    def owes(self, table: pa.Table, resident: npt.NDArray[np.int64]) -> Mask:
        """Which rows lie in a bucket where results are still owed, given the rows in memory per bucket."""
        owing = np.zeros(self.buckets.count, np.bool_)
        for bucket in self.buckets_on_disk():
            owing[bucket] = self.is_owing(bucket, resident)
        return np.asarray(owing[self.buckets.of(hashes_of(table))])

    def is_owing(self, bucket: int, resident: npt.NDArray[np.int64]) -> bool:
        """Whether a bucket on disk has rows that have not met all others."""
        return bool(resident[bucket] > 0) or self.generations(bucket) > 1

    def generations(self, bucket: int) -> int:
        """How many generations a bucket has on disk."""
        return len({run.attributes["generation"] for run in self._with(bucket)})

    def pages(self, bucket: int) -> int:
        """How many pages a merge of the bucket reads."""
        return sum(len(run.places[bucket].pages) for run in self._with(bucket))

    def write(self, tables: Mapping[str, pa.Table], batch: int, *, new_generation: bool = True) -> int:
        """Spill hash-sorted rows of both inputs as one generation; returns how many."""
        self.generation += new_generation
        rows = 0
        for name, table in tables.items():
            if table.num_rows:
                pages = cut_into_pages(table, self.buckets)
                span: dict[str, Any] = {"oldest": batch, "newest": batch, "generation": self.generation}
                self.runs.append(self.space.spill(f"{name}.spilled", pages, **span))
                rows += table.num_rows
        self._disk = None
        return rows

    def retire(self, bucket: int) -> None:
        """Forget a bucket's pages; a run is let go when none of its buckets is left."""
        left = (run.without_bucket(bucket) for run in self.runs)
        self.runs, self._disk = [run for run in left if run.rows], None

    def due(self) -> list[int]:
        """Generations to merge now, because there are too many of their size."""
        rows: dict[int, int] = {}
        for run in self.runs:
            number = run.attributes["generation"]
            rows[number] = rows.get(number, 0) + run.rows
        numbers = sorted(rows)
        chosen = due([rows[number] for number in numbers], fanout=FANOUT, smallest=SMALLEST, largest=LARGEST)
        return [numbers[at] for at in chosen]

    def buckets_of(self, generations: Sequence[int]) -> dict[int, bool]:
        """The buckets of some generations, ascending, and whether a bucket has no other generation on disk."""
        inside: set[int] = set()
        outside: set[int] = set()
        for run in self.runs:
            (inside if run.attributes["generation"] in generations else outside).update(run.places)
        return {bucket: bucket not in outside for bucket in sorted(inside)}

    def of(self, generations: Sequence[int]) -> list[Run]:
        """The runs of some generations."""
        return [run for run in self.runs if run.attributes["generation"] in generations]

    def writer(self, name: str) -> SpillWriter:
        """Writes a run of an input, page by page."""
        return self.space.writer(f"{name}.spilled", self.schemas[name])

    def replace(self, generations: Sequence[int], made: Iterable[Run]) -> None:
        """Generations have become one."""
        self.runs = [*(run for run in self.runs if run.attributes["generation"] not in generations), *made]
        self._disk = None

    def slices(
        self, bucket: int, resident: Mapping[str, pa.Table], generations: Sequence[int] | None = None
    ) -> Iterator[Generations]:
        """A bucket's generations (all, unless some are named) in hash order, a stretch of the hash at a time."""
        runs = self._with(bucket)
        numbers = sorted({run.attributes["generation"] for run in runs} if generations is None else generations)
        cursors = {
            name: [
                [_Cursor(run, bucket) for run in runs if _owner(run) == name and run.attributes["generation"] == number]
                for number in numbers
            ]
            for name in self.schemas
        }
        rows = sum(run.places[bucket].rows for run in runs if run.attributes["generation"] in numbers)
        rows += sum(table.num_rows for table in resident.values())
        starts = dict.fromkeys(self.schemas, 0)
        for bound in [*self._cuts(bucket, -(-rows // SLICE_ROWS)), None]:
            tables: Generations = {}
            for name, schema in self.schemas.items():
                tables[name] = [_together([c.below(bound) for c in group], schema) for group in cursors[name]]
                table = resident[name]
                end = table.num_rows if bound is None else int(np.searchsorted(hashes_of(table), bound))
                tables[name].append(table.slice(starts[name], end - starts[name]))
                starts[name] = end
            yield tables

    def _cuts(self, bucket: int, count: int) -> list[np.uint64]:
        """Hashes that cut a bucket into `count` equal stretches."""
        bounds = [0, *self.buckets.bounds.tolist(), 1 << 64]
        low, high = bounds[bucket], bounds[bucket + 1]
        return [np.uint64(low + (high - low) * i // count) for i in range(1, count)]

    def _with(self, bucket: int) -> list[Run]:
        return [run for run in self.runs if bucket in run.places]

    def save(self) -> tuple[list[Run], dict[str, Any]]:
        """Runs and values."""
        merged = {str(bucket): at for bucket, at in self.merged_at.items()}
        return self.runs, {"generation": self.generation, "merged_at": merged}

    def restore(self, runs: Sequence[Run], values: dict[str, Any]) -> None:
        """What `save` returned; runs of other labels are passed over."""
        self.runs = [run for run in runs if run.tier == "spilled"]
        self.generation = values["generation"]
        self.merged_at = {int(bucket): at for bucket, at in values["merged_at"].items()}
        self._disk = None


class _Cursor:
    """Reads a bucket of a run page by page, up to a hash."""

    def __init__(self, run: Run, bucket: int) -> None:
        self._pages = run.read(bucket)
        self._rest: pa.Table | None = None

    def below(self, bound: np.uint64 | None) -> list[pa.Table]:
        """The rows not yet read with hashes below the bound; all that are left if there is none."""
        found: list[pa.Table] = []
        while True:
            table = self._rest if self._rest is not None else next(self._pages, None)
            self._rest = None
            if table is None:
                return found
            end = table.num_rows
            if bound is not None:
                end = int(np.searchsorted(numpy_of(table.column(HASH)), bound))
            found.append(table.slice(0, end))
            if end < table.num_rows:
                self._rest = table.slice(end)
                return found


def _owner(run: Run) -> str:
    return run.label.removesuffix(".spilled")


def _together(pieces: list[list[pa.Table]], schema: pa.Schema) -> pa.Table:
    """The pieces of one generation: its runs hold different stretches of the hash, written in hash order."""
    tables = [table for group in pieces for table in group if table.num_rows]
    return pa.concat_tables(tables).combine_chunks() if tables else schema.empty_table()
