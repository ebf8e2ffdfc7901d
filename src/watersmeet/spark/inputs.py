"""The inputs of `wm.join`: two streams, many of them, or a stream and a table (`wm.master`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from watersmeet.errors import NotStreamingError, OptionError, PlanError
from watersmeet.plan.options import checked_path, known_names
from watersmeet.spark.schema import check_frame


@dataclass(frozen=True)
class Master:
    """A table as the right input of `wm.join`: see `wm.master`."""

    table: str | DataFrame


@known_names
def master(table: str | os.PathLike[str] | DataFrame) -> Master:
    """A table as the right input of `wm.join`.

    It is the path of a table that `prepare_master` has written, or a batch DataFrame, which is prepared into the join's
    state directory the first time.

    >>> master("masters/users")
    Master(table='masters/users')
    """
    return Master(table if isinstance(table, DataFrame) else checked_path("master", "table", table))


@dataclass(frozen=True)
class JoinInputs:
    """The inputs, told apart."""

    frame: DataFrame  # one of the streams
    streams: int = 2
    several: Sequence[DataFrame] | Mapping[str, DataFrame] | None = None
    right: DataFrame | None = None
    table: str | DataFrame | None = None

    @classmethod
    def of(cls, who: str, left: Any, right: Any) -> JoinInputs:
        """What was given as left and right."""
        if isinstance(left, Mapping | Sequence) and not isinstance(left, str | bytes):
            return cls._of_many(who, left, right)
        if isinstance(left, Master):
            raise PlanError(
                who,
                expected="the stream as left input, and the table as right one",
                found="a table as left input",
                hint="Exchange them: which rows of a table match nothing is not certain while a stream goes on.",
                option="left",
            )
        check_frame(who, "left", left)
        if isinstance(right, Master):
            return cls(left, table=right.table)
        if isinstance(right, str | os.PathLike):
            raise OptionError(
                who,
                expected="right = a DataFrame or wm.master(...)",
                found=repr(right),
                hint=f"Write wm.master({str(right)!r}) for a table that prepare_master has written.",
                option="right",
            )
        check_frame(who, "right", right)
        if right.isStreaming and not left.isStreaming:
            raise NotStreamingError(
                who,
                expected="the stream as left input, and the table as right one",
                found="a batch DataFrame as left input, and a streaming one as right",
                hint="Exchange them; or read the left one with spark.readStream.",
                option="left",
                input="left",
            )
        return cls(left, right=right) if right.isStreaming else cls(left, table=right)

    @classmethod
    def _of_many(cls, who: str, inputs: Sequence[DataFrame] | Mapping[str, DataFrame], right: Any) -> JoinInputs:
        if right is not None:
            raise OptionError(
                who,
                expected="all inputs in one list as left, and no right input",
                found=f"left = a list of {len(inputs)} and right={right!r}",
                hint="Put it into the list, and give the key by name: on=...",
                option="right",
            )
        frames: list[Any] = list(inputs.values() if isinstance(inputs, Mapping) else inputs)
        if not frames:
            raise OptionError(
                who, expected="streams to join", found="none", hint="Give two or more of them.", option="left"
            )
        for frame in frames:
            if isinstance(frame, Master) or (isinstance(frame, DataFrame) and not frame.isStreaming):
                raise NotStreamingError(
                    who,
                    expected="streams in the list of inputs",
                    found="a table among them",
                    hint="Join the streams first, and their result with the table: wm.join(joined, table, ...).",
                    option="left",
                )
            check_frame(who, "left", frame)
        return cls(frames[0], len(frames), several=inputs)
