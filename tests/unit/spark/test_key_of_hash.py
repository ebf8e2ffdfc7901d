"""The inverse of Spark's xxhash64 on 64-bit integers; vectors taken from `SELECT xxhash64(id)` in Spark."""

import numpy as np
from pyspark.sql import SparkSession

from watersmeet.spark.key_of_hash import key_of_hash


def test_the_key_comes_back(spark: SparkSession) -> None:
    edges = [0, 1, -1, 42, 2**63 - 1, -(2**63), 2**32, -(2**31), 123456789012345678]
    rows = spark.createDataFrame([(key,) for key in edges], "k long").selectExpr("k", "xxhash64(k) AS h").collect()
    many = spark.range(-5000, 5000).selectExpr("id * 7919 AS k", "xxhash64(id * 7919) AS h").collect()
    keys, hashes = (np.array([row[i] for row in rows + many], dtype=np.int64) for i in (0, 1))
    assert np.array_equal(key_of_hash(hashes.view(np.uint64)), keys)


def test_the_argument_is_left_alone() -> None:
    hashes = np.array([1, 2, 3], dtype=np.uint64)
    key_of_hash(hashes)
    assert hashes.tolist() == [1, 2, 3]
