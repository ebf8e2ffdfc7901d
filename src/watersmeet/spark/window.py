"""`window_join`: two unbounded streams, each with a moving window of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from watersmeet.calibration.window import window_costs
from watersmeet.combined.options import PromisedWindowOptions
from watersmeet.errors import ColumnError, OptionError, warn
from watersmeet.join.clock import Late
from watersmeet.join.flush_policies import Flush
from watersmeet.join.join_type import checked_how
from watersmeet.join.victims import Policy
from watersmeet.plan.options import Duration, HotKeys, Options, checked_path, known_names
from watersmeet.punctuated.promises.constraints import Clustered, Constraint, Ordered
from watersmeet.spark.binding import Binding, binary_sources, internal_name
from watersmeet.spark.conditions import condition_columns, condition_of, where_of
from watersmeet.spark.event_time import EventTime, EventTimes, has_watermarks
from watersmeet.spark.key_facts import KeyFacts, Punctuations
from watersmeet.spark.output import binary_output, typed_sources
from watersmeet.spark.schema import Source, common_key_types, find_column, key_pairs
from watersmeet.spark.session import parallelism
from watersmeet.spark.storage import StorageOptions, find_storage, stored_at
from watersmeet.state.directory import StateDir
from watersmeet.window.batch_costs import KernelCosts
from watersmeet.window.explain import Explanation, explain_rates, explain_state
from watersmeet.window.interval import Between
from watersmeet.window.options import Algorithm, Overload, WindowOptions

WHO = "window_join"

Length = str | timedelta


@known_names
def window_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str | tuple[str, str]],
    how: str = "inner",
    *,
    state_dir: str | os.PathLike[str],
    nulls_match: bool | Sequence[str] = False,
    where: str | None = None,
    window: Length | tuple[Length, Length] | Between,
    time: str | tuple[str, str] | None = None,
    lateness: Length = "10 s",
    late: Late = "join",
    constraints: Sequence[Constraint | Mapping[str, Any]] = (),
    punctuations: Mapping[str, Punctuations] | None = None,
    on_violation: Literal["raise", "drop", "keep"] = "raise",
    algorithm: Algorithm = "auto",
    service_rate: float | None = None,
    memory: str | int | None = None,
    policy: Literal["soonest"] | Policy = "soonest",
    flush: Flush | None = None,
    on_overload: Overload = "keep",
    idle_timeout: Length | None = None,
    hot_keys: HotKeys = "off",
    partitions: int | None = None,
    storage_options: StorageOptions | None = None,
    cache: int | str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Equi-join of two streaming DataFrames within moving windows, every result exactly once.

    A right row matches the left rows that are in the left window when it comes, and the other way round: with equal
    keys, a pair is a result iff `-window_right <= right time - left time <= window_left`. The columns are those of
    `left.join(right, on, how)`. Rows with a null key or a null time match nothing and are counted. With `time`, both
    time columns of the output of an inner or semi join have a watermark whose delay covers what the join holds back.

    Args:
        left: A streaming DataFrame.
        right: Another one.
        on: A column name, a list of names, or pairs of names `("left_name", "right_name")`.
        how: `"inner"`, `"left"`, `"right"`, `"full"`, `"left_semi"` or `"left_anti"`, in any of PySpark's spellings. An
            unmatched row is emitted once, as soon as it is certain that nothing can match it (its window
            has passed: the other input's newest time less `lateness` is beyond it).
        state_dir: Where the join's state lives; it belongs to the query and must be kept with its checkpoint.
        nulls_match: Whether a null in the key matches a null, as with Spark's `<=>`: for all key columns, or for those
            that are named. By default a null matches nothing.
        where: A SQL condition on pairs of rows with equal keys that must hold for a match, such as `"left.price <=
            right.limit"`. The inputs are called `left` and `right`, or by their aliases (see docs/conditions.md).
        window: How long the rows of the left and of the right input wait for rows that come after them: a pair of
            durations such as `("60 s", "5 min")`, or one for both. Or the interval in which right time less left time
            must lie: `between("5 min", "10 min")`; it need not contain zero and may be open on one side
            (`between("0 s", None)`), with a warning: nothing bounds the state of the input that waits then.
        time: The timestamp columns of both inputs; None for the arrival clock, one timestamp per micro-batch.
        lateness: How far behind its input's newest time a row may come and still find all its partners. Later rows are
            late, and counted.
        late: `"join"` joins a late row with what is still there. `"drop"` drops it before it is joined, as Spark's own
            join does: it is in no result, and not among the unmatched rows either.
        constraints: What is known of the keys beforehand: `OneToMany`, `Clustered`, `Ordered`. A row that they leave
            without a partner to come leaves before its window has passed.
        punctuations: Per input ("left", "right") where its punctuations come from, as for `punctuated_join`.
        on_violation: What to do with a row that breaks a promise: `"raise"`, `"drop"` (counted) or `"keep"`.
        algorithm: How the left and the right window are kept: `"HH"`, `"HN"`, `"NH"`, `"NN"` (H hash, N nested
            loops), or `"auto"` to choose by measured costs. Never changes the answer.
        service_rate: Rows per second that the join can take, all partitions together; None to estimate it.
        memory: Bytes for rows held in memory, all partitions together (`"256 MB"`); None for no limit.
        policy: Which rows leave memory first: `"soonest"` (those that expire soonest, the default), `"rpj"` (those
            least likely to match, by the arrival rates of both inputs), `"xjoin"` or `"hmj"`, as in `progressive_join`.
            On disk they are probed like those in memory: it never changes the answer, nor when it comes.
        flush: How the policy chooses: `"optimal"`, `"long-run"`, `"classes"`, `"largest"`, `"smallest"`, `"all"` or
            `"adaptive"`.
        on_overload: `"keep"` is exact: what does not fit in memory goes to disk. `"shed"` drops rows when they come
            faster than the service rate, `"shrink"` shortens the windows until they fit in memory; both account for it,
            and neither can prove that a row has no match, so they work with `how="inner"` only.
        idle_timeout: An input that has been silent for so long does not hold the other one's unmatched rows and state
            back: its time is taken to follow the other's, and rows of it that come behind that are late. None: never.
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
    >>> wm.window_join(
    ...     impressions,
    ...     clicks,
    ...     on="ad",
    ...     time=("shown_at", "clicked_at"),
    ...     window=("10 min", "0 s"),
    ...     state_dir="state/ads",
    ... )  # doctest: +SKIP
    """
    pairs, shared = key_pairs(WHO, on)
    kind = checked_how(WHO, how)
    sources = binary_sources(WHO, left, right, pairs, ("left", "right"), nulls_match)
    # What is not a sequence is a mistake, which the options find; a column has no truth value.
    promised = punctuations is not None or not isinstance(constraints, tuple | list) or len(constraints) > 0
    known = {"constraints": constraints, "on_violation": on_violation} if promised else {}
    mode: object = on_violation
    if not promised and not (isinstance(mode, str) and mode == "raise"):
        raise OptionError(
            WHO,
            expected="on_violation with constraints or punctuations",
            found=f"on_violation={on_violation!r} and no promises that a row could break",
            hint="Leave it out, or say what the inputs promise.",
            option="on_violation",
        )
    options = (PromisedWindowOptions if promised else WindowOptions).checked(
        WHO,
        **known,
        window=window,
        time=time,
        lateness=lateness,
        late=late,
        algorithm=algorithm,
        service_rate=service_rate,
        memory=memory,
        policy=policy,
        flush=flush,
        on_overload=on_overload,
        idle_timeout=idle_timeout,
        hot_keys=hot_keys,
    )
    if promised:
        _check_with_promises(options)
    if kind.name != "inner" and options.on_overload != "keep":
        raise OptionError(
            WHO,
            expected=f"on_overload='keep' with how={kind.name!r}",
            found=f"on_overload={options.on_overload!r}",
            hint="A row that was dropped might have been the match of another: absence could not be proved.",
            option="on_overload",
        )
    times = _time_positions(sources, options.time)
    key_types = common_key_types(WHO, sources)
    constrained = options.constraints if isinstance(options, PromisedWindowOptions) else ()
    facts = KeyFacts(WHO, constrained, key_types)
    all_sources = facts.with_punctuations(sources, punctuations)
    tracked = {one.input for one in constrained if isinstance(one, Clustered | Ordered)}
    _warn_of_open_end(options, {*(punctuations or ()), *tracked})
    condition = where_of(WHO, where, all_sources)
    needed = [*times[1:], *facts.sequences(sources[1]), *condition_columns(condition)]
    sources = all_sources[:2] = typed_sources(all_sources[:2], kind, needed)
    estimated = options.on_overload == "shed" and options.service_rate is None
    filled_in: dict[str, Any] = {"constraints": facts.resolved(sources)} if promised else {}
    filled_in |= {
        "time_columns": None if options.time is None else _time_columns(sources, options.time),
        "costs": _spark_costs() if options.algorithm == "auto" else None,
        "cores": parallelism(left.sparkSession) if estimated else None,
    }
    options = options.model_copy(update=filled_in)
    return Binding(
        who=WHO,
        operator="promised_window" if promised else "window",
        sources=all_sources,
        output=binary_output(WHO, *sources, shared=shared, how=kind),
        how=kind,
        condition=condition_of(condition),
        options=options,
        state_dir=stored_at(WHO, left, state_dir, storage_options, cache, cache_dir),
        partitions=partitions,
        hot_keys=options.hot_keys,
        tick=options.idle_timeout is not None,
        clock=options.time is None
        or options.on_overload != "keep"
        or options.idle_timeout is not None
        or options.policy != "soonest",
        # Clocks are those of a partition: how long an unmatched row waits has no bound that Spark could be told.
        times={} if any(kind.unmatched) else _event_times(sources, options),
    ).frame()


