"""News and access records: the worked example of the metadata-aware join.

    python examples/news.py

A publisher posts news items; a monitor writes a record for every access. Only the ten newest items are monitored: when
one drops out of the ten, the monitor writes a punctuation, "no more records for this item". The join correlates
addresses with titles. It keeps the ten items that can still be read and nothing else, however long it runs.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import watersmeet as wm

BATCHES, ITEMS_PER_BATCH, CURRENT, RECORDS_PER_ITEM = 12, 5, 10, 8


def write(folder: Path, number: int, rows: list[dict[str, object]]) -> None:
    """What one micro-batch will read; files are read in the order of their times."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{number:03d}.json"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    os.utime(file, (1_700_000_000 + number,) * 2)


def publish(root: Path) -> None:
    """Both streams, as files."""
    rng = random.Random(7)
    for number in range(BATCHES):
        items = range(number * ITEMS_PER_BATCH, (number + 1) * ITEMS_PER_BATCH)
        records: list[dict[str, object]] = []
        for newest in items:
            for _ in range(RECORDS_PER_ITEM):
                sno = max(0, newest - rng.randrange(CURRENT))
                records.append({"sno": sno, "ip": f"64.58.76.{rng.randrange(256)}", "is_end": False})
            if newest >= CURRENT - 1:  # with the next item this one is no longer among the ten newest
                records.append({"sno": newest - CURRENT + 1, "is_end": True})
        write(root / "news", number, [{"sno": sno, "title": f"item {sno}"} for sno in items])
        write(root / "access", number, records)


def main() -> None:
    """Join, compare with Spark's batch join, and show how much was held."""
    spark = wm.local_session("news", cores=2)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        publish(root)

        def stream(name: str, schema: str) -> DataFrame:
            return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(root / name))

        joined = wm.punctuated_join(
            stream("news", "sno long, title string"),
            stream("access", "sno long, ip string, is_end boolean"),
            on="sno",
            state_dir=root / "state",
            constraints=[wm.OneToMany(one="left")],
            punctuations={"right": wm.PunctuationRows("is_end")},
        )
        query = joined.writeStream.format("parquet").option("path", str(root / "out"))
        query = query.option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()

        news, access = (spark.read.json(str(root / name)) for name in ("news", "access"))
        expected = news.join(access.where("not is_end"), "sno").count()
        found = spark.read.parquet(str(root / "out")).count()
        print(f"{found} results, {expected} in a batch join of the same data")
        counters = F.col("counters")
        held = (
            wm.read_metrics(spark, root / "state")
            .groupBy("batch")
            .agg(
                F.sum(counters["held_rows.left"]).cast("long").alias("news items held"),
                F.sum(counters["held_rows.right"]).cast("long").alias("access records held"),
                F.sum(F.coalesce(counters["left.left.punctuation"], F.lit(0))).cast("long").alias("items purged"),
            )
        )
        held.orderBy("batch").show(BATCHES)
        assert found == expected
    spark.stop()


if __name__ == "__main__":
    main()
