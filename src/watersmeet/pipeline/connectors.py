"""The connectors that are not part of Spark: the one place that knows where they come from."""

from __future__ import annotations

SCALA = "2.13"

# format -> Maven coordinates; these are released with Spark, under its version.
_RELEASED_WITH_SPARK = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}",
    "avro": "org.apache.spark:spark-avro_{scala}:{spark}",
}


def advice(format: str, spark_version: str) -> str | None:
    """What to do to have a format on a version of Spark; None if it is none of these connectors.

    >>> advice("kafka", "4.1.1")
    'Add the line `packages: ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1"]`.'
    >>> advice("parquet", "4.1.1")
    """
    coordinates = _RELEASED_WITH_SPARK.get(format.lower())
    if coordinates is None:
        return None
    return f'Add the line `packages: ["{coordinates.format(scala=SCALA, spark=spark_version)}"]`.'