def _warn_of_open_end(options: WindowOptions, promising: Set[str]) -> None:
    """Warn of rows that wait for an input that is not among those which promise to send no more of a key."""
    for side, other, wait in zip(("left", "right"), ("right", "left"), options.window, strict=True):
        if wait is None and other not in promising:
            warn(
                f"{WHO}: nothing bounds the state of input {side!r}: its rows wait for ever, because the interval is "
                f"open. They leave when input {other!r} has ended; memory=... keeps what is held on disk."
            )


def _check_with_promises(options: WindowOptions) -> None:
    """Promises are looked up by key, and what was dropped under overload may have broken one."""
    for option, value, possible in (
        ("on_overload", options.on_overload, ("keep",)),
        ("algorithm", options.algorithm, ("auto", "HH")),
    ):
        if value not in possible:
            raise OptionError(
                WHO,
                expected=f"{option}={' or '.join(map(repr, possible))} with constraints or punctuations",
                found=f"{option}={value!r}",
                hint="Leave it out.",
                option=option,
            )


def _time_positions(sources: Sequence[Source], names: tuple[str, str] | None) -> list[int]:
    return [
        find_column(WHO, source.name, source.frame, name) for source, name in zip(sources, names or (), strict=False)
    ]


def _spark_costs() -> KernelCosts:
    return window_costs().for_sorted_arrivals()


