"""Spark's xxhash64 of integers, forwards and backwards, beside what Spark itself says."""

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from pyspark.sql import SparkSession

from watersmeet.columns.spark_hash import hash_of_int, hash_of_long, key_of_hash

Longs = npt.NDArray[np.int64]


def columns(spark: SparkSession, edges: list[int], as_key: str) -> tuple[Longs, Longs]:
    """Some integers, and the hash that Spark gives to an expression of each."""
    some = spark.createDataFrame([(key,) for key in edges], "id long")
    many = spark.range(-3000, 3000).selectExpr("id * 7 AS id")
    rows = some.unionByName(many).selectExpr("id", f"xxhash64({as_key}) AS h").collect()
    keys, hashes = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
    return keys, hashes


LONG_EDGES = [0, 1, -1, 42, 2**63 - 1, -(2**63), 2**32, -(2**31), 123456789012345678]


def test_a_long_key_and_its_hash(spark: SparkSession) -> None:
    keys, hashes = columns(spark, LONG_EDGES, "id")
    assert np.array_equal(hash_of_long(keys).view(np.int64), hashes)
    assert np.array_equal(key_of_hash(hashes.view(np.uint64)), keys)


@pytest.mark.parametrize("as_key", ["timestamp_micros(id)", "cast(id / 100 AS decimal(12, 2))"])
def test_types_that_spark_holds_in_eight_bytes(spark: SparkSession, as_key: str) -> None:
    keys, hashes = columns(spark, [0, 1, 99999], as_key)
    assert np.array_equal(hash_of_long(keys).view(np.int64), hashes)


@pytest.mark.parametrize("as_key", ["cast(id AS int)", "cast(id AS short)", "date_from_unix_date(cast(id AS int))"])
def test_types_that_spark_holds_in_four_bytes(spark: SparkSession, as_key: str) -> None:
    keys, hashes = columns(spark, [0, 1, -1, -(2**15), 2**15 - 1], as_key)
    assert np.array_equal(hash_of_int(keys).view(np.int64), hashes)


def test_the_hash_is_xxh64_with_the_seed_42() -> None:
    """What Spark says, from another implementation: quick enough to run without Spark."""
    keys = np.array([*LONG_EDGES, *range(-3000, 3000)], np.int64)
    longs = [xxhash.xxh64_intdigest(int(key).to_bytes(8, "little", signed=True), seed=42) for key in keys]
    assert hash_of_long(keys).tolist() == longs
    assert key_of_hash(np.array(longs, np.uint64)).tolist() == keys.tolist()
    ints = [xxhash.xxh64_intdigest(int(key & 0xFFFFFFFF).to_bytes(4, "little"), seed=42) for key in keys]
    assert hash_of_int(keys).tolist() == ints


def test_the_argument_is_left_alone() -> None:
    numbers = np.array([1, 2, 3], dtype=np.uint64)
    key_of_hash(numbers)
    hash_of_long(numbers.view(np.int64))
    hash_of_int(numbers.view(np.int64))
    assert numbers.tolist() == [1, 2, 3]
