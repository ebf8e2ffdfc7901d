"""Finding the stored rows that promises cover, without looking at all of them.

A single key is found by its hash, a range by binary search in an order of the values: row numbers by the value of a key
column, made when a range is first looked up in a run and kept with it. So a purge costs what it purges.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Indices, gather, key_name, numpy_of
from watersmeet.columns.matching import ranges
from watersmeet.join.probe import probe
from watersmeet.punctuated.promises.codes import Codes, argsort
from watersmeet.punctuated.promises.intervals import Intervals, Mask
from watersmeet.punctuated.promises.ordering import Ordering
from watersmeet.punctuated.promises.punctuation import Delta
from watersmeet.state.parts import Part
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run

SCAN_ROWS = 4096  # up to this length looking at every row is cheaper than an order

Found = list[tuple[Part, Indices]]  # rows of parts, ascending and alive


def has_keys(store: RowStore, table: pa.Table) -> Mask:
    """Which rows of a hash-sorted table have a row in memory with their key."""
    found = np.zeros(table.num_rows, np.bool_)
    for _, i, _ in probe(table, store.parts()):
        found[i] = True
    return found


def with_keys(store: RowStore, keys: pa.Table) -> Found:
    """Rows in memory whose keys are among those of a hash-sorted table."""
    found: dict[int, tuple[Part, list[Indices]]] = {}
    for part, _, j in probe(keys, store.parts()):
        found.setdefault(id(part), (part, []))[1].append(j)
    return [(part, np.unique(np.concatenate(rows))) for part, rows in found.values()]


def within(store: RowStore, column: int, pieces: Intervals) -> Found:
    """Rows in memory whose value in a key column lies in one of some disjoint intervals."""
    return [found for run in store.resident for found in _within(store, run, column, pieces)]


def everything(store: RowStore) -> Found:
    """All rows in memory."""
    return [(part, np.arange(part.table.num_rows) if part.living is None else part.living) for part in store.parts()]


def covered(store: RowStore, delta: Delta) -> Iterator[Found]:
    """Rows in memory that new promises may cover."""
    if delta.everything:
        yield everything(store)
        return
    if delta.points is not None:
        yield with_keys(store, delta.points)
    for column, pieces in delta.ranges.items():
        yield within(store, column, pieces)


def _within(store: RowStore, run: Run, column: int, pieces: Intervals) -> Iterator[tuple[Part, Indices]]:
    name = key_name(column)
    ordering = Ordering(store.schema.field(name).type)
    if run.stored_rows > SCAN_ROWS:
        numbers = _by_order(store, run, column, ordering, pieces)
    for part in store.parts([run]):
        if run.stored_rows > SCAN_ROWS:
            low, high = np.searchsorted(numbers, (part.base, part.base + part.table.num_rows))
            rows = numbers[low:high] - part.base
        else:
            rows = np.flatnonzero(pieces.find(ordering.codes(part.table.column(name))) >= 0)
        alive = part.alive(rows)
        rows = rows if alive is None else rows[alive]
        if len(rows):
            yield part, rows


def _by_order(store: RowStore, run: Run, column: int, ordering: Ordering, pieces: Intervals) -> Indices:
    """The numbers of a run's rows, dead ones too, whose values lie in the intervals."""
    values = run.table.column(key_name(column))

    def made() -> pa.Table:
        return pa.table({"_row": pa.array(argsort(ordering.codes(values)).astype(np.uint32))})

    order = numpy_of(store.side(run, f"order{column}", made).column("_row")).view(np.uint32)
    first = _bisect(values, order, ordering, pieces.low)
    last = np.where(pieces.endless, len(order), _bisect(values, order, ordering, pieces.high))
    return np.sort(order[ranges(first, last)]).astype(np.int64)


def _bisect(values: pa.ChunkedArray, order: npt.NDArray[np.uint32], ordering: Ordering, wanted: Codes) -> Indices:
    """For each wanted code how many rows come before it; all codes are searched at once, a step at a time."""
    low, high = np.zeros(len(wanted), np.int64), np.full(len(wanted), len(order), np.int64)
    while True:
        open_ = low < high
        if not open_.any():
            return low
        middle = (low + high) // 2
        rows = order[np.minimum(middle, len(order) - 1)]
        before = ordering.codes(gather(values, pa.array(rows))) < wanted
        low = np.where(open_ & before, middle + 1, low)
        high = np.where(open_ & ~before, middle, high)
