"""`multiway_join`: two to sixteen streams on one key, in one operator."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from watersmeet.errors import ColumnError, OptionError
from watersmeet.join.clock import Late
from watersmeet.multiway.options import MAX_INPUTS, MIN_INPUTS, DriverName, MultiwayOptions, required_inputs
from watersmeet.plan.options import HotKeys, known_names
from watersmeet.spark.binding import Binding, Output, internal_name
from watersmeet.spark.conditions import condition_of, where_of
from watersmeet.spark.event_time import EventTime, EventTimes, has_watermarks
from watersmeet.spark.output import check_clashes, may_be_null
from watersmeet.spark.schema import Source, check_streaming, comparable_name, find_column, null_safe_keys
from watersmeet.spark.storage import StorageOptions, stored_at
from watersmeet.state.space import PAGE_ROWS

WHO = "multiway_join"
_TIMES = (T.TimestampType, T.TimestampNTZType, T.DateType)

Names = str | Sequence[str]


@known_names
def multiway_join(
    inputs: Sequence[DataFrame] | Mapping[str, DataFrame],
    on: Names | Mapping[str, Names],
    *,
    state_dir: str | os.PathLike[str],
    nulls_match: bool | Sequence[str] = False,
    where: str | None = None,
    driver: DriverName = "output_size",
    names: Sequence[str] | None = None,
    time: Names | Mapping[str, str] | None = None,
    window: str | timedelta | None = None,
    lateness: str | timedelta = "10 s",
    late: Late = "join",
    optional: str | Sequence[str] = (),
    slices: int = 8,
    max_results: int = 1_000_000_000,
    memory: str | int | None = None,
    idle_pages: int = 256,
    page_rows: int = PAGE_ROWS,
    buckets: int = 64,
    hot_keys: HotKeys = "off",
    partitions: int | None = None,
    storage_options: StorageOptions | None = None,
    cache: int | str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Equi-join of 2 to 16 streaming DataFrames on one key, every combination exactly once; inputs may be optional.

    Each input's rows are stored once and no intermediate result is stored at all. With `memory`, rows beyond the budget
    go to disk. With a window they are looked up there, and results come as without a budget. Without a window, what
    rows on disk are owed is reported while the inputs are silent, and the rest when all have ended (`end_input`).

    Args:
        inputs: Streaming DataFrames: a list, or a dict that names them.
        on: The key: a column name or a list of names that all inputs share, or a dict from input to its name(s). Shared
            names come first and once in the output, followed by each input's other columns; with a dict of different
            names all columns of all inputs are kept.
        state_dir: Where the join's state lives; it belongs to the query and must be kept with its checkpoint.
        nulls_match: Whether a null in the key matches a null, as with Spark's `<=>`: for all key columns, or for those
            that are named. By default a null matches nothing.
        where: A SQL condition on combinations of rows with equal keys that must hold for a result, such as
            `"orders.price <= payments.amount"`. The inputs are called by their names, or by their aliases (see
            docs/conditions.md). Not with `optional`.
        driver: How the order is chosen in which a micro-batch's inputs are worked off: `"output_size"`,
            `"output_rate"`, `"consumption_rate"`, `"round_robin"` or `"timestamp"`. Never changes the answer.
        names: Names for a list of inputs, by default `input_1`, `input_2`, ... With names (or a dict of inputs) columns
            that several inputs have in common are prefixed with them; without, they are an error.
        time: The time column of each input: one name for all, a list, or a dict.
        window: With `time`, only combinations whose times all lie within this span (`"10 min"`) are results, and state
            that no later row can need expires.
        lateness: With `window`, how far behind its input's newest time a row may come and still find all its partners.
        late: Whether a row that comes later still is joined with what is there (`"join"`), or dropped before it is
            joined (`"drop"`). Both are counted.
        optional: Names of inputs that may be absent: the result is the left join of the other inputs' combinations with
            them, in this order. A combination without a row of an optional input comes once, in the first micro-batch
            in which it is certain that none will come: that input has ended (`end_input`), or the window has passed.
        slices: Into how many slices `"timestamp"` and `"round_robin"` cut a micro-batch.
        max_results: Most results that one micro-batch of one partition may give; more is a `FanOutError`.
        memory: Budget for the rows kept in memory, such as `"64 MB"`, shared by the partitions. None: no limit. It may
            be changed, added or taken away at a restart.
        idle_pages: With `memory` and no window, how many pages a micro-batch without rows may read and write.
        page_rows: With `memory`, rows in a page, the unit in which spilled rows are written and read.
        buckets: Into how many buckets the keys of a partition are divided, which are spilled and merged one by one;
            fixed once the query has run.
        hot_keys: `"auto"` spreads the rows of a key with a large part of the work over several partitions (see
            docs/hot-keys.md), `"off"` does not; fixed once the query has run.
        partitions: Key partitions, by default `spark.sql.shuffle.partitions` if it has been set, else one per core;
            fixed once the query has run.
        storage_options: How to reach a `state_dir` in an object store (`endpoint`, `region`, `access_key_id`,
            `secret_access_key` and so on), where neither Hadoop settings of Spark nor the environment say it.
        cache: Room for state from an object store on the disk of each executor's host, such as `"20 GB"`; by default
            half of what is free.
        cache_dir: Where that is; by default in `spark.local.dir`.

    >>> import watersmeet as wm
    >>> joined = wm.multiway_join([a, b, c], on="k", state_dir="state/abc")  # doctest: +SKIP
    >>> wm.multiway_join(
    ...     {"clicks": clicks, "buys": buys, "views": views},
    ...     on={"clicks": "user", "buys": "buyer", "views": "uid"},
    ...     time="at",
    ...     window="10 min",
    ...     state_dir="state/visits",
    ... )  # doctest: +SKIP
    >>> wm.multiway_join(
    ...     {"orders": orders, "payments": payments, "returns": returns},
    ...     on="order_id",
    ...     optional=["returns"],
    ...     state_dir="state/orders",
    ... )  # doctest: +SKIP
    """
    named = _named(inputs, names)
    keys, shared = _keys(on, named)
    safe = null_safe_keys(WHO, next(iter(named.values())), nulls_match, list(zip(*keys.values(), strict=True)))
    sources = [replace(_source(name, frame, keys[name]), nulls_match=safe) for name, frame in named.items()]
    positions = _time_positions(time, sources)
    times = {source.name: internal_name(source, positions[source.name]) for source in sources if positions}
    options = MultiwayOptions.checked(
        WHO,
        {"time": times},
        driver=driver,
        window=window,
        lateness=lateness,
        late=late,
        optional=optional,
        slices=slices,
        max_results=max_results,
        memory=memory,
        idle_pages=idle_pages,
        page_rows=page_rows,
        buckets=buckets,
        hot_keys=hot_keys,
    )
    required = required_inputs(WHO, options.optional, list(named))
    if options.optional and where is not None:
        raise OptionError(
            WHO,
            expected="where without optional inputs",
            found=f"where={where!r} and optional={list(options.optional)}",
            hint="Which combinations lack an optional input would depend on the condition: filter the result, or join "
            "the optional input by itself with wm.join(..., how='left', where=...).",
            option="where",
        )
    condition = where_of(WHO, where, sources, sides=list(named))
    if options.optional and len(required) == 1:  # its rows without a key are combinations of their own
        sources = [replace(source, keep_null_keys=source.name in required) for source in sources]
    prefix = names is not None or isinstance(inputs, Mapping)
    return Binding(
        who=WHO,
        operator="mjoin",
        sources=sources,
        output=_output(sources, required[0], options.optional, shared=shared, prefix=prefix),
        options=options,
        condition=condition_of(condition),
        state_dir=stored_at(WHO, sources[0].frame, state_dir, storage_options, cache, cache_dir),
        partitions=partitions,
        hot_keys=options.hot_keys,
        tick=options.memory is not None if options.window is None else None,  # with a window nothing is left for later
        # Clocks are those of a partition: how long a combination waits for an optional row has no bound to tell Spark.
        times={} if options.optional else _event_times(sources, positions, options),
    ).frame()


