"""The master rows of keys that belong to another partition: for rows of hot keys that are sent here.

    own chunks            0         1         2          as ever: their number, their order, their lowest hashes
    rows of guests        .         7 7       .          taken from where the table has them, when chunk 1 goes by

In the layout "hash" the rows of a key go by with the own chunk whose range has its hash, in the layout "arrival" chunk
j of another part of the table with own chunk j mod k. Either way each goes by once in a cycle, and always with the same
chunk. So nothing else of a generation depends on which keys are here: rows that wait, rows that are collected, and what
is known of chunks go on when a key comes or is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, hashes_of, merge_by_hash, take
from watersmeet.columns.matching import ranges
from watersmeet.columns.partitions import partition_of
from watersmeet.semistream.master_table import MasterPartition, MasterTable


@dataclass
class HostingPartition(MasterPartition):
    """A partition's share of a version, and the rows of some keys (sorted) of other parts."""

    own: MasterPartition = field(kw_only=True)
    guests: list[tuple[MasterPartition, Hashes]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Those of its own keys."""
        return self.own.rows

    @property
    def nbytes(self) -> int:
        """Bytes of its own keys' rows."""
        return self.own.nbytes

    def read(self, index: int) -> pa.Table:
        """An own chunk, with what guests have to go by with it."""
        return merge_by_hash([self.own.read(index), *self._of_guests(index)])

    def _of_guests(self, index: int) -> Iterator[pa.Table]:
        for part, keys in self.guests:
            wanted = keys if self.layout == "arrival" else keys[self.chunk_of(keys) == index]
            if not len(wanted):
                continue
            if self.layout == "arrival":
                chunks = range(index, part.count, self.count)
            else:
                chunks = np.unique(part.chunk_of(wanted)).tolist()
            for number in chunks:
                table = part.read(number)
                low, high = (np.searchsorted(hashes_of(table), wanted, side=side) for side in ("left", "right"))
                if bool(np.any(high > low)):
                    yield take(table, ranges(low, high))


def hosting(table: MasterTable, own: MasterPartition, number: int, keys: Hashes) -> MasterPartition:
    """The share of a version with the rows of keys that are not among those of `own`."""
    parts = partition_of(keys, table.parts(number, own.master))
    beyond = [part for part in np.unique(parts).tolist() if part not in own.numbers]
    if not beyond:
        return own
    guests = [(table.partition(number, part, own.master), np.sort(keys[parts == part])) for part in beyond]
    shared = (own.directory, own.master, own.version, own.layout, own.schema, own.chunks, own.numbers)
    return HostingPartition(*shared, own=own, guests=guests)
