"""`read_rows`: the rows that a join holds, as a DataFrame with the columns of their input.

The partitions of the state are read by Spark's tasks, each for itself (see `engine.held_rows`), in any session.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from watersmeet.columns.arrow import relabelled
from watersmeet.engine.held_rows import (
    HeldRows,
    as_key,
    clock_is_local,
    complete_version,
    in_division,
    open_rows,
    present,
    user_table,
)
from watersmeet.errors import MissingVersionError, OptionError
from watersmeet.plan import JoinPlan
from watersmeet.plan.options import known_names
from watersmeet.spark.encoding import decoded, encoded_type
from watersmeet.spark.failure import reported
from watersmeet.spark.inspect import opened_state
from watersmeet.spark.schema import arrow_type, quoted
from watersmeet.spark.shared import check_seen
from watersmeet.spark.storage import find_storage
from watersmeet.spark.task import BatchFunction, rows_at_once
from watersmeet.state.description import INPUTS_FILE, Description
from watersmeet.state.directory import StateDir
from watersmeet.storage.access import Packed, packed_access, remember_packed

STATE = "_state"


@known_names
def read_rows(
    spark: SparkSession,
    state_dir: str | os.PathLike[str],
    input: str = "left",
    version: int | None = None,
    key: object = None,
) -> DataFrame:
    """The rows of an input that a join holds: the input's own columns, and one more, `_state`.

    With `key` (a value, or a list with one for each key column) only that key's partition is read, and of its files
    the places where the key lies. Without `version` it is the newest one that all partitions have; a partition of
    which that is gone when Spark comes to read it gives its newest. It may be called while the query runs.

    | field of `_state` | |
    |---|---|
    | `partition`, `version` | where the row lies, and the batch after which this was so |
    | `oldest_batch`, `newest_batch` | when it arrived: the same batch, or a range where rows were merged on the way |
    | `tier` | `resident` (in memory) or `spilled` (on disk) |
    | `matched` | whether it has matched; null where the join does not need to know |
    | `waits_for` | `end`, `time`, `promise`, `partner`, `turn`, `table`, or `sweep`: see docs/reading-state.md |
    | `inputs` | the inputs that it waits for |
    | `until`, `now` | for `time`: the time that these must pass, and how far the slowest of them is |

    Columns that the join does not keep (of the right rows of a semi or anti join all but the key) are null. If the
    input has a column `_state`, the one added is called `_state_`.

    >>> import watersmeet as wm
    >>> rows = wm.read_rows(spark, "state/orders", input="left")  # doctest: +SKIP
    >>> rows.where("not _state.matched").orderBy("_state.until").show()  # doctest: +SKIP
    >>> wm.read_rows(spark, "state/orders", key=17).show()  # doctest: +SKIP
    """
    who = "read_rows"
    directory = opened_state(spark, state_dir, who)
    description = present(directory)
    check_seen(who, spark, directory, INPUTS_FILE, "state_dir")
    name = description.check_input(who, input)
    if version is not None and (type(version) is not int or version < 0):
        raise OptionError(
            who, expected="version >= 0", found=repr(version), hint="Leave it out for the newest.", option="version"
        )
    values = None if key is None else list(key) if isinstance(key, list | tuple) else [key]
    partitions = description.plan.partitions
    place = None if values is None else as_key(who, description, values).partition(description.plan)
    near = _version(directory, description.plan, version)
    tables = [str(path) for path in [description.plan.options.get("path")] if path]
    for table in tables:
        find_storage(who, table)
    fields = _fields(description, name)
    sent = [T.StructField(f"_{i}", encoded_type(stored)) for i, (_, _, stored) in enumerate(fields)]
    where = {"state_dir": directory.place, "division": description.plan.division}
    request = {**where, "input": name, "version": version, "near": near}
    access = packed_access(directory.place, *tables)
    first, last = (0, partitions) if place is None else (place, place + 1)
    read = spark.range(first, last, 1, last - first).mapInArrow(
        _function(json.dumps(request), access, values), T.StructType([*sent, _state_field(description, name)])
    )
    columns = [
        decoded(quoted(f"_{i}"), stored).cast(kind).alias(shown) if stored != kind else
        decoded(quoted(f"_{i}"), stored).alias(shown)
        for i, (shown, kind, stored) in enumerate(fields)
    ]  # fmt: skip
    return read.select(*columns, quoted(STATE).alias(state_column([shown for shown, _, _ in fields])))


def state_column(names: Sequence[str]) -> str:
    """The name of the added column: none that the input has.

    >>> state_column(["id", "_STATE"])
    '_state_'
    """
    found, taken = STATE, {name.lower() for name in names}
    while found in taken:
        found += "_"
    return found


def _version(directory: StateDir, plan: JoinPlan, version: int | None) -> int | None:
    """The version that the tasks are to read; one that was asked for must be there."""
    newest = complete_version(directory, plan)
    if version is not None and (newest is None or version > newest):
        raise MissingVersionError(
            f"state directory {directory.uri}",
            expected=f"version {version} of all {plan.partitions} partitions",
            found="none that is complete" if newest is None else f"version {newest} as the newest that is complete",
            hint="Leave `version` out for that one.",
        )
    return newest


def _fields(description: Description, input: str) -> list[tuple[str, T.DataType, T.DataType]]:
    """Name, own type and stored type of every column."""
    return [(column.name, _type(column.type), _type(column.stored)) for column in description.columns[input]]


def _type(text: str) -> T.DataType:
    field = {"name": "_", "type": json.loads(text), "nullable": True, "metadata": {}}
    return T.StructField.fromJson(field).dataType


def _state_field(description: Description, input: str) -> T.StructField:
    time = T.TimestampNTZType() if clock_is_local(description, input) else T.TimestampType()
    kinds = {
        "partition": T.IntegerType(), "version": T.LongType(), "oldest_batch": T.LongType(),
        "newest_batch": T.LongType(), "tier": T.StringType(), "matched": T.BooleanType(), "waits_for": T.StringType(),
        "inputs": T.ArrayType(T.StringType()), "until": time, "now": time,
    }  # fmt: skip
    return T.StructField(STATE, T.StructType([T.StructField(name, kind) for name, kind in kinds.items()]))


def _function(request: str, access: Packed, key: Sequence[Any] | None) -> BatchFunction:
    # Made here, so that it travels by value, as the join's own does.
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from watersmeet.spark.read_rows import run_reported

        yield from run_reported(request, access, key, batches)

    return run


def run_reported(
    text: str, access: Packed, key: Sequence[Any] | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of the partitions whose numbers come."""
    with reported("read_rows"):
        remember_packed(access)
        request = json.loads(text)
        directory = StateDir(request["state_dir"])
        description = in_division(directory, request["division"])
        wanted = None if key is None else as_key("read_rows", description, key)
        name = request["input"]
        schema = _schema(description, name)
        for partition in (int(number) for batch in batches for number in batch.column(0).to_pylist()):
            found = open_rows(
                directory, description, partition, name,
                version=request["version"], near=request["near"], key=wanted,
            )  # fmt: skip
            for held in found:
                yield from _batches(description, name, held, schema)


