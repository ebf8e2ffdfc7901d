"""The store of rows by hand: what leaves, what is handed out, what is read for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.state.row_model import SCHEMA, STEP, Unreadable, made

from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.history import held_runs
from watersmeet.state.layouts import HashTiers, Layout
from watersmeet.state.manifest import Manifest, RunEntry
from watersmeet.state.pages import together
from watersmeet.state.parts import All, Rows, Whole
from watersmeet.state.rows import RowStore
from watersmeet.testing.accounting import check_store


def rows(hashes: Sequence[int], times: Sequence[int] | None = None) -> pa.Table:
    names = list(range(len(hashes)))
    columns = [list(hashes), names, list(times or names), [False] * len(names)]
    return pa.table(columns, schema=SCHEMA)


def filled(layout: Layout, *tables: pa.Table, **options: Any) -> tuple[RowStore, Accounts]:
    accounts = Accounts(Metrics())
    store = made(layout, accounts, **options)
    for batch, table in enumerate(tables):
        accounts.arrive("left", table.num_rows)
        store.add(table, batch)
    return store, accounts


def test_a_row_leaves_once_whatever_comes_later() -> None:
    store, accounts = filled(HashTiers(), rows([1, 2, 3]))
    (part,) = store.parts()
    assert len(store.remove(Rows(part, np.array([1, 1])), "punctuation")) == 1
    assert store.remove(Rows(part, np.array([1])), "one_to_many") == []
    store.remove(All(), "ended")
    assert accounts.left == {"left": {"punctuation": 1, "ended": 2}}
    assert accounts.held("left") == store.rows == 0


def test_a_reason_must_be_known() -> None:
    store, _ = filled(HashTiers(), rows([1]))
    with pytest.raises(ValueError, match=r"^'bored' is not a reason to leave: null_key, "):
        store.remove(All(), "bored")


def test_what_left_is_not_read_unless_somebody_asks() -> None:
    store, _ = filled(HashTiers(), rows([1, 2]))
    (run,) = store.runs
    object.__setattr__(run, "data", Unreadable(2))
    (gone,) = store.remove(All(), "ended")
    with pytest.raises(AssertionError, match="a run was read"):
        list(gone.pieces())


def test_what_left_is_handed_out_in_pieces_of_bounded_size() -> None:
    store, _ = filled(HashTiers(), rows(range(10)))
    (gone,) = store.remove(All(), "ended")
    assert [piece.tolist() for _, piece in gone.pieces(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_rows_taken_out_and_added_again_keep_their_age_and_level() -> None:
    store, _ = filled(HashTiers(), rows([1]))
    store.add(rows([2, 3]), 7, oldest=2, level=1)
    assert [(run.oldest, run.newest, run.level) for run in store.runs] == [(0, 0, 0), (2, 7, 1)]


def test_a_taken_bucket_is_a_hole_until_too_little_is_left() -> None:
    store, _ = filled(HashTiers(), rows([i * STEP for i in range(16)]), counts_buckets=True)
    (run,) = store.runs
    object.__setattr__(run, "data", Stored(run.table))
    assert [len(tables) for tables in store.take([1]).values()] == [1]
    store.compact()
    assert [(one.id, one.live) for one in store.runs] == [(run.id, ((0, 4), (8, 16)))]
    store.take([2, 3])
    store.compact()
    assert [(one.id, one.live, one.rows) for one in store.runs] == [(run.id + 1, None, 4)]
    assert store.bucket_rows.tolist() == [4, 0, 0, 0]


def test_buckets_that_are_moved_to_disk_are_no_longer_counted() -> None:
    store, accounts = filled(HashTiers(), rows([i * STEP for i in range(16)]), counts_buckets=True)
    assert store.spill_buckets([1, 3]) == 8
    assert store.bucket_rows.tolist() == [4, 0, 4, 0]
    assert [run.rows for run in store.spilled] == [8]
    assert accounts.held("left") == store.rows == 16
    check_store(store)


def test_dead_rows_of_a_bucket_that_came_back_from_disk_are_not_counted_twice() -> None:
    """Marks are of a whole run, also where a part of it was released."""
    store, _ = filled(HashTiers(), rows([i * STEP for i in range(16)]))
    store.spill_run(store.resident[0])
    (run,) = store.spilled
    (first, second, *_) = store.pages(run)
    store.remove(Rows(first, np.array([0, 1, 2])), "one_to_many")
    store.remove(Rows(second, np.array([0])), "one_to_many")
    assert "alive" not in store.save().values  # the marks say it
    store.release(0, {run.id})
    assert store.spilled_rows == 11
    assert store.save().values["alive"] == {str(run.id): 11}
    runs = [RunEntry.of(run, "", 0, "", "") for run in store.save().runs]
    stores = [{"name": "left", "input": "left", "rows": store.rows, "values": store.save().values}]
    assert [alive for *_, alive in held_runs(Manifest(0, 0, "q", "", runs=runs, stores=stores))] == [11]
    state, again = store.save(), made(HashTiers(), Accounts(Metrics()))
    unread = {name: replace(table, data=Unreadable(table.rows)) for name, table in state.tables.items()}
    again.restore(replace(state, tables=unread))
    assert again.spilled_rows == 11
    store.release(1, {run.id})
    assert store.save().values["alive"] == {str(run.id): 8}  # what is left has no dead row


def test_pages_that_lie_one_after_the_other_are_read_as_one_part_of_bounded_size() -> None:
    store, accounts = filled(HashTiers(), rows([i * STEP for i in range(16)]))
    store.spill_run(store.resident[0])  # four buckets, each a page of four rows
    (run,) = store.spilled
    (page, *_) = store.pages(run)
    store.remove(Rows(page, np.array([2])), "one_to_many")

    def found(wanted: Sequence[int], most: int) -> list[tuple[int, list[int], list[int] | None]]:
        return [
            (part.base, part.table.column("_k0").to_pylist(), None if part.living is None else part.living.tolist())
            for part in together(store.pages(run, wanted), most)
        ]

    assert [(base, names) for base, names, _ in found(range(4), 100)] == [(0, list(range(16)))]
    assert [(base, len(names)) for base, names, _ in found(range(4), 11)] == [(0, 8), (8, 8)]
    assert [(base, len(names)) for base, names, _ in found(range(4), 1)] == [(0, 4), (4, 4), (8, 4), (12, 4)]
    assert found([0, 1, 3], 100) == [(0, list(range(8)), [0, 1, 3, 4, 5, 6, 7]), (12, [12, 13, 14, 15], [0, 1, 2, 3])]
    assert found([], 100) == []
    before = accounts.metrics.counters["pages_read"]
    list(together(store.pages(run, [1, 2]), 100))
    assert accounts.metrics.counters["pages_read"] == before + 2


@dataclass(frozen=True)
class Stored:
    """Rows that have a file: to rewrite them costs something."""

    whole: pa.Table

    @property
    def rows(self) -> int:
        return int(self.whole.num_rows)

    def table(self) -> pa.Table:
        return self.whole

    def page(self, index: int) -> pa.Table:
        return self.whole


def test_a_derived_table_is_made_once_and_goes_with_its_run() -> None:
    store, _ = filled(HashTiers(), rows([1, 2]))
    (run,) = store.runs
    made_for: list[int] = []

    def make() -> pa.Table:
        made_for.append(run.id)
        return pa.table({"_row": [1, 0]})

    assert store.side(run, "order0", make).equals(store.side(run, "order0", make))
    assert made_for == [run.id]
    fresh, _ = filled(HashTiers())
    fresh.restore(store.save())
    assert fresh.side(run, "order0", make)["_row"].to_pylist() == [1, 0]
    assert made_for == [run.id]
    store.remove(Whole(run), "ended")
    assert (store.nbytes, store.save().tables) == (0, {})


def test_a_run_knows_the_times_of_its_rows_and_what_the_join_describes() -> None:
    store, _ = filled(
        HashTiers(fanout=2),
        rows([1, 2], [30, 10]),
        rows([3], [20]),
        time="_p0",
        describe=lambda table: {"keys": table.num_rows},
    )
    assert [(run.time_from, run.time_to, run.keys) for run in store.runs] == [(10, 30, 2), (20, 20, 1)]
    store.settle()
    assert [(run.time_from, run.time_to, run.keys) for run in store.runs] == [(10, 30, 3)]


def test_entries_that_are_no_rows_of_an_input_are_in_no_account() -> None:
    store, accounts = filled(HashTiers(), rows([1, 2]), input="")
    store.remove(All(), "ended")
    assert (store.rows, accounts.left, store.save().input) == (0, {}, "")
