"""Every file of examples/pipelines, run by `watersmeet run` in a process of its own, against the SQL of its sample."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.connectors.broker import Broker
from tests.connectors.conftest import SMALL
from tests.connectors.samples import Sample, equal
from watersmeet.pipeline.config import load
from watersmeet.pipeline.run import run
from watersmeet.pipeline.starter import init

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"


class Example:
    """A copy of an example in a folder of its own, and where its lake and broker are."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, name: str) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.file = Path(shutil.copy(EXAMPLES / f"{name}.yaml", folder))
        self.lake = str(spark.conf.get("spark.sql.catalog.lake.warehouse"))

    def table(self, name: str) -> DataFrame:
        """A table as another process has left it. A session's catalog keeps what it has seen for half a minute."""
        self.spark.sql(f"REFRESH TABLE {name}")
        return self.spark.table(name)

    def run(self) -> str:
        """`watersmeet run`; returns what it printed."""
        command = [sys.executable, "-m", "watersmeet", "run", str(self.file), "--master", "local[2]", "--plain"]
        command += [f"--conf={name}={value}" for name, value in SMALL.items()]
        environment = {**os.environ, "KAFKA": self.broker.address, "LAKE": self.lake}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def kafka_json_to_delta(example: Example) -> tuple[DataFrame, Sample]:
    sample = Sample(example.spark, "progressive")
    sample.into_topics(example.broker)
    example.run()
    return example.spark.read.format("delta").load(str(example.folder / "paid-orders")), sample


def kafka_avro_to_iceberg(example: Example) -> tuple[DataFrame, Sample]:
    sample = Sample(example.spark, "progressive")
    sample.into_topics(example.broker, suffix="-avro", avro=True)
    example.spark.sql("CREATE TABLE lake.shop.paid_orders (order_id long, amount double, paid double) USING iceberg")
    example.run()
    return example.table("lake.shop.paid_orders"), sample


def kafka_to_kafka(example: Example) -> tuple[DataFrame, Sample]:
    sample = Sample(example.spark, "window")
    sample.into_topics(example.broker, suffix="-json")
    example.run()
    options = {"kafka.bootstrap.servers": example.broker.address, "subscribe": "clicked"}
    sent = example.spark.read.format("kafka").options(**options).load().dropDuplicates(["key"])
    schema = ", ".join(f"{name} {kind}" for name, kind in sample.answer.dtypes)
    return sent.select(F.from_json(F.col("value").cast("string"), schema).alias("row")).select("row.*"), sample


def delta_master(example: Example) -> tuple[DataFrame, Sample]:
    sample = Sample(example.spark, "semi-stream")
    sample.into_folders(example.folder / "tables")
    example.run()
    return example.spark.read.format("delta").load(str(example.folder / "tables" / "priced-sales")), sample


def iceberg_master(example: Example) -> tuple[DataFrame, Sample]:
    sample = Sample(example.spark, "semi-stream")
    sample.into_catalog("lake.shop")
    example.spark.sql(
        "CREATE TABLE lake.shop.priced_sales (part_id long, quantity long, name string, price double) USING iceberg"
    )
    example.run()
    return example.table("lake.shop.priced_sales"), sample


RUNS = {
    "kafka-json-to-delta": kafka_json_to_delta,
    "kafka-avro-to-iceberg": kafka_avro_to_iceberg,
    "kafka-to-kafka": kafka_to_kafka,
    "delta-master": delta_master,
    "iceberg-master": iceberg_master,
}


def test_every_example_is_run() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.yaml")} == RUNS.keys()


@pytest.mark.parametrize("name", RUNS)
def test_an_example_gives_the_answer_of_its_sql(spark: SparkSession, broker: Broker, tmp_path: Path, name: str) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS lake.shop")
    found, sample = RUNS[name](Example(spark, broker, tmp_path, name))
    assert equal(found, sample.answer)


@pytest.mark.parametrize("origin", ["delta", "iceberg"])
@pytest.mark.parametrize("operator", ["window", "semi-stream"])
def test_a_starter_from_tables_gives_the_answer_of_its_sql(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str, operator: str
) -> None:
    """`watersmeet init ... --from`; the one from Kafka is run with the commands of the page (test_page.py)."""
    monkeypatch.setenv("LAKE", spark.conf.get("spark.sql.catalog.lake.warehouse") or "")
    file = init(operator, tmp_path, origin=origin, parts=1, rows=10)
    sample = Sample(spark, operator)
    if origin == "delta":
        sample.into_folders(tmp_path / f"{operator}-delta")
    else:
        sample.into_catalog(f"lake.{operator.replace('-', '_')}")
    assert run(load(file), spark).finished
    assert equal(spark.read.parquet(str(tmp_path / f"{operator}-out")), sample.answer)
