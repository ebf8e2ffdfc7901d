"""Schemas and values nobody would choose: drawn types, ends of every range, nulls everywhere, no payload, wide rows.

Operators know no column names, so those are tried where they exist: through the public functions, on Spark.
"""

from __future__ import annotations

import itertools
import string
import tempfile
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as T

import watersmeet as wm
from watersmeet.engine.registry import OPERATORS
from watersmeet.plan import JoinPlan
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.semistream.master_table import Layout
from watersmeet.testing import Arrival, inner_join, make_plan, run_in_memory
from watersmeet.testing.arrivals import Row
from watersmeet.testing.harness import rows_of
from watersmeet.testing.masters import semi_stream_plan, write_master
from watersmeet.testing.oracle import comparable

Types = tuple[pa.DataType, ...]

HUGE = "long " * 20_000
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.sampled_from([-128, 0, 127]),
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]),
    pa.float64(): st.sampled_from([float("nan"), float("-inf"), -0.0, 0.0, 5e-324, 1.7976931348623157e308]),
    pa.float32(): st.sampled_from([float("nan"), -0.0, 0.0, 1.5, float("inf")]),
    pa.string(): st.sampled_from(["", " ", "a", "a\0", "é", "e\u0301", "'\"`.;--", "\U0010ffff", HUGE]),
    pa.binary(): st.sampled_from([b"", b"\0", b"\0\0", bytes(range(256))]),
    pa.date32(): st.sampled_from([date.min, date(1969, 12, 31), date.max]),
    pa.timestamp("us", "UTC"): st.sampled_from(
        [
            datetime.min.replace(tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            datetime.max.replace(tzinfo=UTC),
        ]
    ),
    pa.decimal128(38, 18): st.sampled_from(
        [Decimal("9" * 20 + "." + "9" * 18), Decimal("-" + "9" * 20 + "." + "9" * 18), Decimal("0." + "0" * 17 + "1")]
    ),
}
kinds = st.sampled_from(list(VALUES))
schemas = st.tuples(st.lists(kinds, min_size=1, max_size=3), st.lists(kinds, max_size=4))


def limited(policy: str) -> ProgressiveOptions:
    return ProgressiveOptions(policy=policy, memory_rows=3, page_rows=2, buckets=3, fan_in=2, idle_pages=2)


def plan_of(operator: str, keys: Types, payload: Types) -> JoinPlan:
    options: dict[str, Any] = {}
    tuning: dict[str, Any] = {}
    if operator in ("rpj", "xjoin", "hmj"):
        options, tuning = limited(operator).identity(), limited(operator).tuning()
    elif operator in ("window", "promised_window"):
        options = {"window": [10**9, 10**9], "lateness": 0, "time_columns": None}
    elif operator == "punctuated":
        options, tuning = {"constraints": [], "buckets": 4}, {"memory": 300}
    return make_plan(operator, options=options, tuning=tuning, keys=keys, payload=payload)


def columns_of(width: int) -> tuple[Types, Row]:
    """So many columns, and a row of them."""
    kinds = itertools.islice(itertools.cycle([pa.int64(), pa.string(), pa.date32()]), width)
    return tuple(kinds), tuple(itertools.islice(itertools.cycle([7, "x", date.max]), width))


def plain(rows: Counter[Row]) -> Counter[Row]:
    """Rows that can be compared: one NaN, one zero."""
    found: Counter[Row] = Counter()
    for row, count in rows.items():
        found[tuple(comparable(value) for value in row)] += count
    return found


def run_against_table(
    policy: str, script: list[Arrival], master: list[Row], keys: Types, payload: Types, **tuning: Any
) -> Counter[Row]:
    """A stream against a table in chunks of two rows, every row kept, with or without a partner."""
    with tempfile.TemporaryDirectory() as folder:
        layout: Layout = "hash" if policy == "aligned" else "arrival"
        write_master(folder, master, layout=layout, keys=keys, payload=payload)
        plan = semi_stream_plan(folder, {"policy": policy}, tuning, keys=keys, payload=payload, how="left")
        return run_in_memory(plan, script, reload=True).rows


def left_join(script: list[Arrival], master: list[Row], keys: int) -> Counter[Row]:
    """The plain join, and the rows of the stream that have no partner in the table."""
    rows = [row for arrival in script for row in arrival.rows.get("stream", ())]
    tables = [Arrival({"left": rows, "right": master})]
    known = {tuple(comparable(value) for value in row[:keys]) for row in master if None not in row[:keys]}
    alone = [row for row in rows if tuple(comparable(value) for value in row[:keys]) not in known]
    return inner_join(tables, keys=keys) + Counter((*row, *(None,) * (len(row) - keys)) for row in alone)


POLICIES = ("aligned", "ssbj", "mesh")
BINARY = ("symmetric", "rpj", "xjoin", "hmj", "mjoin", "window", "punctuated", "promised_window")


