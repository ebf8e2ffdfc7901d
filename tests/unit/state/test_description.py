"""What the record of a join's columns decides: whether stored rows are read as what they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from watersmeet.errors import StateMismatchError
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.state.description import INPUTS_FILE, Description, InputColumn, check_inputs, record_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join


def plan(flagged: str = "_k0") -> JoinPlan:
    """A semi join on two keys, of one of which nulls match."""
    sides = tuple(
        InputSpec(name, (pa.int64(), pa.int64(), pa.bool_()), (pa.int64(), pa.int64())) for name in ("left", "right")
    )
    output = tuple(
        OutputColumn(pa.field(name, pa.int64()), "left", column, null_if="_k2" if column == flagged else "")
        for name, column in (("k", "_k0"), ("j", "_k1"), ("a", "_p0"), ("b", "_p1"))
    )
    return JoinPlan("symmetric", sides, output, how="left_semi")


def description(
    right: tuple[str, ...] = ("x", "y", "c", "d"), flagged: str = "_k0", left: tuple[str, ...] = ("k", "j", "a", "b")
) -> Description:
    columns = ("_k0", "_k1", "_p0", "_p1")
    return Description(
        plan(flagged),
        {
            side: [
                InputColumn(name, column, null_if="_k2" if column == flagged else "")
                for name, column in zip(names, columns, strict=True)
            ]
            for side, names in (("left", left), ("right", right))
        },
    )


@pytest.fixture
def directory(tmp_path: Path) -> StateDir:
    """That of a join that has run."""
    made = StateDir(str(tmp_path / "state"))
    made.create()
    register_join("join", made, plan())
    record_inputs(made, description())
    part = Path(made.place) / "part-00000"
    part.mkdir()
    (part / "v-000000000000.json").touch()
    return made


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (description(right=("z", "y", "c", "d")), "right.x was stored where right.z is now"),
        (
            description(right=("x", "y", "d", "c")),
            "right.c was stored where right.d is now; right.d was stored where right.c is now",
        ),
        (description(flagged="_k1"), "nulls_match was ['k'], is ['j']"),
    ],
)
def test_a_column_that_would_be_read_as_another_one(directory: StateDir, now: Description, found: str) -> None:
    with pytest.raises(StateMismatchError) as caught:
        check_inputs("join", directory, now, str.lower)
    assert str(caught.value) == (
        f"join, state directory {directory.place}: expected state of this join, found state of another one: {found}. "
        "Build the join as it was, or give this join a new state directory and a new checkpoint."
    )


def test_what_is_no_other_column(directory: StateDir) -> None:
    check_inputs("join", directory, description(), str)
    check_inputs("join", directory, description(right=("X", "y", "C", "d")), str.lower)
    with pytest.raises(StateMismatchError, match=r"right\.x was stored where right\.X is now"):
        check_inputs("join", directory, description(right=("X", "y", "c", "d")), str)


def test_other_changes_are_left_to_those_who_name_them(directory: StateDir) -> None:
    """Another output, or other types: what `register_join` says of them is more."""
    other = description(right=("z", "y", "c", "d"))
    check_inputs("join", directory, replace(other, plan=replace(other.plan, output=other.plan.output[1:])), str)
    check_inputs("join", directory, replace(other, plan=replace(other.plan, inputs=other.plan.inputs[::-1][:1])), str)
    with pytest.raises(StateMismatchError):
        check_inputs("join", directory, replace(other, plan=replace(other.plan, partitions=7)), str)


def test_where_nothing_is_stored_or_known(directory: StateDir) -> None:
    other = description(right=("z", "y", "c", "d"))
    file = Path(directory.place) / INPUTS_FILE
    for content in (file.read_bytes()[:-9], None):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        check_inputs("join", directory, other, str)
    record_inputs(directory, description())
    (Path(directory.place) / "part-00000/v-000000000000.json").unlink()
    check_inputs("join", directory, other, str)
