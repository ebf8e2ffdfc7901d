"""Votes: which rows that lie in several partitions match nothing in any of them.

A row of a hot key is copied to all partitions that have rows of the other input. If nothing matches it, it must be
emitted once, and no partition alone knows. So when it leaves, each of them says what it knows, and a second step of the
same micro-batch judges:

    row r of key 7, copied      home, partition 2       partition 0        partition 5        emitted
      matched nowhere           candidate               -                  -                  r
      matched at 5              candidate               -                  matched, by 5      nothing
      matched at home           matched, by 2           -                  matched, by 5      nothing

A vote is an output row with three more columns: by whom (of a candidate a negative number, which says its home), and
the 128 bits of what the row contains (`columns.contents`). A candidate is the row that would be emitted; of other votes
nothing else is there. In results the first of these columns is null.

**Equal rows.** Rows that are equal in all columns leave in the same batch in every partition, which says how many of
them have matched. Those are the ones that came first: what a later one finds, an earlier one has found, or finds as
well, because they expire together. So the rows that have matched in one partition are among those that have matched in
another, or the other way round. With c candidates and m matched rows at home, and m_p matched in partition p, c + m
rows have left, the first max(m, m_p) of them have matched, and c + m - max(m, m_p) are emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, numpy_of, take
from watersmeet.columns.contents import identities
from watersmeet.columns.partitions import partition_of
from watersmeet.plan import JoinPlan
from watersmeet.plan.metrics import Metrics
from watersmeet.state.rules import Mask

WIDTH = 3  # columns of a vote: by whom, and both halves of the row's identity
_KINDS = (pa.int32(), pa.int64(), pa.int64())

Ints = npt.NDArray[np.int64]

# From a table and the numbers of its rows to output rows, in the same order.
Made = Callable[[pa.Table, Indices], Iterable[pa.Table]]


def vote_names(names: Iterable[str]) -> list[str]:
    """Names of the columns of a vote beside output columns, whose names they are not, in capitals or small.

    >>> vote_names(["k", "_vote_By"])
    ['__vote_by', '__vote_high', '__vote_low']
    """
    taken, prefix = {name.lower() for name in names}, "_"
    while any(name.startswith(f"{prefix}vote_") for name in taken):
        prefix += "_"
    return [f"{prefix}vote_{part}" for part in ("by", "high", "low")]


def ballot_schema(results: pa.Schema) -> pa.Schema:
    """The schema of results among which there are votes."""
    names = vote_names(results.names)
    return pa.schema([*results, *(pa.field(name, kind) for name, kind in zip(names, _KINDS, strict=True))])


def no_votes(results: pa.Table, partition: int) -> pa.Table:
    """Results of a partition as they are among votes. In place of an identity they have the partition, where they stay
    when votes are sent to those who judge."""
    rows = results.num_rows
    columns = [pa.nulls(rows, _KINDS[0]), pa.array(np.full(rows, partition, np.int64)), pa.nulls(rows, _KINDS[2])]
    return pa.Table.from_arrays([*results.columns, *columns], schema=ballot_schema(results.schema))


def by_home(partition: int) -> int:
    """Who votes, when the home of a row says that it is a candidate. The number of a partition alone says that the row
    has matched there.

    >>> by_home(0), by_home(2), home_of_candidate(by_home(2))
    (-1, -3, 2)
    """
    return -1 - partition


def home_of_candidate(by: Any) -> Any:
    """The home of a row, given who says that it is a candidate."""
    return -1 - by


@dataclass
class Ballots:
    """The votes of one partition in one batch.

    keys       by input, sorted: those of which rows lie, or have been, in other partitions, too
    contents   by input, the columns that tell its rows apart
    """

    plan: JoinPlan
    partition: int
    metrics: Metrics
    keys: Mapping[str, Hashes]
    cast: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.contents = {spec.name: spec.schema.names[1:] for spec in self.plan.inputs}
        self.results = pa.schema([column.field for column in self.plan.output])

    def voted(self, name: str, table: pa.Table, rows: Indices) -> Mask:
        """On which of some rows of an input partitions vote."""
        keys = self.keys.get(name)
        return np.zeros(len(rows), np.bool_) if keys is None else np.isin(hashes_of(table)[rows], keys)

    def unmatched(self, name: str, table: pa.Table, rows: Indices, made: Made) -> Indices:
        """Rows leave that never matched here. Returns those on which nobody votes; of the others the home says that
        they are candidates."""
        voted = self.voted(name, table, rows)
        if not voted.any():
            return rows
        mine = rows[voted]
        mine = mine[partition_of(hashes_of(table)[mine], self.plan.partitions) == self.partition]
        self.metrics.count(f"candidates.{name}", len(mine))
        start = 0
        for found in made(table, mine) if len(mine) else ():
            self._cast(found, by_home(self.partition), name, table, mine[start : start + found.num_rows])
            start += found.num_rows
        return rows[~voted]

    def matched(self, name: str, table: pa.Table, rows: Indices) -> None:
        """Rows leave that have matched here."""
        mine = rows[self.voted(name, table, rows)]
        if not len(mine):
            return
        self.metrics.count(f"vetoes.{name}", len(mine))
        nothing = [pa.nulls(len(mine), one.type) for one in self.results]
        self._cast(pa.Table.from_arrays(nothing, schema=self.results), self.partition, name, table, mine)

    def _cast(self, results: pa.Table, by: int, name: str, table: pa.Table, rows: Indices) -> None:
        identity = identities(take(table.select(self.contents[name]), rows).columns)
        votes = [pa.array(np.full(len(rows), by, np.int32)), *(pa.array(half.view(np.int64)) for half in identity)]
        self.cast.append(pa.Table.from_arrays([*results.columns, *votes], schema=ballot_schema(self.results)))


@dataclass
class Judge:
    """Takes results with votes among them: results go on as they are, votes wait until all have come.

    >>> rows = pa.schema([("k", pa.int64())])
    >>> came = pa.table([[1, 2, 3], [None, -1, -1], [0, 7, 8], [None, 7, 8]], schema=ballot_schema(rows)).to_batches()
    >>> veto = pa.table([[None], [4], [8], [8]], schema=ballot_schema(rows)).to_batches()
    >>> judge = Judge()
    >>> [table.to_pydict() for batch in [*came, *veto] for table in judge.results(batch)], judge.verdict().to_pydict()
    ([{'k': [1]}], {'k': [2]})
    """

    votes: list[pa.RecordBatch] = field(default_factory=list)

    def results(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The results of a batch, if there are any."""
        by = batch.column(batch.num_columns - WIDTH)
        if by.null_count < len(by):
            self.votes.append(batch.filter(pc.is_valid(by)))
            batch = batch.filter(pc.is_null(by))
        if batch.num_rows:
            yield batch.select(range(batch.num_columns - WIDTH))

    def verdict(self) -> pa.Table:
        """The rows that are emitted, when all votes on them are there; nothing without a vote."""
        return judged(pa.Table.from_batches(self.votes)) if self.votes else pa.table({})