@pytest.mark.parametrize("operator", BINARY)
@settings(max_examples=25)
@given(data=st.data())
def test_any_schema_and_any_value(operator: str, data: st.DataObject) -> None:
    keys, payload = (tuple(types) for types in data.draw(schemas))
    row = st.tuples(*(st.none() | VALUES[kind] for kind in (*keys, *payload)))
    batches = data.draw(
        st.lists(st.tuples(st.lists(row, max_size=4), st.lists(row, max_size=4)), min_size=1, max_size=4)
    )
    script = [Arrival({"left": left, "right": right}, time=n) for n, (left, right) in enumerate(batches)]
    script.append(Arrival(time=len(script), ended=frozenset({"left", "right"})))
    outcome = run_in_memory(plan_of(operator, keys, payload), script, reload=True)
    assert plain(outcome.rows) == plain(inner_join(script, keys=len(keys)))


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25)
@given(data=st.data())
def test_any_schema_and_any_value_against_a_table(policy: str, data: st.DataObject) -> None:
    keys, payload = (tuple(types) for types in data.draw(schemas))
    row = st.tuples(*(st.none() | VALUES[kind] for kind in (*keys, *payload)))
    master = data.draw(st.lists(row, min_size=1, max_size=6))
    # Half of the stream's keys are in the table.
    partner = st.tuples(st.sampled_from(master), row).map(lambda pair: (*pair[0][: len(keys)], *pair[1][len(keys) :]))
    batches = data.draw(st.lists(st.lists(row | partner, max_size=4), min_size=1, max_size=4))
    script = [Arrival({"stream": rows}, time=n) for n, rows in enumerate(batches)]
    script.append(Arrival(time=len(script), ended=frozenset({"stream"})))
    memory = data.draw(st.sampled_from([300, 1_000_000]))
    found = run_against_table(policy, script, master, keys, payload, memory=memory, max_delay=3, switching_factor=0.05)
    assert plain(found) == plain(left_join(script, master, len(keys)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("width", [0, 500])
def test_no_payload_and_500_columns_against_a_table(policy: str, width: int) -> None:
    payload, values = columns_of(width)
    rows: list[Row] = [(key, *values) for key in (1, 2, 2, 3, None)]
    script = [Arrival({"stream": rows}, time=n) for n in range(3)]
    script.append(Arrival(time=3, ended=frozenset({"stream"})))
    master = [row for row in rows if row[0] != 3]
    found = run_against_table(policy, script, master, (pa.int64(),), payload, max_delay=2)
    assert found == left_join(script, master, 1)


@pytest.mark.parametrize("operator", BINARY)
@pytest.mark.parametrize("width", [0, 500])
def test_no_payload_and_500_columns(operator: str, width: int) -> None:
    payload, values = columns_of(width)
    rows: list[Row] = [(key, *values) for key in (1, 2, 2, None)]
    script = [Arrival({"left": rows, "right": rows}, time=n) for n in range(3)]
    script.append(Arrival(time=3, ended=frozenset({"left", "right"})))
    outcome = run_in_memory(plan_of(operator, (pa.int64(),), payload), script, reload=True)
    assert outcome.rows == inner_join(script)


NAMES = ["a.b", "`tick`", "it's", '"q"', "with space", "ключ", "_hash", "_k0", "_p0", "_s0", "_input", "_time", "c0"]
KEY = "key.it`s"
NAMES += [f"col {letter}{number}" for letter in string.ascii_lowercase for number in range(20)][: 500 - len(NAMES)]


def test_500_columns_with_hostile_names_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    # Files are written and read without Spark, which takes its time over 500 columns.
    wide = {KEY: [i % 7 for i in range(40)], **{name: [f"{n} {i}" for i in range(40)] for n, name in enumerate(NAMES)}}
    bare = {KEY: [i % 9 for i in range(20)]}  # nothing but its key
    for name, columns in (("wide", wide), ("bare", bare)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(columns), tmp_path / name / "rows.parquet")
    schema = T.StructType([T.StructField(KEY, T.LongType()), *(T.StructField(name, T.StringType()) for name in NAMES)])
    left = spark.readStream.schema(schema).parquet(str(tmp_path / "wide"))
    right = spark.readStream.schema(T.StructType(schema.fields[:1])).parquet(str(tmp_path / "bare"))
    writer = wm.progressive_join(left, right, KEY, state_dir=tmp_path / "state").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", str(tmp_path / "out"))
    writer.trigger(availableNow=True).start().awaitTermination()
    partners = Counter(bare[KEY])
    expected = Counter({row: partners[row[0]] for row in zip(*wide.values(), strict=True) if partners[row[0]]})
    files = sorted((tmp_path / "out").glob("*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    assert all(table.column_names == list(wide) for table in tables)
    assert rows_of(tables) == expected


def test_every_operator_gets_hostile_input() -> None:
    assert {*BINARY, "semi_stream"} == set(OPERATORS)
