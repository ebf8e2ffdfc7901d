"""Layouts: which runs are merged, when, and when no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import FANOUT, MAX_BYTES, WIDE_FANOUT, FewRuns, HashTiers, Layout, SizeTiers, TimeSlices
from watersmeet.state.parts import Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.run import Run, resident_run
from watersmeet.state.space import MemorySpace

SCHEMA = pa.schema([("_hash", pa.uint64()), ("_p0", pa.int64())])
WIDE = pa.schema([("_hash", pa.uint64()), ("_p0", pa.string())])


def run_of(rows: int, level: int = 0, **facts: Any) -> Run:
    table = pa.table([range(rows), range(rows)], schema=SCHEMA)
    return resident_run("left", table, oldest=0, newest=0, level=level, **facts)


def rows_of(run: Run) -> int:
    return run.rows


def store_of(layout: Layout, **options: Any) -> RowStore:
    return RowStore("left", SCHEMA, layout, MemorySpace(), Accounts(Metrics()), **options)


def add(store: RowStore, hashes: Sequence[int], batch: int, times: Sequence[int] | None = None) -> int:
    """Store rows and settle; returns how many were written once more."""
    store.add(pa.table([sorted(hashes), list(times or [batch] * len(hashes))], schema=SCHEMA), batch)
    return store.settle()


# -- tiers


@given(st.lists(st.integers(0, 9), max_size=80), st.sampled_from([2, 3, 4]), st.sampled_from([5, 40, 10**6]))
def test_tiers_keep_all_rows_in_few_runs(sizes: list[int], fanout: int, max_rows: int) -> None:
    store = store_of(HashTiers(fanout=fanout, max_rows=max_rows))
    hashes: list[int] = []
    rewritten = 0
    for batch, size in enumerate(sizes):
        new = [(batch * 31 + i * 7919) % 1000 for i in range(size)]
        hashes += new
        rewritten += add(store, new, batch)
        assert store.rows == len(hashes)
    assert sorted(h for run in store.runs for h in run.hashes.tolist()) == sorted(hashes)
    assert all((np.diff(run.hashes.astype(object)) >= 0).all() for run in store.runs)
    assert all(run.rows <= max(max_rows, 9) for run in store.runs)
    levels = np.log(max(len(sizes), 2)) / np.log(fanout) + 1
    if max_rows > len(hashes):
        assert len(store.runs) <= fanout * levels
        assert rewritten <= len(hashes) * levels
    assert store.nbytes == sum(run.nbytes for run in store.runs)


def test_inputs_that_lag_merge_in_batches_of_their_own() -> None:
    inputs = [store_of(HashTiers(lag=lag)) for lag in range(4)]
    merges: list[list[int]] = [[] for _ in inputs]
    for batch in range(40):
        for store, when in zip(inputs, merges, strict=True):
            if add(store, [batch], batch):
                when.append(batch)
    assert merges == [list(range(3 + lag, 40, 4)) for lag in range(4)]
    assert all(store.rows == 40 for store in inputs)


def test_merged_runs_span_the_batches_of_their_parts() -> None:
    store = store_of(HashTiers(fanout=2))
    for batch in range(4, 8):
        add(store, [batch], batch)
    assert [(run.oldest, run.newest, run.rows, run.level) for run in store.runs] == [(4, 7, 4, 2)]


def test_a_full_level_takes_the_levels_above_along_in_one_pass() -> None:
    runs = [run_of(16, 2), run_of(4, 1), *[run_of(1)] * 2]
    merge = HashTiers(fanout=2).due(runs, rows_of)
    assert merge is not None
    assert (merge.runs, merge.level, merge.rewrite) == (runs, 3, True)
    merge = HashTiers(fanout=3).due([run_of(4, 1), *[run_of(1)] * 3], rows_of)
    assert merge is not None
    assert (len(merge.runs), merge.level) == (3, 1)
    assert HashTiers(fanout=3).due([*[run_of(4, 1)] * 5, run_of(1)], rows_of) is None  # level 0 is not full


def test_what_is_too_large_to_merge_moves_up_as_it_is() -> None:
    runs = [run_of(6), run_of(6)]
    merge = HashTiers(fanout=2, max_rows=10).due(runs, rows_of)
    assert merge is not None
    assert (merge.runs, merge.level, merge.rewrite) == (runs, 1, False)
    # A level above that is full and would become too large goes first, and those below it have its place.
    runs = [run_of(9, 1), run_of(1), run_of(1)]
    merge = HashTiers(fanout=2, max_rows=10).due(runs, rows_of)
    assert merge is not None
    assert (merge.runs, merge.level, merge.rewrite) == (runs[:1], 2, False)
    merge = HashTiers(fanout=2, max_rows=10).due([run_of(9, 2), *runs[1:]], rows_of)
    assert merge is not None
    assert (merge.runs, merge.level, merge.rewrite) == (runs[1:], 1, True)


LARGEST = 1000


@dataclass(frozen=True)
class Counted:
    """A run of which only its number of rows is there."""

    own: int
    level: int = 0
    nbytes: int = 0


def settled(tiers: HashTiers, sizes: Sequence[int]) -> Iterator[tuple[list[Counted], int]]:
    """The runs after each batch of so many rows, and how many rows were written once more in all."""
    runs: list[Counted] = []
    written = 0
    for rows in sizes:
        runs += [Counted(rows)] if rows else []
        while merge := tiers.due(cast(list[Run], runs), rows_of):
            chosen = cast(list[Counted], merge.runs)
            at = next(at for at, run in enumerate(runs) if run is chosen[0])
            assert all(a is b for a, b in zip(runs[at:], chosen, strict=False))  # neighbours in age
            made = [replace(run, level=merge.level) for run in chosen]
            if merge.rewrite:
                made = [Counted(sum(run.own for run in chosen), merge.level)]
                written += made[0].own
                assert made[0].own <= LARGEST
            runs[at : at + len(chosen)] = made
        assert [run.level for run in runs] == sorted((run.level for run in runs), reverse=True)  # older ones above
        yield runs, written


def check_tiers(tiers: HashTiers, sizes: Sequence[int]) -> None:
    rows = 0
    for batch, (runs, written) in enumerate(settled(tiers, sizes)):
        rows += sizes[batch]
        levels = log(batch + 1, tiers.fanout) + 2
        assert len(runs) <= tiers.fanout * (levels + 1) * (1 + rows / LARGEST), batch
        assert written <= rows * levels, batch
        assert sum(run.own for run in runs) == rows


@pytest.mark.parametrize(
    "sizes",
    [
        [1] * 3000,
        [30] * 2000,
        [LARGEST + 1] + [1] * 3000,
        [1] * 100 + [LARGEST + 1] + [1] * 2000,
        [LARGEST - 5] + [1] * 3000,
        [LARGEST + 1, 1] * 500,
        [LARGEST // 2, 1, 1] * 500,
        [LARGEST // 4 + 1] * 500,
        ([LARGEST + 1] + [1] * 15) * 100,
        ([LARGEST + 1] + [1] * 60) * 40,
        ([LARGEST // 2] * 40 + [1] * 400) * 4,
    ],
    ids=lambda sizes: f"{sizes[0]}, {sizes[1]}, ... {sizes[-1]}",
)
@pytest.mark.parametrize("lag", [0, 3])
def test_runs_are_few_and_rows_are_rewritten_seldom_whatever_the_batches(sizes: list[int], lag: int) -> None:
    check_tiers(HashTiers(lag=lag, max_rows=LARGEST), sizes)


SIZES = st.one_of(st.integers(0, 3), st.integers(0, 2 * LARGEST), st.sampled_from([1, 250, 251, 999, 1000, 1001]))


@given(
    st.lists(st.tuples(st.lists(SIZES, min_size=1, max_size=5), st.integers(1, 60)), max_size=6),
    st.sampled_from([2, 3, 4]),
    st.integers(0, 3),
)
def test_the_same_for_batches_drawn_in_phases(phases: list[tuple[list[int], int]], fanout: int, lag: int) -> None:
    sizes = [rows for pattern, times in phases for rows in pattern * times]
    check_tiers(HashTiers(lag=lag, fanout=fanout, max_rows=LARGEST), sizes)


def test_even_batches_are_written_as_often_as_they_grow_by_a_level() -> None:
    *_, (runs, written) = settled(HashTiers(max_rows=LARGEST), [10] * 1024)
    assert {run.own for run in runs} == {640}
    assert (len(runs), written) == (16, 16 * (12 * 40 + 3 * 160 + 640))


# -- wide rows: to write them once more costs more than to probe more runs


def many(count: int, rows: int, width: int, level: int = 0) -> list[Run]:
    return cast(list[Run], [Counted(rows, level, rows * width) for _ in range(count)])


@pytest.mark.parametrize(
    ("rows", "width", "fanout"),
    [
        (25_000, 16, 4),
        (25_000, 40, 4),
        (25_000, 500, WIDE_FANOUT),
        (25_000, 200, 4),
        (100_000, 200, WIDE_FANOUT),
        (6_000, 500, 4),  # such a run is written sooner than it is probed
        (6_000, 5_000, WIDE_FANOUT),
        (10, 500, 4),
    ],
)
def test_runs_of_wide_rows_wait_until_there_are_more_of_them(rows: int, width: int, fanout: int) -> None:
    assert FANOUT == 4
    for lag in (0, 1):
        tiers = HashTiers(lag=lag)
        assert tiers.due(many(fanout + lag - 1, rows, width), rows_of) is None
        merge = tiers.due(many(fanout + lag, rows, width), rows_of)
        assert merge is not None
        assert (len(merge.runs), merge.level, merge.rewrite) == (fanout, 1, True)


def test_wide_rows_are_written_once_more_in_sixteen_batches() -> None:
    runs: list[Run] = []
    written = [0]
    for _ in range(64):
        runs += many(1, 25_000, 500)
        while merge := HashTiers().due(runs, rows_of):
            assert merge.rewrite
            rows = sum(run.own for run in merge.runs)
            written.append(rows)
            runs = [*(run for run in runs if run not in merge.runs), *many(1, rows, 500, merge.level)]
    assert written == [0, *[16 * 25_000] * 4]


def test_large_runs_of_wide_rows_become_as_large_as_one_may_be() -> None:
    """Fifteen would be too large: the oldest that fit together are one, and the others stay for the next ones."""
    above, first = many(15, 400_000, 500, level=1), many(16, 25_000, 500)
    tiers = HashTiers()
    assert tiers.too_large(above)
    merge = tiers.due([*above, *first], rows_of)
    assert merge is not None
    assert (merge.runs, merge.level, merge.rewrite) == (above[:5], 2, True)
    assert MAX_BYTES - 400_000 * 500 < sum(run.nbytes for run in merge.runs) <= MAX_BYTES
    merge = tiers.due([*many(1, 2_000_000, 500, level=2), *above[5:], *first], rows_of)
    assert merge is not None
    assert (merge.runs, merge.level, merge.rewrite) == (first, 1, True)
    # With three that fit it is not worth it.
    above = many(15, 600_000, 500, level=1)
    merge = tiers.due([*above, *first], rows_of)
    assert merge is not None
    assert (merge.runs, merge.level, merge.rewrite) == (above, 2, False)


@pytest.mark.parametrize("tiers", [HashTiers, SizeTiers])
def test_no_merge_makes_a_column_too_large_for_one_array(tiers: type[HashTiers | SizeTiers]) -> None:
    store = RowStore("left", WIDE, tiers(fanout=2, max_bytes=2500), MemorySpace(), Accounts(Metrics()))
    for batch in range(8):
        store.add(pa.table([[batch], ["x" * 1000]], schema=WIDE), batch)
        store.settle()
    assert store.rows == 8
    assert 2000 <= max(run.nbytes for run in store.runs) <= 2500


# -- by size


def test_size_tiers_count_the_rows_alive() -> None:
    layout = SizeTiers(smallest=10, fanout=2, max_rows=1000)
    runs = [run_of(100), run_of(8), run_of(90)]
    merge = layout.due(runs, rows_of)
    assert merge is not None
    assert merge.runs == [runs[0], runs[2]]
    merge = layout.due(runs, lambda run: min(run.rows, 10))  # so many have died that all are equally long
    assert merge is not None
    assert merge.runs == runs
    assert layout.due([run_of(100), run_of(8)], rows_of) is None


@pytest.mark.parametrize(("rows", "level"), [(0, 0), (10, 0), (11, 1), (40, 1), (41, 2), (160, 2), (161, 3)])
def test_a_size_tier_is_a_factor_of_four(rows: int, level: int) -> None:
    layout = SizeTiers(smallest=10, fanout=2)
    other = run_of((10, 40, 160, 640)[level])
    assert layout.due([run_of(rows), other], rows_of) is not None
    for wrong in range(4):
        if wrong != level:
            assert layout.due([run_of(rows), run_of((10, 40, 160, 640)[wrong])], rows_of) is None


def test_size_tiers_leave_runs_that_are_too_large_together() -> None:
    assert SizeTiers(smallest=10, fanout=2, max_rows=19).due([run_of(10), run_of(10)], rows_of) is None
    assert SizeTiers(smallest=10, fanout=2, max_rows=20).due([run_of(10), run_of(10)], rows_of) is not None


def test_size_tiers_merge_the_oldest_that_may_be_one_run() -> None:
    runs = [run_of(10) for _ in range(5)]
    for limits in ({"max_rows": 40}, {"max_bytes": 4 * runs[0].nbytes}):
        merge = SizeTiers(smallest=10, **limits).due(runs, rows_of)
        assert merge is not None
        assert merge.runs == runs[:4]
        assert SizeTiers(smallest=10, **{name: most - 1 for name, most in limits.items()}).due(runs, rows_of) is None


def test_a_few_wide_rows_hold_up_no_narrow_ones() -> None:
    """A run of few rows may be as large as a run becomes."""
    wide = pa.table([[1], ["x" * 1000]], schema=WIDE)
    store = RowStore("left", WIDE, SizeTiers(fanout=2, max_bytes=1500), MemorySpace(), Accounts(Metrics()))
    for batch in range(20):
        store.add(wide if batch == 3 else pa.table([[batch], ["x"]], schema=WIDE), batch)
        store.settle()
        assert len(store.runs) <= 3
        assert max(run.nbytes for run in store.runs) <= 1500
    assert store.rows == 20


def test_a_run_that_is_mostly_dead_is_rewritten() -> None:
    for layout in (HashTiers(), SizeTiers(), FewRuns()):
        runs = [run_of(4), run_of(4)]
        dead = {id(runs[0]): 2, id(runs[1]): 3}
        assert layout.sparse(runs, 8, lambda run: dead[id(run)]) == [runs[1]]  # noqa: B023
    store = store_of(HashTiers())
    add(store, [1, 2, 3, 4], 0)
    store.accounts.arrive("left", 4)
    (part,) = store.parts()
    store.remove(Rows(part, np.array([0, 1])), "ended")
    assert store.settle() == 0
    store.remove(Rows(part, np.array([2])), "ended")
    assert store.settle() == 1
    assert [run.rows for run in store.runs] == [1]


# -- few runs


@pytest.mark.parametrize("most", [1, 2, 3, 16])
def test_few_runs_stay_few(most: int) -> None:
    store = store_of(FewRuns(most=most, short=0))
    for batch in range(50):
        add(store, [batch], batch)
        assert len(store.runs) <= max(most, 1)
    assert store.rows == 50


def test_runs_that_are_short_together_become_one() -> None:
    runs = [run_of(30), run_of(1), run_of(8), run_of(2)]
    assert FewRuns(short=40).due(runs, rows_of) is None  # 41 rows
    assert FewRuns(short=41).due(runs[1:], rows_of) is None  # three runs
    merge = FewRuns(short=41).due(runs, rows_of)
    assert merge is not None
    assert merge.runs == runs
    merge = FewRuns(short=41).due([run_of(100), *runs], rows_of)
    assert merge is not None
    assert merge.runs == runs


def test_the_smaller_half_is_merged_and_gets_the_slot_of_now() -> None:
    runs = [run_of(9), run_of(1), run_of(8), run_of(2), run_of(7)]
    layout = FewRuns(most=4, short=0, slot=6)
    merge = layout.due(runs, rows_of)
    assert merge is not None
    assert merge.runs == [runs[1], runs[3]]
    assert layout.due(runs[:4], rows_of) is None
    assert layout.slot_of(runs) == {"slot": 6}
    assert [facts for facts, _ in layout.split(run_of(3).table, None)] == [{"slot": 6}]


# -- slices of time


def slices(**options: Any) -> TimeSlices:
    return TimeSlices(span=100, share=10, tiers=HashTiers(fanout=3), **options)


def test_no_run_crosses_the_border_of_a_slice() -> None:
    store = store_of(slices(), time="_p0")
    add(store, range(6), 0, [29, 5, 20, 9, 0, 10])
    found = [(run.slot, run.width, run.time_from, run.time_to, run.rows) for run in store.runs]
    assert found == [(0, 10, 0, 9, 3), (1, 10, 10, 10, 1), (2, 10, 20, 29, 2)]


def test_slices_are_wider_for_a_batch_that_spans_many_and_for_a_horizon_that_moves_fast() -> None:
    def widths(layout: TimeSlices, times: list[int]) -> set[int]:
        table = pa.table([range(len(times)), times], schema=SCHEMA)
        return {facts["width"] for facts, _ in layout.split(table, np.array(times))}

    assert widths(slices(), [0, 159]) == {10}
    assert widths(slices(), [0, 160]) == {20}
    assert widths(slices(advance=20), [0, 1]) == {10}
    assert widths(slices(advance=21), [0, 1]) == {20}
    layout = slices()
    layout.narrow(50)
    assert layout.width == 5
    layout.narrow(1)
    assert layout.width == 1
    layout.narrow(1000)
    assert layout.width == 10  # not wider than planned


def test_a_slice_is_closed_once_and_late_rows_are_merged_among_themselves() -> None:
    layout = slices()
    store = store_of(layout, time="_p0")
    for batch in range(2):
        assert add(store, [1, 2], batch, [3, 4]) == 0
    layout.bound = 9
    assert store.settle() == 0  # rows of the time 9 may still come
    layout.bound = 10
    assert store.settle() == 4
    (closed,) = store.runs
    assert (closed.rows, closed.level) == (4, layout.closed)
    written = [add(store, [batch], batch, [5]) for batch in range(2, 11)]
    # Nine late rows: merged by three, then three times three; the closed run is never written again.
    assert written == [0, 0, 3, 0, 0, 3, 0, 0, 9]
    assert store.runs[0] is closed
    assert [(run.rows, run.level) for run in store.runs[1:]] == [(9, 2)]
    assert store.settle() == 0


def test_runs_of_one_order_and_one_width_are_merged() -> None:
    layout = slices(bound=1000)
    kept = [run_of(1, width=10, slot=1), run_of(1, width=10, slot=1, order="arrival"), run_of(1, width=20, slot=1)]
    assert layout.due(kept, rows_of) is None
    other = run_of(1, width=10, slot=1)
    merge = layout.due([*kept, other], rows_of)
    assert merge is not None
    assert (merge.runs, merge.level) == ([kept[0], other], layout.closed)


@pytest.mark.parametrize("limits", [{"max_rows": 3}, {"max_bytes": 63}])
def test_a_slice_too_large_for_one_run_is_closed_as_it_is(limits: dict[str, int]) -> None:
    layout = TimeSlices(span=100, share=10, bound=10, tiers=HashTiers(fanout=3, **limits))
    store = store_of(layout, time="_p0")
    add(store, [1, 2], 0, [3, 4])
    assert add(store, [1, 2], 1, [3, 4]) == 0
    assert [(run.rows, run.level) for run in store.runs] == [(2, layout.closed)] * 2
    assert layout.due(store.runs, rows_of) is None


def test_dead_rows_of_slices_are_rewritten_when_they_are_a_quarter_of_the_live_ones() -> None:
    layout, runs = slices(), [run_of(10), run_of(10)]

    def unread(run: Run) -> int:
        raise AssertionError("a run was read")

    assert layout.sparse(runs, 100, unread) == []  # even if all 20 were dead, 80 live ones are too many
    assert layout.sparse(runs, 60, lambda run: 6) == []
    assert layout.sparse(runs, 60, lambda run: 7) == runs


@pytest.mark.parametrize(
    ("total", "dead", "chosen"),
    [
        (40, (1, 9, 2), [1]),  # 12 for 28: without the second run 3 are left
        (40, (1, 9, 6), [1, 2]),  # 16 for 24: 7 are still too many
        (70, (1, 9, 6), [1, 2]),  # 16 for 54: 7 are not, but a run that is mostly dead goes with them
        (30, (4, 4, 4), [0, 1]),  # 12 for 18: 4 are not too many
        (60, (4, 4, 4), []),  # 12 for 48
    ],
)
def test_of_slices_with_dead_rows_no_more_are_rewritten_than_it_takes(
    total: int, dead: tuple[int, ...], chosen: list[int]
) -> None:
    layout, runs = slices(), [run_of(10, slot=slot) for slot in range(3)]
    counts = {id(run): count for run, count in zip(runs, dead, strict=True)}
    assert layout.sparse(runs, total, lambda run: counts[id(run)]) == [runs[at] for at in chosen]
