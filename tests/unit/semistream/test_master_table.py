"""The master table on disk: cutting into chunks, versions, damage, and which versions may go."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import hashes_of
from watersmeet.columns.partitions import Partition
from watersmeet.errors import CorruptStateError, StateDirError
from watersmeet.semistream.hosting import hosting
from watersmeet.semistream.master_registry import Registration, register_join, registered_joins, remove_old_versions
from watersmeet.semistream.master_table import Layout, MasterTable
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join as record_join
from watersmeet.testing import Arrival, run_stored
from watersmeet.testing.masters import semi_stream_plan, write_master


def rows_of(keys: int, per_key: int = 2) -> list[tuple[int, int, str]]:
    rows = [(key, 100 * key + i, "x" * (key % 5)) for key in range(keys) for i in range(per_key)]
    random.Random(3).shuffle(rows)
    return rows


@pytest.mark.parametrize("chunk_rows", [1, 2, 7, 10_000])
def test_aligned_chunks_hold_every_row_once_and_no_hash_twice(tmp_path: Path, chunk_rows: int) -> None:
    write_master(str(tmp_path), [*rows_of(50), (None, 1, "")], chunk_rows=chunk_rows)
    part = MasterTable(str(tmp_path)).partition(1, 0)
    chunks = [part.read(i) for i in range(part.count)]
    assert sorted(row for chunk in chunks for row in zip(*(c.to_pylist() for c in chunk.columns[1:]), strict=True)) == (
        sorted(rows_of(50))
    )
    assert part.rows == 100
    hashes = [hashes_of(chunk) for chunk in chunks]
    for number, mine in enumerate(hashes):
        assert np.all(mine[1:] >= mine[:-1])
        assert set(part.chunk_of(mine).tolist()) <= {number}
    assert all(chunk.num_rows >= chunk_rows for chunk in chunks[:-1])


def test_a_key_with_more_rows_than_a_chunk_is_not_cut(tmp_path: Path) -> None:
    write_master(str(tmp_path), [(1, i, "") for i in range(20)] + rows_of(5), chunk_rows=3)
    part = MasterTable(str(tmp_path)).partition(1, 0)
    assert max(chunk.rows for chunk in part.chunks) >= 20
    assert len(set(part.lows.tolist())) == part.count


def test_chunks_in_arrival_order_are_full_and_sorted_inside(tmp_path: Path) -> None:
    write_master(str(tmp_path), rows_of(25), chunk_rows=8, layout="arrival")
    part = MasterTable(str(tmp_path)).partition(1, 0)
    assert [chunk.rows for chunk in part.chunks] == [8, 8, 8, 8, 8, 8, 2]
    for number in range(part.count):
        hashes = hashes_of(part.read(number))
        assert np.all(hashes[1:] >= hashes[:-1])


@pytest.mark.parametrize("layout", ["hash", "arrival"])
@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 6])
def test_a_join_of_any_number_of_partitions_finds_its_keys(tmp_path: Path, layout: Layout, partitions: int) -> None:
    write_master(str(tmp_path), rows_of(50), chunk_rows=3, layout=layout, partitions=4)
    table = MasterTable(str(tmp_path))
    found = []
    for number in range(partitions):
        mine = Partition(number, partitions)
        share = table.share(1, mine)
        chunks = [share.read(index) for index in range(share.count)]
        assert share.rows == sum(chunk.num_rows for chunk in chunks)
        for index, chunk in enumerate(chunks):
            hashes = hashes_of(chunk)
            assert np.all(hashes[1:] >= hashes[:-1])
            if layout == "hash":
                assert set(share.chunk_of(hashes).tolist()) <= {index}
            owned = chunk.filter(pa.array(mine.owns(hashes)))
            found += list(zip(*(column.to_pylist() for column in owned.columns[1:]), strict=True))
    assert sorted(found) == sorted(rows_of(50))


@pytest.mark.parametrize("layout", ["hash", "arrival"])
@pytest.mark.parametrize("parts", [2, 4, 8])  # of the table; the join has 4
def test_rows_of_guests_go_by_once_with_a_chunk_of_their_hosts_own(tmp_path: Path, layout: Layout, parts: int) -> None:
    write_master(str(tmp_path), rows_of(60), chunk_rows=3, layout=layout, partitions=parts)
    table = MasterTable(str(tmp_path))
    everything = pa.concat_tables(
        one.read(i) for one in (table.partition(1, n) for n in range(parts)) for i in range(one.count)
    )
    for number in range(4):
        mine = Partition(number, 4)
        own = table.share(1, mine)
        foreign = np.unique(hashes_of(everything)[~mine.owns(hashes_of(everything))])[::5]
        absent = np.array([5, 1 << 63], np.uint64)  # keys that the table does not have
        share = hosting(table, own, 1, np.concatenate([foreign[::-1], absent]))
        chunks = [share.read(index) for index in range(share.count)]
        assert (share.count, share.rows, share.lows.tolist()) == (own.count, own.rows, own.lows.tolist())
        for index, chunk in enumerate(chunks):
            hashes = hashes_of(chunk)
            assert np.all(hashes[1:] >= hashes[:-1])
            if layout == "hash":
                assert set(share.chunk_of(hashes).tolist()) <= {index}
        found = hashes_of(pa.concat_tables(chunks))
        wanted = hashes_of(everything)
        wanted = wanted[mine.owns(wanted) | np.isin(wanted, foreign)]
        known = mine.owns(found) | np.isin(found, foreign)
        assert sorted(found[known].tolist()) == sorted(wanted.tolist())
        assert parts == 2 or known.all(), "of the others nothing is read"


def test_an_empty_table_has_one_empty_chunk(tmp_path: Path) -> None:
    write_master(str(tmp_path), [])
    part = MasterTable(str(tmp_path)).partition(1, 0)
    assert (part.count, part.rows) == (1, 0)


def test_damage_is_found_before_a_row_is_used(tmp_path: Path) -> None:
    write_master(str(tmp_path), rows_of(20), chunk_rows=5)
    part = MasterTable(str(tmp_path)).partition(1, 0)
    file = tmp_path / part.chunks[2].file
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptStateError, match=r"checksum.*refresh_master"):
        part.read(2)
    file.write_bytes(content[:-8])
    with pytest.raises(CorruptStateError, match=rf"{len(content)} bytes, found {len(content) - 8} bytes"):
        part.read(2)
    file.unlink()
    with pytest.raises(CorruptStateError, match="no file"):
        part.read(2)
    script = [Arrival({"stream": [(key, key, "") for key in range(20)]}, ended=frozenset({"stream"}))]
    with pytest.raises(CorruptStateError, match="no file"):
        run_stored(semi_stream_plan(str(tmp_path)), script, StateDir(tmp_path / "state"))


def test_missing_tables_and_versions_are_named(tmp_path: Path) -> None:
    with pytest.raises(StateDirError, match="prepare_master"):
        _ = MasterTable(str(tmp_path)).description
    write_master(str(tmp_path), rows_of(3))
    with pytest.raises(StateDirError, match=r"v-000007.*found versions 1 to 1"):
        MasterTable(str(tmp_path)).partition(7, 0)


def test_versions_stay_while_a_join_may_need_them(tmp_path: Path) -> None:
    master, state = str(tmp_path / "master"), tmp_path / "state"
    for _ in range(2):
        write_master(master, rows_of(10), chunk_rows=2)
    plan = semi_stream_plan(master, tuning={"max_delay": 9, "idle_chunks": 0})
    StateDir(state).create()
    record_join("test", StateDir(state), plan)
    register_join(master, Registration(str(state), 1))
    assert remove_old_versions(master) == []  # not started yet: it may begin with version 1

    waiting = [Arrival({"stream": [(key, key, "") for key in range(10)]})]
    run_stored(plan, waiting, StateDir(state))
    assert remove_old_versions(master) == []  # rows wait for version 1
    done = [*waiting, Arrival(signals=(2,)), *(Arrival() for _ in range(14))]
    run_stored(plan, done, StateDir(state))
    assert remove_old_versions(master) == [1]
    assert MasterTable(master).versions() == [2]
    (state / "join.json").unlink()
    assert registered_joins(master) == []  # a join whose state is gone is forgotten
