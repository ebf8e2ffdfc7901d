"""`watersmeet` with `--remote`: what it does, and what it refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from watersmeet.pipeline.starter import STARTERS, init


def watersmeet(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "watersmeet", *arguments]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300, check=False)


def test_check_explain_and_run_on_a_server(spark: SparkSession, server: str, tmp_path: Path) -> None:
    file = init("window", tmp_path, parts=3, rows=300)
    checked = watersmeet("check", str(file), "--remote", server)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, f"{file}: OK\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["window-data", "window.yaml"]  # no traces
    explained = watersmeet("explain", str(file), "--remote", server)
    assert "inputs: impressions (left), clicks (right)" in explained.stdout

    ran = watersmeet("run", str(file), "--remote", server, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    *events, end = map(json.loads, ran.stdout.splitlines())
    assert (end["event"], end["status"]) == ("end", "done")
    shown = [event for event in events if event["event"] == "progress"]
    assert len({event["batch"] for event in shown if event["batch"] is not None}) > 2  # while it ran
    assert any(event["batch_seconds"] for event in shown)
    for source in (tmp_path / "window-data").iterdir():
        spark.read.parquet(str(source)).createOrReplaceTempView(source.name)
    found, expected = spark.read.parquet(str(tmp_path / "window-out")), spark.sql(STARTERS["window"].answer)
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, expected.collect()))
    assert end["results"] == expected.count() > 0


def test_check_says_what_the_server_lacks(server: str, tmp_path: Path) -> None:
    file = init("progressive", tmp_path, parts=1, rows=10)
    text = file.read_text().replace("name: progressive", "name: progressive\nconf:\n  spark.executor.memory: 4g")
    file.write_text(text)
    refused = watersmeet("check", str(file), "--remote", server)
    assert refused.returncode == 2
    line = file.read_text().splitlines().index("  spark.executor.memory: 4g") + 1
    assert refused.stderr == (
        f"{file}:{line}: conf.spark.executor.memory: the server of a running session does not take it: set it where "
        "the server is started\n"
    )
    file.write_text(text.replace("  spark.executor.memory: 4g", "  spark.sql.ansi.enabled: 'true'"))
    assert watersmeet("check", str(file), "--remote", server).returncode == 0
    refused = watersmeet("check", str(file), "--remote", server, "--conf", "spark.executor.memory=4g")
    assert (refused.returncode, "--conf spark.executor.memory: expected a setting of a session" in refused.stderr) == (
        2,
        True,
    )

    file.write_text(
        text.replace("conf:\n  spark.executor.memory: 4g", "packages: [kafka]").replace(
            "format: parquet                      # any sink", "format: kafka #"
        )
    )
    refused = watersmeet("check", str(file), "--remote", server)
    assert refused.stdout == f"{file}: the server must have been started with kafka\n"
    assert "sink.format: Failed to find data source: kafka" in refused.stderr
    assert 'Start the server with it: --jars "$(watersmeet connectors kafka)".' in refused.stderr


def test_paths_are_looked_for_on_the_server(server: str, tmp_path: Path) -> None:
    file = init("progressive", tmp_path, parts=1, rows=10)
    file.write_text(file.read_text().replace("path: progressive-data/orders", "path: elsewhere"))
    refused = watersmeet("check", str(file), "--remote", server)
    assert refused.returncode == 2
    assert "sources.orders: [PATH_NOT_FOUND]" in refused.stderr
    assert f"{tmp_path}/elsewhere. The Spark Connect server looks for it in its own file systems." in refused.stderr
    file.write_text(
        file.read_text().replace("path: elsewhere", "path: progressive-data/orders") + "state_dir: s3://b/x\n"
    )
    refused = watersmeet("check", str(file), "--remote", server)
    assert "state_dir: with --remote the state must be on a file system that client and server share" in refused.stderr


@pytest.mark.spark
def test_addresses_that_cannot_be(tmp_path: Path) -> None:
    file = str(init("progressive", tmp_path, parts=1, rows=10))
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
        failed = watersmeet("run", file, "--remote", f"sc://localhost:{port}/;token=hush-hush")
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"watersmeet --remote: expected a Spark Connect server at localhost:{port}, found ")
    assert "hush" not in failed.stderr
    wrong = watersmeet("run", file, "--remote", "localhost:15002")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("--remote: expected an address such as sc://host or sc://host:15002, found ")
    both = watersmeet("run", file, "--remote", "sc://localhost", "--master", "local[2]")
    assert (both.returncode, "give --master or --remote, not both" in both.stderr) == (2, True)
