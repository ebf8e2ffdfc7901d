"""Every join behind Spark Connect: the server is a process of its own, and so is the client."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

pytest.importorskip("grpc", reason="Spark Connect's client needs pyspark[connect]")

CLIENT = Path(__file__).with_name("client.py")
PATIENCE = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {
        "spark.connect.grpc.binding.port": str(port), "spark.ui.enabled": "false", "spark.driver.memory": "1g",
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true", "spark.sql.session.timeZone": "UTC",
    }  # fmt: skip
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [str(submit), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--master", "local[2]", *options, "spark-internal"],
            cwd=folder, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _wait_for(process, port, folder / "log")
        yield f"sc://localhost:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)) == 0:
                return
        time.sleep(0.5)
    pytest.fail(f"no Spark Connect server:\n{log.read_text()[-2000:]}")


def test_every_join_gives_the_answer_of_the_batch_join(server: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(CLIENT), server, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [
        "progressive", "budget", "window", "shed", "redeclared", "multiway", "punctuated", "semi_stream", "control",
    ]  # fmt: skip
