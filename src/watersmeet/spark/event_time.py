"""The watermark that operators after a join see.

Spark has one watermark for a whole query: for every `withWatermark` the newest time that came through it less its
delay, and the least of these. A stateful operator (an aggregation, a deduplication, Spark's own join) drops rows that
are older. A join emits rows later than they came. How much later decides about the watermarks of its inputs:

    bounded     a join in event time: a row that is not late brings results at most its window older than itself. Each
                input's watermark gets that much more delay, and is declared where there is none. Only the time columns
                of the join keep one: how old the values of other columns can be is not known.
    unbounded   a row may wait for its partner, in memory or on disk, for any time. The output has no watermark, so
                Spark refuses an aggregation in append mode until the user declares one. Spark allows no watermark above
                another, so those of the inputs are taken out of the plan.
    at once     every row is answered in the micro-batch in which it comes. Nothing changes.

Rows that a stateful operator before the join has held back are as old as the watermark, whatever its delay. Nothing can
be added to that, and the operator needs its watermark: the output of the join has none then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from watersmeet.spark.schema import Source

DELAY = "spark.watermarkDelayMs"  # in the metadata of a column with a watermark

Plan = Any  # a logical plan, in the JVM


@dataclass(frozen=True)
class EventTime:
    """The time of a bounded join's input: its column, how late rows may come, how much older their results can be."""

    position: int
    lateness: int  # in microseconds, like the next
    hold: int

    def delay(self, declared: int | None) -> int:
        """The delay in milliseconds that the input's watermark needs, given the one it was declared with.

        A row just as old as the watermark is late for some of Spark's operators, so it is more than what is held.

        >>> EventTime(position=0, lateness=30_000_000, hold=600_000_000).delay(declared=10_000)
        630001
        """
        return (max((declared or 0) * 1000, self.lateness) + self.hold) // 1000 + 1


EventTimes = Mapping[str, EventTime]  # by input; empty: unbounded
AT_ONCE = None


def has_watermarks(kind: T.DataType) -> bool:
    """Whether Spark knows watermarks on columns of this type."""
    return isinstance(kind, T.TimestampType)


def settled(sources: Sequence[Source], times: EventTimes | None) -> tuple[list[Source], dict[tuple[str, int], int]]:
    """The sources with the watermarks that fit the join, and the delays of the output's columns that have one, by
    input and position."""
    if times is AT_ONCE:
        return list(sources), {
            (source.name, i): int(field.metadata[DELAY])
            for source in sources
            for i, field in enumerate(source.fields)
            if DELAY in field.metadata
        }
    if not times or not all(_can_delay(source, times[source.name]) for source in sources):
        return [replace(source, frame=_without_watermarks(source.frame)) for source in sources], {}
    pairs = [(source, times[source.name]) for source in sources]
    delays = {(source.name, time.position): time.delay(_declared(source, time)) for source, time in pairs}
    return [replace(source, frame=_delayed(source, time)) for source, time in pairs], delays


def marked(field: T.StructField, delay: int | None) -> T.StructField:
    """An output column as one with a watermark of this delay, or as one without."""
    metadata = {name: value for name, value in (field.metadata or {}).items() if name != DELAY}
    if delay is not None:
        metadata[DELAY] = delay
    return T.StructField(field.name, field.dataType, field.nullable, metadata)


def _declared(source: Source, time: EventTime) -> int | None:
    found = source.fields[time.position].metadata.get(DELAY)
    return None if found is None else int(found)


def _can_delay(source: Source, time: EventTime) -> bool:
    """Whether the time column can have a watermark of the join's: one may be in the way that others need."""
    nodes = list(_nodes(_plan(source.frame)))
    if not any(map(_is_watermark, nodes)):
        return True
    if any(map(_holds_rows, nodes)):
        return False
    return _declared(source, time) is not None or not any(map(_is_deduplication, nodes))


def _delayed(source: Source, time: EventTime) -> DataFrame:
    """The input with a watermark on its time column that has the delay of the join."""
    if _declared(source, time) is not None:
        return _rewritten(source.frame, lambda node: _with_more_delay(source.frame, node, time))
    names = source.frame.columns  # they may have dots, or be there twice
    frame = _without_watermarks(source.frame).toDF(*(f"c{i}" for i in range(len(names))))
    return frame.withWatermark(f"c{time.position}", f"{time.delay(None)} milliseconds").toDF(*names)


def _without_watermarks(frame: DataFrame) -> DataFrame:
    """The same rows without a watermark, unless a stateful operator needs it."""
    nodes = list(_nodes(_plan(frame)))
    if not any(map(_is_watermark, nodes)) or any(_holds_rows(node) or _is_deduplication(node) for node in nodes):
        return frame
    return _rewritten(frame, lambda node: node.child())


# -- Spark's logical plans


def _plan(frame: DataFrame) -> Plan:
    return frame._jdf.queryExecution().analyzed()


def _children(node: Plan) -> list[Plan]:
    children = node.children()
    return [children.apply(i) for i in range(children.size())]


def _nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _is_watermark(node: Plan) -> bool:
    return bool(node.nodeName() == "EventTimeWatermark")


def _is_deduplication(node: Plan) -> bool:
    return bool(node.isStreaming()) and str(node.nodeName()).startswith("Deduplicate")


def _holds_rows(node: Plan) -> bool:
    """Whether a stateful operator emits rows in later micro-batches than those in which they come."""
    name = str(node.nodeName())
    if name == "Join":
        return all(child.isStreaming() for child in _children(node))
    return bool(node.isStreaming()) and (name in ("Aggregate", "Distinct") or "WithState" in name)


def _with_more_delay(frame: DataFrame, node: Plan, time: EventTime) -> Plan:
    java: Any = frame.sparkSession._jvm
    millis = time.delay(
        int(java.org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark.getDelayMs(node.delay()))
    )
    interval = java.org.apache.spark.unsafe.types.CalendarInterval(0, 0, millis * 1000)
    # Spark tells watermarks apart by their ids, and one stream may be on both sides of a join.
    return node.copy(java.java.util.UUID.randomUUID(), node.eventTime(), interval, node.child())


def _rewritten(frame: DataFrame, replacement: Callable[[Plan], Plan]) -> DataFrame:
    """The DataFrame with every watermark of its plan replaced."""
    java: Any = frame.sparkSession._jvm

    def rewritten(node: Plan) -> Plan:
        children = _children(node)
        if children:
            node = node.withNewChildren(java.PythonUtils.toSeq([rewritten(child) for child in children]))
        return replacement(node) if _is_watermark(node) else node

    plan = rewritten(_plan(frame))
    session = frame.sparkSession
    return DataFrame(java.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)
