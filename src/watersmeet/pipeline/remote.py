"""The session of a pipeline behind Spark Connect (`--remote`).

Master, jars and most settings are the server's own, from its start on. The settings of Spark SQL are the session's.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Mapping

from pyspark.errors import PySparkException, PySparkValueError
from pyspark.sql import SparkSession

from watersmeet.errors import OptionError, WatersmeetError, extra
from watersmeet.pipeline.config import LoadedPipeline
from watersmeet.pipeline.connectors import misfit
from watersmeet.pipeline.problems import PipelineError

OPTION = "--remote"
REACHED_WITHIN = 10.0


def connect(loaded: LoadedPipeline, remote: str, defaults: Mapping[str, str], conf: Mapping[str, str]) -> SparkSession:
    """A session of the server at `remote`, with the settings of the file and of the command line.

    Of `defaults` those are set that belong to a session.
    """
    with extra("connect", f"watersmeet {OPTION}"):
        for package in ("grpc", "grpc_status", "google.rpc", "zstandard"):
            importlib.import_module(package)
    _reach(loaded, remote)
    session = SparkSession.builder.remote(remote).getOrCreate()
    for name, value in defaults.items():
        if name.startswith("spark.sql."):
            session.conf.set(name, value)
    problems = [loaded.problem(text, ("packages", i)) for i, text in _misfits(loaded, session.version)]
    for name, value in loaded.pipeline.conf.items():
        if name not in conf and name != "spark.master" and (why := _refusal(session, name, value)):
            problems.append(loaded.problem(why, ("conf", name)))
    if problems:
        raise PipelineError(problems)
    for name, value in conf.items():
        if why := _refusal(session, name, value):
            raise OptionError(
                f"--conf {name}",
                expected="a setting of a session",
                found=why,
                hint="Set it where the server is started.",
                option="conf",
            )
    return session


def packages_note(loaded: LoadedPipeline) -> list[str]:
    """What a server must have been started with."""
    packages = loaded.pipeline.packages
    return [f"the server must have been started with {', '.join(packages)}"] if packages else []


def _reach(loaded: LoadedPipeline, remote: str) -> None:
    """Fail within seconds if there is no server: Spark's own client goes on trying for ten minutes."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        address = DefaultChannelBuilder(remote)
    except (PySparkValueError, ValueError) as error:
        raise OptionError(
            OPTION,
            expected="an address such as sc://host or sc://host:15002",
            found=loaded.secrets.redact(str(error)),
            hint="It is the address that SparkSession.builder.remote takes.",
            option="remote",
        ) from None
    if address.token:
        loaded.secrets.add(address.token)
    host, _, port = address.endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED_WITHIN).close()
    except OSError as error:
        raise WatersmeetError(
            f"watersmeet {OPTION}",
            expected=f"a Spark Connect server at {address.endpoint}",
            found=str(error),
            hint="Start one there (sbin/start-connect-server.sh of Spark), or give the address of another.",
        ) from None


def _misfits(loaded: LoadedPipeline, spark_version: str) -> list[tuple[int, str]]:
    found = ((index, misfit(package, spark_version)) for index, package in enumerate(loaded.pipeline.packages))
    return [(index, text) for index, text in found if text]


def _refusal(session: SparkSession, name: str, value: str) -> str | None:
    """Why a session cannot be given a setting."""
    try:
        session.conf.set(name, value)
    except PySparkException:
        return "the server of a running session does not take it: set it where the server is started"
    return None
