"""Reading sorted pages: several small ones of a run as one, or those of several runs side by side.

Side by side it is a stretch of the hash at a time, so that memory holds no more than a step's rows:

hashes    |----------|----------|----------|----------|      steps
source a  a1 a2        a3   ...                              pages, each read when a step reaches it
source b  b1           b2   ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, hashes_of
from watersmeet.state.parts import Part


@dataclass
class Cursor:
    """Rows sorted by hash, in pages that are read one after the other."""

    pages: Iterator[pa.Table]
    pages_read: int = 0
    _table: pa.Table | None = None
    _hashes: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    _position: int = 0

    def below(self, bound: int | None) -> list[pa.Table]:
        """The rows with a hash below `bound` that were not handed over yet; all that are left if there is none."""
        found = []
        while self._table is not None or self._next_page():
            assert self._table is not None
            stop = len(self._hashes) if bound is None else int(np.searchsorted(self._hashes, np.uint64(bound)))
            if stop > self._position:
                found.append(self._table.slice(self._position, stop - self._position))
            self._position = stop
            if stop < len(self._hashes):
                break
            self._table = None
        return found

    def _next_page(self) -> bool:
        self._table = next(self.pages, None)
        if self._table is None:
            return False
        self.pages_read += 1
        self._hashes, self._position = hashes_of(self._table), 0
        return True


def steps(low: int, high: int, rows: int, step_rows: int) -> list[int | None]:
    """Bounds that cut the hashes from `low` to `high` into steps of about `step_rows` of `rows` rows; the last is open.

    >>> steps(0, 100, rows=40, step_rows=10)
    [25, 50, 75, None]
    """
    count = max(1, -(-rows // max(1, step_rows)))
    return [low + (high - low) * number // count for number in range(1, count)] + [None]


def together(pages: Iterable[Part], most: int) -> Iterator[Part]:
    """Pages of one run, those that lie one after the other as one part of at most `most` rows: what a probe costs
    however few the rows is paid once. A part is in the order of the hash, as buckets and their pages are."""
    some: list[Part] = []
    rows = 0
    for page in pages:
        if some and (some[0].base + rows != page.base or rows + page.table.num_rows > most):
            yield _joined(some)
            some, rows = [], 0
        some.append(page)
        rows += page.table.num_rows
    if some:
        yield _joined(some)


def _joined(pages: list[Part]) -> Part:
    if len(pages) == 1:
        return pages[0]
    return replace(pages[0], table=pa.concat_tables([page.table for page in pages]).combine_chunks())
