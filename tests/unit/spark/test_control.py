"""Markers: what reaches the control directory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from watersmeet.errors import OptionError, StateDirError
from watersmeet.spark.control import declare_end, declared_ends, end_input, send_signal
from watersmeet.state.directory import CONTROL, StateDir
from watersmeet.state.identity import register_join
from watersmeet.testing import make_plan


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    directory = StateDir(tmp_path)
    directory.create(CONTROL)
    register_join("join", directory, make_plan("symmetric"))
    return tmp_path


def markers(state_dir: Path) -> list[object]:
    return [json.loads(path.read_text()) for path in (state_dir / CONTROL).iterdir()]


def test_who_declared_an_end(state_dir: Path) -> None:
    assert declared_ends(state_dir) == {}
    send_signal(state_dir, 3)
    end_input(state_dir, "left")
    declare_end(state_dir, "right", by="pipeline")
    found = declared_ends(state_dir)
    assert {name: [marker.get("by") for marker in markers] for name, markers in found.items()} == {
        "left": [None],
        "right": ["pipeline"],
    }
    # what the stream reads, and what the seal is of, does not depend on who it was
    assert found["right"][0]["seal"] == hashlib.md5(b"end/right").hexdigest()


def test_markers_are_lines_of_json(state_dir: Path) -> None:
    end_input(state_dir, "left")
    send_signal(str(state_dir), 7)
    found = sorted(markers(state_dir), key=str)
    assert found == [
        {"kind": "end", "input": "left", "seal": hashlib.md5(b"end/left").hexdigest()},
        {"kind": "signal", "value": 7, "seal": hashlib.md5(b"signal/7").hexdigest()},
    ]
    assert all(path.suffix == ".json" for path in (state_dir / CONTROL).iterdir())


def test_an_unknown_input(state_dir: Path) -> None:
    with pytest.raises(OptionError) as error:
        end_input(state_dir, "links")
    assert str(error.value) == (
        "end_input: expected name = one of the join's inputs: left, right, found 'links'. Give the name of the input, "
        "not of the DataFrame."
    )
    assert markers(state_dir) == []


def test_no_join_there(tmp_path: Path) -> None:
    with pytest.raises(StateDirError) as error:
        end_input(tmp_path / "none", "left")
    assert str(error.value) == (
        f"state directory {tmp_path}/none: expected the state directory of a join, found no join.json. Give the "
        "state_dir that the join was built with; build the join first."
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("value", [-1, 2**40])
def test_signals_have_a_range(state_dir: Path, value: int) -> None:
    with pytest.raises(ValueError, match=f"a signal is a number from 0 to 134217728, not {value}"):
        send_signal(state_dir, value)
