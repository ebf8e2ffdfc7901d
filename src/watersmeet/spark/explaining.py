"""`wm.explain`: a join in words, from its DataFrame or from its state directory.

A DataFrame is a plan, and what is made of it by `select` or `withColumn` is another one. What stays is the Python
function of the join: it has a name of its own, which is found in the plan wherever the join is, in a session of this
process and in Spark Connect. A broadcast join has no function of ours: the name is an alias of its table. The stories
of the joins that this process has built are kept by that name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from watersmeet.chooser.decide import Choice
from watersmeet.chooser.explanation import Explanation, explained
from watersmeet.chooser.scaling import Slots
from watersmeet.chooser.story import Story, record_story, recorded_story
from watersmeet.errors import OptionError
from watersmeet.plan.options import checked_path, known_names
from watersmeet.spark.plans import is_classic, plans
from watersmeet.spark.storage import find_storage
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import read_join

WHO = "explain"
KEPT = 1_000  # stories of the newest joins: some kilobytes each
_NAME = re.compile(r"\bwatersmeet_([0-9a-f]{32})\b")

_STORIES: dict[str, tuple[Story, str]] = {}  # by the id of a join: its story and its state directory
_CHOICES: ContextVar[tuple[Choice, ...]] = ContextVar("choices", default=())
_NAMES: ContextVar[Mapping[str, str]] = ContextVar("names", default=MappingProxyType({}))


@contextmanager
def because(choices: Sequence[Choice], names: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """The joins that are built inside were chosen for these reasons; `names` are those to show for their inputs."""
    chosen, named = _CHOICES.set(tuple(choices)), _NAMES.set(names)
    try:
        yield
    finally:
        _CHOICES.reset(chosen)
        _NAMES.reset(named)


def reasons() -> tuple[Choice, ...]:
    """Why the join that is being built was chosen; nothing if its function was called."""
    return _CHOICES.get()


def shown_names() -> Mapping[str, str]:
    """The names to show for inputs of the join that is being built, where they have others."""
    return _NAMES.get()


def function_name(join: str) -> str:
    """The name that the Python function of a join, or the table of a broadcast join, has in Spark's plans."""
    return f"watersmeet_{join}"


def joins_in(frame: DataFrame) -> list[str]:
    """The joins in the plan of a DataFrame that are functions of ours, by their ids, from the top down."""
    return [name for text in plans(frame).functions() for name in _NAME.findall(text)]


def tell(join: str, story: Story, directory: StateDir) -> None:
    """Keep the story of a join that was built."""
    _STORIES[join] = story, directory.place
    while len(_STORIES) > KEPT:
        del _STORIES[next(iter(_STORIES))]
    record_story(directory, story)


def stories(frame: DataFrame) -> list[tuple[Story, str]]:
    """The joins in a DataFrame with their state directories, those whose results go into others first."""
    found = [name for text in plans(frame).functions_and_labels() for name in _NAME.findall(text)]
    return [_STORIES[name] for name in reversed(dict.fromkeys(found)) if name in _STORIES]


def places_of(text: str) -> list[str]:
    """The state directories of the joins in the text of a plan, of those that this process has built."""
    return [_STORIES[name][1] for name in dict.fromkeys(_NAME.findall(text)) if name in _STORIES]


@known_names
def explain(
    join: DataFrame | str | os.PathLike[str],
    *,
    rates: Mapping[str, float] | None = None,
    like: str | os.PathLike[str] | None = None,
) -> Explanation:
    """A join in words: what was chosen and why, what bounds its state, when unmatched rows come, what it costs.

    Nothing is started. Of a join that has run it also says what has come of it: rows held beside rows expected.

    Args:
        join: The DataFrame that a join has returned, or one made from it; or a join's state directory.
        rates: Rows per second that you expect, by input. By default those of the join so far; before it has run, those
            of `like`, or 1,000.
        like: The state directory of an earlier run with the same inputs, to take the rates from.

    >>> import watersmeet as wm
    >>> joined = wm.join(orders, payments, "order_id", state_dir="state/orders")  # doctest: +SKIP
    >>> print(wm.explain(joined, rates={"left": 200, "right": 150}))  # doctest: +SKIP
    """
    story, place = _found(join)
    directory = StateDir(place)
    return explained(
        story, directory, _checked_rates(rates, story), _state_dir(like, "like"), known_slots(_session(join))
    )


def known_slots(session: SparkSession | None) -> Slots | None:
    """How many tasks a session runs at once, and where; None where only a job could tell, as in Spark Connect."""
    if session is None or not is_classic(session):
        return None
    context = session.sparkContext
    cores = context.defaultParallelism
    if str(context.master).partition("[")[0] == "local":
        return Slots(cores)
    return Slots(cores, max(cores // int(context.getConf().get("spark.executor.cores", "1")), 1))


def _session(join: Any) -> SparkSession | None:
    return join.sparkSession if isinstance(join, DataFrame) else SparkSession.getActiveSession()


def _found(join: Any) -> tuple[Story, str]:
    if not isinstance(join, DataFrame | str | os.PathLike):
        raise OptionError(
            WHO,
            expected="join = the DataFrame of a join, or its state directory",
            found=repr(join),
            hint="Give what wm.join has returned.",
            option="join",
        )
    if not isinstance(join, DataFrame):
        directory = _state_dir(checked_path(WHO, "join", join), "join")
        assert directory is not None
        story = recorded_story(directory)
        if story is None:
            raise OptionError(
                WHO,
                expected="the state directory of a join that this release has built",
                found=f"none of its reasons in {directory.uri}",
                hint="Build the join again (it goes on with its state), or give its DataFrame.",
                option="join",
            )
        return story, directory.place
    there = stories(join)
    if not there:
        raise OptionError(
            WHO,
            expected="the DataFrame of a join, or one made from it",
            found="a DataFrame without a join that this process has built",
            hint="Give what wm.join has returned, or the join's state directory.",
            option="join",
        )
    return there[-1]


def _state_dir(place: str | os.PathLike[str] | None, option: str) -> StateDir | None:
    if place is None:
        return None
    path = checked_path(WHO, option, place)
    find_storage(WHO, path)
    directory = StateDir(path)
    if read_join(directory) is None:
        raise OptionError(
            WHO,
            expected=f"{option} = the state directory of a join",
            found=f"no join.json in {directory.uri}",
            hint="Give the state_dir that the join was built with; build the join first.",
            option=option,
        )
    return directory


def _checked_rates(rates: Any, story: Story) -> dict[str, float]:
    names = {one: side.name for side in story.inputs for one in (side.name, side.label)}
    labels = [side.label for side in story.inputs]
    good = isinstance(rates, Mapping | None) and all(
        name in names and isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < float("inf")
        for name, rate in (rates or {}).items()
    )
    if not good:
        raise OptionError(
            WHO,
            expected=f"rates = rows per second by input ({', '.join(labels)})",
            found=repr(rates),
            hint=f"Write for example rates={{{labels[0]!r}: 1000}}.",
            option="rates",
        )
    return {names[name]: float(rate) for name, rate in (rates or {}).items()}
