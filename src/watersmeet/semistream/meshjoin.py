"""MESHJOIN: the table goes by in a fixed order, every row waits for one whole cycle, chunks may hold any rows.

Semantics     a row that enters at step e is joined with the chunks of the steps e .. e + k - 1, that is with each chunk
              once, and leaves; in a semi or anti join it leaves at its first match. Steps are counted for ever; step
              s reads chunk s mod k.
Cost          per step: one chunk, probed with all rows that wait; a batch makes ceil(k / `max_delay`) steps.
State         a store of waiting rows with `_entry` and `_ats`; where it matters, flags for rows that have found their
              key (`matched`) or their hash, perhaps of a colliding key (`seen`).

While nothing waits (and nothing else is wanted from the table) the steps stand still and no chunk is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import Indices, hashes_of, numpy_of
from watersmeet.columns.matching import equal_keys, match_blocks
from watersmeet.columns.partitions import Partition
from watersmeet.join.join_type import MATCHED
from watersmeet.semistream.generation import ARRIVED, STREAM, Generation, Setting
from watersmeet.semistream.master_table import MasterPartition
from watersmeet.state.layouts import FewRuns
from watersmeet.state.parts import Departed, Part, Rows, column_of
from watersmeet.state.rows import RowStore
from watersmeet.state.shelf import StoreState
from watersmeet.state.side_table import SideTable

ENTRY = "_entry"  # the step at which a waiting row entered
SEEN = "seen"  # the flag of waiting rows whose hash has gone by

Found = list[tuple[Part, dict[str, list[Indices]]]]  # parts of the waiting rows, and what steps found, by flag


class MeshGeneration(Generation):
    """Rows wait for one cycle of the whole table."""

    policy = "mesh"
    flags: ClassVar[tuple[str, ...]] = ()  # what a policy must know of waiting rows

    def __init__(self, table: MasterPartition, setting: Setting, of: Partition, serial: int = 0) -> None:
        super().__init__(table, setting, of, serial)
        flags = self.emitter.flags(STREAM) + self.flags
        more = [pa.field(ENTRY, pa.int64()), pa.field(ARRIVED, pa.int32())]
        more += [pa.field(column_of(flag), pa.bool_()) for flag in flags]
        self.schema = pa.schema([*setting.stream_schema, *more])
        name = f"{STREAM}.{self.label}"
        self.waiting = self.store(name, STREAM, self.schema, FewRuns(), time=ENTRY, flags=flags)
        self.step = 0

    @property
    def pace(self) -> int:
        """Steps per batch: k of them within `max_delay` batches."""
        return -(-self.table.count // self.setting.options.max_delay)

    def wait(self, rows: pa.Table, batch: int) -> None:
        """Keep rows for the next k steps."""
        rows = rows.append_column(ENTRY, pa.array(np.full(rows.num_rows, self.step, np.int64)))
        for flag in self.waiting.flags:
            rows = rows.append_column(column_of(flag), pa.array(np.zeros(rows.num_rows, np.bool_)))
        self.waiting.add(rows.select(self.schema.names), batch)

    def again(self, rows: pa.Table, batch: int, former: Generation) -> None:
        """A row has been joined with the chunks since its entry, and goes on with the next one."""
        assert isinstance(former, MeshGeneration)
        self.step = former.step
        self.waiting.add(rows, batch)

    def work(self, batch: int) -> Iterator[pa.Table]:
        """This batch's steps."""
        yield from self.read_more(self.pace, batch)

    def read_more(self, chunks: int, batch: int) -> Iterator[pa.Table]:
        """So many steps, as long as anybody wants them; then the rows that have been joined with every chunk leave."""
        found: Found = [(part, {flag: [] for flag in self.waiting.flags}) for part in self.waiting.parts()]
        for _ in range(chunks):
            if not self._is_wanted():
                break
            yield from self._step(found, batch)
        for part, flagged in found:
            for flag, rows in flagged.items():
                if rows:
                    self.waiting.mark(part, flag, np.concatenate(rows))
        yield from self._finish([part for part, _ in found], batch)

    def relieve(self, excess: int, batch: int) -> Iterator[pa.Table]:
        """As many steps as it takes until enough of the oldest rows have left."""
        before = self.waiting_bytes
        while before - self.waiting_bytes < excess and self.waiting_rows:
            self.compact(batch)
            oldest = min(run.time_from or 0 for run in self.waiting.runs)
            yield from self.read_more(oldest + self.table.count - self.step, batch)
            self.compact(batch)

    def compact(self, batch: int) -> None:
        """Rewrite every run that has rows which have left."""
        self.waiting.settle(tight=True)

    def _is_wanted(self) -> bool:
        return any(
            self.step - (run.time_to or 0) < self.table.count and self.waiting.alive(run) for run in self.waiting.runs
        )

    def _step(self, found: Found, batch: int) -> Iterator[pa.Table]:
        """Read the next chunk; every row that waits is joined with it."""
        number = self.step % self.table.count
        chunk = self.read(number)
        have = hashes_of(chunk)
        for part, flagged in found:
            if self.step - (part.run.time_to or 0) >= self.table.count:
                continue
            for i, j in match_blocks(part.hashes, have):
                present = self.step - part.times[i] < self.table.count
                alive = part.alive(i)
                present = present if alive is None else present & alive
                i, j = i[present], j[present]
                same = equal_keys(part.table, i, chunk, j)
                mine, theirs = self.emitter.matching(STREAM, (part.table, i[same]), (chunk, j[same]))
                for flag, rows in ((SEEN, i), (MATCHED, mine)):
                    if flag in flagged:
                        flagged[flag].append(rows)
                if len(mine):
                    yield from self.match(part, mine, chunk, theirs, batch)
        self.passes(chunk, number)
        self.step += 1

    def match(self, part: Part, i: Indices, master: pa.Table, j: Indices, batch: int) -> Iterator[pa.Table]:
        """Waiting rows match master rows: they leave if that is all that the join type asks of them."""
        yield from self.pairs(part.table, i, master, j)
        if self.emitter.once:
            yield from self.emitter.first_matches(self._remove(part, i, batch))

    def passes(self, chunk: pa.Table, number: int) -> None:
        """A chunk goes by: for what a subclass wants from it."""

    def _finish(self, parts: Sequence[Part], batch: int) -> Iterator[pa.Table]:
        """Rows that have been joined with every chunk leave."""
        for part in parts:
            if self.step - (part.run.time_from or 0) < self.table.count:
                continue
            rows = np.flatnonzero(self.step - part.times >= self.table.count)
            alive = part.alive(rows)
            yield from self.leave(part, rows if alive is None else rows[alive], batch)

    def leave(self, part: Part, rows: Indices, batch: int) -> Iterator[pa.Table]:
        """Rows (ascending, alive) have been joined with all they must be."""
        if len(rows):
            yield from self.emitter.departed(self._remove(part, rows, batch))

    def _remove(self, part: Part, rows: Indices, batch: int) -> list[Departed]:
        gone = self.waiting.remove(Rows(part, rows), "answered")
        for one in gone:
            for piece, fresh in one.pieces():
                self.note_delays(numpy_of(piece.table.column(ARRIVED))[fresh], batch)
        return gone

    def settle(self, batch: int, room: int) -> Iterator[pa.Table]:
        """Nothing moves into a cache."""
        self.setting.metrics.count("rows_rewritten", self.waiting.settle())
        return iter(())

    def warm(self, batch: int) -> bool:
        """There is no cache to warm."""
        self.warm_keys = None
        return True

    @property
    def waiting_rows(self) -> int:
        """Rows that wait."""
        return self.waiting.rows

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the store that holds them."""
        return self.waiting.nbytes

    @property
    def cycles(self) -> float:
        """Steps, in units of the table."""
        return self.step / self.table.count

    def stores(self) -> list[RowStore]:
        """Cached and waiting rows."""
        return [*super().stores(), self.waiting]

    def save(self) -> tuple[dict[str, SideTable], dict[str, Any]]:
        """With the number of steps."""
        tables, values = super().save()
        return tables, {**values, "step": self.step}

    def restore(
        self, stores: Mapping[str, StoreState], tables: Mapping[str, SideTable], values: Mapping[str, Any]
    ) -> None:
        """Take up what `stores` and `save` returned."""
        super().restore(stores, tables, values)
        self.step = values["step"]
