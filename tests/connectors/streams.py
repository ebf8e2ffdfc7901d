"""What the tests of all connectors share: topics to feed, runs over all there is, a batch that Spark repeats."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.streaming.readwriter import DataStreamWriter

import watersmeet as wm
from tests.connectors.broker import Broker

AVRO = """{"type": "record", "name": "row", "fields": [%s]}"""


def numbers(spark: SparkSession, column: str, first: int, count: int, keys: int = 50) -> DataFrame:
    """Rows `k`, `column`: the second is unique, the first is not."""
    return spark.range(first, first + count).select((F.col("id") % keys).alias("k"), F.col("id").alias(column))


class Topic:
    """A topic of rows `k`, `column`, as JSON or Avro."""

    def __init__(self, spark: SparkSession, broker: Broker, name: str, column: str, *, avro: bool = False) -> None:
        self.spark, self.broker, self.name, self.column, self.avro = spark, broker, name, column, avro
        self._fields = ", ".join(f'{{"name": "{field}", "type": "long"}}' for field in ("k", column))

    def send(self, rows: DataFrame) -> None:
        """Append rows; those of a key stay in order."""
        row = F.struct("k", self.column)
        # Avro's schema is given: without it a column that can hold nulls would be a union.
        value = to_avro(row, AVRO % self._fields) if self.avro else F.to_json(row)
        keyed = rows.select(F.col("k").cast("string").alias("key"), value.alias("value"))
        keyed.write.format("kafka").options(**self._options("topic")).save()

    def stream(self, **options: str) -> DataFrame:
        """The rows as a stream, from the first one on."""
        reader = self.spark.readStream.format("kafka").options(startingOffsets="earliest", **options)
        return self._decoded(reader.options(**self._options("subscribe")).load())

    @property
    def batch(self) -> DataFrame:
        """All rows there are."""
        return self._decoded(self.spark.read.format("kafka").options(**self._options("subscribe")).load())

    def _decoded(self, raw: DataFrame) -> DataFrame:
        if self.avro:
            value = from_avro("value", AVRO % self._fields)
        else:
            value = F.from_json(F.col("value").cast("string"), f"k long, {self.column} long")
        return raw.select(value.alias("row")).select("row.*")

    def _options(self, role: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.broker.address, role: self.name}


def joined(left: DataFrame, right: DataFrame, folder: Path) -> DataFrame:
    """The streaming join on `k`, with its state in the folder."""
    return wm.progressive_join(left, right, on="k", state_dir=folder / "state")


def run(writer: DataStreamWriter, folder: Path, table: str | None = None) -> None:
    """Run over everything there is; a second call goes on from the checkpoint."""
    ready = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    query = ready.toTable(table) if table else ready.start()
    query.awaitTermination()


def forget_newest_commit(folder: Path) -> int:
    """As if the driver had died after the sink had its rows and before Spark noted it: the batch is repeated."""
    newest = max(int(file.name) for file in (folder / "checkpoint" / "commits").iterdir() if file.name.isdigit())
    for name in (str(newest), f".{newest}.crc"):
        (folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    return newest


def was_repeated(folder: Path, batch: int) -> bool:
    """Whether Spark has run the forgotten batch again."""
    return (folder / "checkpoint" / "commits" / str(batch)).exists()


def equal(found: DataFrame, expected: DataFrame, columns: Iterable[str] = ("k", "x", "y")) -> bool:
    """Whether two results have the same rows, each as often."""
    names = list(columns)
    ours, theirs = (sorted(tuple(row) for row in frame.select(*names).collect()) for frame in (found, expected))
    assert theirs, "nothing to compare with"
    return ours == theirs
