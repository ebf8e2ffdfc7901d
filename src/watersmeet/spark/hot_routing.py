"""Where the rows of hot keys go: known before the shuffle, without a row leaving the JVM for it.

    union of the streams  --left outer join, broadcast-->  rows with their targets, copies included  -->  shuffle
                                   ^
    one row -> mapInArrow: the routes of this batch, read from the state (`engine.guests.hot_table`)

The right side of the join is no stream, so Spark runs it anew in every micro-batch; its task knows the batch from its
local properties, like those of the join itself. A row of a key that is not hot costs one look-up of its hash, and does
not go to Python before the shuffle. A row with several routes is repeated by the join: these are the copies.

A row of a split input picks one of its targets by its content: the same one when the batch is repeated. Rows that are
equal in all columns go together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from watersmeet.columns.arrow import HASH
from watersmeet.engine.guests import hot_table
from watersmeet.plan.hot_table import routes, signed
from watersmeet.spark.failure import reported
from watersmeet.spark.task import BatchFunction, Position
from watersmeet.spark.wire import INPUT, Job, Kind, code, hot_code, hot_target
from watersmeet.spark.worker import spare_work
from watersmeet.state.directory import StateDir
from watersmeet.storage.access import Packed, remember_packed

_KEY, _FROM, _CODE, _TARGETS = "_hot_hash", "_hot_from", "_hot_code", "_hot_targets"
_SCHEMA = f"{_KEY} long, {_FROM} int, {_CODE} int, {_TARGETS} array<int>"


def with_targets(union: DataFrame, job: Job, access: Packed, content: Sequence[str]) -> DataFrame:
    """The rows of a union, those of hot keys with their targets in `_input`, and once for each copy. `content` are the
    columns by which a target is picked."""
    table = union.sparkSession.range(0, 1, 1, 1).mapInArrow(_reader(job.to_json(), access), _SCHEMA)
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
        plan = job.plan
        names = [spec.name for spec in plan.inputs]
        table = hot_table(StateDir(job.state_dir), Position.now(job.who).batch)
        found = routes(table, names, plan.partitions)
        kinds = [code(Kind.COPY if one.is_copy else Kind.ROW, names.index(one.input)) for one in found]
        yield pa.record_batch(
            [
                pa.array([signed(one.hash) for one in found], pa.int64()),
                pa.array([code(Kind.ROW, names.index(one.input)) for one in found], pa.int32()),
                pa.array(kinds, pa.int32()),
                pa.array([list(one.targets) for one in found], pa.list_(pa.int32())),
            ],
            names=[_KEY, _FROM, _CODE, _TARGETS],
        )
