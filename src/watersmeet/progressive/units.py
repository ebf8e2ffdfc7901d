"""The rows of both inputs that are on disk (R_disk), bucket by bucket, and which of their runs match.

A flush writes one file per input with the pages of all buckets it took; a bucket's share of a file is a *segment*, the
paper's run of a disk partition. Segments are kept in **units**: all rows of a unit's left segment were joined with all
of its right one, in memory or in a merging operation, so the two are the paper's matching runs (5.2, Fig. 6).

    bucket 3    (12, 12)   (15, -)   (-, 17)   (21, 20)        numbers of runs, left and right, in the order of arrival

A flush adds one unit per bucket (rows flushed together were in memory together: HMJ's k1 = k2). A merging operation
takes several units, joins each left segment with the right segments of the *other* units, and leaves one unit.

Small runs of one input are also combined without a join, so that runs stay few while rows keep coming. That a flush
took two segments together says no more than the times of their rows: by these none of their pairs is new either
(`duplicates`). So a segment may leave a unit made by a flush, and be combined with others into a unit of its own. What
a merging operation has joined only its unit knows: its segments stay where they are.

    bucket 3    (12, 12)   (15, -)   (-, 17)   (21, 20)*       * from a merging operation
                (22, -)    (-, 12)   (-, 17)   (21, 20)*       12 and 15 of the left input combined into 22
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.state.parts import Part
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """A bucket's share of a spilled run."""

    store: RowStore
    run: Run
    bucket: int

    @property
    def pages(self) -> int:
        """How many pages it has."""
        return len(self.run.places[self.bucket].pages)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.run.places[self.bucket].rows

    def parts(self) -> Iterator[Part]:
        """The pages, in hash order."""
        return self.store.pages(self.run, [self.bucket])

    def read(self) -> Iterator[pa.Table]:
        """The rows, page by page, with their flags as they are now."""
        return (part.take(part.living) for part in self.parts())


@dataclass(frozen=True)
class Unit:
    """Segments that were joined with each other, by the numbers of their runs."""

    left: int | None
    right: int | None
    merged: bool = field(default=False, compare=False)  # made by a merging operation

    def __getitem__(self, index: int) -> int | None:
        return self.right if index else self.left


