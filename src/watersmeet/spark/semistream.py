"""`semi_stream_join`: a stream against a prepared master table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from watersmeet.errors import OptionError, PlanError
from watersmeet.join.join_type import JoinType
from watersmeet.plan.options import HotKeys, check_choice, checked_path, known_names
from watersmeet.semistream.master_registry import register_newest
from watersmeet.semistream.master_table import Description, MasterTable
from watersmeet.semistream.options import SemiStreamOptions, checked_type
from watersmeet.spark.binding import Binding, internal_name
from watersmeet.spark.conditions import where_of
from watersmeet.spark.control import send_signal
from watersmeet.spark.event_time import AT_ONCE
from watersmeet.spark.master import SPARK_HASH, prepare_master, widest
from watersmeet.spark.output import binary_output, typed_sources
from watersmeet.spark.schema import (
    Source,
    check_streaming,
    common_key_types,
    comparable_name,
    find_column,
    key_pairs,
    null_safe_keys,
)
from watersmeet.spark.shared import check_shared
from watersmeet.spark.storage import StorageOptions, use_storage
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import check_not_broadcast, recorded_partitions
from watersmeet.storage.uri import is_local

WHO = "semi_stream_join"
STREAM, MASTER = "stream", "master"


@known_names
def semi_stream_join(
    stream: DataFrame,
    master: str | os.PathLike[str] | DataFrame,
    on: str | Sequence[str | tuple[str, str]],
    how: str = "inner",
    *,
    state_dir: str | os.PathLike[str],
    nulls_match: bool | Sequence[str] = False,
    where: str | None = None,
    master_columns: Sequence[str] | None = None,
    memory: int | str = "64 MB",
    policy: Literal["aligned", "ssbj", "mesh"] = "aligned",
    max_delay: int = 10,
    switching_factor: float = 1.0,
    on_overload: Literal["wait", "raise"] = "wait",
    idle: Literal["work", "sleep"] = "work",
    idle_chunks: int = 16,
    hot_keys: HotKeys = "off",
    partitions: int | None = None,
    storage_options: StorageOptions | None = None,
    cache: int | str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Equi-join of a streaming DataFrame with a master table that need not fit in memory, every result exactly once.

    Rows whose key is cached are answered at once. The others wait for their part of the table to be read.

    Args:
        stream: A streaming DataFrame.
        master: The path of a table written by `prepare_master`, or a batch DataFrame, which is prepared into the state
            directory the first time.
        on: A column name, a list of names, or pairs of names `("stream_name", "master_name")`; the output has the
            columns of `stream.join(master, on, how)`.
        how: `"inner"`, `"left"`, `"left_semi"` or `"left_anti"`, in any of PySpark's spellings. A stream row that
            matches nothing is emitted once, as soon as its version of the table is known to have no such key: at once
            if the cache knows it, else when the part of the table that could hold the key has been read.
        state_dir: Where the join's state lives; it belongs to the query and must be kept with its checkpoint.
        nulls_match: Not here: a master table has no rows with a null key. Anything but False is refused. (A broadcast
            join has it: see `wm.join`.)
        where: A SQL condition on pairs of rows with equal keys that must hold for a match, such as `"left.price <=
            right.limit"`. The stream is called `left` or `stream`, the table `right` or `master` (see
            docs/conditions.md).
        master_columns: The columns of the table that the output has beside the keys, all by default. Only these, and
            what `where` needs, are cached: fewer of them make room for more keys.
        memory: Bytes for waiting rows and cache together, over all partitions, such as `"256 MB"`.
        policy: Which algorithm: `"aligned"` (chunks are ranges of the key's hash), `"ssbj"` or `"mesh"` (chunks in any
            order, with and without a cache). Never changes the answer.
        max_delay: Micro-batches after which a row is finished; 1: no row waits.
        switching_factor: How much dearer waiting must be before a key is cached.
        on_overload: When the stream is too fast for the memory: `"wait"` reads more per batch, `"raise"` fails.
        idle: While the stream is silent, `"work"` runs a batch every second so that waiting rows finish; `"sleep"`
            leaves them until more data comes or the input is ended.
        idle_chunks: Chunks read in addition while the stream is silent.
        hot_keys: `"auto"` spreads the rows of a key with a large part of the work over several partitions (see
            docs/hot-keys.md), `"off"` does not; fixed once the query has run.
        partitions: Key partitions, by default those of the table; another number at a restart divides the state anew.
        storage_options: How to reach `state_dir` and `master` in an object store (`endpoint`, `region`,
            `access_key_id`, `secret_access_key` and so on), where neither Hadoop settings of Spark nor the environment
            say it.
        cache: Room for state and table from an object store on the disk of each executor's host, such as `"20 GB"`; by
            default half of what is free.
        cache_dir: Where that is; by default in `spark.local.dir`.

    >>> import watersmeet as wm
    >>> wm.prepare_master(parts, on="part_id", path="masters/parts")  # doctest: +SKIP
    >>> joined = wm.semi_stream_join(sales, "masters/parts", on="part_id", state_dir="state/sales")  # doctest: +SKIP
    """
    check_streaming(WHO, STREAM, stream)
    check_choice(WHO, "idle", idle, ("work", "sleep"))
    kind = checked_type(WHO, how)
    pairs, shared = key_pairs(WHO, on)
    if null_safe_keys(WHO, stream, nulls_match, pairs):
        raise OptionError(
            WHO,
            expected="nulls_match=False",
            found=f"nulls_match={nulls_match!r}",
            hint="A master table is prepared without the rows that have a null key. Replace nulls in the key by a "
            "value, in the stream and in the table, for example with coalesce; or broadcast the table, if it fits in "
            "memory: wm.join(..., operator='broadcast').",
            option="nulls_match",
        )
    state_dir = checked_path(WHO, "state_dir", state_dir)
    use_storages(stream, state_dir, master, storage_options, cache, cache_dir)
    home = StateDir(state_dir)
    keys = [find_column(WHO, STREAM, stream, left) for left, _ in pairs]
    table = prepared_table(master, [right for _, right in pairs], home, partitions)
    newest = table.latest()
    description = Description(**newest["table"])
    path = table.directory.place
    options = SemiStreamOptions.checked(
        WHO,
        {"master": description.id, "path": path, "version": newest["version"]},
        memory=memory,
        policy=policy,
        max_delay=max_delay,
        switching_factor=switching_factor,
        on_overload=on_overload,
        idle_chunks=idle_chunks,
        hot_keys=hot_keys,
    )
    _check_table(stream.sparkSession, table, description, newest["layout"], options, [right for _, right in pairs])
    check_shared(WHO, stream.sparkSession, table.directory, "master")

    payload = [i for i in range(len(stream.columns)) if i not in keys]
    left = Source(STREAM, stream, keys, payload)
    right = _master_source(stream, description, [name for _, name in pairs])
    condition = where_of(WHO, where, [left, right])
    whole = right  # the rows of the table have all its columns, also where no more than keys are wanted
    left, right = typed_sources([left, right], kind)
    columns = binary_output(WHO, left, projected(WHO, right, master_columns, kind), shared=shared, how=kind)
    frame = Binding(
        who=WHO,
        operator="semi_stream",
        sources=[left],
        output=[column for column in columns if column.input == STREAM],
        extra_output=[
            (column.field, MASTER, internal_name(right, column.position))
            for column in columns
            if column.input == MASTER
        ],
        how=kind,
        condition=None if condition is None else lambda rows, types: condition.plan([*rows, whole], types),
        options=options,
        state_dir=state_dir,
        places=[path],
        partitions=partitions if partitions is not None else recorded_partitions(home) or description.partitions,
        tick=idle == "work",
        times=AT_ONCE if options.max_delay == 1 else {},
        table={name: newest[name] for name in ("rows", "nbytes", "chunk_rows", "layout")},
        key_types=[widest(kind) for kind in common_key_types(WHO, [left, right])],
        hot_keys=options.hot_keys,
    ).frame()
    # Through the stream, so that every partition learns of a version in the same batch, also when it is repeated.
    send_signal(state_dir, register_newest(path, home.place))
    return frame