def judged(table: pa.Table) -> pa.Table:
    """The rows to be emitted, given all votes of a batch on them: candidates less those that have matched elsewhere.

    The order in which votes come makes no difference.
    """
    if not table.num_rows:
        return table.select(range(table.num_columns - WIDTH))
    by, *identity = (numpy_of(column) for column in table.columns[-WIDTH:])
    order = np.lexsort((by, *reversed(identity)))
    by, identity = by[order], [half[order] for half in identity]
    first = _changes(*identity)  # the first vote on each row: of the candidates, if there are any
    starts = np.flatnonzero(first | _changes(by))  # the first vote of each voter on it, and so many are equal
    counts, voters, rows = np.diff(starts, append=len(by)), by[starts], (np.cumsum(first) - 1)[starts]
    has_matched = voters >= 0
    home = home_of_candidate(by[first])
    matched, at_home = np.zeros(len(home), np.int64), np.zeros(len(home), np.int64)
    np.maximum.at(matched, rows[has_matched], counts[has_matched])
    own = has_matched & (voters == home[rows])
    at_home[rows[own]] = counts[own]
    candidates = np.where(by[first] < 0, counts[first[starts]], 0)
    emitted = np.maximum(candidates + at_home - matched, 0)
    places = np.repeat(np.flatnonzero(first) - np.cumsum(emitted) + emitted, emitted) + np.arange(emitted.sum())
    return take(table.select(range(table.num_columns - WIDTH)), order[places])


def _changes(*columns: Ints) -> Mask:
    """Where a row of sorted columns differs from the one before."""
    found = np.ones(len(columns[0]), np.bool_)
    found[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return found
