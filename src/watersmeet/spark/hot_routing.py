"""Where the rows of hot keys go: known before the shuffle, without a row leaving the JVM for it.

    union of the streams  --left outer join, broadcast-->  rows with their targets, copies included  -->  shuffle
                                   ^
    the routes of this batch, read from the state (`engine.guests.hot_table`)

The driver reads the routes when it plans the batch (`planning`). Where there are none, the right side is a relation
that Spark's optimizer knows to be empty: no task runs for it. (Spark leaves the join itself in the plans of streams.)
Where the driver cannot be asked (in Spark Connect) a task reads them: the right side of the join is no stream, so Spark
runs it anew in every micro-batch, and the task knows the batch from its local properties, like those of the join.

A row of a key that is not hot costs one look-up of its hash, and does not go to Python before the shuffle. A row with
several routes is repeated by the join: these are the copies. A row of a split input picks one of its targets by its
content: the same one when the batch is repeated. Rows that are equal in all columns go together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from watersmeet.columns.arrow import HASH
from watersmeet.engine.guests import hot_table
from watersmeet.errors import WatersmeetError
from watersmeet.plan.hot_table import routes, signed
from watersmeet.spark.failure import noted, reported
from watersmeet.spark.planning import planned
from watersmeet.spark.task import BatchFunction, Position
from watersmeet.spark.wire import INPUT, Job, Kind, code, hot_code, hot_target
from watersmeet.spark.worker import spare_work
from watersmeet.state.directory import StateDir
from watersmeet.storage.access import Packed, remember_packed

_KEY, _FROM, _CODE, _TARGETS = "_hot_hash", "_hot_from", "_hot_code", "_hot_targets"
_SCHEMA = f"{_KEY} long, {_FROM} int, {_CODE} int, {_TARGETS} array<int>"

# A hash, the code of rows as they come and as they go on, and the partitions they go to.
Entry = tuple[int, int, int, list[int]]


def with_targets(union: DataFrame, job: Job, access: Packed, content: Sequence[str]) -> DataFrame:
    """The rows of a union, those of hot keys with their targets in `_input`, and once for each copy. `content` are the
    columns by which a target is picked."""
    table = _table(union.sparkSession, job, access)
    # The difference is no key of the hash join, so that its key is one long: the fastest look-up there is.
    joined = union.join(
        F.broadcast(table), (F.col(HASH) == F.col(_KEY)) & (F.col(INPUT) - F.col(_FROM) == 0), "left"
    )  # fmt: skip
    picked = F.pmod(F.xxhash64(*content), F.size(_TARGETS)).cast("int")
    target = F.element_at(_TARGETS, picked + 1)
    routed = F.when(F.col(_KEY).isNull(), F.col(INPUT)).otherwise(hot_code(F.col(_CODE), target))
    return joined.select(routed.cast("int").alias(INPUT), *(F.col(name) for name in union.columns if name != INPUT))


def partition_of_row(partitions: int) -> Column:
    """The partition that a routed row goes to."""
    home = F.pmod(HASH, F.lit(partitions)).cast("int")
    return F.when(F.col(INPUT) < 0, hot_target(F.col(INPUT))).otherwise(home)


def _table(session: SparkSession, job: Job, access: Packed) -> DataFrame:
    """The routes of each micro-batch."""
    text = planned(session, partial(_as_json, job))
    if text is None:
        return session.range(0, 1, 1, 1).mapInArrow(_reader(job.to_json(), access), _SCHEMA)
    # Without routes the optimizer knows that no row is left here. (Of `inline` it would not know that it adds none.)
    # Columns of a relation of values it computes early, while there are few copies of them: of a range the driver is
    # asked three times as often.
    one = session.sql("SELECT * FROM VALUES (0)")
    known = one.select(text.cast("string").alias("json")).where("json IS NOT NULL")
    return known.select(F.explode(F.from_json("json", f"array<struct<{_SCHEMA}>>")).alias("route")).select("route.*")


def _as_json(job: Job, batch: int) -> bytes | None:
    try:
        found = entries(job, batch)
    except WatersmeetError as error:
        raise noted(error, job.who) from None
    names = (_KEY, _FROM, _CODE, _TARGETS)
    return json.dumps([dict(zip(names, one, strict=True)) for one in found]).encode() if found else None


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
        columns = list(zip(*entries(job, Position.now(job.who).batch), strict=True)) or [()] * 4
        kinds = (pa.int64(), pa.int32(), pa.int32(), pa.list_(pa.int32()))
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.record_batch(arrays, names=[_KEY, _FROM, _CODE, _TARGETS])


def entries(job: Job, batch: int) -> list[Entry]:
    """The routes of a micro-batch."""
    names = [spec.name for spec in job.plan.inputs]
    found = routes(hot_table(job.plan, StateDir(job.state_dir), batch), names)
    return [
        (
            signed(one.hash),
            code(Kind.ROW, names.index(one.input)),
            code(Kind.COPY if one.is_copy else Kind.ROW, names.index(one.input)),
            list(one.targets),
        )
        for one in found
    ]
