"""One driver slice on its way through the other inputs.

Rows of equal key travel as one group, so a probe costs one look-up per distinct key, and a group that an input has no
match for goes no further. What is kept on the way are index vectors: per probed input the numbers of the matching rows
and their groups. Combinations are only counted here; `combinations` enumerates them at the end.

    driver slice    keys  7 7 8 9     groups 0 (7, two rows), 1 (8), 2 (9)
    probe B         B has 7 7 9       rows [0, 1, 2] of B, groups [0, 0, 2]; group 1 stops here
    probe C         C has 9           rows [0] of C, group [2]; group 0 stops here
    matches         group 2: 1 x 1 x 1 combinations

Where an optional input is known to have no row of a key, its group goes on without: the input counts as one row, the
absent one, whose number is ABSENT.

Hashes find candidates, keys decide: within one probe all rows of equal hash must have equal keys, so a slice with
colliding keys is split into layers first (`key_layers`), and every match is compared with its group's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, take
from watersmeet.columns.matching import equal_keys
from watersmeet.multiway.hash_table import Mask, Probed, find

ABSENT = -1  # the number of the row that stands for none, in a combination without a row of an optional input


@dataclass(frozen=True)
class Matches:
    """Rows of one input in order of groups: group g has `rows[begins[g] : begins[g] + counts[g]]` of `table`."""

    table: pa.Table
    rows: Indices
    begins: Indices
    counts: Indices
    fresh: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))  # which rows of the table came in this batch


@dataclass(frozen=True)
class _Part:
    """What one table of a probed input contributes: its matching rows, and the group of each."""

    table: pa.Table
    groups: Indices
    rows: Indices
    is_fresh: bool


class Probe:
    """A slice of a driver whose rows of equal hash have equal keys."""

    def __init__(self, buffer: pa.Table, rows: Indices, hashes: Hashes) -> None:
        self.buffer = buffer
        self.rows = rows
        self.begins, self.counts = groups_of(hashes)
        self.hashes = hashes[self.begins]
        self.alive: Indices = np.arange(len(self.begins))  # groups that every input so far had a match for
        self.combinations = self.counts.astype(np.float64)  # per group alive; not integers, which could overflow
        self.looked_up = 0
        self._parts: dict[int, list[_Part]] = {}

    @property
    def needles(self) -> Hashes:
        """The hashes of the groups alive, ascending."""
        return self.hashes[self.alive]

    def visit(self, index: int, table: Probed, may_lack: Mask | None = None) -> float:
        """Look up all groups alive in input `index`; returns how many rows of the slice found a match.

        `may_lack` are the groups alive that go on if they find none: it is known that they never will.
        """
        found = self.look_up(index, table)
        hit = found > 0
        hits = float(self.counts[self.alive[hit]].sum())
        staying = hit if may_lack is None else hit | may_lack
        self._keep(staying, np.maximum(found[staying], 1))
        return hits

    def lack(self, index: int, table: Probed) -> None:
        """Only groups go on that have no row in input `index`."""
        found = self.look_up(index, table)
        self._keep(found == 0)
        self._parts[index] = []

    def _keep(self, staying: Mask, times: Indices | int = 1) -> None:
        self.alive = self.alive[staying]
        self.combinations = self.combinations[staying] * times

    def look_up(self, index: int, table: Probed) -> Indices:
        """Note the rows of input `index` that match; returns how many each group alive has."""
        needles = self.needles
        self.looked_up += len(needles)
        found = np.zeros(len(needles), np.int64)
        parts = self._parts.setdefault(index, [])
        for rows_of, mask, is_page, is_fresh in table.parts(needles):
            i, rows = find(needles, rows_of, mask)
            if not len(i):
                continue
            groups = self.alive[i]
            same = equal_keys(self.buffer, self.rows[self.begins[groups]], rows_of, rows)
            if not same.all():
                i, groups, rows = i[same], groups[same], rows[same]
            found += np.bincount(i, minlength=len(needles))
            if is_page:
                rows_of, rows = take(rows_of, rows), np.arange(len(rows))
            parts.append(_Part(rows_of, groups, rows, is_fresh))
        return found

    @property
    def size(self) -> float:
        """How many combinations there are of the inputs visited so far."""
        return float(self.combinations.sum())

    def driver_matches(self, *, is_fresh: bool = True) -> Matches:
        """The slice's own rows, of the groups still alive."""
        fresh = np.broadcast_to(np.bool_(is_fresh), self.buffer.num_rows)
        return Matches(self.buffer, self.rows, self.begins[self.alive], self.counts[self.alive], fresh)

    def matches(self, index: int, columns: Sequence[str], *, with_absent: bool = True) -> Matches:
        """The rows of a visited input that belong to groups still alive.

        Rows out of several runs are brought together in one table: these rows alone, and no more often than once.
        A group that goes on without a row has the absent one, unless it is to have none.
        """
        found = self._brought_together(index, columns)
        return _with_absent(found) if with_absent else found

    def _brought_together(self, index: int, columns: Sequence[str]) -> Matches:
        place = np.full(len(self.begins), -1, np.int64)
        place[self.alive] = np.arange(len(self.alive))
        tables, chosen, groups, fresh = [], [], [], []
        for part in self._parts[index]:
            group = place[part.groups]
            kept = group >= 0
            if kept.any():
                tables.append(part.table)
                chosen.append(part.rows[kept])
                groups.append(group[kept])
                fresh.append(part.is_fresh)
        if not tables:
            none = np.zeros(len(self.alive), np.int64)
            return Matches(pa.table({}), np.empty(0, np.int64), none, none)
        counts = np.bincount(np.concatenate(groups), minlength=len(self.alive))
        begins = np.cumsum(counts) - counts
        if len(tables) == 1:
            return Matches(tables[0], chosen[0], begins, counts, np.broadcast_to(fresh[0], tables[0].num_rows))
        together = pa.concat_tables(
            [take(table.select(columns), rows) for table, rows in zip(tables, chosen, strict=True)]
        )
        rows = np.argsort(np.concatenate(groups), kind="stable")
        came = np.repeat(fresh, [len(some) for some in chosen])
        return Matches(together.combine_chunks(), rows, begins, counts, came)


def _with_absent(matches: Matches) -> Matches:
    """The same, with the absent row for the groups that have none."""
    lacking = matches.counts == 0
    if not lacking.any():
        return matches
    rows = np.append(matches.rows, ABSENT)
    begins, counts = np.where(lacking, len(matches.rows), matches.begins), np.where(lacking, 1, matches.counts)
    return Matches(matches.table, rows, begins, counts, matches.fresh)


def groups_of(hashes: Hashes) -> tuple[Indices, Indices]:
    """Begin and length of each stretch of equal values in sorted hashes."""
    begins = np.flatnonzero(np.concatenate(([True], hashes[1:] != hashes[:-1]))[: len(hashes)])
    return begins, np.diff(begins, append=len(hashes))


def key_layers(buffer: pa.Table, rows: Indices, hashes: Hashes) -> Iterator[Probe]:
    """Probes that together cover the slice, such that within one of them equal hashes mean equal keys.

    There is one, unless different keys collide; then the first key of every hash goes first, the second next.
    """
    while len(rows):
        begins, counts = groups_of(hashes)
        same: npt.NDArray[np.bool_] = np.ones(len(rows), np.bool_)
        if len(begins) < len(rows):
            same = equal_keys(buffer, rows, buffer, np.repeat(rows[begins], counts))
        if same.all():
            yield Probe(buffer, rows, hashes)
            return
        yield Probe(buffer, rows[same], hashes[same])
        rows, hashes = rows[~same], hashes[~same]
