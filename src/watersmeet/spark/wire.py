"""The wire: what the driver sends to the tasks of a join, and how a task reads it. No other module knows the format.

The streams of a join travel as one union of rows with these columns:

    _input   what the row is, and of which input (see `Kind`); of a row of a hot key also where it goes: below 0
    _hash    xxhash64 of the key; of a row that is not sent by its key, the number of its partition
    _time    the batch's clock, where the operator reads it
    _k0..    the key, unless it can be had back from its hash (see `spark_hash`)
    _s0..    slots: a row belongs to one input, so payload columns of one type share a column of the union;
             orders.amount (double) and payments.fee (double) both travel in _s0

A column is renamed twice: from the user's name to the one it travels under, and in the task to that of the operators
(`_p0`, see `arrow`). What a task must know beside its rows is a `Job`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import time, timedelta
from enum import IntEnum
from functools import reduce
from operator import and_

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.columns.arrow import (
    HASH,
    Hashes,
    Indices,
    key_name,
    numpy_of,
    one_chunk,
    payload_name,
    relabelled,
    sort_order,
    take,
)
from watersmeet.columns.spark_hash import key_of_hash
from watersmeet.errors import WorkerSetupError
from watersmeet.join.operator import Batch
from watersmeet.join.votes import ballot_schema
from watersmeet.plan import InputSpec, JoinPlan
from watersmeet.release import __version__
from watersmeet.spark.encoding import encoded, encoded_type
from watersmeet.spark.schema import Source, is_hashable

INPUT, TIME = "_input", "_time"
_MARKED, _COPY = "_marked", "_copy"
_BY_KEY = -1  # in place of a partition's number: the row goes where its key belongs


class Kind(IntEnum):
    """What a row of the union is. `_input` is this plus `KINDS` times a number: of the input, or the signal itself."""

    ROW = 0
    NULL_KEY = 1
    """A row with a null in its key. It goes to any partition: bare, to be counted, or with all its columns if the join
    keeps such rows (`InputSpec.keep_null_keys`)."""
    PUNCTUATION = 2
    PATTERN = 3
    """A punctuation with a null in its key: it is about many keys, so every partition gets a copy."""
    END = 4
    SIGNAL = 5
    TICK = 6
    """Only makes a batch happen."""
    COPY = 7
    """A row of a hot key that another partition has, too."""


KINDS = 8  # a power of two, so that a kind is the low bits of a code
HOT_BITS = 8  # of the code of a row, in the code of one of a hot key: a join has at most 16 inputs


def code(kind: Kind, number: int = 0) -> int:
    """A value of `_input`.

    >>> code(Kind.ROW, 1), code(Kind.END, 1), code(Kind.TICK)
    (8, 12, 6)
    """
    return int(kind) + KINDS * number


def hot_code(row: int, target: int) -> int:
    """A value of `_input` of a row that does not go where its hash says.

    >>> hot_code(8, 2), hot_code(15, 0)
    (-521, -16)
    """
    return -1 - (row + (target << HOT_BITS))


def hot_target(row: Column) -> Column:
    """The partition that such a row goes to."""
    return F.shiftright(-F.lit(1) - row, HOT_BITS)


def targets_of(codes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The same in a task; negative for rows that go where their hash says."""
    return np.where(codes < 0, (-1 - codes) >> HOT_BITS, -1).astype(np.int32)


def united(streams: Sequence[DataFrame]) -> DataFrame:
    """One stream of several that have the same columns."""
    return reduce(lambda one, other: one.unionByName(other), streams)


def slot_name(slot: int) -> str:
    """The column of the union that a slot is."""
    return f"_s{slot}"


def numbered(streams: Sequence[str]) -> dict[str, int]:
    """The number of each stream among the sources of the query, as Spark's reports and its checkpoint count them.

    The control markers come first, see `Wire.union`. A stream that is read twice is one source for Spark.
    """
    return {name: number for number, name in enumerate(dict.fromkeys(streams), start=1)}


