"""Inputs under the names of their sources: in tables, pictures and messages."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from watersmeet.cli import app
from watersmeet.errors import CorruptStateError
from watersmeet.pipeline.names import NAMES_FILE, InputNames, record_names, recorded_names
from watersmeet.pipeline.plots import plot_metrics
from watersmeet.pipeline.report import history_of
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join
from watersmeet.testing.arrivals import make_plan, random_script
from watersmeet.testing.harness import run_stored

NAMES = InputNames({"left": "orders", "right": "payments"})


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("expected no rows on input 'left' after its end", "expected no rows on input 'orders' after its end"),
        ("found left.id: int, right.id: string", "found orders.id: int, payments.id: string"),
        ("input 'punctuations of right'", "input 'punctuations of payments'"),
        ("state directory /data/left.d, partition 0", "state directory /data/left.d, partition 0"),
        ("on=[(left name, right name)]", "on=[(left name, right name)]"),
    ],
)
def test_names_in_messages(message: str, shown: str) -> None:
    assert NAMES.in_text(message) == shown
    assert InputNames({}).in_text(message) == message


def test_sources_with_the_names_of_other_inputs() -> None:
    crossed = InputNames({"left": "right", "right": "left"})
    assert (crossed["left"], crossed["late.right"]) == ("right", "late.left")
    assert (crossed["left.left.late"], crossed["left.right.ended"]) == ("left.right.late", "left.left.ended")
    assert crossed.in_text("input 'left' and input 'right'") == "input 'right' and input 'left'"


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    directory = StateDir(tmp_path)
    directory.create()
    plan = make_plan("symmetric", ("left", "right"), {})
    register_join("test", directory, plan)
    run_stored(plan, random_script(1, inputs=("left", "right"), batches=3, idle_share=0.0, end=False), directory)
    return directory


def test_commands_and_pictures_use_the_names_kept_beside_the_state(state: StateDir) -> None:
    def shown(*command: str) -> str:
        result = CliRunner().invoke(app, list(command))
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert "left" in shown("metrics", state.uri)
    assert recorded_names(state).sources == {}
    record_names(state, NAMES)
    for command in ("metrics", "state"):
        assert "left" not in shown(command, state.uri)
        assert "orders" in shown(command, state.uri)
    rows = [json.loads(line) for line in shown("metrics", state.uri, "--json").splitlines()]
    assert rows[0]["rows_in"].keys() == {"orders", "payments"}
    lanes = [axis.get_title("left") for axis in plot_metrics(history_of(state), "p").axes]
    assert lanes == ["orders", "payments", "results", "time in the join", "state"]


def test_damaged_names_are_an_error(state: StateDir) -> None:
    record_names(state, NAMES)
    path = Path(state.path(NAMES_FILE))
    path.write_bytes(path.read_bytes().replace(b"orders", b"others"))
    with pytest.raises(CorruptStateError, match=NAMES_FILE):
        recorded_names(state)
