"""What is optional is not imported unless it is asked for, and asked for without its packages it names the extra."""

import subprocess
import sys
from pathlib import Path

import pytest

from watersmeet.pipeline.starter import init

# No finder knows the packages, as if they had not been installed.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("matplotlib", "starlette", "uvicorn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
# What `pyspark-client` lacks of PySpark.
WITHOUT_JAVA = WITHOUT.replace('name.partition(".")[0] in (', 'name in ("py4j", "pyspark.core", ')
A_JOIN = """
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join
from watersmeet.testing.arrivals import make_plan, random_script
from watersmeet.testing.harness import run_stored
directory = StateDir({folder!r})
directory.create()
plan = make_plan("symmetric", ("left", "right"), {{}})
register_join("test", directory, plan)
run_stored(plan, random_script(1, inputs=("left", "right"), batches=3, end=False), directory)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def without_extras(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command `watersmeet` where no extra is installed."""
    return run(f"{WITHOUT}\nfrom watersmeet.cli import app\napp({list(arguments)!r})")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a join that ran where no extra is installed."""
    folder = tmp_path_factory.mktemp("state")
    done = run(f"{WITHOUT}\nimport watersmeet\n{A_JOIN.format(folder=str(folder))}")
    assert done.returncode == 0, done.stderr
    return folder


def test_joins_and_commands_import_no_extra(tmp_path: Path) -> None:
    script = f"""
import sys
import watersmeet
import watersmeet.cli, watersmeet.engine.registry, watersmeet.pipeline.report, watersmeet.pipeline.run
{A_JOIN.format(folder=str(tmp_path))}
print([name for name in sys.modules if name.startswith(("matplotlib", "PIL", "starlette", "uvicorn"))])
"""
    done = run(script)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("command", ["state", "metrics"])
def test_tables_need_no_extra_and_pictures_name_theirs(state: Path, command: str, tmp_path: Path) -> None:
    shown = without_extras(command, str(state))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "left" in shown.stdout
    picture = tmp_path / "picture.png"
    refused = without_extras(command, str(state), "--plot", str(picture))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        f"watersmeet {command} --plot: expected the packages of watersmeet[plots], found no module matplotlib. "
        "Install them: pip install 'watersmeet[plots]'.\n"
    )
    assert not picture.exists()


@pytest.mark.parametrize("arguments", [["list"], ["run", "rpj/fig2", "--scale", "tiny"], ["report"]])
def test_the_lab_names_its_extra_before_it_runs_anything(arguments: list[str]) -> None:
    refused = without_extras("lab", *arguments)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "watersmeet lab: expected the packages of watersmeet[lab], found no module matplotlib. "
        "Install them: pip install 'watersmeet[lab]'.\n"
    )


def test_the_page_names_its_extra_and_the_saved_page_needs_none(state: Path, tmp_path: Path) -> None:
    refused = without_extras("ui", str(state))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "watersmeet ui: expected the packages of watersmeet[ui], found no module uvicorn. "
        "Install them: pip install 'watersmeet[ui]'.\n"
    )
    program = run(f"{WITHOUT}\nimport watersmeet as wm\nwm.ui({str(state)!r})")
    assert "wm.ui: expected the packages of watersmeet[ui], found no module uvicorn." in program.stderr
    saved = without_extras("report", str(state), "-o", str(tmp_path / "report.html"))
    assert (saved.returncode, saved.stderr) == (0, "")
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_a_client_without_java_is_told_to_use_a_server(tmp_path: Path) -> None:
    file = init("progressive", tmp_path, parts=1, rows=10)
    program = run(f"{WITHOUT_JAVA}\nimport watersmeet as wm\nwm.local_session()")
    assert program.stderr.endswith(
        "WatersmeetError: local_session: expected PySpark with its Java part, to start a Spark session here, found "
        "pyspark-client, which only reaches servers of Spark Connect. Install pyspark, or use "
        "SparkSession.builder.remote(...).\n"
    )
    refused = run(f"{WITHOUT_JAVA}\nfrom watersmeet.cli import app\napp(['run', {str(file)!r}])")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("pipeline progressive: expected PySpark with its Java part, ")
    assert refused.stderr.endswith("Install pyspark, or give --remote sc://host.\n")


def test_remote_names_its_extra(tmp_path: Path) -> None:
    file = init("progressive", tmp_path, parts=1, rows=10)
    without_grpc = WITHOUT.replace("matplotlib", "grpc")
    command = ["run", str(file), "--remote", "sc://localhost"]
    refused = run(f"{without_grpc}\nfrom watersmeet.cli import app\napp({command!r})")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "watersmeet --remote: expected the packages of watersmeet[connect], found no module grpc. "
        "Install them: pip install 'watersmeet[connect]'.\n"
    )
