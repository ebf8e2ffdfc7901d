"""Orders joined with their payments as a streaming table, and a materialized view over it."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm

spark = SparkSession.active()
data = Path(str(spark.conf.get("paid-orders.data")))


def stream(name: str, schema: str) -> DataFrame:
    """The files of a folder, ten a micro-batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 10).json(f"file://{data}/{name}")


# Built here and not in the function of the table: a join looks at the columns of its inputs, and Spark 4.1 does not let
# a table's function do that. Its inputs are sources, not tables of this pipeline, which exist only when it runs.
joined = wm.progressive_join(
    stream("orders", "order_id long, country string"),
    stream("payments", "order_id long, amount double"),
    on="order_id",
    state_dir=data / "state",
    memory="256 MB",
)


@dp.table
def paid_orders() -> DataFrame:
    """Every order with each of its payments, once."""
    return joined


@dp.materialized_view
def revenue() -> DataFrame:
    """What was paid, by country."""
    return spark.read.table("paid_orders").groupBy("country").agg(F.sum("amount").alias("amount"))
