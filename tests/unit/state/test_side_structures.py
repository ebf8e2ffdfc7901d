"""Rules, sorted tables, pages side by side, and accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.columns.arrow import hashes_of
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import REASONS, Accounts
from watersmeet.state.pages import Cursor, steps
from watersmeet.state.rules import ChunksRead, Horizon
from watersmeet.state.run import Run, resident_run
from watersmeet.state.sorted_tables import SortedTables, contains

SCHEMA = pa.schema([("_hash", pa.uint64()), ("_n", pa.int64())])
U64 = np.uint64


def table(hashes: list[int]) -> pa.Table:
    return pa.table([sorted(hashes), [1] * len(hashes)], schema=SCHEMA)


def run_of(rows: pa.Table, **facts: int | None) -> Run:
    return resident_run("left", rows, oldest=0, newest=0, **facts)


# -- rules


def test_a_horizon_spares_runs_that_are_not_before_it_unread() -> None:
    horizon = Horizon("_n")
    rows = pa.table([[1, 2, 3], [4, 5, 6]], schema=SCHEMA)
    run = run_of(rows, time_from=4, time_to=6)
    assert horizon.spares(run)
    assert (horizon.alive(run, rows).tolist(), horizon.dead(run, rows)) == ([True] * 3, 0)
    horizon.time = 4
    assert horizon.spares(run)
    horizon.time = 5
    assert not horizon.spares(run)
    assert (horizon.alive(run, rows).tolist(), horizon.dead(run, rows)) == ([False, True, True], 1)
    assert not horizon.spares(run_of(rows))  # a run of unknown times may hold any


def test_rows_live_until_their_chunk_is_read() -> None:
    rule = ChunksRead(np.array([0, 10, 20], U64))
    rows = table([1, 5, 10, 19, 25])
    rule.last_read[:] = [4, 7, 2]
    assert rule.offsets(rows).tolist() == [0, 2, 4, 5]
    for slot, alive in ((3, [4]), (5, [0, 1, 4]), (8, [0, 1, 2, 3, 4])):
        run = run_of(rows, slot=slot)
        assert np.flatnonzero(rule.alive(run, rows)).tolist() == alive
        assert rule.dead(run, rows) == 5 - len(alive)
        assert rule.spares(run) == (len(alive) == 5)
    part = rows.slice(1, 3)
    assert rule.alive(run_of(rows, slot=5), part).tolist() == [True, False, False]


# -- sorted tables


def summed(entries: pa.Table) -> pa.Table:
    counts = Counter(dict[int, int]())
    for hash_, amount in zip(entries["_hash"].to_pylist(), entries["_n"].to_pylist(), strict=True):
        counts[hash_] += amount
    return pa.table([sorted(counts), [counts[hash_] for hash_ in sorted(counts)]], schema=SCHEMA)


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=12), st.sets(st.integers(0, 30)))
def test_sorted_tables_equal_a_counter(batches: list[list[int]], gone: set[int]) -> None:
    tables, expected = SortedTables(SCHEMA, summed), Counter[int]()
    for batch in batches:
        tables.add(summed(table(batch)) if batch else table(batch))
        expected.update(batch)
        assert all(
            2 * after.rows < before.rows for before, after in zip(tables.pieces, tables.pieces[1:], strict=False)
        )
    tables.drop(np.array(sorted(gone), U64))
    expected = Counter({hash_: n for hash_, n in expected.items() if hash_ not in gone})
    whole = tables.table()
    assert dict(zip(whole["_hash"].to_pylist(), whole["_n"].to_pylist(), strict=True)) == expected
    assert whole["_hash"].to_pylist() == sorted(expected)
    assert tables.holds(np.arange(31, dtype=U64)).tolist() == [hash_ in expected for hash_ in range(31)]
    assert tables.rows == sum(piece.rows for piece in tables.pieces)
    assert tables.nbytes == sum(piece.nbytes for piece in tables.pieces)
    fresh = SortedTables(SCHEMA, summed)
    fresh.restore("keys", {**tables.save("keys"), **tables.save("keys.more"), **tables.save("other")})
    assert fresh.pieces == tables.pieces
    tables.clear()
    assert (tables.rows, tables.table().num_rows, tables.save("keys")) == (0, 0, {})


def test_pieces_without_a_dropped_entry_stay_as_they_are() -> None:
    tables = SortedTables(SCHEMA)
    tables.add(table([1, 2, 3, 4, 5]))
    tables.add(table([6, 7]))
    first, _ = tables.pieces
    tables.drop(np.array([6], U64))
    assert tables.pieces[0] is first
    assert hashes_of(tables.pieces[1].table).tolist() == [7]
    tables.drop(np.array([7], U64))
    assert tables.pieces == [first]


def test_more_than_ten_pieces_come_back_in_their_order() -> None:
    tables = SortedTables(SCHEMA)
    for exponent in range(12, 0, -1):
        tables.add(table(list(range(3**exponent // 8 + exponent))))
    fresh = SortedTables(SCHEMA)
    fresh.restore("keys", dict(sorted(tables.save("keys").items())))
    assert fresh.pieces == tables.pieces


def test_contains() -> None:
    assert contains(np.array([2, 5], U64), np.array([1, 2, 5, 9], U64)).tolist() == [False, True, True, False]
    assert contains(np.array([], U64), np.array([1], U64)).tolist() == [False]


# -- pages


@given(st.lists(st.integers(0, 100), max_size=40), st.integers(1, 7), st.lists(st.integers(0, 110), max_size=6))
def test_a_cursor_hands_over_every_row_once_and_reads_no_page_ahead(
    values: list[int], page_rows: int, bounds: list[int]
) -> None:
    ordered, read = sorted(values), [0]

    def pages() -> Iterator[pa.Table]:
        for start in range(0, len(ordered), page_rows):
            read[0] += 1
            yield table(ordered[start : start + page_rows])

    cursor, taken = Cursor(pages()), []
    for bound in sorted(bounds):
        taken += [hash_ for piece in cursor.below(bound) for hash_ in hashes_of(piece).tolist()]
        assert taken == [hash_ for hash_ in ordered if hash_ < bound]
        assert cursor.pages_read == read[0] <= len(taken) // page_rows + 1
    taken += [hash_ for piece in cursor.below(None) for hash_ in hashes_of(piece).tolist()]
    assert taken == ordered
    assert cursor.below(None) == []
    assert cursor.pages_read == -(-len(ordered) // page_rows)


@given(st.integers(0, 1 << 63), st.integers(1, 1 << 63), st.integers(0, 1000), st.integers(0, 50))
def test_steps_ascend_within_the_range_and_the_last_is_open(low: int, width: int, rows: int, step_rows: int) -> None:
    *bounds, last = steps(low, low + width, rows, step_rows)
    assert last is None
    assert len(bounds) + 1 == max(1, -(-rows // max(1, step_rows)))
    inner = [bound for bound in bounds if bound is not None]
    assert inner == sorted(inner)
    assert all(low <= bound < low + width for bound in inner)


# -- accounts


def test_what_came_is_held_or_has_left_for_a_reason() -> None:
    metrics = Metrics()
    accounts = Accounts(metrics)
    accounts.arrive("left", 10)
    accounts.arrive("left", 0)
    accounts.leave("left", "expired", 3)
    accounts.leave("left", "expired", 1)
    accounts.leave("left", "late", 2)
    accounts.leave("left", "ended", 0)
    assert (accounts.held("left"), accounts.held("right")) == (4, 0)
    assert accounts.left == {"left": {"expired": 4, "late": 2}}
    assert metrics.counters == {"left.left.expired": 4, "left.left.late": 2}


def test_accounts_last_over_batches_and_counters_do_not() -> None:
    metrics = Metrics()
    accounts = Accounts(metrics)
    accounts.arrive("left", 5)
    accounts.leave("left", "shed", 2)
    saved = accounts.save()
    again = Accounts(Metrics())
    again.restore(saved)
    again.leave("left", "shed", 1)
    again.arrive("left", 1)
    assert again.held("left") == 3
    assert saved == {"came": {"left": 5}, "left": {"left": {"shed": 2}}}  # not touched by what came later
    fresh = Accounts(Metrics())
    fresh.restore({})
    assert fresh.held("left") == 0


def test_only_known_reasons() -> None:
    accounts = Accounts(Metrics())
    for reason in REASONS:
        accounts.leave("left", reason, 0)
    with pytest.raises(ValueError, match=r"^'boredom' is not a reason to leave: null_key, null_time, "):
        accounts.leave("left", "boredom", 1)
