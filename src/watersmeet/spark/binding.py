"""The join as a Spark plan: one union, one shuffle by key, one Python function per partition.

    inputs ----\\
    control ----> union -> repartitionById(pmod(xxhash64(keys), P)) -> mapInArrow(task) -> output columns
    ticks ----/

The control source is a directory of marker files (`end_input`, `signal`); its rows are copied to every partition. Ticks
are rows of a rate source that only make Spark run a batch when no data comes. An identity `mapInArrow` over the control
branch keeps Spark from removing the shuffle, and with it the call for every partition, in a batch without data. A join
whose partitions vote on rows of hot keys has a second shuffle above this one (`judging`).
How the rows travel is in `wire`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.chooser.story import Side, Story
from watersmeet.columns.arrow import HASH, key_name, payload_name
from watersmeet.engine.hot_tables import votes
from watersmeet.engine.registry import operator_class
from watersmeet.errors import CorruptStateError, OptionError
from watersmeet.join.join_type import JOIN_TYPES, JoinType
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.plan.options import Options, check_partitions
from watersmeet.spark.encoding import check_encodable, decoded, encoded_type
from watersmeet.spark.event_time import EventTimes, marked, settled
from watersmeet.spark.explaining import function_name, joins_in, reasons, shown_names, tell
from watersmeet.spark.failure import raised
from watersmeet.spark.hot_routing import partition_of_row, with_targets
from watersmeet.spark.judging import judged, with_votes
from watersmeet.spark.markers import marker_stream
from watersmeet.spark.schema import (
    Source,
    arrow_type,
    check_streaming,
    common_key_types,
    comparable_name,
    find_column,
    key_names,
    null_safe_keys,
    quoted,
    row_bytes,
)
from watersmeet.spark.session import default_partitions
from watersmeet.spark.shared import check_shared
from watersmeet.spark.task import BatchFunction, task_function
from watersmeet.spark.ticks import silent, ticking
from watersmeet.spark.wire import Job, Kind, Wire, code
from watersmeet.state.description import Description, InputColumn, check_inputs, record_inputs
from watersmeet.state.directory import CONTROL, StateDir
from watersmeet.state.identity import recorded_partitions, register_join
from watersmeet.state.sweeping import sweep
from watersmeet.storage.access import Packed, packed_access


@dataclass(frozen=True)
class Output:
    """An output column: its field in Spark, the input it comes from and the column's position there."""

    field: T.StructField
    input: str
    position: int
    otherwise: str = ""  # the input whose key it is in a result that has no row of the first


# From the sources as they travel, and the types of their keys, to the condition of a plan.
MakeCondition = Callable[[Sequence[Source], Sequence[T.DataType]], dict[str, Any]]


