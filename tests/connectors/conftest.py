"""A session with every connector, and a broker; both for the whole run. On a Spark without them the lane fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import watersmeet as wm
from tests.connectors.broker import Broker
from watersmeet.pipeline.connectors import CONNECTORS

# Delta reads its own log with 50 tasks by default; the logs here have a few lines.
SMALL = {"spark.databricks.delta.snapshotPartitions": "1", "spark.default.parallelism": "2"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """All connectors in one session, with a catalog `lake` of Iceberg tables and Delta's as the catalog of Spark."""
    folder = tmp_path_factory.mktemp("catalogs")
    catalogs = {
        **SMALL,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
    }
    session = wm.local_session(cores=2, partitions=2, config=wm.connector_settings(*CONNECTORS, config=catalogs))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker; a test that kills it starts it again."""
    running = Broker(tmp_path_factory.mktemp("kafka") / "broker")
    running.start()
    yield running
    running.kill()
