"""Which combinations of flushed rows are still owed.

When memory is full, a bucket of ALL inputs is flushed together, as one *generation*. A row that arrives is joined with
what is in memory, and with nothing on disk. So a combination has been reported if and only if all its rows are of one
generation, where what is in memory now counts as one:

    bucket 5     generation 1     generation 4     in memory
                 a  b  c          a  b  c          a  b  c        reported: all within one of them
                                                                  owed: all that takes rows of two or more

Merging what is accumulated so far (M) with the next generation (G) must give the combinations with a row of each. In
such a combination let i be the first input whose row is not of the same origin as the row of input 1. There is exactly
one such i, from 2 to n; the rows before it are all of one origin, its own is of the other, those after it are of any:

    input     1   ...   i-1   i   i+1   ...   n
              M   M     M     G   M+G   M+G   M+G       for each i
              G   G     G     M   M+G   M+G   M+G

These 2(n - 1) terms are disjoint and leave nothing out: nothing is built only to be dropped, and nothing twice. For two
inputs they are M x G and G x M. Afterwards M and G together are one generation: all within it has been reported. So
generations may be merged in any order and in any groups, and every combination comes once.

A key that lacks an optional input is joined over the other inputs; a generation whose combinations have not been
reported without that input yet owes them all (see `absence`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa


def terms(inputs: int) -> Iterator[tuple[str, ...]]:
    """Where the rows of each input come from, term by term.

    >>> list(terms(2))
    [('M', 'G'), ('G', 'M')]
    >>> list(terms(3))
    [('M', 'G', 'MG'), ('G', 'M', 'MG'), ('M', 'M', 'G'), ('G', 'G', 'M')]
    """
    for first in range(1, inputs):
        for same, other in (("M", "G"), ("G", "M")):
            yield (same,) * first + (other,) + ("MG",) * (inputs - first - 1)


@dataclass(frozen=True)
class Term:
    """The tables of each input whose combinations are owed. One input has a single table: it drives."""

    driver: int
    tables: list[list[pa.Table]]

    @property
    def table(self) -> pa.Table:
        """The rows that drive."""
        return self.tables[self.driver][0]


def owed(
    generations: Sequence[Sequence[pa.Table]], lacking: Collection[int] = (), unreported: Collection[int] = ()
) -> Iterator[Term]:
    """The terms of several generations, given by input; those without a combination are left out.

    M is never built: it is the tables of the generations before. The rows of G drive, of the input with fewest of them.
    Inputs that are `lacking` take no part. Of the generations `unreported` the combinations within are owed as well.
    """
    inputs = [i for i in range(len(generations)) if i not in lacking]
    across = list(terms(len(inputs)))
    for at in range(len(generations[0])):
        before = [[table for table in mine[:at] if table.num_rows] for mine in generations]
        new = [[mine[at]] if mine[at].num_rows else [] for mine in generations]
        for term in [*(across if at else ()), *([("G",) * len(inputs)] if at in unreported else ())]:
            origins = dict(zip(inputs, term, strict=True))
            tables = [
                [*(before[i] if "M" in origins.get(i, "") else ()), *(new[i] if "G" in origins.get(i, "") else ())]
                for i in range(len(generations))
            ]
            if all(tables[i] for i in inputs):
                driving = [i for i, origin in origins.items() if origin == "G"]
                yield Term(min(driving, key=lambda i: (tables[i][0].num_rows, i)), tables)
