"""Combinations that are not found by a new row: what rows on disk are owed, and what lacks an optional input that ends.

Rows of one key are results with the same inputs absent: all inputs of which it is known that they have no row of the
key. So keys fall into classes by what they lack. The keys of a class are joined over the other inputs, and a generation
that was reported before all of what they lack was known owes them the combinations of its own rows, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, hashes_of
from watersmeet.columns.matching import BLOCK_ROWS
from watersmeet.estimate.selectivity import Selectivities
from watersmeet.multiway.absence import Absence, Inputs, Known
from watersmeet.multiway.hash_table import HashTable, Mask, Probed, Together
from watersmeet.multiway.origins import Term, owed
from watersmeet.multiway.probe import Probe, key_layers
from watersmeet.multiway.probe_order import probe_order
from watersmeet.multiway.results import Results
from watersmeet.plan.metrics import Metrics

NOTHING: Inputs = frozenset()

Generation = Sequence[Sequence[pa.Table]]  # by input, the tables of each generation
MayLack = Callable[[int, Hashes], Mask | None]


class Debts:
    """Joins what is owed. The limit of results is counted anew for every call."""

    def __init__(self, results: Results, estimates: Selectivities, absence: Absence, metrics: Metrics) -> None:
        self.results, self.estimates = results, estimates
        self.absence, self.metrics = absence, metrics

    def of_generations(self, generations: Generation, known: Known, allowed: int) -> Iterator[pa.Table]:
        """What generations that are merged owe each other, and what they lack as far as it is known only now."""
        everything = [Together(tables) for tables in generations]
        for lacking in self._classes(generations, everything, known.lacking):
            unreported = [at for at, before in enumerate(known.reported) if not lacking <= before] if lacking else []
            for term in owed(generations, lacking, unreported):
                for table in self._term(term, lacking, everything, allowed):
                    allowed -= table.num_rows
                    yield table

    def _classes(self, generations: Generation, everything: Sequence[Probed], known: Inputs) -> Iterator[Inputs]:
        """Of the inputs that keys may lack, all sets that some key does."""
        if not known:
            yield NOTHING
            return
        found: set[Inputs] = set()
        for table in generations[self.absence.required[0]]:
            for probe in key_layers(table, np.arange(table.num_rows), hashes_of(table)):
                found |= {frozenset(lacking) for lacking in self._lacking(probe, everything, sorted(known))}
        yield from sorted(found, key=sorted)

    def _lacking(self, probe: Probe, everything: Sequence[Probed], known: Sequence[int]) -> Iterator[list[int]]:
        """The sets of inputs that the keys of a probe lack."""
        lacking = np.array([probe.look_up(index, everything[index]) == 0 for index in known])
        for pattern in np.unique(lacking, axis=1).T:
            yield [index for index, lacks in zip(known, pattern, strict=True) if lacks]

    def _term(self, term: Term, lacking: Inputs, everything: Sequence[Probed], allowed: int) -> Iterator[pa.Table]:
        tables = [Together(tables) for tables in term.tables]
        sizes = [sum(table.num_rows for table in mine) for mine in term.tables]
        others = [index for index in probe_order(term.driver, sizes, self.estimates) if index not in lacking]
        for probe in key_layers(term.table, np.arange(term.table.num_rows), hashes_of(term.table)):
            for index in sorted(lacking):
                probe.lack(index, everything[index])
            for table in self._complete(probe, term.driver, others, tables, allowed):
                allowed -= table.num_rows
                yield table

    def of_end(self, index: int, tables: Sequence[HashTable], allowed: int) -> Iterator[pa.Table]:
        """An optional input ends: the combinations in memory that lack it, where all of its rows are in memory."""
        sizes = [table.resident_rows for table in tables]
        driver = min(self.absence.required, key=lambda one: (sizes[one], one))
        others = [other for other in probe_order(driver, sizes, self.estimates) if other != index]
        for table, mask, *_ in tables[driver].resident():
            hashes = hashes_of(table)
            rows = np.arange(table.num_rows) if mask is None else np.flatnonzero(mask)
            rows = rows[self.absence.in_view(index, hashes[rows])]
            for start in range(0, len(rows), BLOCK_ROWS):
                some = rows[start : start + BLOCK_ROWS]
                for probe in key_layers(table, some, hashes[some]):
                    probe.lack(index, tables[index])
                    for found in self._complete(probe, driver, others, tables, allowed, self.absence.may_lack):
                        allowed -= found.num_rows
                        yield found

    def _complete(
        self,
        probe: Probe,
        driver: int,
        others: Iterable[int],
        tables: Sequence[Probed],
        allowed: int,
        may_lack: MayLack | None = None,
    ) -> Iterator[pa.Table]:
        """Visit the other inputs, and build what there is."""
        for index in others:
            if not len(probe.alive):
                break
            probe.visit(index, tables[index], may_lack(index, probe.needles) if may_lack else None)
        self.metrics.count("lookups", probe.looked_up)
        yield from self.results.of(probe, driver, allowed)