def projected(who: str, table: Source, names: Sequence[str] | None, kind: JoinType) -> Source:
    """The table with the columns that are wanted of it."""
    if names is None:
        return table
    if kind.exists:
        raise OptionError(
            who,
            expected=f"no master_columns with how={kind.name!r}, whose output has columns of the stream alone",
            found=f"master_columns={names!r}",
            hint="Leave it out: of the table only keys are cached.",
            option="master_columns",
        )
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise OptionError(
            who,
            expected="master_columns as a list of column names",
            found=repr(names),
            hint='Such as ["price", "name"].',
            option="master_columns",
        )
    wanted = {find_column(who, MASTER, table.frame, name) for name in names}
    return replace(table, payload=[position for position in table.payload if position in wanted])


def use_storages(
    stream: DataFrame,
    state_dir: str,
    master: str | os.PathLike[str] | DataFrame,
    storage_options: StorageOptions | None,
    cache: int | str | None,
    cache_dir: str | os.PathLike[str] | None,
) -> None:
    """The same for both places; either of them may be a local one."""
    places = [state_dir] if isinstance(master, DataFrame) else [state_dir, checked_path(WHO, "master", master)]
    for place in [place for place in places if not is_local(place)] or places[:1]:
        use_storage(WHO, stream.sparkSession, place, storage_options, cache, cache_dir)


