"""The join as a Spark plan: one union, one shuffle by key, one Python function per partition.

    inputs ----\\
    control ----> union -> repartitionById(pmod(xxhash64(keys), P)) -> mapInArrow(task) -> output columns
    ticks ----/

The control source is a directory of marker files (`end_input`, `signal`); its rows are copied to every partition. Ticks
are rows of a rate source that only make Spark run a batch when no data comes. An identity `mapInArrow` over the control
branch keeps Spark from removing the shuffle, and with it the call for every partition, in a batch without data.
Rows without a key are sent bare, to be counted.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import watersmeet
from watersmeet.columns.arrow import key_name, payload_name
from watersmeet.errors import CorruptStateError, OptionError
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.plan.options import Options
from watersmeet.spark.control import CONTROL_SCHEMA, FIRST_END, FIRST_NULL_KEY, FIRST_SIGNAL, TICK
from watersmeet.spark.encoding import check_encodable, decoded, encoded, encoded_type
from watersmeet.spark.event_time import EventTimes, marked, settled
from watersmeet.spark.schema import (
    Slots,
    Source,
    arrow_type,
    check_streaming,
    common_key_types,
    find_column,
    is_hashable,
)
from watersmeet.spark.session import default_partitions
from watersmeet.spark.task import BatchFunction, task_function
from watersmeet.spark.ticks import silent, ticking
from watersmeet.state.directory import CONTROL, StateDir
from watersmeet.state.identity import recorded_partitions, register_join

_BY_KEY = -1  # in place of a partition's number: the row goes where its key belongs


@dataclass(frozen=True)
class Output:
    """An output column: its field in Spark, the input it comes from and the column's position there."""

    field: T.StructField
    input: str
    position: int


