"""Joins the files in a folder on `local-cluster`: two executors, each a JVM of its own with its own Python workers."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import watersmeet as wm

folder = Path(sys.argv[1])
settings = {
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.host": "localhost",
}
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
left, right = (
    spark.readStream.schema(f"k long, {side} long").option("maxFilesPerTrigger", 1).parquet(str(folder / side))
    for side in "lr"
)
joined = wm.progressive_join(left, right, "k", state_dir=folder / "state")
writer = joined.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
writer.option("path", str(folder / "out")).trigger(availableNow=True).start().awaitTermination()
spark.stop()
