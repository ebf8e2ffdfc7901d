"""`prepare_master` and `refresh_master`: a table, partitioned and cut into chunks as a semi-stream join reads it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, Literal

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.columns.arrow import HASH, key_name, payload_name
from watersmeet.errors import ColumnError, OptionError, PlanError, WorkerSetupError
from watersmeet.plan import InputSpec
from watersmeet.plan.options import check_choice, check_partitions, checked_path, known_names
from watersmeet.semistream.master_registry import registered_joins, remove_old_versions
from watersmeet.semistream.master_table import Chunk, Description, Layout, MasterTable, decode_schema, encode_schema
from watersmeet.semistream.master_writer import PartitionWriter, already_prepared, new_folder, publish_version
from watersmeet.spark.control import send_signal
from watersmeet.spark.encoding import check_encodable, encoded, encoded_type
from watersmeet.spark.failure import error
from watersmeet.spark.nullability import holds, in_full, loosened
from watersmeet.spark.schema import Source, arrow_type, check_frame, common_key_types, find_column
from watersmeet.spark.session import default_partitions
from watersmeet.spark.shared import check_shared
from watersmeet.spark.storage import StorageOptions, use_storage
from watersmeet.state.directory import StateDir
from watersmeet.storage.access import Packed, packed_access

SPARK_HASH = "xxhash64"


@known_names
def prepare_master(
    df: DataFrame,
    on: str | Sequence[str],
    path: str | os.PathLike[str],
    *,
    partitions: int | None = None,
    chunk_rows: int = 100_000,
    layout: Literal["hash", "arrival"] = "hash",
    storage_options: StorageOptions | None = None,
) -> int:
    """Write a DataFrame as the first version of a master table for `semi_stream_join`; returns the version's number.

    `on` names the key columns; rows with a null key match nothing and are left out. `partitions` (by default
    `spark.sql.shuffle.partitions` if set, else the cores) is the number of partitions that a join with the table has if
    it is not told another one. With `layout="hash"` chunks are ranges of the key hash, sorted by Spark, which every
    policy can read; `layout="arrival"` saves the sort and can only be read with `policy="ssbj"` or `"mesh"`. `path` may
    be in an object store; `storage_options` say how to reach it where the session's Hadoop settings and the environment
    do not.

    >>> import watersmeet as wm
    >>> wm.prepare_master(spark.read.parquet("parts"), on="part_id", path="masters/parts")  # doctest: +SKIP
    1
    """
    who = "prepare_master"
    _check(who, df, chunk_rows, layout, partitions)
    where = _absolute(who, path, df.sparkSession, storage_options)
    source = _source(who, df, _names(who, on))
    table = MasterTable(where)
    if table.versions():
        raise already_prepared(table)
    count = partitions or default_partitions(who, df.sparkSession)
    spec = InputSpec(
        "master",
        tuple(arrow_type(encoded_type(kind)) for kind in _key_types(who, source)),
        tuple(arrow_type(encoded_type(loosened(kind))) for kind in source.payload_types()),
    )
    # A later version may have nulls where this one happens to have none.
    fields = [T.StructField(f.name, loosened(f.dataType), f.nullable, f.metadata) for f in df.schema]
    description = Description(
        id=uuid.uuid4().hex,
        keys=[source.fields[i].name for i in source.keys],
        columns=[source.fields[i].name for i in source.payload],
        schema=encode_schema(spec.schema),
        partitions=count,
        hash=SPARK_HASH,
        fields=[entry.jsonValue() for entry in fields],
    )
    StateDir(where).create()
    check_shared(who, df.sparkSession, StateDir(where), "path")
    return _write(who, source, description, where, chunk_rows, layout, first=True)


@known_names
def refresh_master(
    df: DataFrame,
    path: str | os.PathLike[str],
    *,
    chunk_rows: int | None = None,
    storage_options: StorageOptions | None = None,
) -> int:
    """Write a DataFrame as the next version of a master table and tell the joins that read it; returns its number.

    The columns must be those of the table. A running join warms the new version up and then moves to it, partition by
    partition; rows that arrived before finish on the version they arrived under. Versions that no join may need any
    more are deleted. A join that is not running learns of it when it is built again.

    A version replaces the whole table. Calls at the same time, from threads or processes, each write a version of their
    own; the one that finishes last has the highest number, and joins end up with that.

    >>> import watersmeet as wm
    >>> wm.refresh_master(spark.read.parquet("parts"), "masters/parts")  # doctest: +SKIP
    2
    """
    who = "refresh_master"
    check_frame(who, "df", df)
    where = _absolute(who, path, df.sparkSession, storage_options)
    table = MasterTable(where)
    newest = table.latest()
    description = Description(**newest["table"])
    size = newest["chunk_rows"] if chunk_rows is None else chunk_rows
    _check(who, df, size, newest["layout"], None)
    source = _source(who, df, description.keys)
    _check_columns(who, df, T.StructType([T.StructField.fromJson(entry) for entry in description.fields]))
    check_shared(who, df.sparkSession, StateDir(where), "path")
    number = _write(who, source, description, where, size, newest["layout"])
    for join in registered_joins(where):
        send_signal(join.state_dir, number)
    remove_old_versions(where)
    return number


def _check_columns(who: str, df: DataFrame, table: T.StructType) -> None:
    """Refuse columns that are not those of the table, or have nulls where it has no room for any."""
    if [(f.name, loosened(f.dataType)) for f in df.schema] != [(f.name, loosened(f.dataType)) for f in table]:
        raise ColumnError(
            who,
            expected=f"the columns of the table: {table.simpleString()}",
            found=df.schema.simpleString(),
            hint="Select and cast the columns as they were prepared, or prepare a new table at another path.",
        )
    for mine, its in zip(df.schema, table, strict=True):  # tables of earlier releases can be so strict
        if not holds(its.dataType, mine.dataType):
            raise ColumnError(
                who,
                expected=f"a column {its.name} with no nulls where the table has none: {in_full(its.dataType)}",
                found=in_full(mine.dataType),
                hint="Compute the column so that Spark knows that it has no nulls there, or prepare the table again at "
                "another path: there it has room for them.",
                column=its.name,
            )


def _write(
    who: str,
    source: Source,
    description: Description,
    path: str,
    chunk_rows: int,
    layout: Layout,
    *,
    first: bool = False,
) -> int:
    """One Spark job: shuffle by key, sort, write chunk files; the driver publishes what the tasks report."""
    folder = new_folder()
    columns = [f"c{i}" for i in range(len(source.fields))]
    frame = source.frame.toDF(*columns)
    keys = [
        encoded(F.col(columns[i]), source.fields[i].dataType).cast(encoded_type(kind)).alias(key_name(n))
        for n, (i, kind) in enumerate(zip(source.keys, _key_types(who, source), strict=True))
    ]
    payload = [
        encoded(F.col(columns[i]), source.fields[i].dataType).alias(payload_name(n))
        for n, i in enumerate(source.payload)
    ]
    names = [key_name(n) for n in range(len(keys))]
    rows = frame.select(*keys, *payload)
    for name in names:
        rows = rows.filter(F.col(name).isNotNull())
    rows = rows.select(F.xxhash64(*names).alias(HASH), *rows.columns)
    rows = rows.repartitionById(description.partitions, F.pmod(HASH, F.lit(description.partitions)).cast("int"))
    if layout == "hash":
        # The hash is unsigned for us and signed for Spark: flipping the sign bit makes one order of the other.
        rows = rows.sortWithinPartitions(F.col(HASH).bitwiseXOR(F.lit(-(2**63)).cast("long")))
    job = json.dumps(
        {
            "path": path,
            "folder": folder,
            "schema": description.schema,
            "partitions": description.partitions,
            "chunk_rows": chunk_rows,
            "layout": layout,
        }
    )
    try:
        writer_of_chunks = _chunk_writer(who, job, packed_access(path))
        reports = rows.mapInArrow(writer_of_chunks, "partition int, chunks string").collect()
    except BaseException as failure:
        StateDir(path).delete_tree(folder)
        raise error(failure) or failure from None
    chunks = {row.partition: [Chunk(*entry) for entry in json.loads(row.chunks)] for row in reports}
    for partition in set(range(description.partitions)) - set(chunks):
        # Spark runs no task for a table that it knows to be empty.
        schema = description.arrow_schema
        writer = PartitionWriter(StateDir(path), folder, partition, schema, chunk_rows=chunk_rows, layout=layout)
        chunks[partition] = writer.close()
    partitions = dict(sorted(chunks.items()))
    return publish_version(path, description, folder, partitions, chunk_rows=chunk_rows, layout=layout, first=first)


def _chunk_writer(
    who: str, text: str, access: Packed
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from watersmeet.spark.failure import reported
        from watersmeet.spark.master import write_partition
        from watersmeet.storage.access import remember_packed

        with reported(who):
            remember_packed(access)
            yield write_partition(text, batches)

    return write


def write_partition(text: str, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Inside a task: write the chunks of one partition and report them."""
    job = json.loads(text)
    context = TaskContext.get()
    assert context is not None
    schema = decode_schema(job["schema"])
    writer = PartitionWriter(
        StateDir(job["path"]),
        job["folder"],
        context.partitionId(),
        schema,
        chunk_rows=job["chunk_rows"],
        layout=job["layout"],
        attempt=f"{context.taskAttemptId()}-{uuid.uuid4().hex[:8]}",
    )
    for batch in batches:
        signed = batch.column(0)
        if batch.num_rows and signed[0].as_py() % job["partitions"] != context.partitionId():
            raise WorkerSetupError(
                f"master table {job['path']}",
                expected=f"rows of partition {context.partitionId()}",
                found=f"rows of partition {signed[0].as_py() % job['partitions']}",
                hint="Spark renumbered the partitions of the table: please report it with df.explain().",
            )
        hashes = signed.view(pa.uint64())
        table = pa.Table.from_arrays([hashes, *batch.columns[1:]], names=schema.names)
        writer.add(table if table.schema == schema else table.cast(schema))
    report = json.dumps([astuple(chunk) for chunk in writer.close()])
    return pa.RecordBatch.from_pydict(
        {"partition": pa.array([context.partitionId()], pa.int32()), "chunks": pa.array([report])}
    )


