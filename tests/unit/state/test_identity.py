"""The record of a broadcast join, which has no state: what may take its place, and who is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from watersmeet.errors import StateDirError, StateMismatchError
from watersmeet.state.directory import StateDir
from watersmeet.state.history import newest_manifests
from watersmeet.state.identity import (
    built_operator,
    check_not_broadcast,
    recorded_join,
    recorded_operator,
    recorded_partitions,
    register_broadcast,
    require_join,
)


@pytest.fixture
def directory(tmp_path: Path) -> StateDir:
    made = StateDir(str(tmp_path / "state"))
    made.create()
    return made


def test_a_broadcast_join_is_known_by_its_record_alone(directory: StateDir) -> None:
    assert built_operator(directory) is None
    check_not_broadcast("join", directory)
    register_broadcast("join", directory, "stream", "left")
    assert built_operator(directory) == "broadcast"
    assert recorded_operator(directory) is None
    assert recorded_partitions(directory) is None
    assert list(recorded_join(directory)["identity"]["inputs"]) == ["stream"]
    assert newest_manifests(directory) == []
    register_broadcast("join", directory, "stream", "inner")
    assert recorded_join(directory)["identity"]["how"] == "inner"


def test_nobody_finds_state_of_it(directory: StateDir) -> None:
    with pytest.raises(StateDirError, match=r"found no join\.json"):
        require_join(directory)
    register_broadcast("join", directory, "stream", "left")
    with pytest.raises(StateDirError, match="expected a join that keeps state, found a broadcast join"):
        require_join(directory)
    with pytest.raises(StateMismatchError, match="expected state of this join, found that of a broadcast join"):
        check_not_broadcast("join", directory)


def test_state_of_another_join_is_not_taken_over(directory: StateDir) -> None:
    directory.create("part-00000")
    directory.publish("part-00000/v-000000000000.json", b"{}")
    with pytest.raises(StateMismatchError, match="state of another one: operator was 'unknown', is 'broadcast'"):
        register_broadcast("join", directory, "stream", "left")
    assert built_operator(directory) is None
