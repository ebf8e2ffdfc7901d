"""Marks against a plain set of (run, row)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.state.marks import FOLD, Marks
from watersmeet.state.run import Run, resident_run


def run_of(number: int, rows: int) -> Run:
    hashes = pa.array([7 * row + number for row in range(rows)], pa.uint64())
    return resident_run("left", pa.table({"_hash": hashes}), oldest=0, newest=0, id=number)


def mark(marks: Marks, run: Run, rows: list[int]) -> list[int]:
    found: list[int] = marks.add(run, np.array(rows, np.int64), run.hashes).tolist()
    return found


def settle(marks: Marks, *runs: Run) -> None:
    marks.settle({run.id: run for run in runs})


def pieces(marks: Marks) -> list[tuple[str, int]]:
    """The log's pieces with their entries, and the bitmaps with how many rows they mark."""
    return [(name, table.content) for name, table in marks.save()[0].items()]


def test_marks_are_new_once_and_ascending() -> None:
    marks, run = Marks(), run_of(3, 10)
    assert mark(marks, run, [7, 2, 7]) == [2, 7]
    assert mark(marks, run, [2, 9]) == [9]
    assert mark(marks, run, []) == []
    settle(marks, run)
    assert mark(marks, run, [9, 2, 0]) == [0]
    assert (marks.rows(run).tolist(), marks.count(run)) == ([0, 2, 7, 9], 4)
    assert marks.test(run, np.array([9, 1, 0])).tolist() == [True, False, True]


def test_what_is_marked_in_a_batch_is_in_pieces_of_falling_size() -> None:
    marks, run = Marks(), run_of(5, 100_000)
    order = Random(1).sample(range(100_000), 400)
    taken = 0
    for size in [40, 3, 3, 1, 1, 1, 9, 60, 2, 2, 5, 30, 1]:
        mark(marks, run, order[taken : taken + size])
        taken += size
        sizes = [len(piece) for piece in marks._fresh[run.id]]
        assert sum(sizes) == taken
        assert all(larger > 2 * smaller for larger, smaller in pairwise(sizes)), sizes


def test_the_hashes_of_marked_rows_add_up_in_64_bits() -> None:
    hashes = pa.array([2**63 + row for row in range(6)], pa.uint64())
    marks, run = Marks(), resident_run("left", pa.table({"_hash": hashes}), oldest=0, newest=0, id=4)
    for rows in ([1], [2, 5], [5, 0]):
        mark(marks, run, rows)
    assert marks.save()[1] == {"4": [4, (1 + 2 + 5) % 2**64]}


def test_a_few_rows_are_looked_up_in_the_bits_of_a_long_run() -> None:
    marks, run = Marks(), run_of(2, 4000)
    mark(marks, run, list(range(0, 4000, 3)))
    settle(marks, run)
    mark(marks, run, [7])
    assert [name for name, _ in pieces(marks)] == ["log0", "bits2"]
    assert marks.test(run, np.array([0, 1, 7, 8, 9, 3999])).tolist() == [True, False, True, False, True, True]


def test_rows_of_a_part_are_numbered_from_its_first_row() -> None:
    marks, run = Marks(), run_of(0, 10)
    assert marks.add(run, np.array([0, 2]), run.hashes[4:], base=4).tolist() == [0, 2]
    assert marks.rows(run).tolist() == [4, 6]
    assert marks.add(run, np.array([0, 1]), run.hashes[4:], base=4).tolist() == [1]


def test_a_batch_adds_a_piece_and_pieces_of_like_length_are_merged() -> None:
    marks, run = Marks(), run_of(0, 100_000)
    lengths = []
    for batch, count in enumerate([100, 40, 10, 4, 2]):
        mark(marks, run, list(range(batch * 1000, batch * 1000 + count)))
        settle(marks, run)
        lengths.append([entries for _, entries in pieces(marks)])
    assert lengths == [[100], [100, 40], [100, 40, 10], [100, 40, 10, 4], [100, 40, 16]]


