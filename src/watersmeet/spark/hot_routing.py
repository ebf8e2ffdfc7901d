"""Where the rows of hot keys go: known before the shuffle, without a row leaving the JVM for it.

    the streams  --a row for each route of its key-->  rows with their targets, copies included  -->  union, shuffle
                                   ^
    the routes of this batch, read from the state (`engine.hot_tables`)

The driver reads the routes when it plans the batch (`planning`): they are a literal in the plan, a map by the hash of
the key, in which every row looks its own up. Where there are none, Spark's optimizer knows that nothing is found. This
is done in each stream and not in their union, where Spark would have to begin a row anew.
Where the driver cannot be asked (in Spark Connect) a task reads them, and rows find theirs by a broadcast join: its
right side is no stream, so that Spark runs it anew in every micro-batch, and the task knows the batch from its local
properties, like those of the join.

A row of a key that is not hot costs one look-up of its hash, and does not go to Python before the shuffle. A row with
several routes is repeated: these are the copies. A row of a split input picks one of its targets by its content: the
same one when the batch is repeated. Rows that are equal in all columns go together. A punctuation of a single key goes
to all partitions that may have rows of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from watersmeet.columns.arrow import HASH
from watersmeet.engine.hot_tables import hot_table
from watersmeet.engine.registry import operator_class
from watersmeet.errors import WatersmeetError
from watersmeet.plan.hot_table import routes, signed
from watersmeet.spark.failure import noted, reported
from watersmeet.spark.planning import planned
from watersmeet.spark.task import BatchFunction, Position
from watersmeet.spark.wire import INPUT, Job, Kind, code, hot_code, hot_target, united
from watersmeet.spark.worker import spare_work
from watersmeet.state.directory import StateDir
from watersmeet.storage.access import Packed, remember_packed

_KEY, _FROM, _CODES = "_hot_hash", "_hot_from", "_hot_codes"
_SCHEMA = f"{_KEY} long, {_FROM} int, {_CODES} array<int>"
_ROUTES = "array<struct<key: long, value: array<array<array<int>>>>>"

# A hash, the code of rows as they come, and those that they may go on with: one for each partition to choose from.
Entry = tuple[int, int, list[int]]


def with_targets(streams: Sequence[DataFrame], job: Job, access: Packed, content: Sequence[str]) -> list[DataFrame]:
    """The rows of streams, those of hot keys with their targets in `_input`, and once for each copy. `content` are the
    columns by which a target is picked."""
    text = planned(streams[0].sparkSession, partial(_as_json, job))
    if text is None:
        return [_targeted(_joined(united(streams), job, access), content)]
    return [_targeted(_looked_up(stream, text), content) for stream in streams]


def _targeted(routed: DataFrame, content: Sequence[str]) -> DataFrame:
    """Rows with their routes, as they travel. Where a row has none nothing is there to pick from."""
    picked = F.pmod(F.xxhash64(*content), F.size(_CODES)).cast("int")
    row = F.coalesce(F.get(F.col(_CODES), picked), F.col(INPUT))
    sent = (name for name in routed.columns if name not in (INPUT, _KEY, _FROM, _CODES))
    return routed.select(row.alias(INPUT), *sent)


def partition_of_row(partitions: int) -> Column:
    """The partition that a routed row goes to."""
    home = F.pmod(HASH, F.lit(partitions)).cast("int")
    return F.when(F.col(INPUT) < 0, hot_target(F.col(INPUT))).otherwise(home)


def _looked_up(stream: DataFrame, text: Column) -> DataFrame:
    """With the routes that the driver reads while the batch is planned. A map is searched from its beginning, but there
    are few hot keys; and the driver is asked for each copy of the expression, but reads the routes once."""
    by_hash = F.map_from_entries(F.from_json(text.cast("string"), _ROUTES))
    mine = F.get(F.try_element_at(by_hash, F.col(HASH)), F.col(INPUT))
    return stream.select("*", F.explode_outer(mine).alias(_CODES))


def _as_json(job: Job, batch: int) -> bytes | None:
    try:
        found = entries(job, batch)
    except WatersmeetError as error:
        raise noted(error, job.who) from None
    return json.dumps(by_hash(found)).encode() if found else None


def by_hash(found: Iterable[Entry]) -> list[dict[str, Any]]:
    """The routes of every key, in a list by the code of the rows as they come.

    >>> by_hash([(7, 8, [-521]), (7, 8, [-16])])
    [{'key': 7, 'value': [None, None, None, None, None, None, None, None, [[-521], [-16]]]}]
    """
    keys: dict[int, dict[int, list[list[int]]]] = {}
    for number, comes, codes in found:
        keys.setdefault(number, {}).setdefault(comes, []).append(codes)
    return [
        {"key": number, "value": [routes.get(comes) for comes in range(max(routes) + 1)]}
        for number, routes in keys.items()
    ]


def _joined(union: DataFrame, job: Job, access: Packed) -> DataFrame:
    """With the routes that a task reads."""
    table = union.sparkSession.range(0, 1, 1, 1).mapInArrow(_reader(job.to_json(), access), _SCHEMA)
    # The difference is no key of the hash join, so that its key is one long: the fastest look-up there is.
    return union.join(
        F.broadcast(table), (F.col(HASH) == F.col(_KEY)) & (F.col(INPUT) - F.col(_FROM) == 0), "left"
    )  # fmt: skip


def _reader(job: str, access: Packed) -> BatchFunction:
    # Made here, so that it travels by value: a worker without Watersmeet fails in the join, which says so.
    def hot_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        try:
            from watersmeet.spark.hot_routing import route_batches
        except ImportError:
            return
        yield from route_batches(job, access)

    return hot_keys


def route_batches(text: str, access: Packed) -> Iterator[pa.RecordBatch]:
    """The routes of the micro-batch in which this runs."""
    spare_work()
    job = Job.from_json(text)
    with reported(job.who):
        remember_packed(access)
        columns = list(zip(*entries(job, Position.now(job.who).batch), strict=True)) or [()] * 3
        kinds = (pa.int64(), pa.int32(), pa.list_(pa.int32()))
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.record_batch(arrays, names=[_KEY, _FROM, _CODES])


def entries(job: Job, batch: int) -> list[Entry]:
    """The routes of a micro-batch."""
    names = [spec.name for spec in job.plan.inputs]
    table = hot_table(job.plan, StateDir(job.state_dir), batch)
    routed = []
    for one in routes(table, names):
        number = names.index(one.input)
        goes = code(Kind.COPY if one.is_copy else Kind.ROW, number)
        codes = [hot_code(goes, target) for target in one.targets]
        routed.append((signed(one.hash), code(Kind.ROW, number), codes))
    if not operator_class(job.plan.operator).has_promises:
        return routed
    said = [code(Kind.PUNCTUATION, number) for number in range(len(names))]
    told = [(key, one) for key in table.keys.values() for one in key.listeners]
    return routed + [(signed(key.hash), comes, [hot_code(comes, one)]) for comes in said for key, one in told]
