"""What waits at file sources, and that a pipeline runs once at a time."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from watersmeet.pipeline.lag import FileLag, committed_batch, has_file_lag, reported_lag
from watersmeet.pipeline.lock import BusyError, RunLock


def take(checkpoint: Path, name: str, files: dict[int, list[Path]]) -> None:
    """Spark's log of the files of source 1, by offset of the source."""
    log = checkpoint / "sources" / "1"
    log.mkdir(parents=True, exist_ok=True)
    taken = [(quote(str(path), safe="/;üé"), offset) for offset, some in files.items() for path in some]
    lines = [f'{{"path":"file://{path}","timestamp":1,"batchId":{offset}}}' for path, offset in taken]
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
    a, b, c, d = (data / name for name in ("a.parquet", "b.parquet", "day=1/c.parquet", "d.parquet"))
    take(checkpoint, "0", {0: [a, b]})
    (checkpoint / "sources" / "1" / ".0.crc").touch()
    assert lag.files() == 3  # taken by a batch that has not ended
    commit(checkpoint, 0, '{"logOffset":0}')
    assert (committed_batch(checkpoint), lag.files()) == (0, 1)
    d.touch()
    take(checkpoint, "1", {1: [c]})
    assert lag.files() == 2
    take(checkpoint, "2.compact", {0: [a, b], 1: [c], 2: [d]})  # Spark's own summary of everything up to here
    assert lag.files() == 2
    commit(checkpoint, 1, '{"logOffset":1}')
    assert lag.files() == 1
    commit(checkpoint, 2, '{"logOffset":2}')
    assert lag.files() == 0


@pytest.mark.parametrize("name", ["a b.parquet", "c%41.parquet", "ü#?;.parquet", "x=é/y'+&.parquet"])
def test_files_are_known_by_their_names(tmp_path: Path, name: str) -> None:
    data, checkpoint = tmp_path / "put%20é", tmp_path / "checkpoint"
    (data / name).parent.mkdir(parents=True)
    (data / name).touch()
    (data / "new").touch()
    take(checkpoint, "0", {0: [data / name]})
    commit(checkpoint, 0, '{"logOffset":0}')
    for folder in (data, f"file://{data}", f"{data}/", f"{data}/../{data.name}"):
        assert FileLag(str(folder), str(checkpoint), 1).files() == 1


def test_files_that_were_read_may_be_gone(tmp_path: Path) -> None:
    """With cleanSource Spark removes them, or somebody else does."""
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    data.mkdir()
    files = [data / f"{number}.json" for number in range(6)]
    for file in files[:3]:
        file.touch()
    lag = FileLag(str(data), str(checkpoint), 1)
    take(checkpoint, "0", {0: files[:3]})
    commit(checkpoint, 0, '{"logOffset":0}')
    assert lag.files() == 0
    for file in files[:3]:
        file.unlink()
    for file in files[3:]:
        file.touch()
    assert lag.files() == FileLag(str(data), str(checkpoint), 1).files() == 3


def test_what_is_remembered_of_the_logs_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    data.mkdir()
    lag = FileLag(str(data), str(checkpoint), 1)
    read: list[str] = []
    read_log = lag._read
    monkeypatch.setattr(lag, "_read", lambda log: read.append(log.name) or read_log(log))
    files: dict[int, list[Path]] = {}
    for number in range(50):
        files[number] = [data / f"{number}.json"]
        files[number][0].touch()
        if number % 10 == 9:
            take(checkpoint, f"{number}.compact", files)
        else:
            take(checkpoint, str(number), {number: files[number]})
        commit(checkpoint, number, f'{{"logOffset":{number}}}')
        assert (lag.files(), lag.files()) == (0, 0)
        if number < 45:
            files[number][0].unlink()
    assert len(read) == len(set(read)) == 50
    assert len(lag._taken) <= 11
    assert sum(map(len, lag._taken.values())) <= 6


def test_a_source_that_read_another_folder_before_has_no_lag(tmp_path: Path) -> None:
    take(tmp_path, "0", {0: [tmp_path / "before" / "a.json"]})
    commit(tmp_path, 0, '{"logOffset":0}')
    assert FileLag(str(tmp_path / "now"), str(tmp_path), 1).files() is None


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
    assert not has_file_lag("json", "data/*.json", {}, "/checkpoint")
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


def test_each_state_has_a_lock_of_its_own(tmp_path: Path) -> None:
    with RunLock(str(tmp_path / "orders")), RunLock(str(tmp_path / "clicks"), str(tmp_path / "checkpoint")):
        assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == []  # `watersmeet ui state/*`


def test_a_checkpoint_is_locked_with_whatever_state(tmp_path: Path) -> None:
    one, other, checkpoint = (str(tmp_path / name) for name in ("one", "other", "checkpoint"))
    with RunLock(one, checkpoint):
        with (
            pytest.raises(BusyError, match=r"directory .*/checkpoint: expected no other run"),
            RunLock(other, checkpoint),
        ):
            pass
        with RunLock(other):  # what was refused holds nothing
            pass
        with pytest.raises(BusyError), RunLock("s3://bucket/state", checkpoint):
            pass
    (tmp_path / "file").touch()
    with (
        RunLock(one, str(tmp_path / "file" / "checkpoint")),
        pytest.raises(BusyError),
        RunLock(one),
    ):  # seen by Spark alone
        pass
    with RunLock(checkpoint, checkpoint):  # not of use, and no reason to wait for oneself
        pass


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_place_is_locked_by_whatever_name(tmp_path: Path, scheme: str) -> None:
    state, checkpoint = tmp_path / "a b" / "state", tmp_path / "a b" / "checkpoint"
    state.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a b")
    with RunLock(str(state), str(checkpoint)):
        for place in (f"{scheme}{tmp_path}/a%20b/state", f"{scheme}{tmp_path}/link/state", f"{tmp_path}/link/state/"):
            with pytest.raises(BusyError, match="state: expected no other run"), RunLock(place):
                pass
        for place in (f"{scheme}{checkpoint}", f"{scheme}{checkpoint}/", f"{tmp_path}/link/checkpoint"):
            with pytest.raises(BusyError, match="checkpoint: expected no other run"), RunLock("s3://b/state", place):
                pass


def test_a_run_waits_for_the_java_process_of_the_one_before(tmp_path: Path) -> None:
    state = str(tmp_path / "p" / "state")
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with RunLock(state) as lock:
            lock.record(other.pid)
            (file,) = lock.paths
            content = file.read_text()
        assert content.startswith(f"{other.pid} ")
        # as a killed run leaves it
        file.write_text(content)
        with pytest.raises(BusyError, match="is still there"), RunLock(state, patience=0.3):
            pass
        file.write_text(content)
        threading.Timer(0.5, other.kill).start()
        started = time.monotonic()
        with RunLock(state, patience=30):
            assert time.monotonic() - started >= 0.3
    finally:
        other.kill()
        other.wait()


def test_state_elsewhere_is_not_locked() -> None:
    with RunLock("s3://bucket/state", "hdfs://host/checkpoint") as lock:
        lock.record(1)
    assert lock.paths == []
