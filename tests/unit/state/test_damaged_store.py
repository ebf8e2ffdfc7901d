"""Versions that are missing, damaged, of another query or join: errors that say so."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.state.versions import PLAN, RESTORE, SCRIPT, advance, files, flip_a_bit, run_until, state_of

from watersmeet.engine.runtime import run_batch
from watersmeet.errors import CorruptStateError, MissingVersionError, StateFormatError, StateMismatchError
from watersmeet.plan.metrics import Metrics
from watersmeet.state.directory import StateDir, seal, unseal
from watersmeet.state.manifest import Manifest
from watersmeet.state.run import Run
from watersmeet.state.store import PartitionStore
from watersmeet.testing import batch_of


def test_missing_version(tmp_path: Path) -> None:
    run_until(tmp_path, 5)
    files(tmp_path, "v-*5.json")[0].unlink()
    with pytest.raises(MissingVersionError) as error:
        advance(tmp_path, 6)
    assert str(error.value) == (
        f"state directory {tmp_path}, partition 0: expected version 5, which the next batch starts from, found "
        "versions 3 to 4. State and checkpoint must be kept, copied and deleted together, and every batch must be read "
        "to its end (limit, take, show and isEmpty on the join's result do not): restore the matching state, or start "
        "over with a new state directory and a new checkpoint."
    )


def test_a_missing_state_directory_is_no_fresh_start(tmp_path: Path) -> None:
    with pytest.raises(MissingVersionError, match=r"expected version 5, .* found no version at all"):
        advance(tmp_path / "gone", 6)


def test_state_of_another_query(tmp_path: Path) -> None:
    run_until(tmp_path, 1)
    for number in (0, 2):
        batch = batch_of(PLAN, number, SCRIPT[number])
        with pytest.raises(StateMismatchError) as error:
            list(run_batch(PLAN, StateDir(tmp_path), 0, batch, query="other"))
        assert str(error.value) == (
            f"state directory {tmp_path}, partition 0: expected state of query other, found state of query in-process. "
            "A state directory belongs to one query and its checkpoint: restart from that checkpoint, or give this "
            "query a new state directory."
        )


def test_a_truncated_run_file(tmp_path: Path) -> None:
    run_until(tmp_path, 3)
    victim = files(tmp_path, "run-*")[-1]
    length = victim.stat().st_size
    victim.write_bytes(victim.read_bytes()[:-10])
    with pytest.raises(CorruptStateError) as error:
        advance(tmp_path, 4)
    assert str(error.value) == f"state file {victim}: expected {length} bytes, found {length - 10} bytes. {RESTORE}"
    victim.unlink()
    with pytest.raises(CorruptStateError, match=f"expected {length} bytes, found no file"):
        advance(tmp_path, 4)


def test_a_bit_flipped_in_a_run_file_is_found_after_a_restart(tmp_path: Path) -> None:
    store = run_until(tmp_path, 3)
    entry = store.manifest(3).runs[0]
    victim = tmp_path / "part-00000" / entry.file
    flip_a_bit(victim, victim.stat().st_size // 2)
    with pytest.raises(CorruptStateError) as error:
        advance(tmp_path, 4, run_id="restarted")
    found = StateDir(tmp_path).checksum(f"part-00000/{entry.file}")
    assert str(error.value) == (
        f"state file {victim}: expected checksum {entry.checksum}, found checksum {found}. {RESTORE}"
    )


def test_a_run_that_is_not_read_at_once_is_still_checked_when_it_is(tmp_path: Path) -> None:
    store = PartitionStore(StateDir(tmp_path), 0)
    store.load(0, "q", "first")

    def commit(version: int, run_id: str, runs: list[Run]) -> None:
        manifest = Manifest(version=version, partition=0, query="q", run_id=run_id)
        store.commit(manifest, state_of(runs), store.space(version, "0"), Metrics(), {}, 0)

    space = store.space(0, "0")
    table = pa.table({"_hash": pa.array([1, 2], pa.uint64())})
    commit(0, "first", [space.spill("left", [(0, table)], oldest=0, newest=0)])
    flip_a_bit(files(tmp_path, "run-*")[0], 350)
    commit(1, "second", store.state(store.load(1, "q", "second"), "second").runs)  # a restart that leaves the run alone
    (run,) = store.state(store.load(2, "q", "second"), "second").runs
    with pytest.raises(CorruptStateError, match="expected checksum"):
        list(run.read(0))


def test_a_checked_run_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_until(tmp_path, 3)
    checked: list[str] = []
    checksum = StateDir.checksum
    monkeypatch.setattr(StateDir, "checksum", lambda self, name: checked.append(name) or checksum(self, name))
    advance(tmp_path, 4, run_id="restarted")
    assert checked
    checked.clear()
    advance(tmp_path, 5, run_id="restarted")
    assert not checked


@pytest.mark.parametrize("where", [3, 40, 200, -3])
def test_a_bit_flipped_in_a_manifest(tmp_path: Path, where: int) -> None:
    run_until(tmp_path, 3)
    (victim,) = files(tmp_path, "v-*3.json")
    flip_a_bit(victim, where)
    with pytest.raises(CorruptStateError) as error:
        advance(tmp_path, 4)
    assert str(error.value) == (
        f"state file {victim}: expected a document with the length and checksum its first line states, found "
        f"{victim.stat().st_size} bytes that do not fit. The file is damaged: restore the state directory from a copy, "
        "or start over with a new state directory and a new checkpoint."
    )


def test_a_manifest_under_a_wrong_name(tmp_path: Path) -> None:
    run_until(tmp_path, 3)
    files(tmp_path, "v-*2.json")[0].rename(tmp_path / "part-00000" / "v-000000000003.json")
    with pytest.raises(CorruptStateError, match="expected version 3 of partition 0, found version 2 of partition 0"):
        advance(tmp_path, 4)


def test_a_newer_format(tmp_path: Path) -> None:
    run_until(tmp_path, 3)
    (path,) = files(tmp_path, "v-*3.json")
    body = unseal(path.read_bytes(), path.name)
    path.write_bytes(seal({**body, "format": 3, "a_field_of_the_future": 1}))
    with pytest.raises(StateFormatError) as error:
        advance(tmp_path, 4)
    assert str(error.value) == (
        f"state file {path}: expected state format 2, found format 3. The state was written by another release of "
        "Watersmeet: use that one, or a newer one."
    )


def test_a_manifest_that_lacks_a_field(tmp_path: Path) -> None:
    run_until(tmp_path, 3)
    (path,) = files(tmp_path, "v-*3.json")
    body = unseal(path.read_bytes(), path.name)
    del body["runs"]
    path.write_bytes(seal(body))
    with pytest.raises(CorruptStateError, match="expected a manifest, found 'runs'"):
        advance(tmp_path, 4)


def test_one_task_that_computes_a_partition_number_twice(tmp_path: Path) -> None:
    advance(tmp_path, 0, attempt="17", join="j")
    with pytest.raises(StateMismatchError) as error:
        advance(tmp_path, 0, attempt="17", join="j")
    assert str(error.value) == (
        f"state directory {tmp_path}, partition 0: expected one key partition per task, found a task that computes two "
        "of them under one number. A coalesce right after the join merges its partitions: use repartition(n) in its "
        "place, or write the result to a sink first."
    )
    advance(tmp_path, 0, attempt="18", join="j")  # a retry, or a second action, is another attempt
    advance(tmp_path, 0, attempt="17", run_id="restarted", join="j2")


def test_two_joins_of_one_query_in_one_directory(tmp_path: Path) -> None:
    advance(tmp_path, 0, attempt="1", join="a")
    for number in (0, 1):
        with pytest.raises(StateMismatchError) as error:
            advance(tmp_path, number, attempt="2", join="b")
        assert str(error.value) == (
            f"state directory {tmp_path}, partition 0: expected one join, found two joins of one query. Give every "
            "join a state directory of its own."
        )
