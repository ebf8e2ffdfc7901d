"""Punctuations that a join upstream says once per partition: they hold when all partitions have said them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import HASH, numpy_of, sort_by_hash, take
from watersmeet.columns.grouping import first_of_each, group_ids
from watersmeet.punctuated.promises.intervals import Mask
from watersmeet.punctuated.promises.patterns import normalised, punctuation_schema
from watersmeet.state.side_table import SideTable


class PartialPromises:
    """Punctuations of which some parts are still missing: a join upstream says a pattern once per partition."""

    def __init__(self, name: str, kinds: Sequence[pa.DataType]) -> None:
        self.label = f"{name}.partial"
        self.kinds = tuple(kinds)
        self.table = punctuation_schema(kinds).empty_table()
        self._saved: SideTable | None = None

    def complete(self, table: pa.Table) -> pa.Table:
        """The punctuations that hold now; the others are kept until their missing parts come."""
        table = normalised(table, self.kinds)
        partial = numpy_of(pc.fill_null(pc.greater(table.column("_parts"), 1), False)).astype(np.bool_)
        if not partial.any():
            return table
        whole = table.filter(pa.array(~partial))
        held = pa.concat_tables([self.table, table.filter(pa.array(partial))])
        names = [name for name in held.column_names if name not in (HASH, "_part", "_parts")]
        filled = [held.column(name) for name in names]
        ids = group_ids([_with_nulls(column) for column in filled])
        said = group_ids([pa.chunked_array([pa.array(ids)]), held.column("_part")])
        distinct = first_of_each(said)
        enough = np.bincount(ids[distinct], minlength=int(ids.max()) + 1)
        done = enough[ids] >= numpy_of(held.column("_parts"))
        once: Mask = np.zeros(len(ids), np.bool_)
        once[first_of_each(ids)] = True
        self.table, self._saved = take(held, distinct[~done[distinct]]), None
        return pa.concat_tables([whole, held.filter(pa.array(done & once))])

    def save(self) -> dict[str, SideTable]:
        """The parts kept."""
        if self._saved is None and self.table.num_rows:
            self._saved = SideTable.of(sort_by_hash(self.table))
        return {} if self._saved is None else {self.label: self._saved}

    def restore(self, tables: Mapping[str, SideTable]) -> None:
        """What `save` returned; tables of other names are passed over."""
        if self.label in tables:
            self._saved = tables[self.label]
            self.table = self._saved.table


def _with_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in which a null is a value of its own, so that rows can be grouped by it."""
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
    return pa.chunked_array([codes])
