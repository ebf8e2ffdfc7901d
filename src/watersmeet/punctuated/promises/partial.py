"""Punctuations that a join upstream emits once per partition: they hold when all partitions have emitted them.

The join upstream may be divided into another number of partitions meanwhile. Part 1 of 2 is what parts 1 and 3 of 4
are together: a punctuation holds when the parts that have emitted it leave no key out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import Indices, numpy_of, sort_by_hash, take
from watersmeet.columns.grouping import first_of_each, group_ids
from watersmeet.punctuated.promises.intervals import Mask
from watersmeet.punctuated.promises.patterns import normalised, pattern_ids
from watersmeet.state.side_table import SideTable


class PartialPromises:
    """Punctuations of which some parts are still missing: a join upstream emits a pattern once per partition."""

    def __init__(self, name: str, kinds: Sequence[pa.DataType]) -> None:
        self.label = f"{name}.partial"
        self.kinds = tuple(kinds)
        self.table: pa.Table | None = None  # of the parts that have come; few inputs ever have any
        self._saved: SideTable | None = None

    def complete(self, table: pa.Table) -> pa.Table:
        """The punctuations that hold now; the others are kept until their missing parts come."""
        table = normalised(table, self.kinds)
        partial = numpy_of(pc.fill_null(pc.greater(table.column("_parts"), 1), False)).astype(np.bool_)
        if not partial.any():
            return table
        whole = table.filter(pa.array(~partial))
        held = table.filter(pa.array(partial))
        if self.table is not None:
            held = pa.concat_tables([self.table, held])
        ids = pattern_ids(held)
        said = group_ids([pa.chunked_array([pa.array(ids)]), held.column("_part"), held.column("_parts")])
        distinct = first_of_each(said)
        number, parts = (numpy_of(held.column(name)).astype(np.int64) for name in ("_part", "_parts"))
        done = _complete(ids[distinct], number[distinct], parts[distinct])[ids]
        once: Mask = np.zeros(len(ids), np.bool_)
        once[first_of_each(ids)] = True
        self.table, self._saved = take(held, distinct[~done[distinct]]), None
        return pa.concat_tables([whole, held.filter(pa.array(done & once))])

    def save(self) -> dict[str, SideTable]:
        """The parts kept."""
        if self._saved is None and self.table is not None and self.table.num_rows:
            self._saved = SideTable.of(sort_by_hash(self.table))
        return {} if self._saved is None else {self.label: self._saved}

    def restore(self, tables: Mapping[str, SideTable]) -> None:
        """What `save` returned; tables of other names are passed over."""
        if self.label in tables:
            self._saved = tables[self.label]
            self.table = self._saved.table


def _complete(ids: Indices, number: Indices, parts: Indices) -> Mask:
    """For each pattern whether the different parts of it leave no key out."""
    count = int(ids.max()) + 1
    most = np.zeros(count, np.int64)
    np.maximum.at(most, ids, parts)
    done = np.bincount(ids, minlength=count) >= most
    for mixed in np.unique(ids[parts != most[ids]]).tolist():
        mine = ids == mixed
        keys = np.arange(np.lcm.reduce(parts[mine]))
        done[mixed] = bool(np.logical_or.reduce(keys % parts[mine, None] == number[mine, None]).all())
    return done
