"""The command line and a pipeline's settings: what was found is said, tried, and never shown."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.object_store.server import ACCESS_KEY, SECRET_KEY, Server
from watersmeet.cli import app
from watersmeet.engine.why import why
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.description import Description, record_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join
from watersmeet.storage.access import remember
from watersmeet.testing.arrivals import make_plan, random_script
from watersmeet.testing.harness import run_stored
from watersmeet.view.board import Board
from watersmeet.view.server import PageServer

PIPELINE = """\
name: stored
sources:
  a: {{format: parquet, path: data/a, schema: "k long, a long"}}
  b: {{format: parquet, path: data/b, schema: "k long, b long"}}
join: {{operator: progressive, left: a, right: b, on: k}}
sink: {{format: parquet, path: out}}
finish: when_drained
state_dir: s3://{bucket}/checked/state
conf:
  spark.hadoop.fs.s3a.endpoint: {endpoint}
  spark.hadoop.fs.s3a.access.key: {key}
  spark.hadoop.fs.s3a.secret.key: ${{S3_SECRET}}
"""
runner = CliRunner()


def pipeline(folder: Path, server: Server, bucket: str = "lake") -> Path:
    file = folder / "pipeline.yaml"
    file.write_text(PIPELINE.format(bucket=bucket, endpoint=server.endpoint, key=ACCESS_KEY))
    return file


def test_check_says_which_settings_it_found_and_tries_them(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_SECRET", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    before = server.counts()
    result = runner.invoke(app, ["check", "--no-spark", str(pipeline(tmp_path, server))])
    assert result.exit_code == 0, result.output
    place = "s3a://lake/checked/state: "
    for line in (
        "access_key_id = *** (fs.s3a.access.key)",
        f"endpoint = {server.endpoint} (fs.s3a.endpoint)",
        "region = eu-west-1 (AWS_REGION)",
        "secret_access_key = *** (fs.s3a.secret.key)",
    ):
        assert place + line in result.output
    assert ACCESS_KEY not in result.output
    assert SECRET_KEY not in result.output
    assert (server.counts() - before)["PUT"] == 2  # one object, and the same once more, which is refused
    assert StateDir("s3://lake/checked/state").list() == []


def test_check_says_why_a_store_does_not_work(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_SECRET", SECRET_KEY)
    result = runner.invoke(app, ["check", "--no-spark", str(pipeline(tmp_path, server, bucket="nowhere"))])
    assert result.exit_code == 2
    assert ":8: state_dir: state file s3a://nowhere/checked/state/" in result.stderr
    assert "expected permission for a put request, found" in result.stderr
    assert "NoSuchBucket" in result.stderr
    assert SECRET_KEY not in result.stderr + result.output


def test_a_state_in_a_store_can_be_looked_at(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process of its own would know the store from its environment.
    for name, value in (("ENDPOINT_URL", server.endpoint), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "y")):
        monkeypatch.setenv(f"AWS_{name}", value)
    place = "s3://lake/looked-at"
    remember(place, cache_dir=str(tmp_path))
    directory = StateDir(place)
    plan = make_plan("symmetric", ("left", "right"), {})
    register_join("test", directory, plan)
    run_stored(plan, random_script(1, inputs=("left", "right"), batches=6, end=False), directory)
    result = runner.invoke(app, ["state", place])
    assert result.exit_code == 0, result.output
    assert "left" in result.output


def test_why_reads_a_store(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ENDPOINT_URL", server.endpoint), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "y")):
        monkeypatch.setenv(f"AWS_{name}", value)
    place = "s3://lake/why/state"
    remember(place, cache_dir=str(tmp_path))
    options = ProgressiveOptions(memory_rows=12)
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    directory = StateDir(place)
    register_join("test", directory, plan)
    record_inputs(directory, Description.plain(plan))
    script = random_script(3, batches=8, keys=12, null_share=0, end=False)
    run_stored(plan, script, directory)
    came = [row for arrival in script for row in arrival.rows.get("left", ()) if row[0] == 5]
    found = why(directory, 5, input="left")
    assert sorted(reason.row["_p0"] for reason in found) == sorted(row[1] for row in came)
    assert False in {reason.in_memory for key in range(12) for reason in why(directory, key)}
    result = runner.invoke(app, ["why", place, "--key", "5", "--input", "left"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [reason.sentence for reason in found]


def test_a_pipeline_says_where_hosts_keep_what_they_have_fetched(tmp_path: Path, server: Server) -> None:
    for side in "ab":
        (tmp_path / "data" / side).mkdir(parents=True)
        pq.write_table(pa.table({"k": [1, 3], side: [2, 4]}), tmp_path / "data" / side / "rows.parquet")
    file = pipeline(tmp_path, server)
    file.write_text(file.read_text().replace("/checked/", "/cached/") + f"cache: 10 MB\ncache_dir: {tmp_path}/kept\n")
    command = [sys.executable, "-m", "watersmeet", "run", str(file), "--master", "local[1]"]
    done = subprocess.run(
        command, env={**os.environ, "S3_SECRET": SECRET_KEY}, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert pq.read_table(tmp_path / "out").num_rows == 2
    assert any(path.is_file() for path in (tmp_path / "kept").rglob("*"))


def test_a_state_that_is_used_directly_has_no_cache(tmp_path: Path, server: Server) -> None:
    file = pipeline(tmp_path, server)
    text = file.read_text().replace("state_dir: s3://lake/checked/state", "cache: 10 MB").split("conf:")[0]
    file.write_text(text)
    result = runner.invoke(app, ["check", "--no-spark", str(file)])
    assert result.exit_code == 2
    assert ":8: cache: only for state in an object store: " in result.stderr


def test_the_page_and_the_report_read_a_store(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ENDPOINT_URL", server.endpoint), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", SECRET_KEY)):
        monkeypatch.setenv(f"AWS_{name}", value)
    place = "s3://lake/shown/state"
    remember(place, cache_dir=str(tmp_path))
    directory, plan = StateDir(place), make_plan("symmetric")
    register_join("test", directory, plan)
    record_inputs(directory, Description.plain(plan))
    script = random_script(3, batches=8, keys=12, null_share=0, end=False)
    results = run_stored(plan, script[:6], directory).rows.total()
    board = Board.of([place])
    (shown,) = board.joins.values()
    before = server.counts()
    document = shown.document()
    assert (document["name"], document["place"]) == ("shown", directory.uri)
    assert (document["newest_batch"], document["results"]["rows"]) == (5, results)
    assert sum(document["series"]["results"]) == results
    assert shown.why("5")["rows"], "rows of the key are held, and each has its reason"
    assert (server.counts() - before)["PUT"] == 0, "looking writes nothing"
    assert shown._read_at > -math.inf
    shown._read_at = math.inf  # a moment ago, however slow the machine
    before = server.counts()
    shown.document()
    assert server.counts() == before, "however many look: a store is asked every few seconds"
    shown._read_at = -math.inf
    assert shown.refresh() == 5
    asked = server.counts() - before
    assert asked["GET"] + asked["LIST"] <= 5, "nothing is new: a few requests, however long it has run"
    with PageServer(board) as page, urlopen(f"{page.url}api/joins/shown") as answer:
        assert json.load(answer)["results"]["rows"] == results
    file = tmp_path / "report.html"
    result = runner.invoke(app, ["report", place, "-o", str(file)])
    assert result.exit_code == 0, result.output
    text = file.read_text(encoding="utf-8")
    assert f'"rows":{results}' in text
    assert SECRET_KEY not in text
