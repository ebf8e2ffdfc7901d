"""MESHJOIN: the table goes by in a fixed order, every row waits for one whole cycle, chunks may hold any rows.

Semantics     a row that enters at step e meets the chunks of the steps e .. e + k - 1, that is every chunk once, and
              leaves. Steps are counted for ever; step s reads chunk s mod k.
Cost          per step: one chunk, probed against all rows that wait; a batch makes ceil(k / `max_delay`) steps.
State         runs of waiting rows with `_entry` and `_ats`, and beside each run one byte per row: whether the row has
              met its key, has met its hash (a colliding key), or is gone.

Rows that are complete or gone stay in their run until most of it is dead; which rows count is decided per pair.
While nothing waits (and nothing else is wanted from the table) the steps stand still and no chunk is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.arrow import Hashes, Indices, concat, hashes_of, numpy_of, sort_order, take
from watersmeet.matching import equal_keys, match_blocks
from watersmeet.semistream.generation import ARRIVED, WAITING, Generation, Mask, Setting
from watersmeet.semistream.master_table import MasterPartition
from watersmeet.semistream.row_sizes import Sizes, row_bytes
from watersmeet.state.run import Run, resident_run

STATUS = "stream.status"
ENTRY = "_entry"  # the step at which a waiting row entered
MATCHED, SEEN, GONE = np.uint8(1), np.uint8(2), np.uint8(4)
# More runs than this are never probed: the smallest half of them become one.
MAX_RUNS = 16


@dataclass
class WaitingRun:
    """A run of waiting rows and the status of each."""

    run: Run
    status: npt.NDArray[np.uint8]
    stored: Run | None = None  # the status as it was last written; None when it has changed

    @cached_property
    def hashes(self) -> Hashes:
        """The hashes of the rows, sorted."""
        return self.run.hashes

    @cached_property
    def entry(self) -> Indices:
        """The steps at which the rows entered."""
        return numpy_of(self.run.table.column(ENTRY)).astype(np.int64)

    @cached_property
    def sizes(self) -> Sizes:
        """The bytes of each row."""
        return row_bytes(self.run.table)

    @property
    def last_entry(self) -> int:
        """The step at which the youngest row entered."""
        return int(self.run.attributes["last_entry"])

    @property
    def waits(self) -> Mask:
        """Which rows are not gone."""
        return np.asarray(self.status < GONE)

    def mark(self, rows: Indices | Mask, bits: np.uint8) -> None:
        """Set bits in the status of rows."""
        if not self.status.flags.writeable:
            self.status = self.status.copy()
        self.status[rows] |= bits
        self.stored = None

    def status_run(self) -> Run:
        """The status as a run."""
        if self.stored is None:
            table = pa.table({"_status": pa.array(self.status)})
            self.stored = resident_run(STATUS, table, oldest=self.run.oldest, newest=self.run.newest)
        return self.stored


class MeshGeneration(Generation):
    """Rows wait for one cycle of the whole table."""

    policy = "mesh"

    def __init__(self, table: MasterPartition, setting: Setting) -> None:
        super().__init__(table, setting)
        more = [pa.field(ENTRY, pa.int64()), pa.field(ARRIVED, pa.int32())]
        self.schema = pa.schema([*setting.stream_schema, *more])
        self.waiting: list[WaitingRun] = []
        self.step = 0

    @property
    def pace(self) -> int:
        """Steps per batch: k of them within `max_delay` batches."""
        return -(-self.table.count // self.setting.options.max_delay)

    def wait(self, rows: pa.Table, batch: int) -> None:
        """Keep rows for the next k steps."""
        entry = pa.array(np.full(rows.num_rows, self.step, np.int64))
        rows = rows.append_column(ENTRY, entry).select(self.schema.names)
        run = resident_run(WAITING, rows, oldest=batch, newest=batch, last_entry=self.step)
        self.waiting.append(WaitingRun(run, np.zeros(rows.num_rows, np.uint8)))

    def work(self, batch: int) -> Iterator[pa.Table]:
        """This batch's steps."""
        yield from self.read_more(self.pace, batch)

    def read_more(self, chunks: int, batch: int) -> Iterator[pa.Table]:
        """So many steps, as long as anybody wants them; then the rows that have met every chunk leave."""
        for _ in range(chunks):
            if not self._is_wanted():
                break
            yield from self._step()
        yield from self._expire(batch)

    def relieve(self, excess: int, batch: int) -> Iterator[pa.Table]:
        """As many steps as it takes until enough of the oldest rows have left."""
        before = self.waiting_bytes
        while before - self.waiting_bytes < excess and self.waiting_rows:
            self.compact(batch)
            oldest = min(int(each.entry.min()) for each in self.waiting)
            yield from self.read_more(oldest + self.table.count - self.step, batch)
            self.compact(batch)

    def compact(self, batch: int) -> None:
        """Rewrite every run that has rows which are gone."""
        self._tidy(tight=True)

    def _is_wanted(self) -> bool:
        return any(self.step - each.last_entry < self.table.count for each in self.waiting)

    def _step(self) -> Iterator[pa.Table]:
        """Read the next chunk; every row that waits meets it."""
        number = self.step % self.table.count
        chunk = self.read(number)
        have = hashes_of(chunk)
        for each in self.waiting:
            if self.step - each.last_entry >= self.table.count:
                continue
            waits = each.waits & (self.step - each.entry < self.table.count)
            for i, j in match_blocks(each.hashes, have):
                present = waits[i]
                i, j = i[present], j[present]
                same = equal_keys(each.run.table, i, chunk, j)
                each.mark(i, SEEN)
                each.mark(i[same], MATCHED)
                if same.any():
                    yield self.pairs(each.run.table, i[same], chunk, j[same])
        self.passes(chunk, number)
        self.step += 1

    def passes(self, chunk: pa.Table, number: int) -> None:
        """A chunk goes by: for what a subclass wants from it."""

    def _expire(self, batch: int) -> Iterator[pa.Table]:
        """Rows that have met every chunk leave."""
        for each in self.waiting:
            done = each.waits & (self.step - each.entry >= self.table.count)
            if done.any():
                yield from self.leave(each, done, batch)

    def leave(self, each: WaitingRun, done: Mask, batch: int) -> Iterator[pa.Table]:
        """Let rows go that have met everything they must."""
        each.mark(done, GONE)
        if self.setting.options.how == "left":
            yield from self.unmatched(each.run.table, np.flatnonzero(done & (each.status & MATCHED == 0)))
        self.note_delays(numpy_of(each.run.table.column(ARRIVED))[done], batch)

    def settle(self, batch: int, room: int) -> Iterator[pa.Table]:
        """Nothing moves into a cache."""
        self.setting.metrics.count("rows_rewritten", self._tidy())
        return iter(())

    def _tidy(self, *, tight: bool = False) -> int:
        """Drop runs whose rows are gone, rewrite those that are mostly gone; returns the rows rewritten."""
        kept, rewritten = [], 0
        for each in self.waiting:
            count = int(each.waits.sum())
            if not count:
                continue
            sparse = count < each.run.rows and (tight or 2 * count < each.run.rows)
            rewritten += count if sparse else 0
            kept.append(self._rewrite([each]) if sparse else each)
        if len(kept) > MAX_RUNS:
            order = sorted(range(len(kept)), key=lambda i: (kept[i].run.rows, i))
            small = sorted(order[: MAX_RUNS // 2])
            merged = self._rewrite([kept[i] for i in small])
            kept = [each for i, each in enumerate(kept) if i not in small] + [merged]
            rewritten += merged.run.rows
        self.waiting = kept
        return rewritten

    def _rewrite(self, old: list[WaitingRun]) -> WaitingRun:
        """One run with the rows that wait."""
        stay = [np.flatnonzero(each.waits) for each in old]
        rows = concat([take(each.run.table, rows) for each, rows in zip(old, stay, strict=True)], self.schema)
        status = np.concatenate([each.status[rows] for each, rows in zip(old, stay, strict=True)])
        order = sort_order(hashes_of(rows))
        table = take(rows, order)
        run = resident_run(
            WAITING,
            table,
            oldest=min(each.run.oldest for each in old),
            newest=max(each.run.newest for each in old),
            last_entry=int(numpy_of(table.column(ENTRY)).max()),
        )
        return WaitingRun(run, status[order])

    def warm(self, batch: int) -> bool:
        """There is no cache to warm."""
        self.warm_keys = None
        return True

    @property
    def waiting_rows(self) -> int:
        """Rows that wait."""
        return sum(int(each.waits.sum()) for each in self.waiting)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the runs that hold them, and of their status."""
        return sum(each.run.nbytes + len(each.status) for each in self.waiting)

    @property
    def cycles(self) -> float:
        """Steps, in units of the table."""
        return self.step / self.table.count

    def save(self) -> tuple[list[Run], dict[str, Any]]:
        """The waiting rows and their status, run by run."""
        runs, values = super().save()
        waiting = [run for each in self.waiting for run in (each.run, each.status_run())]
        return [*waiting, *runs], {**values, "step": self.step}

    def restore(self, runs: list[Run], values: dict[str, Any]) -> None:
        """Take up what `save` returned."""
        super().restore(runs, values)
        self.step = values["step"]
        rows = [run for run in runs if run.label == WAITING]
        status = [run for run in runs if run.label == STATUS]
        self.waiting = [
            WaitingRun(run, numpy_of(beside.table.column("_status")), beside)
            for run, beside in zip(rows, status, strict=True)
        ]
