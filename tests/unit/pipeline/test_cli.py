"""The command line where no Spark is needed: messages, exit codes, tables, pictures, starters."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.pipeline.conftest import GOOD
from typer.testing import CliRunner

from watersmeet import cli
from watersmeet.cli import app
from watersmeet.pipeline.config import load
from watersmeet.pipeline.families import FAMILIES, SemiStreamWiring
from watersmeet.pipeline.starter import STARTERS, template
from watersmeet.pipeline.wiring import BinaryWiring

runner = CliRunner()


def test_check_says_good(good: Path) -> None:
    result = runner.invoke(app, ["check", "--no-spark", str(good)])
    assert (result.exit_code, result.stdout) == (0, f"{good}: OK\n")


def test_check_names_file_and_line_of_every_problem(good: Path) -> None:
    good.write_text(GOOD.replace("memory:", "memry:").replace("finish:", "finsh:"))
    result = runner.invoke(app, ["check", "--no-spark", str(good)])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"{good}:17: join.memry: unknown key; did you mean 'memory'?",
        f"{good}:21: finsh: unknown key; did you mean 'finish'?",
    ]


@pytest.mark.parametrize("command", ["run", "check", "explain"])
def test_a_wrong_file_is_exit_code_2_before_spark_starts(tmp_path: Path, command: str) -> None:
    result = runner.invoke(app, [command, str(tmp_path / "nothing.yaml")])
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr


def test_a_wrong_setting_on_the_command_line(good: Path) -> None:
    result = runner.invoke(app, ["run", str(good), "--conf", "spark.x"])
    assert result.exit_code == 2
    assert "name=value" in result.stderr


@pytest.mark.parametrize("operator", FAMILIES)
def test_init_writes_a_good_pipeline_with_its_data(tmp_path: Path, operator: str) -> None:
    result = runner.invoke(app, ["init", operator, "--into", str(tmp_path)])
    assert result.exit_code == 0
    loaded = load(tmp_path / f"{operator}.yaml")
    assert loaded.pipeline.join.wiring.operator == operator
    for name, source in loaded.pipeline.sources.items():
        assert source.path is not None
        assert list(Path(loaded.resolve(source.path)).glob("*.parquet")), name


@pytest.mark.parametrize(
    ("operator", "how", "written"),
    [("window", "leftOuter", "left"), ("progressive", "outer", "full"), ("semi-stream", "anti", "left_anti")],
)
def test_init_of_a_join_type(tmp_path: Path, operator: str, how: str, written: str) -> None:
    result = runner.invoke(app, ["init", operator, "--how", how, "--into", str(tmp_path)])
    assert result.exit_code == 0
    wiring = load(tmp_path / f"{operator}.yaml").pipeline.join.wiring
    assert isinstance(wiring, BinaryWiring | SemiStreamWiring)
    assert wiring.how == written


@pytest.mark.parametrize(
    ("operator", "how", "said"),
    [
        ("window", "lefft", "Did you mean 'left'?"),
        ("semi-stream", "right", "not a result of the stream"),
        ("multiway", "left", "no other type than inner"),
    ],
)
def test_init_of_a_join_type_that_there_is_not(tmp_path: Path, operator: str, how: str, said: str) -> None:
    result = runner.invoke(app, ["init", operator, "--how", how, "--into", str(tmp_path)])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert not list(tmp_path.iterdir())


def test_init_touches_nothing_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "window.yaml").write_text("mine")
    result = runner.invoke(app, ["init", "window", "--into", str(tmp_path)])
    assert result.exit_code == 2
    assert (tmp_path / "window.yaml").read_text() == "mine"
    assert not (tmp_path / "window-data").exists()


def test_init_of_an_unknown_operator() -> None:
    result = runner.invoke(app, ["init", "windw"])
    assert result.exit_code == 2
    assert "did you mean 'window'?" in result.stderr


def test_every_template_explains_itself() -> None:
    for operator in STARTERS:
        text = template(operator)
        assert f"watersmeet run {operator}.yaml" in text
        assert max(map(len, text.splitlines())) <= 120


def test_state_as_table_json_and_picture(state_dir: str, tmp_path: Path) -> None:
    picture = tmp_path / "state.png"
    result = runner.invoke(app, ["state", state_dir, "--plot", str(picture)])
    assert result.exit_code == 0, result.stderr
    assert "finished" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = [json.loads(line) for line in runner.invoke(app, ["state", state_dir, "--json"]).stdout.splitlines()]
    assert rows[0]["status"] == "finished"


def test_metrics_as_table_json_and_picture(state_dir: str, tmp_path: Path) -> None:
    picture = tmp_path / "metrics.svg"
    # the directory of the pipeline does as well
    result = runner.invoke(app, ["metrics", str(Path(state_dir).parent), "--last", "3", "--plot", str(picture)])
    assert result.exit_code == 0, result.stderr
    assert "results" in result.stdout
    assert "<svg" in picture.read_text()
    lines = runner.invoke(app, ["metrics", state_dir, "--json"]).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["batch"] for row in rows] == list(range(len(rows)))
    assert sum(row["results"] for row in rows) > 0
    assert len(runner.invoke(app, ["metrics", state_dir, "--json", "--last", "2"]).stdout.splitlines()) == 2


@pytest.mark.parametrize("command", ["state", "metrics"])
def test_a_directory_without_a_join(tmp_path: Path, command: str) -> None:
    result = runner.invoke(app, [command, str(tmp_path / "nothing")])
    assert result.exit_code == 2
    assert "no join.json" in result.stderr
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(("packages", "said"), [([], "JAVA_HOME"), (["no.such:thing:1"], "no.such:thing:1")])
def test_a_spark_that_does_not_start_is_a_short_message(good: Path, packages: list[str], said: str) -> None:
    good.write_text(f"packages: {packages}\n{good.read_text()}")
    environment = {**os.environ, "JAVA_HOME": str(good.parent)}  # no Java there
    command = [sys.executable, "-m", "watersmeet", "run", str(good)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    *before, message = ended.stderr.strip().splitlines()
    assert any("java" in line for line in before)  # what was held back is shown after all
    assert "Spark ended before it had begun" in message
    assert said in message


def test_signals_that_come_together_are_one_and_a_later_one_ends_the_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers: dict[int, Callable[[int, None], None]] = {}
    clock = iter([100.0, 100.01, 101.0])
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    stop = cli._stop_on_signals()
    assert not stop.is_set()
    handlers[signal.SIGINT](signal.SIGINT, None)
    assert stop.is_set()
    handlers[signal.SIGTERM](signal.SIGTERM, None)  # the same request, sent to the group as well
    with pytest.raises(KeyboardInterrupt):
        handlers[signal.SIGINT](signal.SIGINT, None)


def test_check_looks_at_the_places_without_touching_them(good: Path) -> None:
    (good.parent / "file").write_text("")
    wrong = GOOD.replace("out/joined", "file/joined").replace("memory:", "memry:")
    good.write_text(wrong + "work_dir: file/work\nstate_dir: nowhere://x\n")
    result = runner.invoke(app, ["check", "--no-spark", str(good)])
    assert result.exit_code == 2
    folder = good.parent.resolve()
    lines = result.stderr.splitlines()
    assert lines[0] == f"{good}:17: join.memry: unknown key; did you mean 'memory'?"
    assert lines[1].startswith(
        f"{good}:23: state_dir: state directory nowhere://x: expected a path, or a URI of a store that"
    )
    assert lines[2:] == [
        f"{good}:22: work_dir: {folder}/file/work cannot be written: {folder}/file is not a directory",
        f"{good}:19: sink.path: {folder}/file/joined cannot be written: {folder}/file is not a directory",
    ]
    assert sorted(path.name for path in good.parent.iterdir()) == ["file", "pipeline.yaml"]
