"""`wm.join`: one function for all joins. It chooses one by what is known of the inputs, and says why (`wm.explain`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from inspect import signature
from typing import Any

from pyspark.sql import DataFrame

from watersmeet.chooser.decide import PROMISES, Facts, decide, listed
from watersmeet.chooser.story import recorded_story
from watersmeet.chooser.tuning import as_options, choices
from watersmeet.errors import CorruptStateError, OptionError, PlanError
from watersmeet.join.join_type import checked_how
from watersmeet.plan.options import checked_path, known_names_and
from watersmeet.punctuated.promises.constraints import Clustered, Constraint, OneToMany, Ordered
from watersmeet.semistream.options import checked_type
from watersmeet.spark.broadcast import broadcast_join
from watersmeet.spark.explaining import because
from watersmeet.spark.inputs import JoinInputs, Master
from watersmeet.spark.key_facts import Punctuations
from watersmeet.spark.multiway import multiway_join
from watersmeet.spark.progressive import progressive_join
from watersmeet.spark.punctuated import punctuated_join
from watersmeet.spark.semistream import semi_stream_join, use_storages
from watersmeet.spark.storage import StorageOptions
from watersmeet.spark.table_choice import about_prepared, with_table
from watersmeet.spark.window import window_join
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import recorded_operator
from watersmeet.window.interval import Between, pair_within

WHO = "join"
FUNCTIONS: dict[str, Callable[..., DataFrame]] = {
    "progressive": progressive_join,
    "window": window_join,
    "multiway": multiway_join,
    "punctuated": punctuated_join,
    "semi-stream": semi_stream_join,
    "broadcast": broadcast_join,
}
# What the functions call a fact that has another name here.
RENAMED = {"window": "within", "punctuations": "ends", "constraints": "unique", "master": "right", "stream": "left"}
KINDS = {"unique": "one_to_many", "clustered": "clustered", "ordered": "ordered"}
_INPUTS = {"left", "right", "inputs", "stream", "master", "on", "how", "state_dir"}

Length = str | timedelta


def options_of(family: str) -> list[str]:
    """The options that a join takes beside its inputs and the facts, by the names of its function."""
    return [name for name in signature(FUNCTIONS[family]).parameters if name not in _INPUTS | RENAMED.keys()]


@known_names_and(*(name for family in FUNCTIONS for name in options_of(family)), renamed=RENAMED)
def join(
    left: DataFrame | Sequence[DataFrame] | Mapping[str, DataFrame],
    right: DataFrame | Master | None = None,
    on: Any = None,
    how: str = "inner",
    *,
    state_dir: str | os.PathLike[str],
    within: Length | tuple[Length | None, Length | None] | Between | None = None,
    time: str | Sequence[str] | Mapping[str, str] | None = None,
    unique: Any = None,
    clustered: Any = None,
    ordered: Any = None,
    ends: Mapping[str, Punctuations] | None = None,
    memory: str | int | None = None,
    operator: str | None = None,
    partitions: int | None = None,
    storage_options: StorageOptions | None = None,
    cache: int | str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Equi-join of streams, or of a stream and a table, every result exactly once.

    Say what is known of the inputs; the join is chosen by that. `wm.explain` tells which one and why, what bounds its
    state, and when unmatched rows come.

    Args:
        left: A streaming DataFrame; or a list of them, or a dict that names them, to join them all on one key.
        right: Another one, or a table: `wm.master(...)` or a batch DataFrame. One that is small is broadcast: that join
            is Spark's own, and reads the table when the query starts. Nothing with a list on the left.
        on: A column name, a list of names, or pairs of names `("left_name", "right_name")`; the output has the columns
            that `left.join(right, on, how)` has. For a list of streams see `multiway_join`.
        how: `"inner"`, `"left"`, `"right"`, `"full"`, `"left_semi"` or `"left_anti"`, in any of PySpark's spellings. An
            unmatched row is emitted once, as soon as it is certain that nothing can match it.
        state_dir: Where the join's state lives; it belongs to the query and must be kept with its checkpoint.
        within: How much later than its left row a right row may be: the least and the greatest time, both included,
            such as `("0 s", "30 min")`, the same as `between("0 s", "30 min")`. A duration alone is the greatest time
            between the two, whichever comes first. For a list of streams one duration: the longest time between the
            first and the last row of a combination.
        time: The timestamp columns of the inputs, in order, or one name for all. None: rows have the time of their
            micro-batch.
        unique: The input ("left", "right", or both in a list) in which a key occurs at most once.
        clustered: The input(s) in which rows of a key come one after the other; `Clustered(...)` to say more.
        ordered: The input(s) in which rows come in the order of their keys; `Ordered(...)` to say more.
        ends: Per input ("left", "right") where it says that a key is over: `PunctuationRows(column)`, or a streaming
            DataFrame of punctuations (see `patterns`).
        memory: Budget for the rows kept in memory, such as `"256 MB"`, shared by the partitions; the rest goes to disk.
        operator: The join to use, in place of a choice: `"progressive"`, `"window"`, `"multiway"`, `"punctuated"`,
            `"semi-stream"` or `"broadcast"`.
        partitions: Key partitions, by default `spark.sql.shuffle.partitions` if it has been set, else one per core;
            fixed once the query has run.
        storage_options: How to reach a `state_dir` in an object store (`endpoint`, `region`, `access_key_id`,
            `secret_access_key` and so on), where neither Hadoop settings of Spark nor the environment say it.
        cache: Room for state from an object store on the disk of each executor's host, such as `"20 GB"`; by default
            half of what is free.
        cache_dir: Where that is; by default in `spark.local.dir`.
        options: Any other option of the join that is chosen, such as `lateness`, `algorithm`, `policy`, `driver` or
            `max_delay`, by the name that its function has for it. An option that is given is never chosen. Of the joins
            with a table, the broadcast one has no options but `where`, `nulls_match` and `master_columns`: any other
            makes it a semi-stream join.

    >>> import watersmeet as wm
    >>> joined = wm.join(
    ...     orders,
    ...     payments,
    ...     on="order_id",
    ...     how="left",
    ...     state_dir="state/orders",
    ...     within=("0 s", "30 min"),
    ...     time=("ordered_at", "paid_at"),
    ... )  # doctest: +SKIP
    >>> print(wm.explain(joined))  # doctest: +SKIP
    >>> wm.join(
    ...     clicks, wm.master("masters/users"), on="user_id", how="left", state_dir="state/clicks"
    ... )  # doctest: +SKIP
    >>> wm.join([views, baskets, buys], on="user_id", state_dir="state/visits")  # doctest: +SKIP
    """
    inputs = JoinInputs.of(WHO, left, right)
    ends = None if isinstance(ends, Mapping) and not ends else ends  # nothing is said
    promised = {"unique": unique, "clustered": clustered, "ordered": ordered, "ends": ends}
    facts = Facts(
        streams=inputs.streams,
        several=inputs.several is not None,
        table=inputs.table is not None,
        window=within is not None,
        promises=tuple(name for name in PROMISES if promised[name] is not None),
        memory=memory is not None,
        how=checked_how(WHO, how).name,
        frame=isinstance(inputs.table, DataFrame),
    )
    if facts.several and isinstance(within, tuple | list | Between):
        raise OptionError(
            WHO,
            expected="within = one duration with a list of streams",
            found=repr(within),
            hint="Write within='30 min': the longest time between the first and the last row of a combination.",
            option="within",
        )
    given = {
        "window": pair_within(WHO, within) if isinstance(within, tuple | list) else within,
        "time": _of_both(time) if facts.window and not facts.several else time,
        "constraints": _constraints(unique, clustered, ordered) or None,
        "punctuations": ends,
        "memory": memory,
        "partitions": partitions,
        "storage_options": storage_options,
        "cache": cache,
        "cache_dir": cache_dir,
    }
    given = {name: value for name, value in given.items() if value is not None} | options
    place = checked_path(WHO, "state_dir", state_dir)
    if inputs.table is not None and operator is None:
        with _in_our_words([]):
            use_storages(inputs.frame, place, inputs.table, storage_options, cache, cache_dir)
            facts = with_table(WHO, facts, inputs, on, given, place)
    choice = decide(WHO, facts, operator)
    _refuse_others(choice.value, given)
    table, earlier = None, None
    if inputs.table is not None and choice.value == "semi-stream":
        with _in_our_words([]):
            use_storages(inputs.frame, place, inputs.table, storage_options, cache, cache_dir)
            checked_type(WHO, how)
            table = about_prepared(WHO, inputs, on, place, partitions)
        earlier = earlier_options(place)
    inside = list(choices(choice.value, given, table=table, earlier=earlier))
    with because([choice, *inside]), _in_our_words([name for name in KINDS if name in facts.promises]):
        return _call(choice.value, inputs, on, how, {**as_options(inside, given), "state_dir": state_dir})


