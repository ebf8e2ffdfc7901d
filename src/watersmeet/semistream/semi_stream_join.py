"""The semi-stream join: one stream against a prepared master table, through generations (see `generation`).

Semantics     inner, left, semi or anti equi-join of the stream with the table, many-to-many. Each stream row is joined
              with exactly one version of the table: the one current in its partition when it arrived. A row is finished
              within `max_delay` batches; one that matches nothing is emitted when that is certain.
Input         the input "stream"; rows with a null key have no partner. Numbers signalled to the join are versions of
              the master table that have become available; it begins with the first batch's signal (or `version`).
Versions      a new version is warmed up before it takes over: its chunks are read for the keys cached now, so that hot
              rows stay hot. Then arriving rows belong to it, while the old version finishes what waits for it.
Memory        waiting rows and caches of all generations stay within `memory`. When they would not, waiting rows are
              finished sooner by reading more chunks in this batch (`on_overload="wait"`), or the batch fails and says
              which rate would fit.
State         the runs of every generation, labelled with its version; which version is what.
Hot keys      a row is joined wherever it comes: a partition reads the rows of other partitions' keys that are here, too
              (`hosting`). Such a key is forgotten when nothing waits for it and the cache does not have it.
Division      into another number of partitions: what waits goes on where it is (`Generation.follow`), new rows begin
              with all of the table that can have their keys (`MasterTable.share`), and cached keys stay cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices
from watersmeet.columns.partitions import Partition
from watersmeet.errors import OverloadError, StateMismatchError
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.join.operator import Batch, Operator, OperatorState, Origin
from watersmeet.join.prologue import Prologue
from watersmeet.join.waits import WaitingRows, Waits
from watersmeet.plan import JoinPlan
from watersmeet.semistream.aligned import AlignedGeneration
from watersmeet.semistream.generation import MASTER, STREAM, Generation, Setting
from watersmeet.semistream.hosting import hosting
from watersmeet.semistream.master_table import MasterPartition, MasterTable
from watersmeet.semistream.meshjoin import MeshGeneration
from watersmeet.semistream.options import SemiStreamOptions, checked_type
from watersmeet.semistream.ssbj import SsbjGeneration
from watersmeet.state.parts import All, Part
from watersmeet.state.rows import RowStore
from watersmeet.state.side_table import SideTable
from watersmeet.state.space import RunSpace

POLICIES: dict[str, type[Generation]] = {
    kind.policy: kind for kind in (AlignedGeneration, SsbjGeneration, MeshGeneration)
}
# Results come in many small pieces, one per chunk read; they are handed on in pieces of about this size.
OUTPUT_ROWS = 1 << 16


class SemiStreamJoin(Operator):
    """Joins a stream with a master table that does not fit in memory."""

    name = "semi_stream"

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        super().__init__(plan, space)
        self.options = SemiStreamOptions(**plan.options, **plan.tuning)
        schema = plan.input(STREAM).schema
        memory = max(self.options.memory // plan.partitions, 1)
        checked_type(self.name, plan.how)
        emitter = BinaryEmitter(plan, self.accounts, self.metrics, right=MASTER)
        self.setting = Setting(self.options, emitter, self.metrics, self.accounts, space, schema, memory)
        self.prologue = Prologue(plan, self.accounts, self.metrics, preserved=emitter.preserved)
        self.partition = Partition(space.partition, plan.partitions, plan.division)
        self.announced = 0  # the newest version signalled so far
        self.current: Generation | None = None
        self.warming: Generation | None = None
        self.draining: list[Generation] = []
        self.guests: Hashes = np.empty(0, np.uint64)  # keys of other partitions
        self.batch = 0

    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """Rows probe the cache or wait; then chunks are read, and keys move into the cache or out of it."""
        yield from _in_pieces(self._on_batch(batch))

    def _on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        self.batch = batch.number
        self.setting.delays = []
        current = self._current(batch)
        keyed = self.prologue.admit(batch, STREAM)
        for name, reason, keyless in self.prologue.take_aside():
            yield from self.setting.emitter.unmatched(name, keyless, np.arange(keyless.num_rows), reason)
        rows = batch.rows.get(STREAM)
        if rows is not None and rows.num_rows:
            yield from current.arrive(keyed, batch.number)
            self.metrics.gauge("hit_share", self.metrics.counters.get("cache_hits", 0) / max(keyed.num_rows, 1))
        for generation in self._serving():
            yield from generation.work(batch.number)
        yield from self._relieve(rows.num_rows if rows is not None else 0)
        yield from self._settle()

    def on_idle(self, batch: Batch) -> Iterator[pa.Table]:
        """The stream is silent: read on for those that wait."""
        yield from _in_pieces(self._on_idle(batch))

    def _on_idle(self, batch: Batch) -> Iterator[pa.Table]:
        for generation in self._serving():
            yield from generation.read_more(self.options.idle_chunks, batch.number)
        yield from self._settle()

    def finish(self) -> Iterator[pa.Table]:
        """Read whatever somebody still waits for."""
        yield from _in_pieces(self._finish())

    def _finish(self) -> Iterator[pa.Table]:
        for generation in self._serving():
            yield from generation.read_more(generation.table.count, self.batch)
        for generation in self._all():
            for store in generation.stores():
                store.remove(All(), "evicted")
        self.current, self.warming, self.draining = None, None, []

    # -- versions -------------------------------------------------------------------------------------------------

    def _current(self, batch: Batch) -> Generation:
        """The generation that this batch's rows belong to, after the moves that are due."""
        self.announced = max(self.announced, *batch.signals, 0)
        if self.current is None:
            self.announced = self.announced or self.options.version
            self.current = self._generation(self.announced)
        if self.warming is None and self.announced > self.current.table.version:
            self.warming = self._generation(self.announced)
            room = self.setting.memory - self.current.cache.nbytes
            keys = self.current.cache.best(room, batch.number)
            self.warming.begin_warming(keys)
            self.metrics.event("refresh", version=self.announced, keys_to_warm=len(keys))
        if self.warming is not None and self.warming.warm(batch.number):
            self.metrics.event("swap", before=self.current.table.version, version=self.warming.table.version)
            self.current.retire()
            self.draining.append(self.current)
            self.current, self.warming = self.warming, None
            self.current.cache.window = batch.number
        return self.current

    def _generation(self, version: int, of: Partition | None = None, serial: int = 0) -> Generation:
        """One of this partition, or of a former one."""
        of = of or self.partition
        table = self._table(version, of)
        if table.master != self.options.master:
            raise StateMismatchError(
                f"semi_stream_join, master table {self.options.path}",
                expected=f"the master table {self.options.master}",
                found=f"another one, {table.master}",
                hint="Give the path of the table the join was built with, or start over with a new state directory.",
            )
        return POLICIES[self.options.policy](table, self.setting, of, serial)

    def _table(self, version: int, of: Partition) -> MasterPartition:
        """What a partition needs of a version."""
        table = MasterTable(self.options.path)
        own = table.share(version, of, self.options.master)
        return hosting(table, own, version, self.guests) if len(self.guests) else own

    @classmethod
    def splits(cls, plan: JoinPlan) -> tuple[str, ...]:
        """Rows of the stream have nothing to do with each other."""
        return (STREAM,)

    def host(self, keys: Hashes) -> None:
        """Every version is read with their rows from now on."""
        if not len(keys) and not len(self.guests):
            return
        self.guests = keys
        for generation in self._all():
            generation.table = self._table(generation.table.version, generation.of)

    def done_with(self, keys: Hashes) -> Hashes:
        """Those of which no generation has a trace. (What the cache knows of a key must come true in the next version,
        too.)"""
        known = np.zeros(len(keys), np.bool_)
        for generation in self._all():
            known |= generation.knows(keys)
        return keys[~known]

    def _serving(self) -> list[Generation]:
        """The generations for which rows wait or may come, oldest first."""
        return [*self.draining, *([self.current] if self.current else [])]

    def _all(self) -> list[Generation]:
        return [*self._serving(), *([self.warming] if self.warming else [])]

    # -- memory ---------------------------------------------------------------------------------------------------

    def _bytes(self) -> int:
        return sum(generation.waiting_bytes + generation.cache.nbytes for generation in self._all())

    def _relieve(self, rows: int) -> Iterator[pa.Table]:
        """Stay within the memory: first by giving room back that nothing needs, then by finishing rows sooner."""
        memory = self.setting.memory
        if self._bytes() <= memory:
            return
        for generation in self._serving():
            generation.compact(self.batch)
        if self._bytes() <= memory:
            return
        waiting = sum(generation.waiting_bytes for generation in self._all())
        fits = int(rows * max(memory - (self._bytes() - waiting), 0) / max(waiting, 1))
        if self.options.on_overload == "raise":
            raise OverloadError(
                "semi_stream_join",
                expected=f"waiting rows and cache within {memory} bytes per partition",
                found=f"{self._bytes()} bytes after {rows} rows in batch {self.batch} of one partition",
                hint=f"About {fits} rows per batch and partition would fit: send fewer, raise memory, lower max_delay, "
                "or let on_overload='wait' read more chunks per batch.",
            )
        self.metrics.count("overloads")
        self.metrics.event("overload", bytes=self._bytes(), memory=memory, rows=rows, rows_that_fit=fits)
        for generation in self._serving():
            while (excess := self._bytes() - memory) > 0 and generation.waiting_rows:
                yield from generation.relieve(excess, self.batch)
        self._shrink_cache()

    def _shrink_cache(self) -> None:
        for generation in self._all():
            # Entries are priced above their bare size, so a second round may be needed.
            while (excess := self._bytes() - self.setting.memory) > 0 and generation.cache.keys.rows:
                self.metrics.count("keys_evicted", generation.cache.shrink(excess, self.batch))

    def _settle(self) -> Iterator[pa.Table]:
        for generation in self._serving():
            yield from generation.settle(self.batch, self.setting.memory - self._bytes())
        if self._bytes() > self.setting.memory:
            for generation in self._serving():
                generation.compact(self.batch)
                if self._bytes() > self.setting.memory:
                    generation.forgo()
            self._shrink_cache()
        self.draining = [generation for generation in self.draining if generation.waiting_rows]

    # -- metrics and state ----------------------------------------------------------------------------------------

    def report(self) -> None:
        """The cache, the versions, and how long rows waited."""
        gauge = self.metrics.gauge
        gauge(f"waiting_rows.{STREAM}", sum(generation.waiting_rows for generation in self._serving()))
        gauge("memory_bytes", self._bytes())
        gauge("cached_keys", sum(generation.cache.keys.rows for generation in self._all()))
        gauge("cache_bytes", sum(generation.cache.nbytes for generation in self._all()))
        gauge("generations", len(self._all()))
        if self.current is not None:
            gauge("version", self.current.table.version)
            gauge("cycles", round(self.current.cycles, 6))
        delays = np.concatenate(self.setting.delays) if self.setting.delays else np.empty(0, np.int64)
        if len(delays):
            for share in (50, 95, 99):
                gauge(f"delay_p{share}", float(np.percentile(delays, share, method="lower")))
            gauge("delay_max", int(delays.max()))

    def row_stores(self) -> list[RowStore]:
        """The stores of all generations."""
        return [store for generation in self._all() for store in generation.stores()]

    def waits(self, part: Part, rows: Indices) -> WaitingRows:
        """For the master rows that they need, of the version that they belong to."""
        (generation,) = (one for one in self._all() if any(part.store is store for store in one.stores()))
        yield rows, Waits("table", version=generation.table.version)

    def inherit(self, heir: Partition, origins: Sequence[Origin], version: int) -> None:
        """Waiting rows go on in generations of their own. Partitions may have come to different versions of the table:
        the newest counts, for the rows to come."""
        former = [one.operator for one in origins if isinstance(one.operator, SemiStreamJoin)]
        self.announced = max(join.announced for join in former)
        begun = [join.current for join in former if join.current is not None]
        if begun:
            self.current = self._generation(max(generation.table.version for generation in begun))
            self.current.cache.window = version + 1
        for join in former:
            for generation in join._serving():
                if generation is join.current and self.current and generation.label == self.current.label:
                    self.current.share_cache(generation, heir, version)
                following = self._generation(generation.table.version, generation.of, len(self.draining) + 1)
                following.follow(generation, heir)
                if following.waiting_rows:
                    self.draining.append(following)
            for generation in join._all():
                generation.retire()  # what it has cached leaves by its accounts
        self.draining.sort(key=lambda generation: (generation.table.version, generation.serial))

    def save(self) -> OperatorState:
        """The stores and tables of all generations, under their labels."""
        tables: dict[str, SideTable] = {}
        generations = []
        for generation in self._all():
            mine, values = generation.save()
            tables |= {f"{generation.label}.{name}": table for name, table in mine.items()}
            generations.append(values)
        return OperatorState(
            stores=[store.save() for store in self.row_stores()],
            tables=tables,
            values={
                "announced": self.announced,
                "versions": sorted({generation.table.version for generation in self._all()}),
                "current": self.current.table.version if self.current else None,
                "generations": generations,
            },
        )

    def restore(self, state: OperatorState) -> None:
        """Take up every generation with its stores and tables."""
        self.announced = state.values["announced"]
        current = state.values["current"]
        stores = {store.name: store for store in state.stores}
        for values in state.values["generations"]:
            version, serial = values["version"], values.get("serial", 0)
            generation = self._generation(version, Partition(*values["of"]) if serial else None, serial)
            prefix = f"{generation.label}."
            mine = {k.removeprefix(prefix): table for k, table in state.tables.items() if k.startswith(prefix)}
            generation.restore(stores, mine, values)
            if serial or version < current:
                generation.retired = True
                self.draining.append(generation)
            elif version == current:
                self.current = generation
            else:
                self.warming = generation


def _in_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in fewer tables."""
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        if count >= OUTPUT_ROWS:
            yield pa.concat_tables(held)
            held, count = [], 0
    if held:
        yield pa.concat_tables(held)
