"""Sources are read when a trigger that began long enough after the last news found nothing."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from watersmeet.pipeline.config import load
from watersmeet.pipeline.drain import DrainWatch
from watersmeet.pipeline.run import Lags


def spark_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_silence_after_the_last_news() -> None:
    now = 1_000_000.0
    watch = DrainWatch(5.0, clock=lambda: now)
    assert not watch.drained
    watch.saw_nothing(spark_time(now + 4.9))
    assert not watch.drained
    watch.saw_nothing(spark_time(now + 5.0))
    assert watch.drained
    now += 6
    watch.saw_news()
    assert not watch.drained


def test_a_long_batch_under_way_is_no_silence() -> None:
    now = 1_000_000.0
    watch = DrainWatch(5.0, clock=lambda: now)
    watch.saw_nothing(spark_time(now + 1))
    now += 600  # no report since: a batch is under way, and may have rows
    assert not watch.drained


@pytest.mark.parametrize(
    ("rows", "start", "end", "found"),
    [
        (3, "{'logOffset': 4}", "{'logOffset': 5}", True),
        (0, "{'logOffset': 4}", "{'logOffset': 5}", True),  # an empty file, or a filter in the scan
        (0, "None", "{'logOffset': 0}", True),
        (0, "{'logOffset': 5}", "{'logOffset': 5}", False),
        (0, "None", "None", False),
        (2, None, None, True),
    ],
)
def test_what_spark_says_of_the_sources(good: Path, rows: int, start: str, end: str, found: bool) -> None:
    def part(rows: int, start: str | None, end: str | None) -> dict[str, object]:
        return {"numInputRows": rows, "startOffset": start, "endOffset": end}

    idle = part(0, "{'logOffset': 0}", "{'logOffset': 0}")
    markers, ticks = part(0, "None", "{'logOffset': 0}"), part(7, "8", "15")
    report = {"timestamp": spark_time(1e6), "sources": [markers, idle, part(rows, start, end), ticks]}
    assert Lags(load(good)).take(report) is found
