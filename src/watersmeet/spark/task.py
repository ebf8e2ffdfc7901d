"""What runs inside a Spark task: one call per key partition and micro-batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from watersmeet.columns.arrow import HASH, one_chunk
from watersmeet.engine.runtime import run_batch
from watersmeet.errors import StateMismatchError, WorkerSetupError
from watersmeet.plan import JoinPlan
from watersmeet.spark.failure import reported
from watersmeet.spark.wire import INPUT, Job, targets_of
from watersmeet.spark.worker import spare_work
from watersmeet.state.directory import StateDir
from watersmeet.storage.access import Packed, remember_packed

BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# Spark reads one record batch at a time: large enough to be cheap, small enough not to matter. A batch of more bytes
# than a chunk of its pool of buffers (4 MiB) would get memory of its own from the system each time, page by page.
OUTPUT_ROWS, OUTPUT_BYTES = 1 << 15, 2 << 20


def task_function(job: str, access: Packed, name: str = "run") -> BatchFunction:
    """The function for `mapInArrow`, under the name that Spark's plans show. It refers to nothing but builtins, so that
    it loads on any worker and can say what is missing there."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            from watersmeet.spark.task import run_reported
        except ImportError as error:
            import json
            import sys

            said = {
                "who": f"{json.loads(job)['who']}, the Spark worker running {sys.executable}",
                "expected": "an installed Watersmeet",
                "found": f"none that can be loaded ({error})",
                "hint": "Install watersmeet in the workers' Python, or point PYSPARK_PYTHON (spark.pyspark.python) at "
                "an environment that has it.",
            }
            failure = ImportError("{who}: expected {expected}, found {found}. {hint}".format(**said))
            failure.add_note("watersmeet-error: " + json.dumps({"error": "WorkerSetupError", **said}))
            raise failure from error
        yield from run_reported(job, batches, access)

    run.__name__ = name
    return run


@dataclass(frozen=True)
class Position:
    """Where in the query a task is."""

    batch: int
    partition: int
    query: str
    run_id: str
    attempt: str

    @classmethod
    def now(cls, who: str) -> Position:
        """Read from the task's context."""
        context = TaskContext.get()
        number = context.getLocalProperty("streaming.sql.batchId") if context else None
        if context is None or number is None:
            raise WorkerSetupError(
                who,
                expected="to run inside a streaming query",
                found="no micro-batch",
                hint="Start the result with writeStream; an action inside foreachBatch that runs in a thread of its "
                "own needs pyspark.InheritableThread. In Spark Connect all of them run outside the query: write to a "
                "sink there, and use foreachBatch on a stream that reads it.",
            )
        return cls(
            batch=int(number),
            partition=context.partitionId(),
            query=str(context.getLocalProperty("sql.streaming.queryId")),
            run_id=str(context.getLocalProperty("spark.jobGroup.id")),
            attempt=str(context.taskAttemptId()),
        )


def run_reported(text: str, batches: Iterable[pa.RecordBatch], access: Packed) -> Iterator[pa.RecordBatch]:
    """`run_task`, with errors of ours in the form in which they reach the user (see `failure`)."""
    with reported(json.loads(text)["who"]):
        remember_packed(access)
        yield from run_task(text, batches)


def run_task(text: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join one micro-batch of one partition."""
    spare_work()
    job = Job.from_json(text)
    position = Position.now(job.who)
    table = _combine(list(batches))
    _check_partition(job.who, job.plan, position, table)
    batch = job.batch(position.batch, table)
    del table
    results = run_batch(
        job.plan,
        StateDir(job.state_dir),
        position.partition,
        batch,
        query=position.query,
        run_id=position.run_id,
        attempt=position.attempt,
        join=job.join,
        choices=job.choices,
    )
    for result in results:
        yield from job.result(result).to_batches(max_chunksize=rows_at_once(result))


def rows_at_once(table: pa.Table) -> int:
    """How many rows of results Spark gets at a time: whole bytes of the bitmaps that say which values are null.

    >>> rows_at_once(pa.table({"a": range(100_000)})), rows_at_once(pa.table({"a": ["x" * 1020] * 9999}))
    (32768, 2048)
    """
    rows: int = OUTPUT_BYTES * table.num_rows // max(table.nbytes, 1)
    return min(OUTPUT_ROWS, max(64, rows // 64 * 64))


def _combine(batches: list[pa.RecordBatch]) -> pa.Table | None:
    """The rows of a task, every column in one chunk."""
    full = [batch for batch in batches if batch.num_rows]
    if not full:
        return None
    table = pa.Table.from_batches(full)
    # `Table.combine_chunks` would leave strings of more than 2 GiB in several chunks.
    return pa.Table.from_arrays([one_chunk(column) for column in table.columns], schema=table.schema)


def _check_partition(who: str, plan: JoinPlan, position: Position, table: pa.Table | None) -> None:
    """A narrow operator right above the join (union, coalesce) renumbers its partitions: find out, never guess."""
    wrong = position.partition >= plan.partitions
    if table is not None and not wrong:  # every row, of whatever kind, was sent here by its hash, or by its target
        code = np.array([table.column(INPUT)[0].as_py()], np.int32)
        target = int(targets_of(code)[0])
        home = int(table.column(HASH)[0].as_py()) % plan.partitions
        wrong = (target if target >= 0 else home) != position.partition
    if wrong:
        raise StateMismatchError(
            who,
            expected=f"its {plan.partitions} partitions to be computed once each, under their own numbers",
            found=f"another numbering (task partition {position.partition})",
            hint="A union, coalesce or self-join right after the join renumbers its partitions: put .repartition(n) "
            "between, or write the result to a sink first.",
        )
