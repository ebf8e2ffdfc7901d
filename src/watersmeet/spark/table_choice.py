"""What decides between the joins of a stream with a table: one that is broadcast, and one that is prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

from pyspark.sql import DataFrame

from watersmeet.chooser.decide import Facts
from watersmeet.chooser.story import FAMILY
from watersmeet.semistream.options import TYPES
from watersmeet.spark.broadcast import broadcast_join, table_size
from watersmeet.spark.inputs import JoinInputs
from watersmeet.spark.schema import check_streaming, find_column, key_pairs
from watersmeet.spark.semistream import prepared_table
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import built_operator


def with_table(who: str, facts: Facts, inputs: JoinInputs, on: Any, given: Mapping[str, Any], place: str) -> Facts:
    """The facts with the join that was built here before, the options that one of the joins does not have, and the size
    of the table. It is not measured if nothing depends on it."""
    if not facts.frame or facts.window or facts.promises:
        return facts
    known = signature(broadcast_join).parameters
    facts = replace(facts, only=tuple(name for name in given if name not in known))
    built = FAMILY.get(built_operator(StateDir(place)) or "", "")
    if built == "semi-stream" or (built == "broadcast" and not facts.only):
        return replace(facts, built=built)
    if not isinstance(inputs.table, DataFrame) or inputs.table.isStreaming or facts.only or facts.how not in TYPES:
        return facts
    size = table_size(inputs.table, _keys(who, inputs.frame, on), facts.how, given.get("master_columns"))
    return replace(facts, size=size)


def about_prepared(who: str, inputs: JoinInputs, on: Any, place: str, partitions: int | None) -> Mapping[str, Any]:
    """What is known of the table of a semi-stream join; a DataFrame is prepared now, since what is chosen depends on
    its size."""
    assert inputs.table is not None
    keys = _keys(who, inputs.frame, on)
    return prepared_table(inputs.table, keys, StateDir(place), partitions).about()


def _keys(who: str, stream: DataFrame, on: Any) -> list[str]:
    """The keys of the table, once the stream is known to have its own."""
    check_streaming(who, "left", stream)
    pairs, _ = key_pairs(who, on)
    for name, _ in pairs:
        find_column(who, "left", stream, name)
    return [name for _, name in pairs]
