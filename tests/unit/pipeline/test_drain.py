"""Sources are read when a trigger that began long enough after the last row found nothing."""

from datetime import UTC, datetime

from watersmeet.pipeline.drain import DrainWatch


def spark_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_silence_after_the_last_row() -> None:
    now = 1_000_000.0
    watch = DrainWatch(5.0, clock=lambda: now)
    assert not watch.drained
    watch.saw_nothing(spark_time(now + 4.9))
    assert not watch.drained
    watch.saw_nothing(spark_time(now + 5.0))
    assert watch.drained
    now += 6
    watch.saw_rows()
    assert not watch.drained


def test_a_long_batch_under_way_is_no_silence() -> None:
    now = 1_000_000.0
    watch = DrainWatch(5.0, clock=lambda: now)
    watch.saw_nothing(spark_time(now + 1))
    now += 600  # no report since: a batch is under way, and may have rows
    assert not watch.drained
