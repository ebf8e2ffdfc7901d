"""Whether a table is small enough to be broadcast, and in words why.

Spark broadcasts a table anew in every micro-batch: what it costs grows with the table, and is paid however few rows
come. A semi-stream join reads the chunks that the rows of a micro-batch need, and pays for the rows: a shuffle, and the
way to Python and back. In processor time of one machine, for a table of three numbers:

    broadcast      80 ms + 60 ms for every 100,000 rows of the table
    semi-stream   120 ms + 65 ms for every 100,000 rows of the micro-batch

They are level at about 140,000 table rows if few rows come, 150,000 with 50,000 rows per micro-batch and 500,000 with
500,000; with wide rows at 12 MB in place of 4 or 5. How many rows will come is not known when a join is built. With
half of what Spark broadcasts in a batch query, where it does so once, the join that is not chosen would save no more
than a third.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rich import filesize

SETTING = "spark.sql.autoBroadcastJoinThreshold"
SHARE = 0.5  # of the setting
UNKNOWN = 2**50  # where Spark knows nothing its estimate is larger: 8 EiB, or a part of that for some of the columns

_TEXT = re.compile(r"\s*(-?[\d.]+)\s*([kmgtpe]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """A number of bytes as Spark writes it; its units are powers of 1024.

    >>> parse_bytes("10485760b"), parse_bytes("10MB"), parse_bytes("135.0 KiB"), parse_bytes("-1")
    (10485760, 10485760, 138240, -1)
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"no number of bytes: {text!r}")
    return round(float(found[1]) * 1024.0 ** " kmgtpe".index(found[2].lower() or " "))


@dataclass(frozen=True)
class TableSize:
    """How large a table is: by Spark's estimate, and by its rows where they were counted, no further than to
    `most_rows` and one more. `threshold` is Spark's setting in bytes; below zero nothing is to be broadcast.

    >>> print(TableSize(estimate=138_240, rows=10_000, row_bytes=24, threshold=10_485_760))
    10,000 rows, 240.0 kB
    >>> TableSize(138_240, 10_000, 24, 10_485_760).fits, TableSize(138_240, 10**6, 24, 10_485_760).fits
    (True, False)
    """

    estimate: int
    rows: int | None
    row_bytes: int
    threshold: int

    def counted(self, rows: int) -> TableSize:
        """The same with its rows."""
        return replace(self, rows=rows)

    @property
    def nbytes(self) -> int:
        """What it takes: the rows by their types, or the estimate if that is larger. The estimate of files is of what
        they take on disk, often compressed."""
        if self.rows is None:
            return self.estimate
        counted = self.rows * self.row_bytes
        return counted if self.estimate >= UNKNOWN else max(self.estimate, counted)

    @property
    def limit(self) -> int:
        """How many bytes a table may take that is broadcast in every micro-batch."""
        return max(int(SHARE * self.threshold), 0)

    @property
    def fits(self) -> bool:
        """Whether it is small enough."""
        return self.rows is not None and self.nbytes <= self.limit

    @property
    def is_open(self) -> bool:
        """Whether its rows must be counted to know: the estimate is small, or says nothing."""
        return self.rows is None and self.threshold >= 0 and (self.estimate <= self.limit or self.estimate >= UNKNOWN)

    @property
    def most_rows(self) -> int:
        """More rows than these do not fit, whatever the estimate is."""
        return self.limit // max(self.row_bytes, 1)

    @property
    def rule(self) -> str:
        """What decides, in words."""
        if self.threshold < 0:
            return f"{SETTING} is {self.threshold}: nothing is to be broadcast"
        return f"up to {filesize.decimal(self.limit)}, half of {SETTING}, are broadcast"

    def __str__(self) -> str:
        if self.rows is None:
            known = self.estimate < UNKNOWN
            return f"about {filesize.decimal(self.estimate)} by Spark's estimate" if known else "of unknown size"
        if self.rows > self.most_rows:
            return f"more than {self.most_rows:,} rows of about {self.row_bytes} bytes"
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'}, {filesize.decimal(self.nbytes)}"
