"""Tables that go with a store's rows and are not rows themselves: marks, orders, promises, counts per chunk.

They are written and verified like runs, but nothing counts them as rows. A side table never changes: a new one takes
its place, and one that was loaded and not replaced is not written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from watersmeet.columns.arrow import data_bytes
from watersmeet.state.run import InMemory, RunData, hash_sum


@dataclass(frozen=True, eq=False)
class SideTable:
    """An Arrow table with its size. `content` is what two attempts of a batch must agree on."""

    data: RunData
    rows: int
    nbytes: int
    content: int

    @classmethod
    def of(cls, table: pa.Table, *, content: int | None = None) -> SideTable:
        """A table that has no file yet. `content` is given where equal tables may differ in the order of their rows."""
        found = hash_sum(table) if content is None else content
        return cls(InMemory((table,)), table.num_rows, data_bytes(table), found)

    @property
    def table(self) -> pa.Table:
        """The rows."""
        return self.data.table()

    def digest(self) -> list[Any]:
        """What two equal tables have in common."""
        return [self.rows, self.nbytes, self.content]
