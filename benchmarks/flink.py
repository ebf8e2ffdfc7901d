"""Flink SQL for the benchmarks, in a Java process of its own, driven through py4j.

The jars are in `.venvs/rivals` (`make rivals-setup`). Settings are those that Flink's documentation advises for joins:
mini-batches, aggregation in two phases, objects reused; checkpoints every 10 seconds, incremental with RocksDB. The
process is kept for all runs, so it is as warm as Spark's.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

ENVIRONMENT = Path(__file__).parents[1] / ".venvs" / "rivals"
BACKENDS = {"flink_heap": "hashmap", "flink_rocksdb": "rocksdb"}
# Flink reads hidden fields of the JDK, as the start scripts of its distribution allow it to.
_OPENED = ["java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.text", "java.time", "java.util"]
_OPENED += ["java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks"]


def version() -> str | None:
    """The version of Flink that is installed; None if there is none."""
    found = glob.glob(f"{ENVIRONMENT}/lib/python*/site-packages/pyflink/lib/flink-dist-*.jar")
    return Path(found[0]).stem.removeprefix("flink-dist-") if found else None


def settings(backend: str, cores: int, folder: Path, checkpoints: str = "10 s") -> dict[str, str]:
    """What a job runs with."""
    return {
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": str(cores),
        "taskmanager.numberOfTaskSlots": str(cores),
        "taskmanager.memory.managed.size": "2g" if backend == "rocksdb" else "64m",
        "taskmanager.memory.network.max": "256m",
        "pipeline.object-reuse": "true",
        "state.backend.type": backend,
        "execution.checkpointing.interval": checkpoints,
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.agg-phase-strategy": "TWO_PHASE",
        "table.local-time-zone": "UTC",
    }


class Flink:
    """A Java process with Flink on its class path."""

    def __init__(self, gateway: JavaGateway) -> None:
        self.jvm = gateway.jvm

    def tables(self, options: Mapping[str, str], statements: Iterable[str]) -> Any:
        """A table environment with some tables."""
        configuration = self.jvm.org.apache.flink.configuration.Configuration()
        for name, value in options.items():
            configuration.setString(name, value)
        chosen = self.jvm.org.apache.flink.table.api.EnvironmentSettings.newInstance().withConfiguration(configuration)
        environment = self.jvm.org.apache.flink.table.api.TableEnvironment.create(chosen.build())
        for statement in statements:
            environment.executeSql(statement)
        return environment

    def seconds(self, environment: Any, query: str) -> float:
        """Run a query to its end, its results dropped; the seconds that the job took."""
        nowhere = self.jvm.org.apache.flink.table.api.TableDescriptor.forConnector("blackhole").build()
        client = environment.sqlQuery(query).insertInto(nowhere).execute().getJobClient().get()
        return float(client.getJobExecutionResult().get().getNetRuntime()) / 1000

    def last_row(self, environment: Any, query: str) -> dict[str, int]:
        """The last state of a query of one row, such as a sum over everything, and its columns' names."""
        result = environment.executeSql(query)
        names = list(result.getResolvedSchema().getColumnNames())
        rows, last = result.collect(), None
        while rows.hasNext():
            row = rows.next()
            if row.getKind().shortString() in ("+I", "+U"):
                last = [row.getField(place) for place in range(len(names))]
        rows.close()
        return {name: int(value or 0) for name, value in zip(names, last or [0] * len(names), strict=True)}


@contextmanager
def started(memory: str = "6g") -> Iterator[Flink]:
    """Flink in a process of its own, ended afterwards."""
    if version() is None:
        raise SystemExit("Flink is not installed: run `make rivals-setup` first.")
    spark = Path(pyspark.__file__).parent / "jars"
    libraries = [
        *glob.glob(f"{ENVIRONMENT}/lib/python*/site-packages/pyflink/lib/*.jar"),
        *glob.glob(f"{ENVIRONMENT}/jars/*"),
    ]
    hadoop = [str(path) for path in spark.glob("hadoop-client-*.jar")]  # Flink reads parquet with Hadoop's classes
    (py4j,) = spark.glob("py4j-*.jar")
    options = [f"-Xmx{memory}", *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED)]
    port, process = launch_gateway(
        jarpath=str(py4j),
        classpath=":".join([*libraries, *hadoop]),
        javaopts=options,
        die_on_exit=True,
        return_proc=True,
        redirect_stdout=None,
        redirect_stderr=None,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield Flink(gateway)
    finally:
        gateway.shutdown()
        process.terminate()
        process.wait(30)