def _time_columns(sources: Sequence[Source], names: tuple[str, str]) -> tuple[str, str]:
    """The internal names of the time columns, which must be timestamps of one type."""
    positions = _time_positions(sources, names)
    kinds = [source.fields[position].dataType for source, position in zip(sources, positions, strict=True)]
    found = ", ".join(
        f"{source.name}.{source.fields[position].name}: {kind.simpleString()}"
        for source, position, kind in zip(sources, positions, kinds, strict=True)
    )
    if not all(isinstance(kind, T.TimestampType | T.TimestampNTZType) for kind in kinds):
        raise ColumnError(
            WHO,
            expected="time columns of type timestamp or timestamp_ntz",
            found=found,
            hint="Cast them, for example with to_timestamp.",
            option="time",
        )
    if kinds[0] != kinds[1]:
        raise ColumnError(
            WHO,
            expected="both time columns with a time zone or both without",
            found=found,
            hint="Cast one of them: what a time without a zone means depends on the session's time zone.",
            option="time",
        )
    left, right = (internal_name(source, position) for source, position in zip(sources, positions, strict=True))
    return left, right


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Length = Annotated[Duration, Field(gt=0)]
_Held = Annotated[Duration, Field(ge=0)]


def _event_times(sources: Sequence[Source], options: WindowOptions) -> EventTimes:
    """A row's partners are older than it by at most the other window; those of an open interval by any time."""
    if options.time is None or None in options.window:
        return {}
    positions = _time_positions(sources, options.time)
    if not all(has_watermarks(s.fields[i].dataType) for s, i in zip(sources, positions, strict=True)):
        return {}
    holds = (max(wait or 0, 0) for wait in reversed(options.window))
    return {
        source.name: EventTime(position, options.lateness, hold)
        for source, position, hold in zip(sources, positions, holds, strict=True)
    }