@dataclass(frozen=True)
class Layout:
    """By input, the slots in which the payload of its rows travels, and what its punctuations say beside their key."""

    rows: Mapping[str, Sequence[int]]
    punctuations: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Job:
    """What a task must know beside its rows. It travels as JSON."""

    who: str
    join: str
    state_dir: str
    plan: JoinPlan
    layout: Layout
    required: Sequence[bool]  # by output column, whether it is never null
    choices: Sequence[Mapping[str, str]] = field(default_factory=list)  # made when it was built, with their reasons
    release: str = __version__

    def to_json(self) -> str:
        """The job as text."""
        parts = {name: getattr(self, name) for name in ("who", "release", "join", "state_dir")}
        return json.dumps(
            {
                **parts,
                "plan": self.plan.to_dict(),
                "layout": asdict(self.layout),
                "required": list(self.required),
                "choices": list(self.choices),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that `to_json` wrote; an error if another release did, whose jobs may look different."""
        raw = json.loads(text)
        if __version__ != raw["release"]:
            raise WorkerSetupError(
                f"the Spark worker running {sys.executable}",
                expected=f"Watersmeet {raw['release']}, as on the driver",
                found=f"Watersmeet {__version__}",
                hint="Install the same release on the driver and on all workers.",
            )
        return cls(**{**raw, "plan": JoinPlan.from_dict(raw["plan"]), "layout": Layout(**raw["layout"])})

    def result(self, table: pa.Table) -> pa.Table:
        """Results in the schema that Spark expects; where partitions vote, with the columns of votes."""
        fields = [
            pa.field(column.field.name, column.field.type, nullable=not needed)
            for column, needed in zip(self.plan.output, self.required, strict=True)
        ]
        if table.num_columns > len(fields):
            fields = list(ballot_schema(pa.schema([one.with_nullable(True) for one in fields])))
        return pa.Table.from_arrays(table.columns, schema=pa.schema(fields)) if fields else table

    def batch(self, number: int, table: pa.Table | None) -> Batch:
        """The operator's batch out of the rows of the union, those of every input sorted by hash."""
        plan, layout = self.plan, self.layout
        if table is None:
            return Batch(number, rows={spec.name: spec.schema.empty_table() for spec in plan.inputs})
        union = _Union(table, hot_keys=plan.hot_keys)
        apart = _Apart.of_codes(union.codes)
        rows, null_rows, null_keys, punctuations, copies = {}, {}, {}, {}, {}
        for index, spec in enumerate(plan.inputs):
            slots = layout.rows[spec.name]
            mine = np.flatnonzero(union.codes == code(Kind.ROW, index))
            rows[spec.name] = union.rows(spec, slots, mine[sort_order(union.hashes[mine])])
            if len(copied := apart.rows(Kind.COPY, index)):
                copies[spec.name] = union.rows(spec, slots, copied[sort_order(union.hashes[copied])])
            keyless = apart.rows(Kind.NULL_KEY, index)
            if spec.keep_null_keys and len(keyless):
                null_rows[spec.name] = union.rows(spec, slots, keyless, has_key=False)
            elif len(keyless):
                null_keys[spec.name] = len(keyless)
            found = [
                union.punctuations(spec, layout.punctuations[spec.name], said, has_key=kind is Kind.PUNCTUATION)
                for kind in (Kind.PUNCTUATION, Kind.PATTERN)
                if len(said := apart.rows(kind, index))
            ]
            if found:
                punctuations[spec.name] = pa.concat_tables(found)
        return Batch(
            number,
            time=union.time,
            rows=rows,
            punctuations=punctuations,
            ended=frozenset(plan.inputs[index].name for index in apart.numbers(Kind.END)),
            signals=tuple(apart.numbers(Kind.SIGNAL)),
            null_keys=null_keys,
            null_rows=null_rows,
            copies=copies,
            has_guests=union.has_routes,
        )


@dataclass(frozen=True)
class _Apart:
    """The rows of a union that are not plain rows: where they are, what they are, and their numbers."""

    places: Indices
    kinds: npt.NDArray[np.int32]
    of: npt.NDArray[np.int32]

    @classmethod
    def of_codes(cls, codes: npt.NDArray[np.int32]) -> _Apart:
        places = np.flatnonzero(codes & (KINDS - 1))  # all but `ROW`
        return cls(places, codes[places] % KINDS, codes[places] // KINDS)

    def rows(self, kind: Kind, number: int) -> Indices:
        """Where the rows of this kind and number are."""
        found: Indices = self.places[(self.kinds == kind) & (self.of == number)]
        return found

    def numbers(self, kind: Kind) -> list[int]:
        """The numbers that rows of this kind have, each once, in order."""
        found: list[int] = np.unique(self.of[self.kinds == kind]).tolist()
        return found


class _Union:
    """The rows that a task got."""

    def __init__(self, table: pa.Table, *, hot_keys: bool) -> None:
        self.table = table
        self.codes: npt.NDArray[np.int32] = numpy_of(table.column(INPUT))
        self.has_routes = hot_keys and bool(np.any(self.codes < 0))
        if self.has_routes:
            self.codes = np.where(self.codes < 0, (-1 - self.codes) & ((1 << HOT_BITS) - 1), self.codes)
        self.hashes: Hashes = numpy_of(one_chunk(table.column(HASH)).view(pa.uint64()))
        self.time = int(table.column(TIME)[0].as_py()) if TIME in table.column_names else 0
        self.has_keys = key_name(0) in table.column_names

    def rows(self, spec: InputSpec, slots: Sequence[int], order: Indices, *, has_key: bool = True) -> pa.Table:
        """Rows of an input in its schema. Only labels can differ: the session's time zone, large strings."""
        columns = self._columns(spec, slots, order, has_key=has_key)
        fields = list(spec.schema)[1:]
        columns = [relabelled(one_chunk(c), f.type) for c, f in zip(columns, fields, strict=True)]
        return pa.Table.from_arrays([pa.array(self.hashes[order]), *columns], schema=spec.schema)

    def punctuations(self, spec: InputSpec, slots: Sequence[int], places: Indices, *, has_key: bool) -> pa.Table:
        """Punctuations of an input: the key, and what else they say."""
        order = places[sort_order(self.hashes[places])]
        columns = self._columns(spec, slots, order, has_key=has_key)
        names = [*(key_name(i) for i in range(len(spec.keys))), *(payload_name(i) for i in range(len(slots)))]
        return pa.Table.from_arrays([pa.array(self.hashes[order]), *columns], names=[HASH, *names])

    def _columns(
        self, spec: InputSpec, slots: Sequence[int], order: Indices, *, has_key: bool
    ) -> list[pa.ChunkedArray]:
        keys = [key_name(i) for i in range(len(spec.keys))] if self.has_keys else []
        columns: list[pa.ChunkedArray] = take(self.table.select([*keys, *map(slot_name, slots)]), order).columns
        if self.has_keys:
            return columns
        key = pa.array(key_of_hash(self.hashes[order])) if has_key else pa.nulls(len(order), pa.int64())
        return [pa.chunked_array([key]), *columns]


class Wire:
    """The driver's side: the streams of a join as one union."""

    def __init__(
        self, plan: JoinPlan, sources: Sequence[Source], key_types: Sequence[T.DataType], *, clock: bool
    ) -> None:
        self.plan, self.clock = plan, clock
        self.numbers = {spec.name: index for index, spec in enumerate(plan.inputs)}
        self.key_types = [encoded_type(kind) for kind in key_types]
        # A single key of 64 bits can be had back from its hash, so it need not travel.
        self.sent_keys = [] if self.key_types == [T.LongType()] else self.key_types
        self.slot_types: list[T.DataType] = []
        self._slots = [self._assign(source) for source in sources]
        self.layout = self._layout(sources)
        self._sources = list(sources)

    def union(self, control: DataFrame, streams: Sequence[DataFrame], ticks: DataFrame | None) -> DataFrame:
        """All streams in their order: the control markers, the sources, the ticks. Spark numbers the sources of a query
        by it (see `numbered`)."""
        return united([control, *streams, *([] if ticks is None else [ticks])])

    def streams(self) -> list[DataFrame]:
        """The rows of the sources, as they travel."""
        return [self._stream(source, slots) for source, slots in zip(self._sources, self._slots, strict=True)]

    def bare(self, row: Column, partition: Column) -> list[Column]:
        """The columns of a row that has no data; in place of a hash it has the partition it goes to."""
        return [
            row.cast("int").alias(INPUT),
            partition.alias(HASH),
            *self._clock(),
            *(F.lit(None).cast(kind).alias(key_name(i)) for i, kind in enumerate(self.sent_keys)),
            *self._filled({}),
        ]

    def marker(self, kind: Column, name: Column, value: Column) -> Column:
        """The code of a control marker (see `control`)."""
        row = value * KINDS + F.lit(int(Kind.SIGNAL))
        for index, spec in enumerate(self.plan.inputs):
            row = F.when((kind == "end") & (name == spec.name), code(Kind.END, index)).otherwise(row)
        return row.cast("int")

    def content(self) -> list[str]:
        """The columns of the union that tell rows of one key apart, as far as they can be hashed."""
        slots = [slot_name(slot) for slot, kind in enumerate(self.slot_types) if is_hashable(kind)]
        return [HASH, *slots]

    def everywhere(self) -> Column:
        """The numbers of all partitions, to be exploded."""
        return F.sequence(F.lit(0).cast("long"), F.lit(self.plan.partitions - 1).cast("long"))

    def _assign(self, source: Source) -> list[int]:
        """Give every payload column of a source the first free slot of its type."""
        slots: list[int] = []
        for kind in source.payload_types():
            free = (i for i, have in enumerate(self.slot_types) if have == encoded_type(kind) and i not in slots)
            slot = next(free, len(self.slot_types))
            if slot == len(self.slot_types):
                self.slot_types.append(encoded_type(kind))
            slots.append(slot)
        return slots

    def _layout(self, sources: Sequence[Source]) -> Layout:
        rows: dict[str, list[int]] = {}
        punctuations: dict[str, list[int]] = {}
        for source, slots in zip(sources, self._slots, strict=True):
            own = len(source.row_payload) if source.kind == "rows" else 0
            if source.kind == "rows":
                rows[source.name] = slots[:own]
            if source.kind != "rows" or source.marker is not None:
                punctuations[source.name] = slots[own:]
        return Layout(rows, punctuations)

    def _stream(self, source: Source, slots: Sequence[int]) -> DataFrame:
        """The rows of a source as they travel."""
        number, is_input = self.numbers[source.name], source.kind == "rows"
        frame = self._named(source, slots)
        keys = [key_name(i) for i in range(len(self.key_types))]
        has_key = reduce(and_, (F.col(name).isNotNull() for name in keys))
        is_said = F.col(_MARKED) if is_input else F.lit(True)

        row = F.lit(code(Kind.ROW, number))
        target, columns = F.xxhash64(*keys), {name: F.col(name) for name in (*keys, *map(slot_name, slots))}
        if is_input:
            row = F.when(has_key, row).otherwise(code(Kind.NULL_KEY, number))
            target = F.when(has_key, target).otherwise(self._spread(source, keys, slots))
            if not self.plan.inputs[number].keep_null_keys:
                is_whole = has_key if source.marker is None else has_key | is_said
                columns = {name: F.when(is_whole, column) for name, column in columns.items()}
        if not is_input or source.marker is not None:
            said = F.when(has_key, code(Kind.PUNCTUATION, number)).otherwise(code(Kind.PATTERN, number))
            row = F.when(is_said, said).otherwise(row)
            # The arrays are constants (a hash inside of one would be made anew for every use that Spark finds for it).
            once = F.array(F.lit(_BY_KEY).cast("long"))
            frame = frame.withColumn(_COPY, F.explode(F.when(is_said & ~has_key, self.everywhere()).otherwise(once)))
            target = F.when(F.col(_COPY) == _BY_KEY, target).otherwise(F.col(_COPY))
        return frame.select(
            row.cast("int").alias(INPUT),
            target.alias(HASH),
            *self._clock(),
            *(columns[name].alias(name) for name in keys[: len(self.sent_keys)]),
            *self._filled({slot: columns[slot_name(slot)] for slot in slots}),
        )

    def _named(self, source: Source, slots: Sequence[int]) -> DataFrame:
        """The columns of a source that travel, under the names and in the types in which they do, and the marks."""
        names = [f"_{position}" for position in range(len(source.fields))]  # for those that do not
        for position, slot in zip(source.payload, slots, strict=True):
            names[position] = slot_name(slot)
        for index, position in enumerate(source.keys):
            names[position] = key_name(index)
        columns = [encoded(F.col(name), f.dataType) for name, f in zip(names, source.fields, strict=True)]
        keys = [
            columns[position].cast(kind) for position, kind in zip(source.keys, self.key_types, strict=False)
        ]  # the types of the flags come last
        flags = [keys[i].isNull() for i in source.nulls_match]
        for i in source.nulls_match:
            keys[i] = F.coalesce(keys[i], _any_value(self.key_types[i]))
        mark = F.lit(False) if source.marker is None else F.coalesce(F.col(names[source.marker]), F.lit(False))
        return source.frame.toDF(*names).select(
            *(column.alias(key_name(i)) for i, column in enumerate([*keys, *flags])),
            *(columns[position].alias(names[position]) for position in source.payload),
            mark.alias(_MARKED),
        )

    def _spread(self, source: Source, keys: Sequence[str], slots: Sequence[int]) -> Column:
        """A partition for a row without a key, by its content: the same one when the batch is repeated."""
        own = slots[: len(source.row_payload)]
        columns = [*keys, *(slot_name(slot) for slot in own if is_hashable(self.slot_types[slot]))]
        return F.pmod(F.xxhash64(*columns), F.lit(self.plan.partitions)).cast("long")

    def _filled(self, columns: Mapping[int, Column]) -> list[Column]:
        """All slots: what a row has in them, null in the others."""
        kinds = enumerate(self.slot_types)
        return [columns.get(slot, F.lit(None).cast(kind)).alias(slot_name(slot)) for slot, kind in kinds]

    def _clock(self) -> list[Column]:
        # One value per micro-batch, replayed when Spark repeats the batch.
        return [F.unix_micros(F.current_timestamp()).alias(TIME)] if self.clock else []


def _any_value(kind: T.DataType) -> Column:
    """A value of a key's type, in place of a null: another column says that it is none (`key_hash.stands_for_null`)."""
    if isinstance(kind, T.DayTimeIntervalType):
        return F.lit(timedelta(0)).cast(kind)
    if isinstance(kind, T.TimeType):
        return F.lit(time(0)).cast(kind)
    if isinstance(kind, T.TimestampType):  # text would be read in the session's zone, which may change at a restart
        return F.timestamp_seconds(F.lit(0))
    if isinstance(kind, T.DateType | T.TimestampNTZType):
        return F.lit("1970-01-01").cast(kind)
    return F.lit("" if isinstance(kind, (T.StringType, T.BinaryType)) else "0").cast(kind)
