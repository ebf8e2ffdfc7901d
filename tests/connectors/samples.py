"""The sample data of the starters, loaded into topics and tables."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from tests.connectors.broker import Broker
from tests.connectors.streams import AVRO
from watersmeet.pipeline.starter import STARTERS

PARTS, ROWS = 2, 300


class Sample:
    """The tables of a starter, file by file, and its answer in SQL."""

    def __init__(self, spark: SparkSession, operator: str) -> None:
        self.spark, self.operator = spark, operator
        self.tables: dict[str, list[DataFrame]] = {
            name: [spark.createDataFrame(part) for part in parts]
            for name, parts in STARTERS[operator].tables(PARTS, ROWS).items()
        }

    @property
    def answer(self) -> DataFrame:
        """What the join must give."""
        for name, (first, *others) in self.tables.items():
            whole = first
            for other in others:
                whole = whole.union(other)
            whole.createOrReplaceTempView(name)
        return self.spark.sql(STARTERS[self.operator].answer)

    def into_topics(self, broker: Broker, *, suffix: str = "", avro: bool = False) -> None:
        """A topic for each source, keyed by the first column."""
        for name, parts in self.tables.items():
            for part in parts:
                row = F.struct(*part.columns)
                value = to_avro(row, AVRO % _fields(part)) if avro else F.to_json(row)
                keyed = part.select(F.col(part.columns[0]).cast("string").alias("key"), value.alias("value"))
                options = {"kafka.bootstrap.servers": broker.address, "topic": name + suffix}
                keyed.write.format("kafka").options(**options).save()

    def into_folders(self, folder: Path) -> None:
        """A Delta table in a folder for each source, a commit of one file for each of its files."""
        for name, parts in self.tables.items():
            for part in parts:
                part.coalesce(1).write.format("delta").mode("append").save(str(folder / name))

    def into_catalog(self, database: str) -> None:
        """An Iceberg table for each source, a commit of one file for each of its files."""
        self.spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
        for name, (first, *others) in self.tables.items():
            first.coalesce(1).writeTo(f"{database}.{name}").using("iceberg").create()
            for part in others:
                part.coalesce(1).writeTo(f"{database}.{name}").append()


def _fields(frame: DataFrame) -> str:
    kinds = {"bigint": "long", "double": "double"}
    return ", ".join(f'{{"name": "{name}", "type": "{kinds[kind]}"}}' for name, kind in frame.dtypes)


def equal(found: DataFrame, expected: DataFrame) -> bool:
    """Whether two results have the same rows, each as often."""
    ours, theirs = (sorted(tuple(row) for row in frame.collect()) for frame in (found, expected))
    assert theirs, "nothing to compare with"
    return found.columns == expected.columns and ours == theirs