def _names(who: str, on: Any) -> list[str]:
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    if names and all(isinstance(name, str) for name in names):
        return names
    raise ColumnError(
        who,
        expected="on = a column name or a list of names",
        found=repr(on),
        hint="Write for example on='id' or on=['a', 'b'].",
        option="on",
    )


def _source(who: str, df: DataFrame, names: Sequence[str]) -> Source:
    keys = [find_column(who, "master", df, name) for name in names]
    source = Source("master", df, keys, [i for i in range(len(df.columns)) if i not in keys])
    for spec in source.fields:
        check_encodable(who, "master", spec)
    _key_types(who, source)  # refused now if they cannot be keys
    return source


def _key_types(who: str, source: Source) -> list[T.DataType]:
    return [widest(kind) for kind in common_key_types(who, [source])]


def widest(kind: T.DataType) -> T.DataType:
    """The type in which a key is kept, so that a stream whose key has another width can still be compared with it."""
    if isinstance(kind, (T.ByteType, T.ShortType, T.IntegerType)):
        return T.LongType()
    return T.DoubleType() if isinstance(kind, T.FloatType) else kind


def _check(who: str, df: DataFrame, chunk_rows: int, layout: str, partitions: int | None) -> None:
    check_frame(who, "df", df)
    if df.isStreaming:
        raise PlanError(
            who,
            expected="a batch DataFrame",
            found="a streaming one",
            hint="The master table is read once per version: use spark.read, and refresh_master for a new version.",
            option="df",
        )
    if type(chunk_rows) is not int or chunk_rows < 1:
        raise OptionError(
            who,
            expected="chunk_rows >= 1",
            found=repr(chunk_rows),
            hint="Leave chunk_rows out for the default.",
            option="chunk_rows",
        )
    if partitions is not None:
        check_partitions(who, partitions)
    check_choice(who, "layout", layout, ("hash", "arrival"))


def _absolute(
    who: str, path: str | os.PathLike[str], session: SparkSession, storage_options: StorageOptions | None
) -> str:
    place = checked_path(who, "path", path)
    use_storage(who, session, place, storage_options)
    return StateDir(place).place