@dataclass
class Binding:
    """What a family's public function hands over: everything that makes the join."""

    who: str
    operator: str
    sources: list[Source]
    output: list[Output]
    options: Options
    state_dir: str
    how: JoinType = JOIN_TYPES["inner"]
    places: Sequence[str] = ()  # of tables that the tasks read
    partitions: int | None = None
    succeeds: str | None = None  # another operator whose state this one can take up
    tick: bool | None = None  # run batches while no data comes; None: never, whatever the options are
    clock: bool = False  # the operator reads Batch.time
    times: EventTimes | None = field(default_factory=dict)  # how long rows are held back (see `event_time`)
    extra_output: list[tuple[T.StructField, str, str]] = field(default_factory=list)  # field, input, internal column
    key_types: list[T.DataType] | None = None  # by default those that the sources have in common
    table: Mapping[str, Any] | None = None  # the size and the layout of a table that the stream is joined with
    condition: MakeCondition | None = None  # on pairs of rows with equal keys (see `conditions`)
    hot_keys: str = "off"  # whether keys with many rows are spread over partitions: "auto" or "off"

    def frame(self) -> DataFrame:
        """The streaming DataFrame of results."""
        self._settle_watermarks()
        rows = [source for source in self.sources if source.kind == "rows"]
        key_types = list(self.key_types or common_key_types(self.who, rows))
        key_types += [T.BooleanType() for _ in rows[0].nulls_match]
        for source in self.sources:
            for spec in source.fields:
                check_encodable(self.who, source.name, spec)
        spark = rows[0].frame.sparkSession
        directory = self._directory(spark)
        plan = self._plan(rows, key_types, self._partitions(spark, directory))
        self.options.check_plan(self.who, plan)
        self._check_hot_keys(plan)
        check_inputs(self.who, directory, described(plan, rows, key_types), partial(comparable_name, spark))
        plan = register_join(self.who, directory, plan, succeeds=self.succeeds)
        if plan.former:
            sweep(directory, plan)
        record_inputs(directory, described(plan, rows, key_types))
        self.sources = [_apart(source, plan.partitions) for source in self.sources]
        wire = Wire(plan, self.sources, key_types, clock=self.clock)
        job = self._job(directory, plan, wire)
        tell(job.join, self._story(plan, rows), directory)
        access = packed_access(job.state_dir, *self.places)
        streams, target = wire.streams(), F.pmod(HASH, F.lit(plan.partitions)).cast("int")
        if plan.hot_keys:
            streams = with_targets(streams, job, access, wire.content())
            target = partition_of_row(plan.partitions)
        union = wire.union(self._control(spark, directory, wire), streams, self._ticks(spark, directory, wire))
        return self._results(union.repartitionById(plan.partitions, target), job, access)

    def _check_hot_keys(self, plan: JoinPlan) -> None:
        """Refuse to spread hot keys of a join of which no input can be split."""
        operator = operator_class(plan.operator)
        if plan.hot_keys and not operator.splits(plan):
            matter, why = operator.kept_whole(plan) or (f"how={plan.how!r} and its other options", _why_not_split(plan))
            raise OptionError(
                self.who,
                expected='hot_keys="off" for this join',
                found=f'hot_keys="auto" with {matter}',
                hint=f"{why} Leave hot_keys out, or change that (docs/hot-keys.md).",
                option="hot_keys",
            )

    def _settle_watermarks(self) -> None:
        """Give the inputs, and the output, the watermarks that fit how long rows are held back."""
        self.sources, delays = settled(self.sources, self.times)
        self.output = [
            replace(column, field=marked(column.field, delays.get((column.input, column.position))))
            for column in self.output
        ]

    def _directory(self, spark: SparkSession) -> StateDir:
        directory = StateDir(self.state_dir)
        directory.create()
        check_shared(self.who, spark, directory, "state_dir")
        directory.create(CONTROL)
        return directory

    def _job(self, directory: StateDir, plan: JoinPlan, wire: Wire) -> Job:
        return Job(
            who=self.who,
            join=uuid.uuid4().hex,
            state_dir=directory.place,
            plan=plan,
            layout=wire.layout,
            required=[not f.nullable for f in self._fields()],
            choices=[asdict(choice) for choice in reasons()],
        )

    def _story(self, plan: JoinPlan, rows: Sequence[Source]) -> Story:
        """What `wm.explain` tells."""
        said = {source.name for source in self.sources if source.kind == "punctuations" or source.marker is not None}
        sides = [
            Side(
                source.name,
                row_bytes(source.fields[i] for i in (*source.keys, *source.row_payload)),
                source.name in said,
                shown_names().get(source.name, ""),
            )
            for source in rows
        ]
        return Story(
            who=self.who,
            operator=plan.operator,
            how=plan.how,
            on=key_names(rows),
            inputs=tuple(sides),
            options={
                **plan.options,
                **plan.tuning,
                **(_divided(plan) if plan.hot_keys else {}),
            },
            partitions=plan.partitions,
            choices=reasons(),
            table=self.table or {},
            where="" if plan.condition is None else plan.condition["text"],
            nulls_match=tuple(rows[0].fields[rows[0].keys[key]].name for key in rows[0].nulls_match),
        )

    def _results(self, shuffled: DataFrame, job: Job, access: Packed) -> DataFrame:
        """The join itself, its results in the types of the inputs."""
        fields = self._fields()
        sent = [T.StructField(f.name, encoded_type(f.dataType), f.nullable, f.metadata) for f in fields]
        function = task_function(job.to_json(), access, function_name(job.join))
        if votes(job.plan):
            joined = judged(shuffled.mapInArrow(function, with_votes(sent)), sent, job.plan.partitions)
        else:
            joined = shuffled.mapInArrow(function, T.StructType(sent))
        if sent == fields:
            return joined
        return joined.select(
            *(decoded(quoted(f.name), f.dataType, f.nullable).alias(f.name, metadata=f.metadata) for f in fields)
        )

    def _fields(self) -> list[T.StructField]:
        return [column.field for column in self.output] + [extra[0] for extra in self.extra_output]

    def _partitions(self, spark: SparkSession, directory: StateDir) -> int:
        if self.partitions is not None:
            check_partitions(self.who, self.partitions)
            return self.partitions
        return recorded_partitions(directory) or default_partitions(self.who, spark)

    def _plan(self, rows: Sequence[Source], key_types: Sequence[T.DataType], partitions: int) -> JoinPlan:
        specs = tuple(
            InputSpec(
                source.name,
                tuple(arrow_type(encoded_type(kind)) for kind in key_types),
                tuple(arrow_type(encoded_type(source.fields[i].dataType)) for i in source.row_payload),
                source.keep_null_keys,
            )
            for source in rows
        )
        by_name = {source.name: source for source in rows}
        output = [
            OutputColumn(
                pa.field(column.field.name, arrow_type(encoded_type(column.field.dataType))),
                column.input,
                internal_name(by_name[column.input], column.position),
                column.otherwise,
                null_flag(by_name[column.input], column.position),
            )
            for column in self.output
        ]
        output += [
            OutputColumn(pa.field(spec.name, arrow_type(encoded_type(spec.dataType))), source, column)
            for spec, source, column in self.extra_output
        ]
        settings = self.options.identity(), self.options.tuning(), partitions, self.how.name
        condition = None if self.condition is None else self.condition(rows, key_types)
        return JoinPlan(self.operator, specs, tuple(output), *settings, condition, hot_keys=self.hot_keys == "auto")

    def _control(self, spark: SparkSession, directory: StateDir, wire: Wire) -> DataFrame:
        """The markers sent to the join, a copy for every partition."""
        markers = marker_stream(spark, directory)
        sealed = F.md5(F.concat_ws("/", "kind", "input", F.col("value").cast("string"))) == F.col("seal")
        problem = raised(
            CorruptStateError,
            F.concat(F.lit(f"{self.who}, control marker "), "file"),
            expected="a marker with its seal",
            found="a damaged one",
            hint="Delete it, and send it again.",
        ).cast("int")
        row = F.when(sealed, wire.marker(F.col("kind"), F.col("input"), F.col("value"))).otherwise(problem)
        rows = markers.select(*wire.bare(row, F.explode(wire.everywhere())))
        return rows.mapInArrow(_identity(), rows.schema)

    def _ticks(self, spark: SparkSession, directory: StateDir, wire: Wire) -> DataFrame | None:
        """Rows that only make a batch happen; where the operator reads the clock, one for every partition."""
        if self.tick is None:
            return None
        ticks = ticking(self.who, spark, directory) if self.tick else silent(spark, directory)
        where = F.explode(wire.everywhere()) if self.clock else F.lit(0).cast("long")
        return ticks.select(*wire.bare(F.lit(code(Kind.TICK)), where))


