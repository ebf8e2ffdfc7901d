"""Pairs of new and stored rows with equal keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from watersmeet.columns.arrow import Indices
from watersmeet.columns.matching import matches
from watersmeet.state.parts import Part


def probe(table: pa.Table, parts: Iterable[Part]) -> Iterator[tuple[Part, Indices, Indices]]:
    """Pairs of rows of a hash-sorted table and living rows of hash-sorted parts with equal keys, in blocks."""
    if not table.num_rows:
        return
    for part in parts:
        for i, j in matches(table, part.table):
            alive = part.alive(j)
            if alive is not None:
                i, j = i[alive], j[alive]
            if len(i):
                yield part, i, j
