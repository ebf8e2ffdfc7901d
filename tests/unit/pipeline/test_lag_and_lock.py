"""What waits at file sources, and that a pipeline runs once at a time."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from watersmeet.pipeline.lag import FileLag, reported_lag
from watersmeet.pipeline.lock import BusyError, RunLock


def log_entry(log: Path, name: str, files: int) -> None:
    log.mkdir(exist_ok=True)
    (log / name).write_text("v1\n" + "".join(f'{{"path":"f{i}"}}\n' for i in range(files)))


def test_files_that_wait(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    (data / "day=1").mkdir(parents=True)
    for name in ("a.parquet", "b.parquet", "day=1/c.parquet", "_SUCCESS", ".hidden.parquet"):
        (data / name).touch()
    lag = FileLag(str(data), str(log))
    assert lag.files() == 3
    log_entry(log, "0", 2)
    (log / ".0.crc").touch()
    assert lag.files() == 1
    (data / "d.parquet").touch()
    log_entry(log, "1", 1)
    assert lag.files() == 1
    log_entry(log, "1.compact", 4)  # Spark's own summary of everything up to here
    assert lag.files() == 0


def test_a_source_that_is_not_there_has_no_lag(tmp_path: Path) -> None:
    assert FileLag(str(tmp_path / "none"), str(tmp_path / "log")).files() == 0


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
