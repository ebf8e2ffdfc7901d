"""`broadcast_join`: a stream against a small table as Spark's own join, with the names and the rules of our joins.

    stream ----------------------------------------------------> broadcast hash join ----> columns of the output
    table ----> Spark's cache ----> broadcast anew in every micro-batch ---^

`wm.join` chooses it by the size of the table (`chooser/table_size.py`). No row is held: the state directory has the
record of the join, so that it is the same one after a restart, and why it was chosen.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.chooser.story import Side, Story
from watersmeet.chooser.table_size import SETTING, UNKNOWN, TableSize, parse_bytes
from watersmeet.semistream.options import checked_type
from watersmeet.spark.conditions import where_of
from watersmeet.spark.explaining import function_name, reasons, shown_names, tell
from watersmeet.spark.output import binary_output
from watersmeet.spark.plans import plans
from watersmeet.spark.schema import (
    Source,
    check_streaming,
    common_key_types,
    find_column,
    key_names,
    key_pairs,
    null_safe_keys,
    quoted,
    row_bytes,
)
from watersmeet.spark.semistream import MASTER, STREAM, check_batch, projected
from watersmeet.spark.storage import StorageOptions, stored_at
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import BROADCAST, register_broadcast

WHO = "broadcast_join"

_NOT_CACHED = (T.GeometryType, T.GeographyType)  # columns that Spark's cache refuses
_KEPT: dict[str, DataFrame] = {}  # tables in Spark's cache, by the state directory of their join


def broadcast_join(
    stream: DataFrame,
    master: DataFrame,
    on: str | Sequence[str | tuple[str, str]],
    how: str = "inner",
    *,
    state_dir: str | os.PathLike[str],
    nulls_match: bool | Sequence[str] = False,
    where: str | None = None,
    master_columns: Sequence[str] | None = None,
    storage_options: StorageOptions | None = None,
    cache: int | str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """The join of a stream with a batch DataFrame that Spark broadcasts. What it is told means what it means to
    `semi_stream_join`, but for nulls: they match where `nulls_match` says so."""
    check_streaming(WHO, STREAM, stream)
    check_batch(WHO, master)
    kind = checked_type(WHO, how)
    pairs, shared = key_pairs(WHO, on)
    safe = null_safe_keys(WHO, stream, nulls_match, pairs)
    place = stored_at(WHO, stream, state_dir, storage_options, cache, cache_dir)
    left = _source(STREAM, stream, [name for name, _ in pairs], safe)
    right = _source(MASTER, master, [name for _, name in pairs], safe)
    types = common_key_types(WHO, [left, right])
    condition = where_of(WHO, where, [left, right])
    if condition is not None:
        condition.plan([left, right], types)  # refuses what no join takes
    output = binary_output(WHO, left, projected(WHO, right, master_columns, kind), shared=shared, how=kind)
    needed = {column.position for column in output if column.input == MASTER}
    needed.update(right.keys, condition.needed("right") if condition is not None else ())

    directory = StateDir(place)
    directory.create()
    register_broadcast(WHO, directory, STREAM, kind.name)
    join = uuid.uuid4().hex
    story = Story(
        who=WHO,
        operator=BROADCAST,
        how=kind.name,
        on=key_names([left, right]),
        inputs=(Side(STREAM, row_bytes(left.fields), shown=shown_names().get(STREAM, "")),),
        options={},
        partitions=0,
        choices=reasons(),
        table={"columns": [right.fields[i].name for i in sorted(needed)]},
        where=where or "",
        nulls_match=tuple(left.fields[left.keys[number]].name for number in safe),
    )
    tell(join, story, directory)

    called = {side: side if condition is None else condition.called(side) for side in ("left", "right")}
    table = _kept(_narrow(master, sorted(needed)), join, directory.place)
    # The alias below that of the condition is the mark by which `wm.explain` finds the join.
    sides = stream.alias(called["left"]), F.broadcast(table.alias(function_name(join)).alias(called["right"]))
    match = _equal_keys(left, right, called)
    if condition is not None:
        match = match & F.expr(condition.text)
    names = {STREAM: called["left"], MASTER: called["right"]}
    columns = (_column(names[column.input], column.field.name) for column in output)
    return sides[0].join(sides[1], match, kind.name).select(*columns)


def table_size(
    table: DataFrame, keys: Sequence[str], how: str = "inner", master_columns: Sequence[str] | None = None
) -> TableSize:
    """How large the part of a table is that a join needs: by Spark's estimate, and if that does not say that it is too
    large, by its rows."""
    check_batch(WHO, table)
    kind, whole = checked_type(WHO, how), _source(MASTER, table, keys)
    wanted = projected(WHO, whole, master_columns, kind)
    part = _narrow(table, sorted(whole.keys if kind.exists else [*whole.keys, *wanted.payload]))
    threshold = parse_bytes(str(table.sparkSession.conf.get(SETTING, "10MB")))
    size = TableSize(plans(part).estimated_bytes(), None, row_bytes(part.schema.fields), threshold)
    if not size.is_open and plans(part).has_joins():
        size = replace(size, estimate=UNKNOWN)
    return size.counted(part.limit(size.most_rows + 1).count()) if size.is_open else size


def _source(name: str, frame: DataFrame, keys: Sequence[str], safe: tuple[int, ...] = ()) -> Source:
    positions = [find_column(WHO, name, frame, key) for key in keys]
    payload = [i for i in range(len(frame.columns)) if i not in positions]
    return Source(name, frame, positions, payload, nulls_match=safe)


def _narrow(table: DataFrame, positions: Sequence[int]) -> DataFrame:
    """The columns of a table that are needed."""
    if len(positions) == len(table.columns):
        return table
    return table.select(*(quoted(table.columns[position]) for position in positions))


def _kept(table: DataFrame, join: str, place: str) -> DataFrame:
    """The table in Spark's cache until the join is built anew, unless it is there already, or cannot be.

    Spark answers any query from its cache that has a plan in common with it. This plan is nobody else's, so that no
    other query of the session gets to see an old copy of the table.
    """
    former = _KEPT.pop(place, None)
    if former is not None and former.sparkSession is table.sparkSession:  # or its session may have ended
        former.unpersist()
    level = table.storageLevel
    if level.useMemory or level.useDisk or any(isinstance(field.dataType, _NOT_CACHED) for field in table.schema):
        return table
    _KEPT[place] = table.where(F.lit(join) == F.lit(join)).persist()
    return _KEPT[place]


def _equal_keys(left: Source, right: Source, called: Mapping[str, str]) -> Column:
    pairs = [
        (_column(called["left"], left.fields[one].name), _column(called["right"], right.fields[other].name))
        for one, other in zip(left.keys, right.keys, strict=True)
    ]
    matches = [
        one.eqNullSafe(other) if number in left.nulls_match else one == other
        for number, (one, other) in enumerate(pairs)
    ]
    return reduce(Column.__and__, matches)


def _column(side: str, name: str) -> Column:
    """A column by its side, whatever characters it has."""
    parts = (part.replace("`", "``") for part in (side, name))
    return F.col(".".join(f"`{part}`" for part in parts))
