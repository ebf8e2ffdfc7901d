"""What a task does with the rows of the union, without a Spark session."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.engine.registry import build
from watersmeet.errors import EndedInputError, OverloadError, StateMismatchError
from watersmeet.join.operator import advance
from watersmeet.plan import InputSpec, JoinPlan
from watersmeet.spark.control import MAX_SIGNAL
from watersmeet.spark.task import OUTPUT_BYTES, OUTPUT_ROWS, Position, _check_partition, _combine, rows_at_once
from watersmeet.spark.wire import Job, Kind, Layout, code
from watersmeet.state.space import MemorySpace

PLAN = JoinPlan(
    "symmetric",
    (
        InputSpec("left", (pa.int64(),), (pa.string(), pa.timestamp("us", "UTC"))),
        InputSpec("right", (pa.int64(),), (pa.string(),)),
    ),
    (),
    partitions=4,
)
RIGHT = code(Kind.ROW, 1)
HASH_OF_1 = -7001672635703045582
LAYOUT = Layout(rows={"left": [0, 1], "right": [0]}, punctuations={"left": []})


def job(plan: JoinPlan = PLAN) -> Job:
    return Job("join", "id", "unused", plan, LAYOUT, [])


def union(*rows: tuple[int, int, int | None, str | None, int | None]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 5
    kinds = [pa.int32(), pa.int64(), pa.int64(), pa.string(), pa.timestamp("us", "Asia/Tokyo")]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.Table.from_arrays(arrays, names=["_input", "_hash", "_k0", "_s0", "_s1"])


def test_record_batches_become_one_chunk_unless_they_are_too_large() -> None:
    one, other = union((0, -1, 10, "a", 7)), union((0, -1, 10, None, 7), (0, 2, 11, "b", 8))
    nothing = one.to_batches()[0].slice(1)
    batches = [*one.to_batches(), nothing, *other.to_batches()]
    table = _combine(batches)
    assert table is not None
    assert table.equals(pa.concat_tables([one, other]))
    assert {column.num_chunks for column in table.columns} == {1}
    assert _combine([]) is _combine([nothing]) is None
    half = 1_100_000_000  # of pages that nobody has touched
    buffers = [None, pa.py_buffer(np.array([0, half], np.int32)), pa.py_buffer(np.zeros(half, np.uint8))]
    wide = pa.record_batch({"_s0": pa.Array.from_buffers(pa.string(), 1, buffers)})
    with pytest.raises(OverloadError, match="maxFilesPerTrigger"):
        _combine([wide, wide])


def test_rows_go_to_their_inputs_sorted_by_hash_and_normalised() -> None:
    table = union(
        (0, -1, 10, "a", 7), (RIGHT, 5, 11, "b", None), (0, 5, 11, "c", None), (code(Kind.TICK), 1, None, None, None)
    )
    batch = job().batch(3, table)
    assert batch.number == 3
    assert batch.time == 0
    assert batch.rows["left"].schema == PLAN.input("left").schema
    assert batch.rows["left"].column("_hash").to_pylist() == [5, 2**64 - 1]  # as unsigned numbers
    assert batch.rows["left"].column("_p0").to_pylist() == ["c", "a"]
    assert batch.rows["right"].select(["_k0", "_p0"]).to_pylist() == [{"_k0": 11, "_p0": "b"}]
    assert batch.punctuations == {}
    assert not batch.is_idle


def test_control_rows_are_ends_and_signals_and_no_data() -> None:
    table = union(
        (code(Kind.END, 1), 0, None, None, None),
        (code(Kind.END, 1), 0, None, None, None),
        (code(Kind.SIGNAL, 9), 0, None, None, None),
        (code(Kind.SIGNAL, 0), 0, None, None, None),
        (code(Kind.TICK), 0, None, None, None),
        (code(Kind.PUNCTUATION), 0, 12, None, None),
    )
    batch = job().batch(0, table)
    assert batch.ended == {"right"}
    assert batch.signals == (0, 9)
    assert batch.is_idle
    assert batch.punctuations["left"].column("_k0").to_pylist() == [12]


def test_rows_without_a_key_are_counted_with_their_input() -> None:
    bare = [(code(Kind.NULL_KEY, 1), 0, None, None, None)] * 3
    batch = job().batch(4, union((code(Kind.NULL_KEY), 0, None, None, None), *bare, (RIGHT, 5, 11, "b", None)))
    assert batch.null_keys == {"left": 1, "right": 3}
    assert batch.ended == frozenset()
    assert batch.signals == ()
    operator = build(PLAN, MemorySpace())
    assert list(advance(operator, batch)) == []
    assert operator.metrics.rows_in == {"left": 1, "right": 4}
    assert operator.metrics.counters["left.left.null_key"] == 1
    assert operator.metrics.counters["left.right.null_key"] == 3
    operator.ended = {"left": 3}
    with pytest.raises(EndedInputError, match="found 1 rows in batch 4"):
        list(advance(operator, batch))


def test_rows_without_a_key_are_handed_on_where_the_join_keeps_them() -> None:
    left, right = PLAN.inputs
    plan = replace(PLAN, inputs=(left, replace(right, keep_null_keys=True)))
    bare, kept = (code(Kind.NULL_KEY), 2, None, None, None), (code(Kind.NULL_KEY, 1), 2, None, "b", None)
    batch = job(plan).batch(4, union(kept, bare, (RIGHT, 6, 11, "c", None), kept))
    assert batch.null_keys == {"left": 1}
    assert batch.null_rows.keys() == {"right"}
    assert batch.null_rows["right"].schema == right.schema
    assert batch.null_rows["right"].select(["_k0", "_p0"]).to_pylist() == [{"_k0": None, "_p0": "b"}] * 2
    assert batch.rows["right"].column("_p0").to_pylist() == ["c"]
    operator = build(plan, MemorySpace())
    assert list(advance(operator, batch)) == []
    assert operator.metrics.rows_in == {"left": 1, "right": 3}
    assert operator.metrics.counters["left.right.null_key"] == 2


def test_a_key_that_is_its_hash_is_null_where_there_is_none() -> None:
    left, right = PLAN.inputs
    plan = replace(PLAN, inputs=(replace(left, keep_null_keys=True), right))
    table = union(
        (code(Kind.ROW), HASH_OF_1, None, "a", None),
        (code(Kind.NULL_KEY), 1, None, "b", None),
        (code(Kind.PUNCTUATION), HASH_OF_1, None, None, None),
        (code(Kind.PATTERN), 3, None, None, None),
    )
    batch = job(plan).batch(0, table.drop_columns("_k0"))
    assert batch.rows["left"].select(["_k0", "_p0"]).to_pylist() == [{"_k0": 1, "_p0": "a"}]
    assert batch.null_rows["left"].select(["_k0", "_p0"]).to_pylist() == [{"_k0": None, "_p0": "b"}]
    assert batch.punctuations["left"].column("_k0").to_pylist() == [1, None]


@pytest.mark.parametrize("number", [0, 1, 15, MAX_SIGNAL])
def test_codes_are_told_apart_and_fit_an_int(number: int) -> None:
    codes = [code(kind, number) for kind in Kind]
    assert len({*codes, *(code(kind, number + 1) for kind in Kind)}) == 2 * len(Kind)
    assert max(codes) < 2**31


def test_a_job_survives_its_journey() -> None:
    sent = Job("join", "id", "s3://b/ü\"'", PLAN, LAYOUT, [True, False])
    assert Job.from_json(sent.to_json()) == sent


def test_no_rows_at_all() -> None:
    batch = job().batch(0, None)
    assert {name: table.schema for name, table in batch.rows.items()} == {s.name: s.schema for s in PLAN.inputs}
    assert batch.is_idle


def test_the_clock_is_that_of_the_rows() -> None:
    table = union((code(Kind.TICK), 0, None, None, None)).append_column("_time", pa.array([77]))
    assert job().batch(0, table).time == 77


@pytest.mark.parametrize("value", [6, -2, 2])
def test_rows_of_the_tasks_own_partition_are_welcome(value: int) -> None:
    _check_partition("join", PLAN, Position(0, 2, "q", "s", "0"), union((0, value, 1, "a", None)))


@pytest.mark.parametrize(
    ("partition", "table"),
    [
        (1, union((0, 6, 1, "a", None))),
        (1, union((code(Kind.END), 0, None, None, None))),
        (0, union((0, -2, 1, "a", None))),
        (4, None),
    ],
)
def test_another_numbering_is_an_error(partition: int, table: pa.Table | None) -> None:
    with pytest.raises(StateMismatchError) as error:
        _check_partition("join", PLAN, Position(0, partition, "q", "s", "0"), table)
    assert str(error.value) == (
        f"join: expected its 4 partitions to be computed once each, under their own numbers, found another numbering "
        f"(task partition {partition}). A union, coalesce or self-join right after the join renumbers its partitions: "
        "put .repartition(n) between, or write the result to a sink first."
    )


@pytest.mark.parametrize("width", [1, 8, 100, 1_000, 3 << 20])
def test_spark_gets_results_in_batches_of_bounded_size(width: int) -> None:
    rows = max(3, (8 << 20) // width // 2)
    table = pa.table({"a": pa.array(["x" * width]).take(pa.array(np.zeros(rows, np.int64)))})
    most = rows_at_once(table)
    batches = table.to_batches(max_chunksize=most)
    assert sum(batch.num_rows for batch in batches) == rows
    assert most % 64 == 0  # a bitmap of nulls is cut between bytes: otherwise each would be shifted
    assert most <= OUTPUT_ROWS
    assert max(batch.nbytes for batch in batches) <= OUTPUT_BYTES + 64 * (width + 4)
    assert most >= min(OUTPUT_ROWS, OUTPUT_BYTES // (width + 5) // 64 * 64)  # and not smaller than they need to be


def test_results_without_rows_or_columns_are_handed_on() -> None:
    assert rows_at_once(pa.table({"a": pa.array([], pa.string())})) >= 1
    assert rows_at_once(pa.table({"a": pa.nulls(5)}).select([])) >= 1