class Units:
    """R_disk of both inputs: which of the stores' segments have been joined."""

    def __init__(self, stores: tuple[RowStore, RowStore], buckets: int) -> None:
        self.stores = stores
        self.units: list[list[Unit]] = [[] for _ in range(buckets)]
        self.counts: Counts = np.zeros((2, buckets), np.int64)
        # The batch of the flush of the oldest rows on disk: rows that came before it were joined with all of it.
        self.flushed: Counts = np.full((2, buckets), -1, np.int64)
        self._extents: dict[tuple[int, int], tuple[int, int]] = {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take up what `save` returned."""
        self.units = [[Unit(left, right, bool(merged)) for left, right, merged in units] for units in saved["units"]]
        self.counts = np.array(saved["counts"], np.int64)
        self.flushed = np.array(saved["flushed"], np.int64)

    def save(self) -> dict[str, Any]:
        """The units, in JSON form; the runs are saved with their stores."""
        return {
            "units": [[[unit.left, unit.right, int(unit.merged)] for unit in units] for units in self.units],
            "counts": self.counts.tolist(),
            "flushed": self.flushed.tolist(),
        }

    def inherit(self, former: Units, numbers: tuple[Mapping[int, int], Mapping[int, int]]) -> None:
        """Take up the units of a former partition, whose runs have new `numbers` here; some hold nothing any more."""
        for bucket, units in enumerate(former.units):
            for unit in units:
                left, right = (self._taken(index, unit[index], bucket, numbers[index]) for index in (0, 1))
                if (left, right) != (None, None):
                    self.units[bucket].append(Unit(left, right, unit.merged))
            had = self.counts[:, bucket] > 0
            self._changed(bucket)
            for index in (0, 1):
                if self.counts[index, bucket] and former.counts[index, bucket]:
                    earlier = self.flushed[index, bucket] if had[index] else former.flushed[index, bucket]
                    self.flushed[index, bucket] = min(earlier, former.flushed[index, bucket])

    def _taken(self, index: int, serial: int | None, bucket: int, numbers: Mapping[int, int]) -> int | None:
        number = None if serial is None else numbers.get(serial)
        return number if number is not None and bucket in self.stores[index].run(number).places else None

    def add_unit(self, bucket: int, unit: Unit, batch: int) -> None:
        """Segments that were joined and flushed in a batch."""
        self.units[bucket].append(unit)
        for index in (0, 1):
            if unit[index] is not None and not self.counts[index, bucket]:
                self.flushed[index, bucket] = batch
        self._changed(bucket)

    def replace_units(self, bucket: int, parts: list[Unit], whole: Unit) -> None:
        """A merging operation made one unit of several; segments that are not part of it any more are dropped."""
        for index, store in enumerate(self.stores):
            gone = {serial for unit in parts if (serial := unit[index]) is not None} - {whole[index]}
            store.release(bucket, gone)
        rest = [unit for unit in self.units[bucket] if unit not in parts]
        self.units[bucket] = [*rest, whole] if (whole.left, whole.right) != (None, None) else rest
        self._changed(bucket)

    def loose(self, index: int) -> dict[int, list[int]]:
        """The runs of an input, oldest first, and the buckets in which their segments can be combined with others."""
        found: dict[int, list[int]] = {}
        for bucket, units in enumerate(self.units):
            for unit in units:
                if (serial := unit[index]) is not None and not unit.merged:
                    found.setdefault(serial, []).append(bucket)
        return dict(sorted(found.items()))

    def combine(self, index: int, parts: Mapping[int, Iterable[int]], whole: Run | None) -> None:
        """Segments of one input, by run and bucket, are now part of the run `whole`, as far as anything is left."""
        taken = {(serial, bucket) for serial, buckets in parts.items() for bucket in buckets}
        for bucket in sorted({bucket for _, bucket in taken}):
            units = []
            if whole is not None and bucket in whole.places:
                units.append(Unit(whole.id, None) if index == 0 else Unit(None, whole.id))
            for unit in self.units[bucket]:
                if (unit[index], bucket) not in taken:
                    units.append(unit)
                elif (partner := unit[1 - index]) is not None:
                    units.append(Unit(None, partner) if index == 0 else Unit(partner, None))
            self.units[bucket] = units
            self._changed(bucket)
        for serial, bucket in sorted(taken):
            self.stores[index].release(bucket, {serial})

    def segment(self, index: int, serial: int, bucket: int) -> Segment:
        """A bucket's share of a run."""
        return Segment(self.stores[index], self.stores[index].run(serial), bucket)

    def segments(self, index: int, bucket: int) -> list[Segment]:
        """All segments of one input in a bucket, the oldest first."""
        serials = (unit[index] for unit in self.units[bucket])
        return [self.segment(index, serial, bucket) for serial in serials if serial is not None]

    def extent(self, index: int, bucket: int) -> tuple[int, int]:
        """Segments and pages of one input in a bucket. Kept, because every task is weighed again after each task."""
        known = self._extents.get((index, bucket))
        if known is None:
            segments = self.segments(index, bucket)
            known = len(segments), sum(segment.pages for segment in segments)
            self._extents[index, bucket] = known
        return known

    def _changed(self, bucket: int) -> None:
        for index in (0, 1):
            self._extents.pop((index, bucket), None)
            self.counts[index, bucket] = sum(segment.rows for segment in self.segments(index, bucket))

    def unmatched_pairs(self, bucket: int, resident: tuple[int, int] = (0, 0)) -> int:
        """Pairs of rows that were not joined; `resident` rows count as one more unit."""
        left, right = (int(count) + held for count, held in zip(self.counts[:, bucket], resident, strict=True))
        joined = resident[0] * resident[1]
        for unit in self.units[bucket]:
            if unit.left is not None and unit.right is not None:
                joined += self.segment(0, unit.left, bucket).rows * self.segment(1, unit.right, bucket).rows
        return left * right - joined

    def release(self, bucket: int) -> None:
        """Nothing in a bucket is wanted any more."""
        self.units[bucket] = []
        self._changed(bucket)

    @property
    def nbytes(self) -> int:
        """Bytes on disk, before compression."""
        return sum(store.spilled_bytes for store in self.stores)