def _schema(description: Description, input: str) -> pa.Schema:
    columns = [pa.field(f"_{i}", arrow_type(encoded_type(f[2]))) for i, f in enumerate(_fields(description, input))]
    state = _state_field(description, input)
    return pa.schema([*columns, pa.field(STATE, arrow_type(state.dataType))])


def _batches(description: Description, input: str, held: HeldRows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    table = user_table(description, input, held.table)
    columns = [column.combine_chunks() for column in table.columns]
    arrays = [relabelled(column, kind) for column, kind in zip(columns, schema.types, strict=False)]
    whole = pa.Table.from_arrays([*arrays, _states(held, schema.field(STATE).type)], schema=schema)
    yield from whole.to_batches(max_chunksize=rows_at_once(whole))


def _states(held: HeldRows, kind: pa.StructType) -> pa.Array:
    count, waits = held.table.num_rows, held.waits
    time = kind.field("until").type
    until = pa.nulls(count, time) if waits.until is None else pa.array(waits.until).view(time)
    now = pa.nulls(count, time) if waits.now is None else pa.array(np.full(count, waits.now)).view(time)
    columns = [
        pa.array(np.full(count, held.partition, np.int32)),
        pa.array(np.full(count, held.version, np.int64)),
        pa.array(held.oldest),
        pa.array(held.newest),
        pa.repeat("resident" if held.in_memory else "spilled", count),
        pa.nulls(count, pa.bool_()) if held.matched is None else pa.array(held.matched),
        pa.repeat(waits.what, count),
        pa.repeat(pa.scalar(list(waits.inputs), kind.field("inputs").type), count),
        until,
        now,
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind))
