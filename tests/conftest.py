"""Shared by all tests: one Spark session for the whole run, and Hypothesis profiles.

HYPOTHESIS_PROFILE=soak draws many more examples, different ones in every run; the default, `ci`, always draws
the same ones.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A busy machine is no failure: examples have no deadline and may be slow to draw.
patient = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", patient, derandomize=True)
settings.register_profile("soak", patient, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    # Imported here so that tests without Spark never start a JVM.
    import watersmeet as wm

    session = wm.local_session(cores=2, partitions=2)
    yield session
    session.stop()
