"""A Spark Connect server in a process of its own, on a port that the system chooses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from tests.processes import end_with_parent

from watersmeet.spark.session import JOIN_SETTINGS

STARTED_WITHIN = 180.0
_STARTED = re.compile(r"Spark Connect server started at: \S*:(\d+)")
SETTINGS = {
    **JOIN_SETTINGS,
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.host": "localhost",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.enabled": "false",
}


class ConnectServer:
    """Started when it is made; `stop` ends it and its Python workers."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "server.log"
        home = Path(pyspark.__file__).parent
        options = [part for pair in {**SETTINGS, **(settings or {})}.items() for part in ("--conf", "=".join(pair))]
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", *options]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        # It is no client, although the tests may be one.
        client = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")
        environment = {name: value for name, value in os.environ.items() if name not in client}
        environment |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=end_with_parent,
            )  # fmt: skip
        try:
            self.remote = f"sc://localhost:{self._port()}"
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)

    def _port(self) -> int:
        deadline = time.monotonic() + STARTED_WITHIN
        while time.monotonic() < deadline and self._process.poll() is None:
            if found := _STARTED.search(self.log.read_text(errors="replace")):
                return int(found[1])
            time.sleep(0.2)
        raise AssertionError(f"no Spark Connect server: {self.log.read_text(errors='replace')[-3000:]}")


_SESSIONS: list[SparkSession] = []


def new_session(remote: str) -> SparkSession:
    """A session of its own, which is never garbage. PySpark ends the threads that all sessions share when one is
    collected: in the middle of a call of another one that is waiting for a lock which that call has."""
    _SESSIONS.append(SparkSession.builder.remote(remote).create())
    return _SESSIONS[-1]
