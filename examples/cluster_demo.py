"""A join on a standalone cluster with its state in S3: server, master, two workers and driver, all on this machine.

    make cluster-demo

The steps are those of docs/cluster.md. Everything is in a temporary directory, and ends with the demo.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import watersmeet as wm

ROOT = Path(__file__).resolve().parent.parent
SPARK = Path(pyspark.__file__).parent
MASTER, PORT, STORE = "spark://127.0.0.1:7077", 7077, 9000
ENVIRONMENT = os.environ | {"SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable}
DEPLOY = "org.apache.spark.deploy"


@contextmanager
def running(name: str, folder: Path, *command: str) -> Iterator[None]:
    """A process that ends with the demo; what it says goes to a file."""
    print(f"{name:8} {' '.join(command)}")
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def wait_for(address: str, seconds: float = 60) -> None:
    """Until somebody answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(address).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def main() -> None:
    """Start everything, join, compare with Spark's own join, show what the store was asked."""
    with tempfile.TemporaryDirectory(prefix="watersmeet-cluster-") as made, ExitStack() as stack:
        folder, launch = Path(made), str(SPARK / "bin" / "spark-class")
        stack.enter_context(
            running("store", folder, sys.executable, "-m", "tests.object_store.server", str(STORE), "0.03")
        )
        stack.enter_context(
            running("master", folder, launch, f"{DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", str(PORT))
        )
        for number in (1, 2):
            place = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"))
            stack.enter_context(running(f"worker{number}", folder, launch, f"{DEPLOY}.worker.Worker", *place, MASTER))
        wait_for(f"http://127.0.0.1:{STORE}/_requests")
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{STORE}/lake", method="PUT")).close()
        join(folder)


def join(folder: Path) -> None:
    """The driver's part."""
    os.environ |= {"SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable}
    spark = (
        SparkSession.builder.master(MASTER)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.hadoop.fs.s3a.endpoint", f"http://127.0.0.1:{STORE}")
        .config("spark.hadoop.fs.s3a.path.style.access", "true")
        .config("spark.hadoop.fs.s3a.access.key", "demo")
        .config("spark.hadoop.fs.s3a.secret.key", "demo-secret")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for number in range(5):
        for name, value, offset in (("orders", "amount", 0), ("payments", "paid", 50)):
            ids = spark.range(number * 200 + offset, number * 200 + offset + 200, numPartitions=1)
            rows = ids.select((F.col("id") % 150).alias("id"), F.col("id").alias(value))
            rows.write.mode("append").parquet(str(folder / name))
    orders, payments = (
        spark.readStream.schema(f"id long, {value} long").option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        for name, value in (("orders", "amount"), ("payments", "paid"))
    )
    joined = wm.progressive_join(
        orders, payments, on="id", state_dir="s3a://lake/state/orders", cache="1 GB", cache_dir="cache"
    )
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.option("path", str(folder / "joined")).trigger(availableNow=True).start()
    query.awaitTermination()
    found = spark.read.parquet(str(folder / "joined")).count()
    batch = [spark.read.parquet(str(folder / name)) for name in ("orders", "payments")]
    expected = batch[0].join(batch[1], "id").count()
    print(f"joined   {found} rows in {len(query.recentProgress)} micro-batches; Spark's batch join has {expected}")
    with urllib.request.urlopen(f"http://127.0.0.1:{STORE}/_requests") as answer:
        print(f"asked    {answer.read().decode()}")
    spark.stop()
    if found != expected:
        sys.exit("the answer is wrong")


if __name__ == "__main__":
    main()
