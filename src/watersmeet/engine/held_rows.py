"""The rows that a join holds, read from its state directory while the query runs, or after it.

The state of a version is taken up by the operator itself, as its next batch would do: so marks, horizons and promises
count as they do there. Nothing is written, and nothing is locked: the newest three versions of a partition are kept,
and files that are open can be read to their end. A version that is collected while it is opened is passed over for a
newer one, unless a version was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.columns.arrow import Indices, hash_keys, key_name, numpy_of, one_chunk
from watersmeet.columns.key_hash import hash_of_key, stands_for_null
from watersmeet.columns.matching import with_equal_keys
from watersmeet.engine.guests import copied_keys
from watersmeet.engine.registry import build
from watersmeet.errors import CorruptStateError, MissingVersionError, OptionError
from watersmeet.join.join_type import JOIN_TYPES, MATCHED
from watersmeet.join.operator import Operator, resume
from watersmeet.join.waits import Waits
from watersmeet.plan import JoinPlan
from watersmeet.plan.hot_table import home_of
from watersmeet.state.description import Description, recorded_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.history import newest_manifests
from watersmeet.state.identity import divisions, read_join
from watersmeet.state.manifest import Manifest
from watersmeet.state.operator_state import OperatorState
from watersmeet.state.parts import Part
from watersmeet.state.rows import RowStore
from watersmeet.state.rules import Horizon
from watersmeet.state.run import Run
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.state.stored_run import StoredRun

ARRIVED = "_ats"  # where a join knows of every row in which batch it came
TRIES = 10  # versions that may be collected while they are opened
MOST_FILES = 1 << 16
_HEX = re.compile("0x([0-9a-fA-F]{2})*")  # how bytes are shown


@dataclass(frozen=True, eq=False)
class Key:
    """A key to look for: a table of one row, and its hash; None if it cannot be told."""

    table: pa.Table
    hash: int | None

    def partition(self, plan: JoinPlan) -> int | None:
        """The only partition that can have it; None if any can."""
        return None if self.hash is None or plan.hot_keys else home_of(self.hash, plan.partitions)


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Some rows of an input that lie together and wait for the same."""

    table: pa.Table  # as stored, under internal names
    partition: int
    version: int
    oldest: npt.NDArray[np.int64]  # the batches in which each row came: the same, or a range where rows were merged
    newest: npt.NDArray[np.int64]
    in_memory: bool
    matched: npt.NDArray[np.bool_] | None  # None where the join does not need to know
    waits: Waits


def key_columns(description: Description) -> list[tuple[str, pa.DataType]]:
    """The columns of a key, as the first input names them, and the types in which they are compared."""
    first = next(iter(description.columns.values()))
    everything = description.plan.inputs[0].keys
    kinds = everything[: len(everything) - sum(bool(column.null_if) for column in first)]
    names = {column.column: column.name for column in first}
    return [(names[key_name(i)], kind) for i, kind in enumerate(kinds)]


def as_key(who: str, description: Description, values: Sequence[Any]) -> Key:
    """A key in the types in which the inputs are compared. Text is read as the type asks."""
    asked = key_columns(description)
    null_flags = description.plan.null_flags
    kinds = [kind for _, kind in asked]
    wanted = ", ".join(f"{name}: {kind}" for name, kind in asked)
    if len(values) != len(kinds):
        raise OptionError(
            who,
            expected=f"a value for each key column ({wanted})",
            found=f"{len(values)} of them",
            hint="Give the values in the order of the key columns.",
            option="key",
        )
    arrays, flags = [], []
    for index, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        is_safe = key_name(index) in null_flags
        flags += [pa.array([value is None])] if is_safe else []  # they come after the keys
        try:
            arrays.append(stands_for_null(kind) if value is None and is_safe else _value(value, kind))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise OptionError(
                who,
                expected=f"a key ({wanted})",
                found=f"{value!r}, which is none: {error}",
                hint="Write times as 2024-05-17 12:00:00 (UTC), decimals with their digits, bytes as 0x00ff.",
                option="key",
            ) from error
    arrays += flags
    is_spark = description.hashing == "spark"
    found = hash_of_key([array[0] for array in arrays]) if is_spark else int(hash_keys(arrays)[0])
    table = pa.table({key_name(i): array for i, array in enumerate(arrays)})
    return Key(table, found)