@dataclass
class Binding:
    """What a family's public function hands over: everything that makes the join."""

    who: str
    operator: str
    sources: list[Source]
    output: list[Output]
    options: Options
    state_dir: str
    partitions: int | None = None
    succeeds: str | None = None  # another operator whose state this one can take up
    tick: bool | None = None  # run batches while no data comes; None: never, whatever the options are
    clock: bool = False  # the operator reads Batch.time
    keep_null_keys: bool = False
    times: EventTimes | None = field(default_factory=dict)  # how long rows are held back (see `event_time`)
    extra_output: list[tuple[T.StructField, str, str]] = field(default_factory=list)  # field, input, internal column
    key_types: list[T.DataType] | None = None  # by default those that the sources have in common

    def frame(self) -> DataFrame:
        """The streaming DataFrame of results."""
        self.sources, delays = settled(self.sources, self.times)
        self.output = [
            replace(column, field=marked(column.field, delays.get((column.input, column.position))))
            for column in self.output
        ]
        rows = [source for source in self.sources if source.kind == "rows"]
        key_types = self.key_types or common_key_types(self.who, rows)
        for source in self.sources:
            source.key_types = [encoded_type(kind) for kind in key_types]
            for spec in source.fields:
                check_encodable(self.who, source.name, spec)
        session = rows[0].frame.sparkSession
        directory = StateDir(self.state_dir)
        directory.create()
        directory.create(CONTROL)
        partitions = self._partitions(session, directory)
        plan = self._plan(rows, key_types, partitions)
        self.options.check_plan(self.who, plan)
        register_join(self.who, directory, plan, succeeds=self.succeeds)

        frames = [_encode(source) for source in self.sources]
        key_types = [] if self._key_is_its_hash() else frames[0].key_types
        slots = Slots.assign(frames)
        union = self._control(session, directory, plan, key_types, slots)
        for index, source in enumerate(frames):
            numbers = _numbers_when_marked(frames).get(index, (index, index))
            union = union.unionByName(self._rows(index, source, slots, partitions, numbers))
        if self.tick is not None:
            ticks = ticking(self.who, session) if self.tick else silent(session)
            # One row is enough to make a batch happen; where the operator reads the clock, every partition needs one.
            where = F.explode(_everywhere(partitions)) if self.clock else F.lit(0).cast("long")
            union = union.unionByName(ticks.select(*self._empty(F.lit(TICK), where, key_types, slots)))
        shuffled = union.repartitionById(partitions, F.pmod("_hash", F.lit(partitions)).cast("int"))
        job = json.dumps(
            {
                "release": watersmeet.__version__,
                "who": self.who,
                "join": uuid.uuid4().hex,
                "state_dir": directory.root if directory.is_local else directory.uri,
                "plan": plan.to_json(),
                "sources": _wire_sources(frames, slots),
                "required": [not f.nullable for f in self._fields()],
            }
        )
        fields = self._fields()
        wire = [T.StructField(f.name, encoded_type(f.dataType), f.nullable, f.metadata) for f in fields]
        joined = shuffled.mapInArrow(task_function(job), T.StructType(wire))
        if wire == fields:
            return joined
        positional = joined.toDF(*(f"c{i}" for i in range(len(fields))))
        return positional.select(
            *(
                decoded(F.col(f"c{i}"), f.dataType, f.nullable).alias(f.name, metadata=f.metadata)
                for i, f in enumerate(fields)
            )
        )

    def _key_is_its_hash(self) -> bool:
        """Whether the key can be had back from its hash, so that it need not travel (see `spark_hash`)."""
        plain = all(source.kind == "rows" for source in self.sources)
        return plain and not self.keep_null_keys and self.sources[0].key_types == [T.LongType()]

    def _fields(self) -> list[T.StructField]:
        return [column.field for column in self.output] + [extra[0] for extra in self.extra_output]

    def _partitions(self, session: SparkSession, directory: StateDir) -> int:
        if self.partitions is not None and (type(self.partitions) is not int or self.partitions < 1):
            raise OptionError(
                self.who,
                expected="partitions >= 1",
                found=repr(self.partitions),
                hint="Leave it out for the default.",
                option="partitions",
            )
        default = recorded_partitions(directory) or default_partitions(session)
        return self.partitions or default

    def _plan(self, rows: Sequence[Source], key_types: Sequence[T.DataType], partitions: int) -> JoinPlan:
        specs = tuple(
            InputSpec(
                source.name,
                tuple(arrow_type(encoded_type(kind)) for kind in key_types),
                tuple(arrow_type(encoded_type(source.fields[i].dataType)) for i in source.row_payload),
            )
            for source in rows
        )
        by_name = {source.name: source for source in rows}
        output = [
            OutputColumn(
                pa.field(column.field.name, arrow_type(encoded_type(column.field.dataType))),
                column.input,
                internal_name(by_name[column.input], column.position),
            )
            for column in self.output
        ]
        output += [
            OutputColumn(pa.field(spec.name, arrow_type(encoded_type(spec.dataType))), source, column)
            for spec, source, column in self.extra_output
        ]
        return JoinPlan(self.operator, specs, tuple(output), self.options.identity(), self.options.tuning(), partitions)

    def _rows(
        self, index: int, source: Source, slots: Slots, partitions: int, when_marked: tuple[int, int]
    ) -> DataFrame:
        """A source's rows in the layout of the union; marked ones under their numbers (with a key, without one)."""
        frame = source.frame.toDF(*(f"c{i}" for i in range(len(source.fields))))
        keys = [
            F.col(f"c{position}").cast(kind).alias(key_name(i))
            for i, (position, kind) in enumerate(zip(source.keys, source.key_types, strict=True))
        ]
        names = [key_name(i) for i in range(len(keys))]
        is_marked = F.lit(False) if source.marker is None else F.coalesce(F.col(f"c{source.marker}"), F.lit(False))
        frame = frame.select(*keys, *(F.col(f"c{position}") for position in source.payload), is_marked.alias("_marked"))
        has_key = reduce(and_, (F.col(name).isNotNull() for name in names))
        payload = [F.col(f"c{position}") for position in source.payload]
        key, target, number = [F.col(name) for name in names], F.xxhash64(*names), F.lit(index)
        if source.kind == "rows" and not self.keep_null_keys:  # a row without a key is only counted: it travels bare
            is_joined = has_key if source.marker is None else has_key | F.col("_marked")
            target = F.when(is_joined, target).otherwise(_spread(source, names, partitions))
            number = F.when(is_joined, number).otherwise(F.lit(FIRST_NULL_KEY - index))
            payload = [F.when(is_joined, column) for column in payload]
            key = [F.when(is_joined, F.col(name)).alias(name) for name in names]
        if source.everywhere:
            target = F.explode(_everywhere(partitions))
        elif source.kind != "rows" or source.marker is not None:
            by_key = has_key if source.kind != "rows" else has_key | ~F.col("_marked")
            # The arrays are constants (a hash inside of one would be made anew for every use that Spark finds for it).
            once, copies = F.array(F.lit(_BY_KEY).cast("long")), _everywhere(partitions)
            frame = frame.withColumn("_copy", F.explode(F.when(by_key, once).otherwise(copies)))
            target = F.when(F.col("_copy") == _BY_KEY, target).otherwise(F.col("_copy"))
        if source.marker is not None:
            keyed, keyless = (F.col("_marked") & condition for condition in (has_key, ~has_key))
            number = F.when(keyed, F.lit(when_marked[0])).when(keyless, F.lit(when_marked[1])).otherwise(number)
        return frame.select(
            number.alias("_input"),
            target.alias("_hash"),
            *self._clock(),
            *([] if self._key_is_its_hash() else key),
            *slots.columns(index, payload),
        )

    def _control(
        self, session: SparkSession, directory: StateDir, plan: JoinPlan, key_types: Sequence[T.DataType], slots: Slots
    ) -> DataFrame:
        markers = session.readStream.schema(CONTROL_SCHEMA).json(_spark_path(directory, CONTROL))
        markers = markers.select("*", F.col("_metadata.file_path").alias("file"))
        code = F.lit(FIRST_SIGNAL) - F.col("value")
        for index, spec in enumerate(plan.inputs):
            is_end = (F.col("kind") == "end") & (F.col("input") == spec.name)
            code = F.when(is_end, F.lit(FIRST_END - index)).otherwise(code)
        everywhere = F.explode(_everywhere(plan.partitions))
        sealed = F.md5(F.concat_ws("/", "kind", "input", F.col("value").cast("string"))) == F.col("seal")
        problem = _damaged_marker(self.who, F.col("file"))
        code = F.when(sealed, code.cast("int")).otherwise(F.raise_error(problem).cast("int"))
        rows = markers.select(*self._empty(code, everywhere, key_types, slots))
        return rows.mapInArrow(_identity(), rows.schema)

    def _empty(self, code: Column, partition: Column, key_types: Sequence[T.DataType], slots: Slots) -> list[Column]:
        """The columns of a row that carries no data; in place of a hash it has the partition it goes to."""
        return [
            code.alias("_input"),
            partition.alias("_hash"),
            *self._clock(),
            *(F.lit(None).cast(kind).alias(key_name(i)) for i, kind in enumerate(key_types)),
            *(F.lit(None).cast(kind).alias(f"_s{slot}") for slot, kind in enumerate(slots.types)),
        ]

    def _clock(self) -> list[Column]:
        # One value per micro-batch, replayed when Spark repeats the batch.
        return [F.unix_micros(F.current_timestamp()).alias("_time")] if self.clock else []


