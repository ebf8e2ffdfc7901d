"""A Kafka broker in KRaft mode, in a process of its own, that can be killed and started again."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.processes import end_with_parent
from watersmeet.pipeline.jars import fetch, java_program

KAFKA = "org.apache.kafka:kafka_2.13:4.1.2"
STARTED_WITHIN = 120.0


class Broker:
    """One broker that is its own controller; its log outlives it, its address stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port, self._controller = _free_port(), _free_port()
        self._classpath = os.pathsep.join(str(jar) for jar in fetch([KAFKA], transitive=True))
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        self._settings = folder / "server.properties"
        self._settings.write_text(
            f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:{self._controller}
listeners=PLAINTEXT://localhost:{self._port},CONTROLLER://localhost:{self._controller}
controller.listener.names=CONTROLLER
log.dirs={folder / "log"}
num.partitions=2
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
"""
        )
        command = self._java("kafka.tools.StorageTool")
        command += ["format", "--cluster-id", "d2F0ZXJzbWVldC10ZXN0cw", "--config", str(self._settings)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    @property
    def address(self) -> str:
        """What clients connect to."""
        return f"localhost:{self._port}"

    def start(self) -> None:
        """Start, and wait until it answers. Its address stays, so a port that is taken just now is waited for."""
        deadline = time.monotonic() + STARTED_WITHIN
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                with (self.folder / "broker.log").open("ab") as log:
                    command = [*self._java("kafka.Kafka"), str(self._settings)]
                    self._process = subprocess.Popen(
                        command, stdout=log, stderr=log, start_new_session=True, preexec_fn=end_with_parent
                    )
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex(("localhost", self._port)) == 0 and self._process.poll() is None:
                    return
            time.sleep(0.2)
        self.kill()
        raise AssertionError(f"the broker did not start: {(self.folder / 'broker.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End it without a word, as a machine that loses its power."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None

    def _java(self, main: str) -> list[str]:
        return [
            str(java_program()),
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            self._classpath,
            main,
        ]


def _free_port() -> int:
    """A port below those that the system gives to clients: nobody gets it by chance while the broker is away."""
    while True:
        port = random.randrange(12_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("localhost", port))
            return port
