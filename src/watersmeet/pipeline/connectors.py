"""The connectors that are not part of Spark, and the jars that make each of them work on each release of Spark.

The one place that pipeline files (`packages: [kafka]`), `watersmeet check` and `connectors`, and the tests share. A
connector is listed for a release of Spark if it was run on it (`make test-connectors`, `make test-releases`). The list
of jars is complete: nothing is fetched that is not in it. Spark has the other dependencies itself, and some artifacts
name dependencies that cannot be had.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from watersmeet.errors import OptionError

# Built with Spark 4.0, the newest that can be had. The connectors of later releases call what it has.
_KAFKA_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0"


def _delta(spark: str, version: str) -> tuple[str, ...]:
    kernel = [f"io.delta:delta-{part}:{version}" for part in ("storage", "kernel-api", "kernel-defaults")]
    return f"io.delta:delta-spark_{spark}_2.13:{version}", *kernel, f"io.delta:delta-kernel-unitycatalog:{version}"


# format -> release of Spark -> jars. The first jar is the connector itself.
CONNECTORS: dict[str, dict[str, tuple[str, ...]]] = {
    "kafka": {
        "4.1": (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
            _KAFKA_TOKENS,
            "org.apache.kafka:kafka-clients:3.9.1",
            "org.apache.commons:commons-pool2:2.12.1",
        ),
        "4.2": (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            _KAFKA_TOKENS,
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.13.1",
        ),
    },
    "avro": {"4.1": ("org.apache.spark:spark-avro_2.13:4.1.1",)},
    "delta": {"4.1": _delta("4.1", "4.4.0"), "4.2": _delta("4.2", "4.4.0")},
    "iceberg": {"4.1": ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)},
}

# What a session needs besides the jars; a pipeline's own `conf` comes first, lists of extensions are joined.
EXTENSIONS = "spark.sql.extensions"
SETTINGS: dict[str, dict[str, str]] = {
    "delta": {
        EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
}

# The connectors' artifacts, whichever release they are for: `spark` or `version` begins with the release of Spark.
_ARTIFACTS = {
    "kafka": re.compile(r"org\.apache\.spark:spark-sql-kafka-0-10_(?P<scala>[\d.]+):(?P<spark>[\d.]+)"),
    "avro": re.compile(r"org\.apache\.spark:spark-avro_(?P<scala>[\d.]+):(?P<spark>[\d.]+)"),
    "delta": re.compile(r"io\.delta:delta-spark_(?P<spark>[\d.]+)_(?P<scala>[\d.]+):"),
    "iceberg": re.compile(r"org\.apache\.iceberg:iceberg-spark-runtime-(?P<spark>[\d.]+)_(?P<scala>[\d.]+):"),
}
SCALA = "2.13"


def release(spark_version: str) -> str:
    """The release that a version of Spark belongs to.

    >>> release("4.1.4"), release("4.2.0-preview5")
    ('4.1', '4.2')
    """
    return ".".join(spark_version.split(".")[:2])


def coordinates(format: str, spark_version: str) -> tuple[str, ...] | None:
    """The jars that make a format work on a version of Spark; None if there are none, or if Spark has it itself.

    >>> coordinates("kafka", "4.1.4")[0]
    'org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3'
    >>> coordinates("iceberg", "4.3.0"), coordinates("parquet", "4.1.4")
    (None, None)
    """
    return CONNECTORS.get(format.lower(), {}).get(release(spark_version))


def complete_release() -> str:
    """The newest release of Spark that has every connector.

    >>> complete_release()
    '4.1'
    """
    everywhere = set.intersection(*(set(known) for known in CONNECTORS.values()))
    return max(everywhere, key=lambda one: [int(part) for part in one.split(".")])


def jars_of(names: Iterable[str], spark_version: str) -> list[str]:
    """The jars of several connectors together; an error names one that does not exist for the version of Spark."""
    wanted: list[str] = []
    for name in names:
        jars = coordinates(name, spark_version)
        if jars is None:
            raise OptionError(
                "connectors",
                expected=f"a connector for Spark {spark_version}",
                found=repr(name),
                hint=none_for(name, spark_version) if name in CONNECTORS else f"Known are {', '.join(CONNECTORS)}.",
            )
        wanted += [jar for jar in jars if jar not in wanted]
    return wanted


def advice(format: str, spark_version: str, *, remote: bool = False) -> str | None:
    """What to do to have a format on a version of Spark; None if it is none of these connectors.

    >>> advice("kafka", "4.1.4")
    'Add the line `packages: [kafka]`: it stands for the connector of Spark 4.1.'
    >>> print(advice("kafka", "4.3.0"))
    No kafka connector for Spark 4.3 is known. There is one for Spark 4.1 and 4.2: install pyspark==4.2.*.
    """
    name = format.lower()
    if name not in CONNECTORS:
        return None
    if coordinates(name, spark_version) and remote:
        return f'Start the server with it: --jars "$(watersmeet connectors {name})".'
    if coordinates(name, spark_version):
        return f"Add the line `packages: [{name}]`: it stands for the connector of Spark {release(spark_version)}."
    return none_for(name, spark_version)


def none_for(name: str, spark_version: str) -> str:
    """That a connector does not exist for a version of Spark, and for which it does."""
    known = list(CONNECTORS[name])
    return (
        f"No {name} connector for Spark {release(spark_version)} is known. There is one for Spark "
        f"{' and '.join(known)}: install pyspark=={known[-1]}.*."
    )


def settings(names: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """The given settings with those that the connectors need; what is given wins, but extensions are added to.

    >>> settings(["iceberg"], {"spark.sql.extensions": "mine"})
    {'spark.sql.extensions': 'mine,org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions'}
    """
    merged = dict(given)
    for name in names:
        for key, value in SETTINGS.get(name, {}).items():
            if key == EXTENSIONS:
                listed = [one for one in merged.get(key, "").split(",") if one]
                merged[key] = ",".join(listed if value in listed else [*listed, value])
            else:
                merged.setdefault(key, value)
    return merged


def misfit(package: str, spark_version: str) -> str | None:
    """Why an entry of `packages` cannot work on a version of Spark; None if nothing speaks against it.

    >>> misfit("kafka", "4.1.4"), misfit("io.delta:delta-spark_4.1_2.13:4.4.0", "4.1.4")
    (None, None)
    >>> print(misfit("io.delta:delta-spark_4.1_2.13:4.4.0", "4.2.1"))
    is for Spark 4.1, but this is Spark 4.2.1. Use `delta`: it stands for io.delta:delta-spark_4.2_2.13:4.4.0 here.
    """
    if package in CONNECTORS:
        return None if coordinates(package, spark_version) else none_for(package, spark_version)
    for name, pattern in _ARTIFACTS.items():
        if found := pattern.match(package):
            if release(found["spark"]) == release(spark_version) and found["scala"] == SCALA:
                return None
            jars = coordinates(name, spark_version)
            use = f"Use `{name}`: it stands for {jars[0]} here." if jars else none_for(name, spark_version)
            scala = "" if found["scala"] == SCALA else f" and Scala {found['scala']}"
            here = "" if found["scala"] == SCALA else f" with Scala {SCALA}"
            return f"is for Spark {release(found['spark'])}{scala}, but this is Spark {spark_version}{here}. {use}"
    return None