def _damaged_marker(who: str, file: Column) -> Column:
    """The text of a `CorruptStateError` that Spark itself raises, with the file filled in."""
    place = "{file}"
    error = CorruptStateError(
        f"{who}, control marker {place}",
        expected="a marker with its seal",
        found="a damaged one",
        hint="Delete it, and send it again.",
    )
    return F.replace(F.lit(f"{error}\n{error.as_line()}"), F.lit(place), file)


def _identity() -> BatchFunction:
    # Made here, so that it travels by value: a worker without Watersmeet fails in the join, which says so.
    def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return identity


def _everywhere(partitions: int) -> Column:
    return F.sequence(F.lit(0).cast("long"), F.lit(partitions - 1).cast("long"))


def _spread(source: Source, keys: Sequence[str], partitions: int) -> Column:
    """A partition for a row without a key, by its content: the same one when the batch is repeated."""
    columns = [*keys, *(f"c{i}" for i in source.row_payload if is_hashable(source.fields[i].dataType))]
    return F.pmod(F.xxhash64(*columns), F.lit(partitions)).cast("long")


def _encode(source: Source) -> Source:
    """The source with types that cannot travel to Python replaced by ones that can."""
    names = [f"c{i}" for i in range(len(source.fields))]
    frame = source.frame.toDF(*names).select(
        *(encoded(F.col(name), f.dataType).alias(name) for name, f in zip(names, source.fields, strict=True))
    )
    return replace(source, frame=frame)


def _numbers_when_marked(frames: Sequence[Source]) -> dict[int, tuple[int, int]]:
    """The numbers of the punctuations that travel among the rows of a source, those with a key and those without: they
    follow those of the sources."""
    marking = [index for index, source in enumerate(frames) if source.marker is not None]
    return {index: (len(frames) + 2 * i, len(frames) + 2 * i + 1) for i, index in enumerate(marking)}


def _wire_sources(frames: Sequence[Source], slots: Slots) -> list[dict[str, object]]:
    """What a task must know of the sources, in the order of their numbers."""
    rows: list[dict[str, object]] = []
    marked: list[dict[str, object]] = []
    for source, used in zip(frames, slots.of_source, strict=True):
        own = len(source.row_payload)
        rows.append({"name": source.name, "kind": source.kind, "slots": used[:own]})
        if source.marker is not None:
            said = {"name": source.name, "kind": "punctuations", "slots": used[own:]}
            marked += [{**said, "keyed": True}, {**said, "keyed": False}]
    return rows + marked


def internal_name(source: Source, position: int) -> str:
    """The name that a column of an input has inside the operators."""
    if position in source.keys:
        return key_name(source.keys.index(position))
    return payload_name(source.payload.index(position))


def _spark_path(directory: StateDir, name: str) -> str:
    return directory.path(name) if directory.is_local else f"{directory.uri.rstrip('/')}/{name}"


def binary_sources(
    who: str, left: DataFrame, right: DataFrame, pairs: Sequence[tuple[str, str]], names: tuple[str, str]
) -> list[Source]:
    """The two sources of a binary join on pairs of columns."""
    sources = []
    for side, (name, frame) in enumerate(zip(names, (left, right), strict=True)):
        check_streaming(who, name, frame)
        keys = [find_column(who, name, frame, pair[side]) for pair in pairs]
        payload = [i for i in range(len(frame.columns)) if i not in keys]
        sources.append(Source(name, frame, keys, payload))
    return sources
