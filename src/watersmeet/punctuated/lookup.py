"""Finding the stored rows that promises cover, without looking at all of them.

A single key is found by its hash, a range in a long run by binary search in an order of the values: row numbers by the
value of a key column, made when a range is first looked up in the run and kept with it. So a purge costs what it
purges, and at most the look at `SCAN_ROWS` rows for each run.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, gather, hashes_of, key_name, numpy_of
from watersmeet.columns.matching import ranges
from watersmeet.join.hand import probe
from watersmeet.punctuated.promises.codes import argsort, bisect, concatenated
from watersmeet.punctuated.promises.intervals import Intervals, Mask
from watersmeet.punctuated.promises.ordering import Ordering
from watersmeet.punctuated.promises.punctuation import Delta
from watersmeet.state.parts import Part
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run

# Up to this length looking at every row is cheaper than an order: a step of the search costs as much as looking at
# thousands of 64-bit codes, or at hundreds of texts.
SCAN_ROWS = 1 << 17
SCAN_TEXTS = 1 << 12

Found = list[tuple[Part, Indices]]  # rows of parts, ascending and alive


def has_keys(store: RowStore, table: pa.Table, *, on_disk: bool = False) -> Mask:
    """Which rows of a hash-sorted table have a stored row with their key: in memory, or on disk as well."""
    found = np.zeros(table.num_rows, np.bool_)
    for _, i, _ in probe(table, _parts(store, table, on_disk=on_disk)):
        found[i] = True
    return found


def with_keys(store: RowStore, keys: pa.Table, *, on_disk: bool = False) -> Found:
    """Stored rows whose keys are among those of a hash-sorted table."""
    found: dict[int, tuple[Part, list[Indices]]] = {}
    for part, _, j in probe(keys, _parts(store, keys, on_disk=on_disk)):
        found.setdefault(id(part), (part, []))[1].append(j)
    return [(part, np.unique(np.concatenate(rows))) for part, rows in found.values()]


def _parts(store: RowStore, keys: pa.Table, *, on_disk: bool) -> Iterator[Part]:
    """All rows in memory; on disk the pages of the buckets that some keys are in."""
    yield from store.parts()
    if on_disk and store.buckets is not None and (spilled := store.spilled):
        buckets = np.flatnonzero(np.diff(store.buckets.offsets(hashes_of(keys)))).tolist()
        for run in spilled:
            yield from store.pages(run, buckets)


def within(store: RowStore, column: int, pieces: Intervals, *, on_disk: bool = False) -> Found:
    """Stored rows whose value in a key column lies in one of some disjoint intervals."""
    found = [found for run in store.resident for found in _within(store, run, column, pieces)]
    ordering = Ordering(store.schema.field(key_name(column)).type)
    pages = (page for run in (store.spilled if on_disk else ()) for page in store.pages(run))
    return found + [one for page in pages if (one := _scanned(page, column, ordering, pieces)) is not None]


def everything(store: RowStore, *, on_disk: bool = False) -> Found:
    """All stored rows."""
    pages = (page for run in (store.spilled if on_disk else ()) for page in store.pages(run))
    return [
        (part, np.arange(part.table.num_rows) if part.living is None else part.living)
        for part in (*store.parts(), *pages)
    ]


def covered(store: RowStore, delta: Delta, *, on_disk: bool = False) -> Iterator[Found]:
    """Stored rows that new promises may cover: in memory, or on disk as well."""
    if delta.everything:
        yield everything(store, on_disk=on_disk)
        return
    if delta.points is not None:
        yield with_keys(store, delta.points, on_disk=on_disk)
    for column, pieces in delta.ranges.items():
        yield within(store, column, pieces, on_disk=on_disk)


def _within(store: RowStore, run: Run, column: int, pieces: Intervals) -> Iterator[tuple[Part, Indices]]:
    ordering = Ordering(store.schema.field(key_name(column)).type)
    if run.stored_rows <= (SCAN_TEXTS if ordering.is_text else SCAN_ROWS):
        yield from filter(None, (_scanned(part, column, ordering, pieces) for part in store.parts([run])))
        return
    numbers = _by_order(store, run, column, ordering, pieces)
    for part in store.parts([run]):
        low, high = np.searchsorted(numbers, (part.base, part.base + part.table.num_rows))
        found = _alive(part, numbers[low:high] - part.base)
        if found is not None:
            yield found


def _scanned(part: Part, column: int, ordering: Ordering, pieces: Intervals) -> tuple[Part, Indices] | None:
    return _alive(part, np.flatnonzero(pieces.find(ordering.codes(part.table.column(key_name(column)))) >= 0))


def _alive(part: Part, rows: Indices) -> tuple[Part, Indices] | None:
    alive = part.alive(rows)
    rows = rows if alive is None else rows[alive]
    return (part, rows) if len(rows) else None


def _by_order(store: RowStore, run: Run, column: int, ordering: Ordering, pieces: Intervals) -> Indices:
    """The numbers of a run's rows, dead ones too, whose values lie in the intervals."""
    values = run.table.column(key_name(column))

    def made() -> pa.Table:
        return pa.table({"_row": pa.array(argsort(ordering.codes(values)).astype(np.uint32))})

    order = numpy_of(store.side(run, f"order{column}", made).column("_row")).view(np.uint32)
    ends = concatenated([pieces.low, pieces.high])

    def is_before(at: Indices) -> Mask:
        return np.asarray(ordering.codes(gather(values, pa.array(order[at]))) < ends)

    first, last = np.split(bisect(len(ends), len(order), is_before), 2)
    last = np.where(pieces.endless, len(order), last)
    return np.sort(order[ranges(first, last)]).astype(np.int64)
