"""What waits at file sources, and that a pipeline runs once at a time."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from watersmeet.pipeline.lag import FileLag, committed_batch, has_file_lag, reported_lag
from watersmeet.pipeline.lock import BusyError, RunLock


def take(checkpoint: Path, name: str, files: dict[int, int]) -> None:
    """Spark's log of the files of source 1: so many for each offset of the source."""
    log = checkpoint / "sources" / "1"
    log.mkdir(parents=True, exist_ok=True)
    lines = [f'{{"path":"f{i}","timestamp":1,"batchId":{at}}}' for at, count in files.items() for i in range(count)]
    (log / name).write_text("v1\n" + "\n".join(lines))


def commit(checkpoint: Path, batch: int, offset: str) -> None:
    """A batch that ended with source 1 at `offset`; source 0 has the markers."""
    for folder, text in (("offsets", f'v1\n{{"batchWatermarkMs":0}}\n-\n{offset}\n0'), ("commits", "v1\n{}")):
        (checkpoint / folder).mkdir(exist_ok=True)
        (checkpoint / folder / str(batch)).write_text(text)


def test_files_that_wait(tmp_path: Path) -> None:
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    (data / "day=1").mkdir(parents=True)
    (data / "other").mkdir()
    names = (
        "a.parquet",
        "b.parquet",
        "day=1/c.parquet",
        "_SUCCESS",
        ".hidden.parquet",
        "other/d.parquet",
        "e._COPYING_",
    )
    for name in names:
        (data / name).touch()
    lag = FileLag(str(data), str(checkpoint), 1)
    assert lag.files() == 3
    take(checkpoint, "0", {0: 2})
    (checkpoint / "sources" / "1" / ".0.crc").touch()
    assert lag.files() == 3  # taken by a batch that has not ended
    commit(checkpoint, 0, '{"logOffset":0}')
    assert (committed_batch(checkpoint), lag.files()) == (0, 1)
    (data / "d.parquet").touch()
    take(checkpoint, "1", {1: 1})
    assert lag.files() == 2
    take(checkpoint, "2.compact", {0: 2, 1: 1, 2: 1})  # Spark's own summary of everything up to here
    assert lag.files() == 2
    commit(checkpoint, 1, '{"logOffset":1}')
    assert lag.files() == 1
    commit(checkpoint, 2, '{"logOffset":2}')
    assert lag.files() == 0


def test_logs_that_do_not_tell(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    commit(tmp_path, 0, "-")  # no file of this source was in any batch yet
    assert FileLag(str(tmp_path), str(tmp_path), 1).files() == 1
    commit(tmp_path, 1, '{"another": "form"}')
    assert FileLag(str(tmp_path), str(tmp_path), 1).files() is None


def test_a_source_that_is_not_there_has_no_lag(tmp_path: Path) -> None:
    assert FileLag(str(tmp_path / "none"), str(tmp_path / "checkpoint"), 1).files() == 0


def test_files_are_counted_only_where_spark_reads_all_of_them() -> None:
    assert has_file_lag("json", "data", {"maxFilesPerTrigger": "1"}, "/checkpoint")
    assert not has_file_lag("json", "data", {"pathGlobFilter": "*.json"}, "/checkpoint")
    assert has_file_lag("json", "file:/data", {}, "file:///checkpoint")
    assert not has_file_lag("json", "s3a://data", {}, "/checkpoint")
    assert not has_file_lag("json", "data", {}, "hdfs://host/checkpoint")
    assert not has_file_lag("kafka", None, {}, "/checkpoint")


def test_kafka_tells_its_lag() -> None:
    assert reported_lag({"metrics": {"maxOffsetsBehindLatest": "12"}}) == "12 offsets"
    assert reported_lag({"metrics": {}}) is None
    assert reported_lag({"metrics": None}) is None


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    state = str(tmp_path / "p" / "state")
    with RunLock(state), pytest.raises(BusyError, match="no other run of this pipeline"), RunLock(state):
        pass
    with RunLock(state):
        pass


def test_a_run_waits_for_the_java_process_of_the_one_before(tmp_path: Path) -> None:
    state = str(tmp_path / "p" / "state")
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with RunLock(state) as lock:
            lock.record(other.pid)
            content = lock.path.read_text()  # type: ignore[union-attr]
        assert content.startswith(f"{other.pid} ")
        # as a killed run leaves it
        (tmp_path / "p" / "run.lock").write_text(content)
        with pytest.raises(BusyError, match="is still there"), RunLock(state, patience=0.3):
            pass
        (tmp_path / "p" / "run.lock").write_text(content)
        threading.Timer(0.5, other.kill).start()
        started = time.monotonic()
        with RunLock(state, patience=30):
            assert time.monotonic() - started >= 0.3
    finally:
        other.kill()
        other.wait()


def test_state_elsewhere_is_not_locked() -> None:
    with RunLock("s3://bucket/state") as lock:
        lock.record(1)
    assert lock.path is None