def _expected_windows(window: Any) -> Any:
    """How long rows are held on each side. Rows whose partners have all come are not."""
    if isinstance(window, Between):
        return tuple(None if wait is None else timedelta(microseconds=max(wait, 0)) for wait in window.waits)
    return window if isinstance(window, tuple | list) else (window, window)


class _ExplainOptions(Options):
    window: tuple[_Held, _Held]
    rates: tuple[_Positive, _Positive]
    distinct_keys: tuple[_Positive, _Positive]
    trigger: _Length


@known_names
def explain_window_join(
    state_dir: str | os.PathLike[str] | None = None,
    *,
    window: Length | tuple[Length, Length] | Between | None = None,
    rates: tuple[float, float] | None = None,
    distinct_keys: tuple[float, float] | None = None,
    trigger: Length = "1 s",
    costs: KernelCosts | None = None,
) -> Explanation:
    """Print and return what `algorithm="auto"` decides and why: four costs, the cross-over, the choice.

    With `state_dir`, from what a join has observed so far. Without, for streams that are yet to come: their windows,
    arrival rates in rows per second, distinct keys per window, and the interval at which micro-batches are run. `costs`
    are by default those of this machine, measured at the first use.

    >>> import watersmeet as wm
    >>> explanation = wm.explain_window_join(window="60 s", rates=(10, 100), distinct_keys=(10, 10))  # doctest: +SKIP
    >>> explanation.choice  # doctest: +SKIP
    'HH'
    """
    who = "explain_window_join"
    if costs is None:
        costs = _spark_costs()
    elif not isinstance(costs, KernelCosts):
        raise OptionError(
            who,
            expected="costs = KernelCosts",
            found=repr(costs),
            hint="Leave it out for those of this machine.",
            option="costs",
        )
    if state_dir is not None:
        place = checked_path(who, "state_dir", state_dir)
        find_storage(who, place)
        explanation = explain_state(StateDir(place), costs)
        if explanation is None:
            raise OptionError(
                who,
                expected="the state directory of a window join that has run",
                found=f"no version in {os.fspath(state_dir)}",
                hint="Run a micro-batch first, or give window, rates and distinct_keys.",
                option="state_dir",
            )
    else:
        both = _expected_windows(window)
        asked = _ExplainOptions.checked(
            who,
            window=both,
            rates=rates,
            distinct_keys=distinct_keys,
            trigger=trigger,
        )
        explanation = explain_rates(asked.window, asked.rates, asked.distinct_keys, asked.trigger, costs)
    print(explanation)
    return explanation