def _named(inputs: Any, names: Any) -> dict[str, DataFrame]:
    """The inputs by name, in order."""
    if not isinstance(inputs, Mapping | Sequence) or isinstance(inputs, str | bytes):
        raise OptionError(
            WHO,
            expected="inputs = a list of streaming DataFrames, or a dict that names them",
            found=repr(inputs),
            hint="Write for example [clicks, buys] or {'clicks': clicks, 'buys': buys}.",
            option="inputs",
        )
    if not MIN_INPUTS <= len(inputs) <= MAX_INPUTS:
        raise OptionError(
            WHO,
            expected=f"{MIN_INPUTS} to {MAX_INPUTS} inputs",
            found=f"{len(inputs)}",
            hint="Join more in several steps.",
            option="inputs",
        )
    if isinstance(inputs, Mapping):
        if names is not None:
            raise OptionError(
                WHO,
                expected="names only for a list of inputs",
                found="names and a dict of inputs",
                hint="Leave names out: the dict has them.",
                option="names",
            )
        chosen = list(inputs)
    elif names is None:
        chosen = [f"input_{i + 1}" for i in range(len(inputs))]
    else:
        chosen = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else []
    if not (_are_names(chosen) and len(set(chosen)) == len(inputs) == len(chosen)):
        raise OptionError(
            WHO,
            expected=f"{len(inputs)} different names, one per input",
            found=repr(chosen if isinstance(inputs, Mapping) else names),
            hint="Give a list such as names=['clicks', 'buys'].",
            option="inputs" if isinstance(inputs, Mapping) else "names",
        )
    frames = dict(zip(chosen, inputs.values() if isinstance(inputs, Mapping) else inputs, strict=True))
    for name, frame in frames.items():
        check_streaming(WHO, name, frame, option="inputs")
    return frames


