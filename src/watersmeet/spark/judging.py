"""The second step of a join whose partitions vote: an exchange of their votes, and the rows that these decide about.

    mapInArrow(task)  -->  results, and votes  -->  repartitionById  -->  mapInArrow(judge)  -->  results

Votes on one row meet where the identity of the row says, results stay in the partition that they have. They go through
untouched; nothing is kept from one micro-batch to the next, so that it does not matter which partitions the judges are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.join.votes import Judge, vote_names
from watersmeet.spark.schema import quoted
from watersmeet.spark.task import BatchFunction, rows_at_once
from watersmeet.spark.worker import spare_work

_KINDS = (T.IntegerType(), T.LongType(), T.LongType())


def with_votes(fields: Sequence[T.StructField]) -> T.StructType:
    """What the tasks of such a join send: of a vote that is no candidate all columns of a result are null."""
    nullable = [T.StructField(f.name, f.dataType, True, f.metadata) for f in fields]
    names = vote_names(f.name for f in fields)
    return T.StructType([*nullable, *(T.StructField(name, kind) for name, kind in zip(names, _KINDS, strict=True))])


def judged(voting: DataFrame, fields: Sequence[T.StructField], partitions: int) -> DataFrame:
    """The results of a join, given those of its tasks with their votes."""
    _, place, _ = vote_names(f.name for f in fields)
    target = F.pmod(quoted(place), F.lit(partitions)).cast("int")
    return voting.repartitionById(partitions, target).mapInArrow(_judge(), T.StructType(list(fields)))


def _judge() -> BatchFunction:
    # Made here, so that it travels by value: a worker without Watersmeet fails in the join, which says so.
    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from watersmeet.spark.judging import decided

        yield from decided(batches)

    return judge


def decided(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Results as they come, then those that the votes of the micro-batch decide about."""
    spare_work()
    judge = Judge()
    for batch in batches:
        yield from judge.results(batch)
    found = judge.verdict()
    yield from found.to_batches(max_chunksize=rows_at_once(found))
