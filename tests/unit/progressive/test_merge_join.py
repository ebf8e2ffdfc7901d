"""PSMJ: the paper's Figures 2 and 6, and merging within bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import sort_by_hash
from watersmeet.join.emitter import BinaryEmitter
from watersmeet.plan import JoinPlan
from watersmeet.plan.metrics import Metrics
from watersmeet.progressive.disk_tasks import DiskTasks, choose_units
from watersmeet.progressive.duplicates import DTS, OWED, resident_schema
from watersmeet.progressive.expected import ExpectedResults
from watersmeet.progressive.merge_join import Source, Stretch
from watersmeet.progressive.units import Unit, Units
from watersmeet.state.accounts import Accounts
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import HashTiers
from watersmeet.state.pages import Cursor
from watersmeet.state.rows import RowStore
from watersmeet.state.space import MemorySpace, cut_into_pages
from watersmeet.testing import make_plan

KEYS = (pa.int64(),)
IDENT = (pa.int64(),)


class Disk:
    """A disk partition made by hand. A row is (id, A_join); a value is its own hash: runs sort as in the figures."""

    def __init__(self, page_rows: int = 2) -> None:
        self.plan: JoinPlan = make_plan("hmj", keys=KEYS, payload=IDENT)
        self.buckets, self.page_rows = Buckets(1), page_rows
        stores = tuple(
            RowStore(
                spec.name,
                resident_schema(spec.schema),
                HashTiers(),
                MemorySpace(),
                Accounts(Metrics()),
                buckets=self.buckets,
                counts_buckets=True,
            )
            for spec in self.plan.inputs
        )
        self.stores = (stores[0], stores[1])
        self.units = Units(self.stores, 1)
        self.tasks = DiskTasks(
            self.plan,
            BinaryEmitter(self.plan, Accounts(Metrics()), Metrics()),
            self.buckets,
            self.stores,
            self.units,
            ExpectedResults(1),
            page_rows,
        )

    def flush(self, left: list[tuple[int, int]], right: list[tuple[int, int]], batch: int) -> None:
        """Rows of both inputs came and were flushed in one batch."""
        serials = [self._run(store, rows, batch) for store, rows in zip(self.stores, (left, right), strict=True)]
        self.units.add_unit(0, Unit(*serials), batch)

    def _run(self, store: RowStore, rows: list[tuple[int, int]], batch: int) -> int | None:
        if not rows:
            return None
        idents, values = zip(*rows, strict=True)
        table = pa.table(
            {
                "_hash": pa.array(values, pa.uint64()),
                "_k0": pa.array(values, pa.int64()),
                "_p0": pa.array(idents, pa.int64()),
                OWED: pa.array([batch] * len(rows), pa.int32()),
                DTS: pa.array([batch] * len(rows), pa.int32()),
            }
        )
        pages = cut_into_pages(sort_by_hash(table), self.buckets, self.page_rows)
        return store.spill(pages, oldest=batch, newest=batch).id

    def matching(self) -> list[tuple[list[int], list[int]]]:
        """The ids of matching runs."""
        return [(self._idents(0, unit.left), self._idents(1, unit.right)) for unit in self.units.units[0]]

    def _idents(self, index: int, serial: int | None) -> list[int]:
        if serial is None:
            return []
        return [ident for page in self.units.segment(index, serial, 0).read() for ident in page["_p0"].to_pylist()]


def pairs(tables: Iterator[pa.Table]) -> list[tuple[int, int]]:
    found = [zip(t["left_0"].to_pylist(), t["right_0"].to_pylist(), strict=True) for t in tables]
    return sorted(pair for table in found for pair in table)


def figure_2() -> Disk:
    disk = Disk()
    disk.flush([(1, 1), (2, 3), (3, 13), (4, 21)], [(10, 3), (11, 17)], batch=1)
    disk.flush([(5, 5), (6, 17)], [(12, 1), (13, 4), (14, 13), (15, 20)], batch=2)
    disk.flush([(7, 6), (8, 20)], [(16, 7), (17, 11)], batch=3)
    return disk


def test_the_first_merge_of_figure_2() -> None:
    disk = figure_2()
    units = choose_units(disk.units.units[0], fan_in=2)
    assert units == disk.units.units[0][:2]
    # (2, 10) agree too, but were flushed together.
    assert pairs(disk.tasks._merge(0, units, step_rows=1)) == [(1, 12), (3, 14), (6, 11)]
    # Figure 2b: the third runs wait, the merged ones follow them.
    assert disk.matching() == [([7, 8], [16, 17]), ([1, 2, 5, 3, 6, 4], [12, 10, 13, 14, 11, 15])]


def test_the_second_merge_of_figure_2_and_no_third() -> None:
    disk = figure_2()
    assert pairs(disk.tasks.dd(0, fan_in=2, max_pages=1000)) == [(1, 12), (3, 14), (6, 11), (8, 15)]
    assert disk.matching() == [([1, 2, 5, 7, 3, 6, 8, 4], [12, 10, 13, 16, 17, 14, 11, 15])]
    assert pairs(disk.tasks.dd(0, fan_in=2, max_pages=1000)) == []


def test_the_matching_runs_of_figure_6() -> None:
    disk = Disk()
    for number in (1, 2, 3, 4):  # r_1^1 .. r_1^4
        disk.flush([(number, number)], [], batch=number)
    for number in (5, 6, 7):  # r_2^1 .. r_2^3
        disk.flush([], [(number, number)], batch=number)
    steps = []
    for _ in range(3):
        list(disk.tasks._merge(0, choose_units(disk.units.units[0], 2), step_rows=100))
        steps.append(disk.matching())
    assert steps[0] == [([3], []), ([4], []), ([], [7]), ([1, 2], [5, 6])]
    assert steps[1] == [([1, 2], [5, 6]), ([3, 4], [7])]  # r_1^5 matches r_2^4, r_1^6 matches r_2^3
    assert steps[2] == [([1, 2, 3, 4], [5, 6, 7])]  # r_1^7 matches r_2^5
    # Figure 6d: new runs before the second dd-task; only they are compared.
    disk.flush([(8, 5)], [], batch=9)
    disk.flush([], [(9, 1)], batch=10)
    assert pairs(disk.tasks.dd(0, fan_in=2, max_pages=1000)) == [(1, 9), (8, 5)]
    assert disk.matching() == [([1, 2, 3, 4, 8], [9, 5, 6, 7])]


def test_a_dd_task_stops_when_its_pages_are_used_and_goes_on_later() -> None:
    disk, whole = figure_2(), figure_2()
    first = pairs(disk.tasks.dd(0, fan_in=2, max_pages=1))
    assert first == [(1, 12), (3, 14), (6, 11)]
    rest = pairs(disk.tasks.dd(0, fan_in=2, max_pages=1))
    assert sorted(first + rest) == pairs(whole.tasks.dd(0, fan_in=2, max_pages=1000))


def test_a_side_with_one_run_is_not_rewritten() -> None:
    disk = Disk()
    disk.flush([(1, 4)], [], batch=1)
    disk.flush([], [(2, 4)], batch=2)
    assert pairs(disk.tasks.dd(0, fan_in=2, max_pages=10)) == [(1, 2)]
    assert disk.units.units[0] == [Unit(0, 0)]
    assert disk.tasks.pages == 2  # read, none written


def test_merged_buckets_leave_their_files_and_empty_files_go() -> None:
    disk = figure_2()
    list(disk.tasks.dd(0, fan_in=8, max_pages=1000))
    assert (
        disk.tasks.pages == 8 + 8
    )  # three runs of each input hold 2 + 1 + 1 and 1 + 2 + 1 pages; all are written again
    assert [[run.id for run in store.runs] for store in disk.stores] == [[3], [3]]
    assert disk.units.counts.tolist() == [[8], [8]]


@pytest.mark.parametrize("page_rows", [1, 3, 100])
def test_no_more_than_a_step_and_a_page_is_in_memory(page_rows: int) -> None:
    values = np.sort(np.random.default_rng(5).integers(0, 1 << 63, 1000, dtype=np.uint64))
    table = pa.table({"_hash": values, OWED: np.zeros(1000, np.int32), DTS: np.zeros(1000, np.int32)})
    read = [0]

    def pages() -> Iterator[pa.Table]:
        for start in range(0, 1000, page_rows):
            read[0] += min(page_rows, 1000 - start)
            yield table.slice(start, page_rows)

    source, taken = Source(Cursor(pages()), 0, 1000), []
    for step in range(1, 11):
        stretch = Stretch.of([source], step * (1 << 63) // 10)
        assert stretch is not None
        taken += stretch.hashes.tolist()
        assert read[0] - len(taken) <= page_rows
        assert len(stretch.hashes) < 150
    assert taken == values.tolist()
