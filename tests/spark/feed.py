"""What Spark tests share: a stream that is fed file by file, a run over all there is, rows to compare."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def diagonal(many: Sequence[str], few: Sequence[str], times: int = 1) -> list[tuple[str, str]]:
    """Pairs in which each of `many` comes `times` times and each of `few` about equally often. The whole product is in
    the conformance suite; here it would take a query each.

    >>> diagonal(["a", "b", "c"], ["x", "y"])
    [('a', 'x'), ('b', 'y'), ('c', 'x')]
    """
    return [(one, few[(at + turn) % len(few)]) for turn in range(times) for at, one in enumerate(many)]


class Feed:
    """A stream of JSON files: every `send` is what one micro-batch reads."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str) -> None:
        self.spark, self.folder, self.schema, self.sent = spark, folder, schema, 0
        folder.mkdir()

    def send(self, *rows: dict[str, Any]) -> None:
        """Write the next file. A running query sees it when it is whole and has its time: files are read in the order
        of their times, and Spark passes over those that are a week older than one that it has read."""
        file, hidden = self.folder / f"{self.sent:03d}.json", self.folder / f".{self.sent:03d}.json"
        hidden.write_text("\n".join(json.dumps(row, default=str) for row in rows))
        os.utime(hidden, (1_700_000_000 + self.sent,) * 2)
        hidden.rename(file)
        self.sent += 1

    @property
    def stream(self) -> DataFrame:
        """A file a micro-batch."""
        return self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).json(str(self.folder))

    @property
    def batch(self) -> DataFrame:
        """All that was sent."""
        return self.spark.read.schema(self.schema).json(str(self.folder))


def run(joined: DataFrame, folder: Path) -> None:
    """Run over everything there is, into parquet; a second call goes on from the checkpoint."""
    joined.writeStream.format("parquet").option("path", str(folder / "out")).option(
        "checkpointLocation", str(folder / "checkpoint")
    ).trigger(availableNow=True).start().awaitTermination()


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    """The rows of a batch DataFrame."""
    return Counter(tuple(row) for row in frame.collect())
