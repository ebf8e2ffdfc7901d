"""The directory and the record of the join in it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.errors import StateDirError, StateFormatError, StateMismatchError
from watersmeet.plan import InputSpec
from watersmeet.state.directory import JOIN_FILE, StateDir, seal, unseal
from watersmeet.state.identity import divisions, read_join, recorded_partitions, register_join
from watersmeet.state.manifest import FORMAT
from watersmeet.testing import make_plan

PLAN = replace(make_plan("symmetric", options={"memory": 5}), partitions=4)
NEW_START = "or give this join a new state directory and a new checkpoint."


def used(path: Path) -> StateDir:
    directory = StateDir(path)
    directory.create()
    register_join("progressive_join", directory, PLAN)
    directory.create("part-00000")
    directory.publish("part-00000/v-000000000000.json", b"{}")
    return directory


@pytest.mark.parametrize("form", ["path", "text", "file uri", "relative"])
def test_forms_of_a_location(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = {"path": tmp_path / "a b", "text": f"{tmp_path}/a b", "relative": "a b"}
    directory = StateDir(f"file://{tmp_path}/a%20b" if form == "file uri" else place[form])
    directory.create()
    directory.publish("x.json", b"content")
    assert (tmp_path / "a b" / "x.json").read_bytes() == b"content"
    assert directory.is_local
    assert directory.root == str(tmp_path / "a b")
    assert directory.list() == ["x.json"]


def test_publishing_leaves_nothing_else_and_hides_what_is_half_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = StateDir(tmp_path)
    directory.publish("x.json", b"one")
    directory.publish("x.json", b"two")
    assert directory.list() == ["x.json"]
    assert directory.read("x.json") == b"two"

    def crash(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            directory.publish("x.json", b"three")
    assert directory.read("x.json") == b"two"
    assert [name for name in directory.list() if not name.startswith(".")] == ["x.json"]


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    directory = StateDir(tmp_path / "none")
    assert directory.list("part-00000") == []
    assert directory.size("x") is None
    directory.delete("x")


def test_an_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    directory = StateDir(tmp_path / "file" / "state")
    with pytest.raises(StateDirError) as error:
        directory.create()
    text = str(error.value)
    assert text.startswith(
        f"state directory {tmp_path}/file/state: expected a directory that can be created and written, found "
    )
    assert "Not a directory" in text
    assert text.endswith("Give a state_dir on a writable file system, the same for every executor.")


def test_an_unknown_scheme() -> None:
    with pytest.raises(StateDirError) as error:
        StateDir("ftp://host/state")
    assert str(error.value).startswith(
        "state directory ftp://host/state: expected a path, or a URI of a store that Watersmeet knows, found ftp."
    )


def test_sealed_documents_know_numpy(tmp_path: Path) -> None:
    body = {"a": np.int64(3), "b": np.array([1.5, 2.5]), "c": "ü"}
    assert unseal(seal(body), "x") == {"a": 3, "b": [1.5, 2.5], "c": "ü"}
    with pytest.raises(TypeError, match="state values must be JSON, found set"):
        seal({"a": {1}})


def test_the_record_of_a_join(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    assert read_join(directory) is None
    assert recorded_partitions(directory) is None
    used(tmp_path)
    assert recorded_partitions(directory) == 4
    register_join("progressive_join", directory, replace(PLAN, tuning={"pages": 3}))  # tuning may change


def test_state_that_was_never_used_may_change_hands(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    register_join("progressive_join", directory, PLAN)
    register_join("progressive_join", directory, replace(PLAN, partitions=9))
    found = read_join(directory)
    assert found is not None
    assert found["partitions"] == 9


def test_state_of_which_no_batch_was_committed_may_change_hands(tmp_path: Path) -> None:
    """The first batch has died: its folder is there, and what it had written of its rows."""
    directory = StateDir(tmp_path)
    register_join("progressive_join", directory, PLAN)
    directory.create("part-00000")
    for name in ("run-000000000000-0-ab12-0.arrow", ".v-000000000000.json.ab12.tmp"):
        directory.publish(f"part-00000/{name}", b"")
    assert recorded_partitions(directory) is None
    corrected = replace(PLAN, partitions=9, options={"memory": 6})
    assert register_join("progressive_join", directory, corrected) == corrected
    found = read_join(directory)
    assert found is not None
    assert divisions(found) == [9]


def test_divisions_are_recorded_and_unused_ones_forgotten(tmp_path: Path) -> None:
    directory = used(tmp_path)

    def register(partitions: int) -> list[int]:
        plan = register_join("test", directory, replace(PLAN, partitions=partitions))
        found = read_join(directory)
        assert found is not None
        assert divisions(found) == [*plan.former, plan.partitions]
        return divisions(found)

    assert register(9) == [4, 9]
    assert register(9) == [4, 9]
    assert register(6) == [4, 6]  # no batch has run in nine
    assert register(4) == [4]
    assert register(6) == [4, 6]
    (tmp_path / "part-00002.1").mkdir()
    (tmp_path / "part-00002.1" / "v-000000000007.json").write_text("{}")
    assert register(4) == [4, 6, 4]
    assert register(6) == [4, 6]
    assert recorded_partitions(directory) == 6


def test_what_is_left_of_an_interrupted_division_is_deleted(tmp_path: Path) -> None:
    directory = used(tmp_path)
    (tmp_path / "part-00002.1").mkdir()
    (tmp_path / "part-00002.1" / "v-000000000007.json").write_text("{}")
    register_join("test", directory, replace(PLAN, partitions=2))
    assert not (tmp_path / "part-00002.1").exists()


def test_another_join(tmp_path: Path) -> None:
    directory = used(tmp_path)
    with pytest.raises(StateMismatchError) as error:
        register_join("multiway_join", directory, replace(PLAN, operator="mjoin"))
    assert str(error.value) == (
        f"multiway_join, state directory {tmp_path}: expected state of this join, found state of another one: operator "
        f"was 'symmetric', is 'mjoin'. Build the join as it was, {NEW_START}"
    )


def test_other_parameters_and_schemas(tmp_path: Path) -> None:
    directory = used(tmp_path)
    left = InputSpec("left", (pa.int64(),), (pa.int64(), pa.binary()))
    output = (*PLAN.output[:2], replace(PLAN.output[2], column="_p0"), *PLAN.output[3:])
    other = replace(PLAN, options={"memory": 6}, inputs=(left, PLAN.inputs[1]), output=output)
    with pytest.raises(StateMismatchError) as error:
        register_join("progressive_join", directory, other)
    assert str(error.value) == (
        f"progressive_join, state directory {tmp_path}: expected state of this join, found state of another one: "
        "inputs.left.payload[1] was 'string', is 'binary'; options.memory was 5, is 6; "
        "output[2] was 'left_1: string = left._p1', is 'left_1: string = left._p0'. "
        f"Build the join as it was, {NEW_START}"
    )


def test_a_record_of_a_newer_release(tmp_path: Path) -> None:
    directory = used(tmp_path)
    body = read_join(directory)
    assert body is not None
    directory.publish(JOIN_FILE, seal({**body, "format": FORMAT + 1}))
    with pytest.raises(StateFormatError, match=f"expected state format {FORMAT}, found format {FORMAT + 1}"):
        register_join("progressive_join", directory, PLAN)


@pytest.mark.parametrize("links", [True, False])
def test_the_first_to_publish_a_new_file_wins(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: Path, target: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    directory = StateDir(tmp_path)
    assert directory.publish_new("v-1.json", b"first")
    assert not directory.publish_new("v-1.json", b"second")
    assert directory.read("v-1.json") == b"first"
    assert directory.list() == ["v-1.json"]


def test_a_new_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateDirError, match=r"state file .*nowhere/v-1.json.*No such file"):
        StateDir(tmp_path).publish_new("nowhere/v-1.json", b"first")


def test_a_tree_is_deleted_and_its_age_is_that_of_its_newest_file(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    (tmp_path / "tree" / "branch").mkdir(parents=True)
    for name in ("tree/old", "tree/branch/new"):
        (tmp_path / name).write_bytes(b"")
    for path in (tmp_path / "tree", *(tmp_path / "tree").rglob("*")):
        os.utime(path, (1, 1))
    assert directory.idle_seconds("tree") > 1e9
    assert directory.idle_seconds("tree/old") > 1e9
    os.utime(tmp_path / "tree" / "branch" / "new")
    assert directory.idle_seconds("tree") < 3600
    assert directory.idle_seconds("nothing") == 0
    directory.delete_tree("tree")
    directory.delete_tree("tree")
    assert directory.list() == []