def _of_both(time: Any) -> Any:
    """The time columns of two inputs; a dict names the inputs."""
    named = isinstance(time, Mapping) and time.keys() == {"left", "right"}
    return (time["left"], time["right"]) if named else time


def _constraints(unique: Any, clustered: Any, ordered: Any) -> list[Constraint | Mapping[str, Any]]:
    """What is known of the keys, as `punctuated_join` takes it."""
    made: list[Constraint | Mapping[str, Any]] = []
    for option, given, kind in (
        ("unique", unique, OneToMany),
        ("clustered", clustered, Clustered),
        ("ordered", ordered, Ordered),
    ):
        for one in (given or [given]) if isinstance(given, list | tuple) else [given]:
            if isinstance(one, str) and one in ("left", "right"):
                made.append(kind("left" if one == "left" else "right"))
            elif isinstance(one, Mapping) and all(isinstance(name, str) for name in one):
                made.append({"kind": KINDS[option], **one})
            elif isinstance(one, kind):
                made.append(one)
            elif given is not None:
                more = "" if kind is OneToMany else f", or {kind.__name__}(...)"
                raise OptionError(
                    WHO,
                    expected=f"{option} = 'left', 'right' or both in a list{more}",
                    found=repr(given),
                    hint="Name the input, not the DataFrame.",
                    option=option,
                )
    return made


