"""A generation: one version of the master table with the stream rows that belong to it.

A stream row belongs to the version that was current in its partition when it arrived, and is joined with that version
alone. So a version brings everything of its own: a cursor over its chunks, waiting rows, a cache. The operator
(`semi_stream_join`) has one current generation, at most one that is being warmed up to follow it, and old ones that
only wait for their last rows to be finished.

    announced -> warming (reads the chunks once for the keys cached now) -> current -> draining -> gone

The policies are the subclasses. They share what is here: reading chunks with their checksums compared once, emitting
rows, and the account of delays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.arrow import Hashes, Indices, hashes_of, take
from watersmeet.matching import matches, ranges
from watersmeet.metrics import Metrics
from watersmeet.projection import Projection
from watersmeet.semistream.cache import LABELS, Cache
from watersmeet.semistream.master_table import MasterPartition
from watersmeet.semistream.options import SemiStreamOptions
from watersmeet.semistream.row_sizes import row_bytes
from watersmeet.state.run import Run, resident_run

STREAM, MASTER = "stream", "master"
WAITING = "stream"  # label of the runs of waiting rows: they are the rows of that input
CHUNKS = "chunks"
WARM = "warm.keys"
ARRIVED = "_ats"  # the batch in which a waiting row arrived

Mask = npt.NDArray[np.bool_]


@dataclass
class Setting:
    """What all generations of an operator share."""

    options: SemiStreamOptions
    projection: Projection
    metrics: Metrics
    stream_schema: pa.Schema
    memory: int  # bytes for this partition
    delays: list[Indices] = field(default_factory=list)  # of the rows finished in this batch, in batches


class Generation(ABC):
    """One version of the master table, its cache and the rows that wait for it."""

    policy: ClassVar[str]

    def __init__(self, table: MasterPartition, setting: Setting) -> None:
        self.table = table
        self.setting = setting
        self.cache = Cache()
        self.retired = False
        self.warm_keys: Hashes | None = None  # the keys to be cached before this generation becomes current
        self.warm_next = 0

    # -- what the operator calls ----------------------------------------------------------------------------------

    def arrive(self, rows: pa.Table, batch: int) -> Iterator[pa.Table]:
        """New rows, sorted by hash and without null keys: the cache answers what it can, the others wait."""
        hashes = hashes_of(rows)
        cached = self.cache.holds(hashes)
        if cached.any():
            hit = rows if cached.all() else take(rows, np.flatnonzero(cached))
            self.cache.note_hits(hashes_of(hit), row_bytes(hit), batch)
            self.setting.metrics.count("cache_hits", hit.num_rows)
            yield from self.answer(hit, [run.table for run in self.cache.rows.runs])
            self.note_delays(np.full(hit.num_rows, batch), batch)
            rows = take(rows, np.flatnonzero(~cached))
        if rows.num_rows:
            self.wait(rows.append_column(ARRIVED, pa.array(np.full(rows.num_rows, batch, np.int32))), batch)

    @abstractmethod
    def wait(self, rows: pa.Table, batch: int) -> None:
        """Keep rows until the master rows that they need have come by."""

    @abstractmethod
    def work(self, batch: int) -> Iterator[pa.Table]:
        """Read the chunks that this batch must read."""

    @abstractmethod
    def read_more(self, chunks: int, batch: int) -> Iterator[pa.Table]:
        """Read up to so many chunks beyond those."""

    @abstractmethod
    def relieve(self, excess: int, batch: int) -> Iterator[pa.Table]:
        """Finish waiting rows sooner than planned, so that at least `excess` bytes are free if enough rows wait."""

    @abstractmethod
    def settle(self, batch: int, room: int) -> Iterator[pa.Table]:
        """The end of a batch: move keys into the cache (in about `room` bytes) and out of it."""

    @abstractmethod
    def compact(self, batch: int) -> None:
        """Give back the room of rows that wait no more."""

    def forgo(self) -> None:  # noqa: B027  (most policies have nothing to forgo)
        """Memory is short: let go of what is only kept for later."""

    @property
    @abstractmethod
    def waiting_rows(self) -> int:
        """Rows that wait."""

    @property
    @abstractmethod
    def waiting_bytes(self) -> int:
        """Bytes of the runs that hold waiting rows."""

    @property
    @abstractmethod
    def cycles(self) -> float:
        """How many times the table has gone by."""

    def retire(self) -> None:
        """A newer version has taken over: nothing more will arrive, only what waits is finished."""
        self.cache, self.retired = Cache(), True

    # -- warming up -----------------------------------------------------------------------------------------------

    def begin_warming(self, keys: Hashes) -> None:
        """Before this generation becomes current, cache these keys (as far as it has them)."""
        self.warm_keys, self.warm_next = keys, 0

    @abstractmethod
    def warm(self, batch: int) -> bool:
        """Read some chunks for the keys to be cached; returns whether all is there."""

    # -- shared by the policies -----------------------------------------------------------------------------------

    def read(self, chunk: int) -> pa.Table:
        """A chunk."""
        table = self.table.read(chunk)
        self.setting.metrics.count("chunks_read")
        self.setting.metrics.count("master_rows_read", table.num_rows)
        return table

    def answer(self, rows: pa.Table, tables: list[pa.Table]) -> Iterator[pa.Table]:
        """Join rows with hash-sorted tables that hold all their partners."""
        outer = self.setting.options.how == "left"
        matched = np.zeros(rows.num_rows if outer else 0, np.bool_)
        for table in tables:
            for i, j in matches(rows, table):
                yield self.pairs(rows, i, table, j)
                if outer:
                    matched[i] = True
        if outer:
            yield from self.unmatched(rows, np.flatnonzero(~matched))

    def pairs(self, rows: pa.Table, i: Indices, master: pa.Table, j: Indices) -> pa.Table:
        """Output rows for matches."""
        return self.setting.projection.gather({STREAM: (rows, i), MASTER: (master, j)})

    def unmatched(self, rows: pa.Table, i: Indices) -> Iterator[pa.Table]:
        """Output rows for stream rows that have no partner."""
        if len(i):
            nothing = pa.nulls(len(i), pa.int64())
            parts = {STREAM: (rows, i), MASTER: (self.table.schema.empty_table(), nothing)}
            yield self.setting.projection.gather(parts)

    def note_delays(self, arrived: npt.NDArray[np.integer[Any]], batch: int) -> None:
        """Rows are finished: remember how long they took."""
        self.setting.delays.append(batch - arrived.astype(np.int64))

    # -- state ----------------------------------------------------------------------------------------------------

    def save(self) -> tuple[list[Run], dict[str, Any]]:
        """Runs and values of this generation."""
        runs = [*self.cache.runs, *self._chunk_runs()]
        if self.warm_keys is not None:
            keys = pa.table({"_hash": pa.array(self.warm_keys)})
            runs.append(resident_run(WARM, keys, oldest=0, newest=0))
        values = {"version": self.table.version, "window": self.cache.window, "warm_next": self.warm_next}
        return runs, values

    def restore(self, runs: list[Run], values: dict[str, Any]) -> None:
        """Take up what `save` returned."""
        self.cache = Cache((run for run in runs if run.label in LABELS), values["window"])
        self.warm_next = values["warm_next"]
        for run in runs:
            if run.label == WARM:
                self.warm_keys = run.hashes
            elif run.label == CHUNKS:
                self.restore_chunks(run.table)

    def chunk_columns(self) -> dict[str, npt.NDArray[Any]]:
        """What is known about each chunk; policies add to it."""
        return {}

    def restore_chunks(self, table: pa.Table) -> None:  # noqa: B027  (most policies know nothing of single chunks)
        """Take up what `chunk_columns` returned."""

    def _chunk_runs(self) -> list[Run]:
        columns = {name: pa.array(values) for name, values in self.chunk_columns().items()}
        return [resident_run(CHUNKS, pa.table(columns), oldest=0, newest=0)] if columns else []


def rows_with(table: pa.Table, hashes: Hashes) -> tuple[pa.Table, Indices]:
    """The rows of a hash-sorted table that carry one of the hashes (sorted, distinct), and how many each has."""
    have = hashes_of(table)
    low, high = (np.searchsorted(have, hashes, side=side) for side in ("left", "right"))
    return take(table, ranges(low, high)), (high - low).astype(np.int64)


def group_sums(amounts: npt.NDArray[np.float64], counts: Indices) -> npt.NDArray[np.float64]:
    """Sums over consecutive groups of the given lengths; a group may be empty."""
    ends = np.cumsum(counts)
    running = np.concatenate(([0.0], np.cumsum(amounts)))
    return np.asarray(running[ends] - running[ends - counts])
