"""What runs inside a Spark task: one call per key partition and micro-batch."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from watersmeet.columns.arrow import HASH, Hashes, Indices, key_name, numpy_of, one_chunk, relabelled, sort_order, take
from watersmeet.columns.spark_hash import key_of_hash
from watersmeet.engine.runtime import run_batch
from watersmeet.errors import StateMismatchError, WorkerSetupError
from watersmeet.join.operator import Batch
from watersmeet.plan import InputSpec, JoinPlan
from watersmeet.spark.control import FIRST_END, FIRST_NULL_KEY, FIRST_SIGNAL
from watersmeet.spark.failure import reported
from watersmeet.state.directory import StateDir

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# Spark reads one record batch at a time: large enough to be cheap, small enough not to matter.
OUTPUT_ROWS = 1 << 15


def task_function(job: str) -> BatchFunction:
    """The function for `mapInArrow`. It refers to nothing but builtins, so that it loads on any worker and can say what
    is missing there."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
        yield from run_reported(job, batches)

    return run


@dataclass(frozen=True)
class Position:
    """Where in the query a task is."""

    batch: int
    partition: int
    query: str
    session: str
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
                "own needs pyspark.InheritableThread.",
            )
        return cls(
            batch=int(number),
            partition=context.partitionId(),
            query=str(context.getLocalProperty("sql.streaming.queryId")),
            session=str(context.getLocalProperty("spark.jobGroup.id")),
            attempt=str(context.taskAttemptId()),
        )


def run_reported(text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`run_task`, with errors of ours in the form in which they reach the user (see `failure`)."""
    with reported(json.loads(text)["who"]):
        yield from run_task(text, batches)


def run_task(text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join one micro-batch of one partition."""
    _spare_the_collector()
    job = json.loads(text)
    _check_release(job)
    plan = JoinPlan.from_json(job["plan"])
    position = Position.now(job["who"])
    table = _combine(list(batches))
    _check_partition(job["who"], plan, position, table)
    batch = make_batch(plan, job["sources"], position.batch, table)
    del table
    schema = _wire_schema(plan, job["required"])
    results = run_batch(
        plan,
        StateDir(job["state_dir"]),
        position.partition,
        batch,
        query=position.query,
        session=position.session,
        attempt=position.attempt,
        join=job["join"],
    )
    for result in results:
        wire = pa.Table.from_arrays(result.columns, schema=schema) if schema.names else result
        yield from wire.to_batches(max_chunksize=OUTPUT_ROWS)


@cache
def _spare_the_collector() -> None:
    """Once per worker. PySpark runs a full collection after every task, which goes through all that was ever imported:
    tens of milliseconds each time. What is there now stays there anyway, and need not be looked at again."""
    gc.freeze()


def make_batch(plan: JoinPlan, sources: list[dict[str, Any]], number: int, table: pa.Table | None) -> Batch:
    """The operator's batch out of the rows of the union, every source's rows sorted by hash in the same pass."""
    rows: dict[str, pa.Table] = {}
    punctuations: dict[str, pa.Table] = {}
    if table is None:
        return Batch(number, rows={spec.name: spec.schema.empty_table() for spec in plan.inputs})
    belongs = numpy_of(table.column("_input"))
    hashes = numpy_of(one_chunk(table.column(HASH)).view(pa.uint64()))
    for index, source in enumerate(sources):
        mine = np.flatnonzero(belongs == index)
        order = mine[sort_order(hashes[mine])]
        if source["kind"] == "rows":
            rows[source["name"]] = _rows_of(plan.input(source["name"]), source["slots"], table, hashes, order)
        elif len(order):
            found = _punctuations_of(source, table, hashes[order], order)
            earlier = punctuations.get(source["name"])
            punctuations[source["name"]] = found if earlier is None else pa.concat_tables([earlier, found])
    codes, counts = np.unique(belongs[belongs < 0], return_counts=True)
    ends = FIRST_END - codes[(codes <= FIRST_END) & (codes > FIRST_NULL_KEY)]
    null_keys = {
        plan.inputs[FIRST_NULL_KEY - code].name: count
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
        if FIRST_SIGNAL < code <= FIRST_NULL_KEY
    }
    return Batch(
        number,
        time=int(table.column("_time")[0].as_py()) if "_time" in table.column_names else 0,
        rows=rows,
        punctuations=punctuations,
        null_keys=null_keys,
        ended=frozenset(plan.inputs[index].name for index in ends.tolist()),
        signals=tuple(sorted((FIRST_SIGNAL - codes[codes <= FIRST_SIGNAL]).tolist())),
    )


def _rows_of(
    spec: InputSpec, slots: list[int], table: pa.Table, hashes: np.ndarray[Any, Any], order: Indices
) -> pa.Table:
    names = [n for n in table.column_names if n.startswith("_k")]
    ordered = hashes[order]
    wanted = take(table.select([*names, *(f"_s{slot}" for slot in slots)]), order).columns
    if not names:
        wanted = [pa.chunked_array([pa.array(key_of_hash(ordered))]), *wanted]
    schema = spec.schema
    # Only labels can differ: the session's time zone, large strings.
    columns = [relabelled(one_chunk(c), f.type) for c, f in zip(wanted, list(schema)[1:], strict=True)]
    return pa.Table.from_arrays([pa.array(ordered), *columns], schema=schema)


def _punctuations_of(source: dict[str, Any], table: pa.Table, hashes: Hashes, order: Indices) -> pa.Table:
    names = [n for n in table.column_names if n.startswith("_k")]
    columns: dict[str, Any] = {HASH: pa.array(hashes)}
    if not names:  # the key is its hash; a punctuation that speaks of many keys has none
        columns[key_name(0)] = pa.array(key_of_hash(hashes)) if source["keyed"] else pa.nulls(len(hashes), pa.int64())
    chosen = table.select([*names, *(f"_s{slot}" for slot in source["slots"])])
    return pa.table({**columns, **dict(zip(chosen.column_names, take(chosen, order).columns, strict=True))})


def _combine(batches: list[pa.RecordBatch]) -> pa.Table | None:
    full = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(full).combine_chunks() if full else None


def _wire_schema(plan: JoinPlan, required: list[bool]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(column.field.name, column.field.type, nullable=not needed)
            for column, needed in zip(plan.output, required, strict=True)
        ]
    )


def _check_release(job: dict[str, Any]) -> None:
    import watersmeet

    if watersmeet.__version__ != job["release"]:
        raise WorkerSetupError(
            f"the Spark worker running {sys.executable}",
            expected=f"Watersmeet {job['release']}, as on the driver",
            found=f"Watersmeet {watersmeet.__version__}",
            hint="Install the same release on the driver and on all workers.",
        )


def _check_partition(who: str, plan: JoinPlan, position: Position, table: pa.Table | None) -> None:
    """A narrow operator right above the join (union, coalesce) renumbers its partitions: find out, never guess."""
    wrong = position.partition >= plan.partitions
    if table is not None and not wrong:  # every row, of whatever kind, was sent here by its hash
        wrong = int(table.column(HASH)[0].as_py()) % plan.partitions != position.partition
    if wrong:
        raise StateMismatchError(
            who,
            expected=f"its {plan.partitions} partitions to be computed once each, under their own numbers",
            found=f"another numbering (task partition {position.partition})",
            hint="A union, coalesce or self-join right after the join renumbers its partitions: put .repartition(n) "
            "between, or write the result to a sink first.",
        )