def _refuse_others(family: str, given: Mapping[str, Any]) -> None:
    """Options that only other joins have."""
    known = signature(FUNCTIONS[family]).parameters
    for name in given:
        if name not in known:
            having = [one for one, function in FUNCTIONS.items() if name in signature(function).parameters]
            raise OptionError(
                WHO,
                expected=f"options of the {family} join, which fits these inputs",
                found=f"{RENAMED.get(name, name)}, an option of the {listed(having)} join",
                hint="Leave it out, or say what makes the other join the right one (docs/which-join.md).",
                option=RENAMED.get(name, name),
            )


def earlier_options(place: str) -> Mapping[str, Any] | None:
    """The options of the join whose state this is, if it has run."""
    directory = StateDir(place)
    if recorded_operator(directory) is None:
        return None
    try:
        story = recorded_story(directory)
    except CorruptStateError:  # it explains; the join itself does not need it
        return None
    return None if story is None else story.options


def _call(family: str, inputs: JoinInputs, on: Any, how: str, options: Mapping[str, Any]) -> DataFrame:
    function = FUNCTIONS[family]
    if inputs.several is not None:
        return function(inputs.several, on, **options)
    return function(inputs.frame, inputs.right if inputs.table is None else inputs.table, on, how, **options)


@contextmanager
def _in_our_words(promises: Sequence[str]) -> Iterator[None]:
    """Errors of the chosen function as errors of this one, with the names that options have here."""
    try:
        yield
    except PlanError as error:
        names = {**RENAMED, "constraints": next(iter(promises), "unique")}
        option = names.get(error.option or "", error.option)
        hint = error.hint
        if option != error.option:
            hint += f" ({error.who.partition(',')[0]} calls it {error.option}, here it is {option}.)"
        about = {"option": option, "column": error.column, "input": error.input}
        who = WHO if error.who == WHO else f"{WHO}, {error.who}"
        raise type(error)(who, expected=error.expected, found=error.found, hint=hint, **about) from error