def _value(value: Any, kind: pa.DataType) -> pa.Array:
    if value is None:
        raise ValueError("a null matches nothing in this join, so no row of it is held")
    if isinstance(value, str) and not pa.types.is_string(kind):
        if pa.types.is_binary(kind):
            return pa.array([bytes.fromhex(value[2:]) if _HEX.fullmatch(value) else value.encode()], kind)
        if pa.types.is_duration(kind):
            return pa.array([int(value)], pa.int64()).view(kind)
        if pa.types.is_timestamp(kind):
            return pa.array([value]).cast(pa.timestamp(kind.unit)).view(kind)
        return pa.array([value]).cast(kind)
    return pa.array([value], kind)


def present(directory: StateDir) -> Description:
    """The description of the join as its state is now: in the newest division that is complete."""
    manifests = newest_manifests(directory)
    return in_division(directory, manifests[0].division if manifests else 0)


def in_division(directory: StateDir, number: int) -> Description:
    """The description of the join as its state is in a division. The record of the join has the numbers of partitions:
    that of the inputs may be older."""
    description = recorded_inputs(directory)
    plan, record = description.plan, read_join(directory)
    if record is not None:
        *former, partitions = divisions(record)
        plan = replace(plan, partitions=partitions, former=tuple(former))
    return replace(description, plan=plan.divided(min(number, plan.division)))


def complete_version(directory: StateDir, plan: JoinPlan) -> int | None:
    """The newest version that every partition has; None if there is none yet."""
    stores = (PartitionStore(directory, partition, plan.division) for partition in range(plan.partitions))
    newest = [store.versions()[-1:] for store in stores]
    return min(version for found in newest for version in found) if all(newest) else None


def open_rows(
    directory: StateDir,
    description: Description,
    partition: int,
    input: str,
    *,
    version: int | None = None,
    near: int | None = None,
    key: Key | None = None,
) -> Iterator[HeldRows]:
    """The rows of an input, of one version of a partition. All its files are open when this returns.

    Without a `version` it is the one called `near`, or the newest if that is gone.
    """
    store = PartitionStore(directory, partition, description.plan.division)
    store.readers.most = MOST_FILES
    for attempt in range(TRIES):
        there = store.versions()
        if not there and version is None:
            return iter(())
        chosen = version if version is not None else near if near in there else there[-1]
        if chosen not in there:
            raise _gone(directory, partition, chosen, there)
        try:
            manifest = store.manifest(chosen)
            # What is read as a whole is verified as a whole; to look for a key, what the query has verified will do.
            state = store.state(manifest, "" if key is None else manifest.run_id)
            _pin(state, input)
            space = MemorySpace()
            space.partition = partition
            operator = build(description.plan, space)
            resume(operator, state)
            return _held(operator, manifest, input, key)
        except (CorruptStateError, MissingVersionError, FileNotFoundError):
            if chosen in store.versions() or attempt == TRIES - 1:
                raise  # it is not that the version has been collected meanwhile
    raise AssertionError("the last attempt returns or raises")


def _pin(state: OperatorState, input: str) -> None:
    """Open the files of a state, so that nothing that happens to their names matters any more."""
    for table in state.side_tables:
        table.data.table()
    for run in (run for store in state.stores if store.input == input for run in store.runs):
        if run.tier == "resident":
            run.data.table()
        elif isinstance(run.data, StoredRun):
            run.data.open_pages()


def _gone(directory: StateDir, partition: int, version: int, there: Sequence[int]) -> MissingVersionError:
    return MissingVersionError(
        f"state directory {directory.uri}, partition {partition}",
        expected=f"version {version}",
        found=f"versions {there[0]} to {there[-1]}" if there else "no version at all",
        hint="A version is removed when three newer ones are there: leave `version` out for the newest, or read while "
        "the query is stopped.",
    )


