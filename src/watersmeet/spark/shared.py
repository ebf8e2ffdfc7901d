"""Directories that this process and Spark both use, where Spark is on another machine.

A client of Spark Connect writes a join's description, reads its manifests and sends its markers; the server and its
tasks read and write the same files. That works in a file system that both have, under the same path.
"""

from __future__ import annotations

import re
import uuid

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from watersmeet.errors import StateDirError
from watersmeet.spark.plans import is_classic
from watersmeet.state.directory import StateDir


def spark_path(directory: StateDir, name: str) -> str:
    """A file of a local directory as Spark must be told of it: its default file system may be another one, and it takes
    the paths that it reads for patterns.

    >>> spark_path(StateDir("/state/orders[eu]"), "control")
    'file:///state/orders\\\\[eu\\\\]/control'
    """
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", directory.path(name))


def check_shared(who: str, session: SparkSession, directory: StateDir, option: str) -> None:
    """Fail now if the server of a Connect session does not see the directory that this process sees.

    The server is asked for a file that was made for the question, so that a directory of the same path is no answer.
    """
    if is_classic(session) or not directory.is_local:
        return
    name = f"seen-by-{uuid.uuid4().hex}"
    directory.publish(name, b"")
    try:
        check_seen(who, session, directory, name, option)
    finally:
        directory.delete(name)


def check_seen(who: str, session: SparkSession, directory: StateDir, name: str, option: str) -> None:
    """The same for a file that is there: nothing is written."""
    if is_classic(session) or not directory.is_local:
        return
    try:
        _ = session.read.text(spark_path(directory, name)).schema
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise StateDirError(
            f"{who}, directory {directory.place}",
            expected="a directory that the Spark Connect server sees too",
            found="one that only this machine sees",
            hint="The server is on another machine, or in a container with other file systems: give a path on a file "
            "system that both have, under the same path.",
            option=option,
        ) from None