def prepared_table(
    master: str | os.PathLike[str] | DataFrame, keys: Sequence[str], home: StateDir, partitions: int | None
) -> MasterTable:
    """The table of a path; a DataFrame is prepared into the state directory the first time."""
    if not isinstance(master, DataFrame):
        return MasterTable(checked_path(WHO, "master", master))
    check_batch(WHO, master)
    path = f"{home.place}/{MASTER}"
    table = MasterTable(path)
    if not table.versions():
        check_not_broadcast(WHO, home)
        prepare_master(master, keys, path, partitions=partitions)
    return table


def check_batch(who: str, master: DataFrame) -> None:
    """Refuse a stream as a table."""
    if master.isStreaming:
        raise PlanError(
            who,
            expected="a path or a batch DataFrame as the master table",
            found="a streaming DataFrame",
            hint="Use progressive_join or window_join for two streams.",
            option="master",
        )


def _check_table(
    spark: SparkSession,
    table: MasterTable,
    description: Description,
    layout: str,
    options: SemiStreamOptions,
    keys: Sequence[str],
) -> None:
    where = f"{WHO}, master table {table.directory.uri}"
    if description.hash != SPARK_HASH:
        raise PlanError(
            where,
            expected="a table written by prepare_master",
            found=f"one whose keys are hashed by {description.hash}",
            hint="Prepare the table with Spark.",
        )
    wanted, prepared = ([comparable_name(spark, name) for name in names] for names in (keys, description.keys))
    if wanted != prepared:
        raise PlanError(
            where,
            expected=f"a join on {', '.join(description.keys)}, which the table was prepared for",
            found=f"on {', '.join(keys)}",
            hint="Join on those columns in that order, or prepare the table again with another `on`.",
            option="on",
        )
    if options.policy == "aligned" and layout != "hash":
        raise PlanError(
            where,
            expected="chunks that are ranges of the key hash, for policy='aligned'",
            found=f"layout={layout!r}",
            hint="Prepare the table with layout='hash', or choose policy='ssbj' or 'mesh'.",
            option="policy",
        )


def _master_source(stream: DataFrame, description: Description, keys: Sequence[str]) -> Source:
    """The table as a source without rows, so that names and types are treated as those of any other input."""
    schema = T.StructType([T.StructField.fromJson(entry) for entry in description.fields])
    empty: list[tuple[Any, ...]] = []
    frame = stream.sparkSession.createDataFrame(empty, schema)
    positions = [find_column(WHO, MASTER, frame, name) for name in keys]
    return Source(MASTER, frame, positions, [i for i in range(len(frame.columns)) if i not in positions])