def test_a_run_of_which_many_rows_are_marked_gets_a_bitmap() -> None:
    marks, run = Marks(), run_of(0, 100 * FOLD)
    mark(marks, run, list(range(100)))
    settle(marks, run)
    assert pieces(marks) == [("log0", 100)]
    mark(marks, run, [2000])
    settle(marks, run)
    assert pieces(marks) == [("bits0", 101)]
    assert marks.nbytes <= 100 * FOLD // 8 + 64
    mark(marks, run, [3000])
    settle(marks, run)
    assert pieces(marks) == [("log0", 1), ("bits0", 101)]
    assert marks.rows(run).tolist() == [*range(100), 2000, 3000]
    assert marks.test(run, np.array([99, 100, 2000, 3000])).tolist() == [True, False, True, True]


def test_marks_of_runs_that_are_gone_take_no_room_for_long() -> None:
    marks, gone, kept = Marks(), run_of(0, 10_000), run_of(1, 10_000)
    mark(marks, gone, list(range(200)))
    mark(marks, kept, [5])
    settle(marks, gone, kept)
    marks.forget([gone])
    assert (marks.count(gone), marks.rows(kept).tolist()) == (0, [5])
    settle(marks, kept)
    assert pieces(marks) == [("log0", 1)]
    marks.forget([kept])
    settle(marks)
    assert (marks.save(), marks.nbytes) == (({}, {}), 0)


def test_what_two_attempts_must_agree_on_is_not_which_rows_are_marked() -> None:
    """Rows of one hash may stand in another order."""
    hashes = pa.array([4, 4, 4, 9], pa.uint64())
    run = resident_run("left", pa.table({"_hash": hashes}), oldest=0, newest=0)
    found = []
    for rows in ([0], [2], [3]):
        marks = Marks()
        mark(marks, run, rows)
        settle(marks, run)
        tables, values = marks.save()
        found.append(([table.digest() for table in tables.values()], values))
    assert found[0] == found[1]
    assert found[0] != found[2]


class Unreadable:
    """Rows that nobody may ask for."""

    rows = 0

    def table(self) -> pa.Table:
        raise AssertionError("marks were read")

    page = table


def test_restoring_reads_nothing() -> None:
    marks, run = Marks(), run_of(0, 100)
    mark(marks, run, list(range(0, 100, 3)))
    settle(marks, run)
    tables, values = marks.save()
    blind = Marks()
    blind.restore({name: replace(table, data=Unreadable()) for name, table in tables.items()}, values)
    assert (blind.count(run), blind.nbytes) == (34, marks.nbytes)


@settings(max_examples=60)
@given(st.integers(0, 1 << 32))
def test_marks_equal_a_set(seed: int) -> None:
    random = Random(seed)
    marks, runs, expected = Marks(), {}, set()  # type: ignore[var-annotated]
    for number in range(40):
        if len(runs) < 6 and random.random() < 0.4:
            runs[number] = run_of(number, random.choice([1, 8, 100, 3000]))
        if runs and random.random() < 0.1:
            gone = random.choice(list(runs.values()))
            marks.forget([runs.pop(gone.id)])
            expected = {(one, row) for one, row in expected if one != gone.id}
        for run in random.sample(list(runs.values()), min(len(runs), 3)):
            rows = [random.randrange(run.rows) for _ in range(random.choice([1, 2, 20]))]
            new = {(run.id, row) for row in rows} - expected
            assert mark(marks, run, rows) == sorted(row for _, row in new)
            expected |= new
        if random.random() < 0.6:
            settle(marks, *runs.values())
            if random.random() < 0.4:
                fresh = Marks()
                fresh.restore(*marks.save())
                marks = fresh
        for run in runs.values():
            mine = sorted(row for one, row in expected if one == run.id)
            assert (marks.rows(run).tolist(), marks.count(run)) == (mine, len(mine))
            assert np.flatnonzero(marks.test(run, np.arange(run.rows))).tolist() == mine
    assert len([name for name, _ in pieces(marks) if name.startswith("log")]) <= 12
