"""The Java part of PySpark. `pyspark-client`, which reaches servers of Spark Connect alone, has neither it nor py4j."""

from __future__ import annotations

from pyspark.util import is_remote_only

from watersmeet.errors import WatersmeetError

try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ImportError:  # then nothing raises them

    class Py4JError(Exception):  # type: ignore[no-redef]
        """Any error of py4j."""

    class Py4JJavaError(Py4JError):  # type: ignore[no-redef, misc]
        """An exception of the JVM."""


__all__ = ["Py4JError", "Py4JJavaError", "check_java", "java_runs"]


def java_runs() -> bool:
    """Whether this process has started a JVM, or was started by one."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def check_java(who: str, instead: str) -> None:
    """Whoever starts a Spark of his own needs it."""
    if is_remote_only():
        raise WatersmeetError(
            who,
            expected="PySpark with its Java part, to start a Spark session here",
            found="pyspark-client, which only reaches servers of Spark Connect",
            hint=f"Install pyspark, or {instead}.",
        )