def _held(operator: Operator, manifest: Manifest, input: str, key: Key | None) -> Iterator[HeldRows]:
    kind = JOIN_TYPES[operator.plan.how]
    is_first = operator.plan.inputs[0].name == input
    copies = copied_keys(manifest.hot, input)
    for store in operator.row_stores():
        if store.input != input:
            continue
        for part, rows in _living(store, key):
            if len(copies):  # their partition of origin has them, too
                rows = rows[~np.isin(part.hashes[rows], copies)]
            for some, waits in operator.waits(part, rows) if len(rows) else ():
                oldest, newest = _batches(part, some)
                matched: npt.NDArray[np.bool_] | None = None
                if MATCHED in store.flags:
                    matched = part.flag(MATCHED, some)
                elif kind.exists and is_first:  # it would have left
                    matched = np.zeros(len(some), np.bool_)
                in_memory = part.run.tier == "resident"
                table = part.table if len(some) == part.table.num_rows else part.table.take(pa.array(some))
                yield HeldRows(
                    table, manifest.partition, manifest.version, oldest, newest, in_memory, matched, waits
                )  # fmt: skip


def _living(store: RowStore, key: Key | None) -> Iterator[tuple[Part, Indices]]:
    """Rows that are held, part by part: rows behind a horizon too, which leave with their run."""
    for run in store.runs:
        for part in store.parts([run]) if run.tier == "resident" else _pages(store, run, key):
            rows = np.arange(part.table.num_rows) if key is None else _having(part, key)
            alive = part.unmarked(rows) if isinstance(store.rule, Horizon) else part.alive(rows)
            yield part, rows if alive is None else rows[alive]


def _pages(store: RowStore, run: Run, key: Key | None) -> Iterator[Part]:
    """The pages of a run on disk; for a key those of its bucket, up to where it would be."""
    if key is None or key.hash is None or store.buckets is None:
        yield from store.pages(run)
        return
    wanted = np.array([key.hash], np.uint64)
    for part in store.pages(run, store.buckets.of(wanted).tolist()):
        if part.hashes[0] > wanted[0]:
            return
        yield part


def _having(part: Part, key: Key) -> Indices:
    """The rows of a part that have the key, ascending; where the rows are sorted few of them are looked at."""
    if key.hash is None:
        near = np.arange(part.table.num_rows)
    elif part.run.order == "hash":
        wanted = np.uint64(key.hash)
        near = np.arange(*(int(np.searchsorted(part.hashes, wanted, side=side)) for side in ("left", "right")))
    else:
        near = np.flatnonzero(part.hashes == np.uint64(key.hash))
    return with_equal_keys(key.table, np.zeros(len(near), np.int64), part.table, near)[1]


def _batches(part: Part, rows: Indices) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first and the last batch in which each row may have come.

    Rows that a join took up from one that did not count say 0: they have those of their run.
    """
    oldest, newest = np.full(len(rows), part.run.oldest), np.full(len(rows), part.run.newest)
    if ARRIVED in part.table.column_names:
        known = numpy_of(one_chunk(part.table.column(ARRIVED)))[rows].astype(np.int64)
        return np.where(known > 0, known, oldest), np.where(known > 0, known, newest)
    return oldest, newest


def _with_nulls(values: pa.ChunkedArray, table: pa.Table, flag: str) -> pa.ChunkedArray:
    return pc.if_else(table.column(flag), pa.scalar(None, values.type), values)


def user_table(description: Description, input: str, table: pa.Table) -> pa.Table:
    """Stored rows with the columns of their input, in its order; columns that the join does not keep are null."""
    schema = description.plan.input(input).schema
    columns, fields = [], []
    for column in description.columns[input]:
        at = table.schema.get_field_index(column.column)
        kind = schema.field(column.column).type
        values = table.column(at) if at >= 0 else pa.nulls(table.num_rows, kind)
        columns.append(_with_nulls(values, table, column.null_if) if column.null_if else values)
        fields.append(pa.field(column.name, kind))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def clock_is_local(description: Description, input: str) -> bool:
    """Whether the times of an input have no zone: they are shown as they were written."""
    options = description.plan.options
    found = options.get("time_columns") or options.get("time") or {}
    names = [spec.name for spec in description.plan.inputs]
    column = found.get(input) if isinstance(found, dict) else dict(zip(names, found, strict=False)).get(input)
    schema = description.plan.input(input).schema
    kind = schema.field(column).type if column in schema.names else None
    return pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None) if kind is not None else False