def _are_names(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def _keys(on: Any, inputs: Mapping[str, DataFrame]) -> tuple[dict[str, list[str]], bool]:
    """The key columns of each input, and whether they have the same names everywhere."""
    if isinstance(on, Mapping):
        _check_mentioned("on", on, inputs)
        keys = {name: _list(on[name]) for name in inputs}
    else:
        keys = {name: _list(on) for name in inputs}
    lengths = {len(columns) for columns in keys.values()}
    if len(lengths) != 1 or 0 in lengths or not all(isinstance(c, str) for columns in keys.values() for c in columns):
        raise OptionError(
            WHO,
            expected="the same number of key columns, at least one, for every input",
            found=f"on={on!r}",
            hint="Give a name, a list of names, or a dict from input to its name or list of names.",
            option="on",
        )
    session = next(iter(inputs.values())).sparkSession
    spelled = {tuple(comparable_name(session, column) for column in columns) for columns in keys.values()}
    return keys, len(spelled) == 1


def _list(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return list(value) if isinstance(value, Sequence) else []


def _check_mentioned(option: str, value: Mapping[str, object], inputs: Mapping[str, object]) -> None:
    if set(value) != set(inputs):
        raise OptionError(
            WHO,
            expected=f"{option} to name the inputs {', '.join(inputs)}",
            found=", ".join(map(str, value)) or "none",
            hint=f"Give {option} one entry for every input.",
            option=option,
        )


def _source(name: str, frame: DataFrame, keys: Sequence[str]) -> Source:
    positions = [find_column(WHO, name, frame, column) for column in keys]
    return Source(name, frame, positions, [i for i in range(len(frame.columns)) if i not in positions])


def _time_positions(time: Any, sources: Sequence[Source]) -> dict[str, int]:
    """The position of each input's time column."""
    if time is None:
        return {}
    by_name = {source.name: source for source in sources}
    if isinstance(time, Mapping):
        _check_mentioned("time", time, by_name)
        columns = dict(time)
    elif isinstance(time, str):
        columns = dict.fromkeys(by_name, time)
    elif isinstance(time, Sequence) and len(time) == len(sources):
        columns = dict(zip(by_name, time, strict=True))
    else:
        raise OptionError(
            WHO,
            expected=f"{len(sources)} time columns, one per input",
            found=repr(time),
            hint="Give one name that all inputs share, a list in the order of the inputs, or a dict.",
            option="time",
        )
    positions = {name: find_column(WHO, name, by_name[name].frame, column) for name, column in columns.items()}
    kinds = {name: by_name[name].fields[position].dataType for name, position in positions.items()}
    if len(set(map(type, kinds.values()))) > 1 or not all(isinstance(kind, _TIMES) for kind in kinds.values()):
        raise ColumnError(
            WHO,
            expected="time columns of one type: timestamp, timestamp_ntz or date",
            found=", ".join(f"{name}.{columns[name]}: {kind.simpleString()}" for name, kind in kinds.items()),
            hint="Cast them before the join, for example with to_timestamp.",
            option="time",
        )
    return positions


def _event_times(sources: Sequence[Source], positions: Mapping[str, int], options: MultiwayOptions) -> EventTimes:
    """A row's partners are older than it by at most the window."""
    if options.window is None or not all(has_watermarks(s.fields[positions[s.name]].dataType) for s in sources):
        return {}
    return {name: EventTime(position, options.lateness, options.window) for name, position in positions.items()}


def _output(
    sources: Sequence[Source], first: str, optional: Collection[str], *, shared: bool, prefix: bool
) -> list[Output]:
    """Shared keys first and once, from the first required input, then every input's columns in order; clashes get the
    input's name in front. Columns of optional inputs may be null."""
    keyed = next(source for source in sources if source.name == first)
    keys = [Output(keyed.fields[i], keyed.name, i) for i in keyed.keys] if shared else []
    others = [
        Output(may_be_null(source.fields[i], source.name in optional), source.name, i)
        for source in sources
        for i in (source.payload if shared else range(len(source.fields)))
    ]
    session = sources[0].frame.sparkSession
    counts = Counter(comparable_name(session, column.field.name) for column in [*keys, *others])
    clashing = [column for column in others if counts[comparable_name(session, column.field.name)] > 1]
    if clashing and not prefix:
        raise ColumnError(
            WHO,
            expected="different names for all columns of the output",
            found=", ".join(f"{column.input}.{column.field.name}" for column in clashing),
            hint="Give names=[...] or a dict of inputs, and such columns are prefixed with their input's name; or "
            "rename them before the join.",
            column=clashing[-1].field.name,
            input=clashing[-1].input,
        )
    columns = keys + [_prefixed(column) if column in clashing else column for column in others]
    check_clashes(WHO, columns, session)
    return columns


def _prefixed(column: Output) -> Output:
    spec = column.field
    renamed = T.StructField(f"{column.input}_{spec.name}", spec.dataType, spec.nullable, spec.metadata)
    return replace(column, field=renamed)
