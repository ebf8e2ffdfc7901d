"""A generation: one version of the master table with the stream rows that belong to it.

A stream row belongs to the version that was current in its partition when it arrived, and is joined with that version
alone. So a version brings everything of its own: a cursor over its chunks, waiting rows, a cache. The operator
(`semi_stream_join`) has one current generation, at most one that is being warmed up to follow it, and old ones that
only wait for their last rows to be finished. When the join is divided into another number of partitions, the
generations of the former ones are old, too: their rows go on through the chunks of their former partition (`follow`).

    announced -> warming (reads the chunks once for the keys cached now) -> current -> draining -> gone

The policies are the subclasses. They share what is here: reading chunks with their checksums compared once, emitting
rows, and the account of delays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, hashes_of, merge_by_hash, numpy_of, take
from watersmeet.columns.grouping import repeats
from watersmeet.columns.matching import matches, ranges
from watersmeet.columns.partitions import Partition
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.plan.metrics import Metrics
from watersmeet.semistream.cache import Cache
from watersmeet.semistream.master_table import MasterPartition
from watersmeet.semistream.options import SemiStreamOptions
from watersmeet.semistream.row_sizes import fixed_bytes, row_bytes
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import HashTiers, Layout
from watersmeet.state.marks import Mask
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Rule
from watersmeet.state.shelf import StoreState
from watersmeet.state.side_table import SideTable
from watersmeet.state.sorted_tables import contains
from watersmeet.state.space import RunSpace

STREAM, MASTER = "stream", "master"
CHUNKS, WARM = "chunks", "warm"  # side tables
ARRIVED = "_ats"  # the batch in which a waiting row arrived


@dataclass
class Setting:
    """What all generations of an operator share."""

    options: SemiStreamOptions
    emitter: BinaryEmitter
    metrics: Metrics
    accounts: Accounts
    space: RunSpace
    stream_schema: pa.Schema
    memory: int  # bytes for this partition
    delays: list[Indices] = field(default_factory=list)  # of the rows finished in this batch, in batches


class Generation(ABC):
    """One version of the master table, its cache and the rows that wait for it."""

    policy: ClassVar[str]
    waiting: RowStore

    def __init__(self, table: MasterPartition, setting: Setting, of: Partition, serial: int = 0) -> None:
        """A generation of a partition of the join; those of former partitions have serial numbers from 1 on."""
        self.table = table
        self.setting = setting
        self.of, self.serial = of, serial
        self.label = f"{table.version}@{serial}" if serial else f"{table.version}"
        self.emitter = setting.emitter
        self.master_schema = self._needed_schema(table.schema)
        self.cache = Cache(self.store(f"{MASTER}.{self.label}", MASTER, self.master_schema, HashTiers()))
        self.retired = False
        self.warm_keys: Hashes | None = None  # the keys to be cached before this generation becomes current
        self.warm_next = 0

    def _needed_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the table that are cached: those that the output has, and those by which rows match."""
        if self.emitter.keys_only is not None:
            return self.emitter.stored_schema(MASTER, schema)
        needed = set(self.emitter.stored_columns(MASTER, schema))
        needed |= {column.column for column in self.emitter.columns if MASTER in (column.input, column.otherwise)}
        return pa.schema([field for field in schema if field.name in needed])

    def store(
        self,
        name: str,
        input: str,
        schema: pa.Schema,
        layout: Layout,
        *,
        time: str | None = None,
        rule: Rule | None = None,
        flags: tuple[str, ...] = (),
    ) -> RowStore:
        """A store of this generation."""
        setting = self.setting
        return RowStore(
            name, schema, layout, setting.space, setting.accounts, input=input, time=time, rule=rule, flags=flags
        )

    # -- what the operator calls ----------------------------------------------------------------------------------

    def arrive(self, rows: pa.Table, batch: int) -> Iterator[pa.Table]:
        """New rows, sorted by hash and without null keys: the cache answers what it can, the others wait."""
        hashes = hashes_of(rows)
        cached = self.cache.holds(hashes)
        if cached.any():
            hit = rows if cached.all() else take(rows, np.flatnonzero(cached))
            self.cache.note_hits(hashes_of(hit), row_bytes(hit))
            self.setting.metrics.count("cache_hits", hit.num_rows)
            yield from self.answer(hit, [part.table for part in self.cache.rows.parts()])
            self.setting.accounts.leave(STREAM, "answered", hit.num_rows)
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
        """Memory is short: evict what is only kept for later."""

    @property
    @abstractmethod
    def waiting_rows(self) -> int:
        """Rows that wait."""

    @property
    @abstractmethod
    def waiting_bytes(self) -> int:
        """Bytes of what waits."""

    @property
    @abstractmethod
    def cycles(self) -> float:
        """How many times the table has gone by."""

    def retire(self) -> None:
        """A newer version has taken over: nothing more will arrive, only what waits is finished."""
        self.cache.clear()
        self.retired = True

    def knows(self, keys: Hashes) -> Mask:
        """Which of some keys are cached, will be, or have rows that wait."""
        known = self.cache.holds(keys)
        if self.warm_keys is not None:
            known |= contains(self.warm_keys, keys)
        for part in self.waiting.parts():
            known |= contains(part.hashes, keys)
        return known

    # -- another division of the state ----------------------------------------------------------------------------

    def follow(self, former: Generation, heir: Partition) -> None:
        """Finish the waiting rows of a former partition's generation that belong to the heir, where they are."""
        self.retired = True
        rows = merge_by_hash(
            [former.waiting.schema.empty_table(), *(part.take(part.living) for part in former.waiting.parts())]
        )
        rows = rows.filter(pa.array(heir.owns(hashes_of(rows))))
        arrived = numpy_of(rows.column(ARRIVED))
        for batch in np.unique(arrived).tolist():
            self.again(take(rows, np.flatnonzero(arrived == batch)), batch, former)

    @abstractmethod
    def again(self, rows: pa.Table, batch: int, former: Generation) -> None:
        """Keep rows that came in a batch and have been waiting in another generation over the same chunks."""

    def share_cache(self, former: Generation, heir: Partition, batch: int) -> None:
        """Cache what a former partition has cached of the heir's keys."""
        entries = former.cache.entries()
        entries = entries.filter(pa.array(heir.owns(hashes_of(entries))))
        kept = (part.take(part.living) for part in former.cache.rows.parts())
        rows, counts = rows_with(merge_by_hash([self.master_schema.empty_table(), *kept]), hashes_of(entries))
        self.cache.admit(hashes_of(entries), counts, numpy_of(entries.column("_bytes")).astype(np.float64), rows, batch)

    # -- warming up -----------------------------------------------------------------------------------------------

    def begin_warming(self, keys: Hashes) -> None:
        """Before this generation becomes current, cache these keys (as far as it has them)."""
        self.warm_keys, self.warm_next = keys, 0

    @abstractmethod
    def warm(self, batch: int) -> bool:
        """Read some chunks for the keys to be cached; returns whether all is there."""

    # -- shared by the policies -----------------------------------------------------------------------------------

    def read(self, chunk: int) -> pa.Table:
        """A chunk: its rows, or its different keys if no more of it is wanted."""
        table = self.table.read(chunk)
        self.setting.metrics.count("chunks_read")
        self.setting.metrics.count("master_rows_read", table.num_rows)
        return self.wanted(table.select(self.master_schema.names))

    def wanted(self, rows: pa.Table) -> pa.Table:
        """Those of some hash-sorted master rows that are needed: one of each key (and of what the condition needs),
        where the others change nothing."""
        again = repeats(rows, self.emitter.needed(MASTER)) if self.emitter.keys_only else None
        return rows if again is None or not again.any() else take(rows, np.flatnonzero(~again))

    @property
    def master_row_bytes(self) -> float:
        """v_R, where one number must do; of a part of the columns, what a row takes at least."""
        whole = self.master_schema == self.table.schema
        return self.table.mean_row_bytes if whole else fixed_bytes(self.master_schema)

    def answer(self, rows: pa.Table, tables: list[pa.Table]) -> Iterator[pa.Table]:
        """Join rows with hash-sorted tables that hold all that can match them."""
        emitter = self.emitter
        matched = np.zeros(rows.num_rows if emitter.judges else 0, np.bool_)
        for table in tables:
            for i, j in matches(rows, table):
                i, j = emitter.matching(STREAM, (rows, i), (table, j))
                yield from self.pairs(rows, i, table, j)
                if emitter.judges:
                    matched[i] = True
        if emitter.type.semi and matched.any():
            yield from emitter.rows({STREAM: (rows, np.flatnonzero(matched))})
        if emitter.preserved:
            yield from emitter.unmatched(STREAM, rows, np.flatnonzero(~matched), "answered")

    def pairs(self, rows: pa.Table, i: Indices, master: pa.Table, j: Indices) -> Iterator[pa.Table]:
        """Output rows for matches, if the join type has any."""
        if self.emitter.type.pairs and len(i):
            yield from self.emitter.rows({STREAM: (rows, i), MASTER: (master, j)})

    def note_delays(self, arrived: npt.NDArray[np.integer[Any]], batch: int) -> None:
        """Rows are finished: remember how long they took."""
        self.setting.delays.append(batch - arrived.astype(np.int64))

    # -- state ----------------------------------------------------------------------------------------------------

    def stores(self) -> list[RowStore]:
        """All rows of this generation."""
        return [self.cache.rows]

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """Side tables and values; the stores are saved apart."""
        tables = self.cache.save()
        columns = {name: pa.array(values) for name, values in self.chunk_columns().items()}
        if columns:
            tables[CHUNKS] = SideTable.of(pa.table(columns))
        if self.warm_keys is not None:
            tables[WARM] = SideTable.of(pa.table({"_hash": pa.array(self.warm_keys)}))
        values = {"version": self.table.version, "window": self.cache.window, "warm_next": self.warm_next}
        of = {"serial": self.serial, "of": [self.of.number, self.of.of, self.of.division]} if self.serial else {}
        return tables, {**values, **of}

    def restore(
        self, stores: Mapping[str, StoreState], tables: Mapping[str, SideTable], values: Mapping[str, Any]
    ) -> None:
        """Take up what `stores` and `save` returned."""
        self.cache.restore(tables, values["window"])
        self.warm_next = values["warm_next"]
        if WARM in tables:
            self.warm_keys = hashes_of(tables[WARM].table)
        if CHUNKS in tables:
            self.restore_chunks(tables[CHUNKS].table)
        for store in self.stores():
            store.restore(stores[store.name])

    def chunk_columns(self) -> dict[str, npt.NDArray[Any]]:
        """What is known about each chunk; policies add to it."""
        return {}

    def restore_chunks(self, table: pa.Table) -> None:  # noqa: B027  (most policies know nothing of single chunks)
        """Take up what `chunk_columns` returned."""


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
