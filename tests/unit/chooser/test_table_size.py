"""Which tables are small enough to be broadcast in every micro-batch."""

from __future__ import annotations

import pytest

from watersmeet.chooser.table_size import UNKNOWN, TableSize, parse_bytes

DEFAULT = 10 * 1024**2


def size(estimate: int = 0, rows: int | None = None, row_bytes: int = 32, threshold: int = DEFAULT) -> TableSize:
    return TableSize(estimate, rows, row_bytes, threshold)


@pytest.mark.parametrize(
    ("text", "bytes"),
    [
        ("10485760b", 10_485_760), ("10MB", 10_485_760), ("10m", 10_485_760), ("10M", 10_485_760),
        ("5242880", 5_242_880), ("1g", 1024**3), ("2 TiB", 2 * 1024**4), ("135.5 KiB", 138_752), ("8.0 EiB", 2**63),
        ("0", 0), ("0.0 B", 0), ("-1", -1),
    ],
)  # fmt: skip
def test_bytes_as_spark_writes_them(text: str, bytes: int) -> None:
    assert parse_bytes(text) == bytes


@pytest.mark.parametrize("text", ["", "many", "10 MB of it", "1,5"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="no number of bytes"):
        parse_bytes(text)


def test_half_of_the_setting_is_broadcast() -> None:
    limit = DEFAULT // 2
    assert size().limit == limit
    assert size().most_rows == limit // 32
    assert size(rows=limit // 32).fits
    assert not size(rows=limit // 32 + 1).fits
    assert size(estimate=limit, rows=1).fits
    assert not size(estimate=limit + 1, rows=1).fits, "the estimate counts if it is larger than what the rows take"


def test_what_must_be_counted() -> None:
    """A small estimate may be that of compressed files, and one that knows nothing may be that of a few rows."""
    assert size(estimate=1000).is_open
    assert size(estimate=UNKNOWN).is_open
    assert size(estimate=2**63 - 1).is_open
    assert not size(estimate=DEFAULT).is_open
    assert not size(estimate=1000, rows=3).is_open
    assert not size(estimate=1000).fits, "nothing is broadcast that was not counted"
    assert size(estimate=2**63 - 1).counted(40).nbytes == 40 * 32
    assert size(estimate=2**63 - 1).counted(40).fits


@pytest.mark.parametrize("threshold", [-1, -1024])
def test_a_setting_below_zero_means_never(threshold: int) -> None:
    never = size(estimate=10, rows=1, threshold=threshold)
    assert not never.fits
    assert not size(estimate=10, threshold=threshold).is_open
    assert never.rule == f"spark.sql.autoBroadcastJoinThreshold is {threshold}: nothing is to be broadcast"
    assert not size(estimate=10, rows=1, threshold=0).fits
    assert size(estimate=0, rows=0, threshold=0).fits


def test_in_words() -> None:
    assert str(size(1000, rows=1)) == "1 row, 1.0 kB"
    assert str(size(1000, rows=10_000)) == "10,000 rows, 320.0 kB"
    assert str(size(80_000_000)) == "about 80.0 MB by Spark's estimate"
    assert str(size(UNKNOWN)) == "of unknown size"
    assert str(size(UNKNOWN, rows=163_841)) == "more than 163,840 rows of about 32 bytes"
    assert size().rule == "up to 5.2 MB, half of spark.sql.autoBroadcastJoinThreshold, are broadcast"
