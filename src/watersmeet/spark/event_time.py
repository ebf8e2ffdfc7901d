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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from watersmeet.spark.plans import DELAY, plans
from watersmeet.spark.schema import Source


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
    # A separate stream of punctuations has the name of its input, and no time of the join's.
    timed = [source for source in sources if source.kind == "rows"]
    if not times or not all(_can_delay(source, times[source.name]) for source in timed):
        return [replace(source, frame=_without_watermarks(source.frame)) for source in sources], {}
    frames = [
        _delayed(source, times[source.name]) if source.kind == "rows" else _without_watermarks(source.frame)
        for source in sources
    ]
    delays = {
        (source.name, time.position): time.delay(_declared(source, time))
        for source in timed
        for time in [times[source.name]]
    }
    return [replace(source, frame=frame) for source, frame in zip(sources, frames, strict=True)], delays


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
    plan = plans(source.frame)
    if not plan.has_watermarks():
        return not plan.hides_watermarks()
    if plan.holds_rows():
        return False
    return _declared(source, time) is not None or not plan.removes_duplicates()


def _delayed(source: Source, time: EventTime) -> DataFrame:
    """The input with a watermark on its time column that has the delay of the join."""
    if _declared(source, time) is not None:
        return plans(source.frame).with_delays(time.delay)
    names = source.frame.columns  # they may have dots, or be there twice
    frame = _without_watermarks(source.frame).toDF(*(f"c{i}" for i in range(len(names))))
    return frame.withWatermark(f"c{time.position}", f"{time.delay(None)} milliseconds").toDF(*names)


def _without_watermarks(frame: DataFrame) -> DataFrame:
    """The same rows without a watermark, unless a stateful operator needs it."""
    plan = plans(frame)
    if not plan.has_watermarks() or plan.holds_rows() or plan.removes_duplicates():
        return frame
    return plan.with_delays(lambda _: None)