def _divided(plan: JoinPlan) -> dict[str, Any]:
    """How hot keys can be divided, for `wm.explain`."""
    operator = operator_class(plan.operator)
    return {
        "hot_keys": list(operator.splits(plan)),
        "hot_grids": operator.divides_both(plan),
        "hot_votes": operator.votes(plan),
    }


def _why_not_split(plan: JoinPlan) -> str:
    """Why no input of a join can be divided."""
    if all(JOIN_TYPES[plan.how].unmatched) and operator_class(plan.operator).has_promises:
        return (
            "Rows that lie in several partitions cannot be emitted once when they match nothing: each partition "
            "concludes for itself what promises leave without a future, so that they do not leave all of them at once. "
            "Of a full join those of one input would have to be."
        )
    return (
        "A key cannot be divided where inputs are optional, nor in windows over times of arrival, or with late='drop', "
        "on_overload or idle_timeout: what is dropped or missing is known in one partition alone."
    )


def _apart(source: Source, partitions: int) -> Source:
    """The results of another join are shuffled before the union, which would give its partitions new numbers: under
    these it would not find its state."""
    if not joins_in(source.frame):
        return source
    keys = (quoted(source.frame.columns[position]) for position in source.keys)
    return replace(source, frame=source.frame.repartition(partitions, *keys))


def _identity() -> BatchFunction:
    # Made here, so that it travels by value: a worker without Watersmeet fails in the join, which says so.
    def identity(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return identity


def internal_name(source: Source, position: int) -> str:
    """The name that a column of an input has inside the operators."""
    if position in source.keys:
        return key_name(source.keys.index(position))
    return payload_name(source.payload.index(position))


def described(plan: JoinPlan, sources: Sequence[Source], key_types: Sequence[T.DataType]) -> Description:
    """The columns of the inputs by the names and types that the user knows."""
    columns = {}
    for source in sources:
        stored = dict(zip(source.keys, key_types, strict=False))  # flags of null keys come after them
        columns[source.name] = [
            InputColumn(
                kind.name,
                internal_name(source, i),
                kind.dataType.json(),
                stored.get(i, kind.dataType).json(),
                null_flag(source, i),
            )
            for i, kind in enumerate(source.fields)
            if i in source.keys or i in source.row_payload
        ]
    return Description(plan, columns)


def null_flag(source: Source, position: int) -> str:
    """The internal name of the column that says where a key is null of which nulls match; empty for other columns."""
    key = source.keys.index(position) if position in source.keys else -1
    return key_name(len(source.keys) + source.nulls_match.index(key)) if key in source.nulls_match else ""


def binary_sources(
    who: str,
    left: DataFrame,
    right: DataFrame,
    pairs: Sequence[tuple[str, str]],
    names: tuple[str, str],
    nulls_match: bool | Sequence[str] = False,
) -> list[Source]:
    """The two sources of a binary join on pairs of columns."""
    sources = []
    for side, (name, frame) in enumerate(zip(names, (left, right), strict=True)):
        check_streaming(who, name, frame)
        keys = [find_column(who, name, frame, pair[side]) for pair in pairs]
        payload = [i for i in range(len(frame.columns)) if i not in keys]
        safe = null_safe_keys(who, left, nulls_match, pairs)
        sources.append(Source(name, frame, keys, payload, nulls_match=safe))
    return sources
