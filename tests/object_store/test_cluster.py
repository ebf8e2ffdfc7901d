"""Five families on two executors with state in a real S3 server: the answer, the requests, and no secret anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from tests.object_store.cluster_job import INPUTS, state_of
from tests.object_store.server import ACCESS_KEY, SECRET_KEY, Server
from watersmeet.errors import StateDirError
from watersmeet.state.directory import StateDir
from watersmeet.state.history import metrics_history, newest_manifests
from watersmeet.storage import cloud
from watersmeet.storage.access import open_blobs, remember
from watersmeet.storage.cloud import CloudBlobs
from watersmeet.storage.retrying import RetryingBlobs

ROOT = Path(__file__).parents[2]
BATCHES, ROWS, KEYS = 3, 60, 30
START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = timedelta(seconds=60)
Row = tuple[object, ...]


def write_inputs(folder: Path) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for place, name in enumerate("abc"):
        (folder / name).mkdir()
        rows[name] = []
        for batch in range(BATCHES):
            numbers = range(batch * ROWS, (batch + 1) * ROWS)
            keys = [(7 * n + 3 * place + n // 11) % KEYS for n in numbers]
            times = [START + timedelta(seconds=5 * n + place) for n in numbers]
            schema = pa.schema([("k", pa.int64()), (name, pa.int64()), (f"{name}_time", pa.timestamp("us", "UTC"))])
            table = pa.table([keys, list(numbers), times], schema=schema)
            pq.write_table(table, folder / name / f"{batch}.parquet")
            rows[name] += zip(keys, numbers, times, strict=True)
    return rows


def answers(rows: dict[str, list[Row]]) -> dict[str, Counter[Row]]:
    a, b, c = rows["a"], rows["b"], rows["c"]
    pairs = [(x, y) for x, y in product(a, b) if x[0] == y[0]]
    both = Counter((*x, *y[1:]) for x, y in pairs)
    near = Counter((*x, *y[1:]) for x, y in pairs if abs(x[2] - y[2]) <= WINDOW)  # type: ignore[operator]
    three = Counter((*x, *y[1:], *z[1:]) for x, y in pairs for z in c if z[0] == x[0])
    found = {"progressive": both, "window": near, "multiway": three, "punctuated": both, "semi_stream": both}
    return {family: Counter({plain(row): count for row, count in answer.items()}) for family, answer in found.items()}


def results(folder: Path) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for file in folder.glob("*.parquet"):
        found.update(plain(tuple(row.values())) for row in pq.ParquetFile(file).read().to_pylist())
    return found


def plain(row: Row) -> Row:
    """Times as seconds: Spark writes them in nanoseconds and without a zone."""
    return tuple(value.timestamp() if isinstance(value, datetime) else value for value in row)


@pytest.mark.spark
@pytest.mark.long
def test_five_families_with_state_in_s3_and_a_killed_executor(tmp_path: Path, server: Server) -> None:
    expected = answers(write_inputs(tmp_path))
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
    }
    job = [sys.executable, "-m", "tests.object_store.cluster_job", str(tmp_path), server.endpoint]
    done = subprocess.run(job, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown[shown.find("Traceback") :][:8000]
    assert "killed" in done.stdout

    fetched = 0
    for family in INPUTS:
        assert results(tmp_path / "out" / family) == expected[family], family
        remember(state_of(family), options=server.options)
        directory = StateDir(state_of(family))
        newest = newest_manifests(directory)
        assert [(manifest.finished, manifest.repeats) for manifest in newest] == [(True, 0)] * 2, family
        for manifest in newest:
            for entry in metrics_history(directory, manifest):
                fetched += entry["storage"]["cache_misses"]
    assert fetched > 0  # the executors have caches of their own, and partitions change places

    assert "MapInArrow" in shown  # plans are among what is looked at
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    blobs = directory.blobs.blobs  # type: ignore[attr-defined]
    assert isinstance(blobs, CloudBlobs)
    everything = CloudBlobs(type(blobs.location)("s3", "lake", "", ""), blobs.credentials)
    objects = {name.name: everything.get(name.name).content for name in everything.list("", recursive=True)}
    assert len(objects) > 30
    assert any("events" in str(file) for file in files)
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in shown
        assert [str(file) for file in files if secret.encode() in file.read_bytes()] == []
        assert [name for name, content in objects.items() if secret.encode() in content] == []


def test_the_client_against_a_real_server(server: Server, tmp_path: Path) -> None:
    remember("s3://lake/client", options=server.options, cache_dir=str(tmp_path))
    directory = StateDir("s3://lake/client")
    directory.create()
    assert directory.list() == []
    assert directory.publish_new("a/v-1.json", b"one")
    assert directory.publish_new("a/v-1.json", b"one")  # its own answer was lost
    assert not directory.publish_new("a/v-1.json", b"two")
    directory.publish("a/b/c.json", b"three")
    assert (directory.list(), directory.list("a")) == (["a"], ["b", "v-1.json"])
    assert directory.read("a/v-1.json") == b"one"
    assert directory.size("a/none") is None
    assert directory.idle_seconds("a") < 60
    table = pa.table({"x": pa.array(range(1000))})
    length, checksum = directory.write_arrow("a/x.arrow", table.schema, table.to_batches(), None)
    assert pa.ipc.open_file(directory.open_verified("a/x.arrow", length, checksum)).read_all() == table
    directory.delete_tree("a")
    directory.delete_all(["gone", "too"])
    assert directory.list() == []


def test_a_replaced_document_is_not_replaced_twice(server: Server) -> None:
    blobs = StateDir("s3://lake/client").blobs  # type: ignore[attr-defined]
    blobs.put("x.json", [memoryview(b"one")])
    seen = blobs.get("x.json")
    assert blobs.replace("x.json", b"two", seen.tag)
    assert not blobs.replace("x.json", b"three", seen.tag)
    assert blobs.get("x.json").content == b"two"
    assert obstore.get(blobs.blobs.store, "x.json").bytes() == b"two"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", None])
def test_errors_of_the_client_show_no_secret(server: Server, endpoint: str | None) -> None:
    remember("s3://none/errors", options={**server.options, "endpoint": endpoint or server.endpoint})
    blobs = RetryingBlobs(open_blobs("s3://none/errors").blobs, "s3://none/errors", tries=1)
    with pytest.raises(StateDirError) as error:
        blobs.put("x", [memoryview(b"x")])
    assert "state file s3://none/errors/x: expected" in str(error.value)
    assert ("NoSuchBucket" in str(error.value)) == (endpoint is None)
    assert not any(secret in str(error.value) for secret in (ACCESS_KEY, SECRET_KEY))


def test_options_that_the_client_does_not_know() -> None:
    remember("s3://lake/unknown", options={"secret_acess_key": "canary-31"})
    with pytest.raises(
        StateDirError, match=r"expected settings that its client knows, found .*secret_acess_key"
    ) as error:
        StateDir("s3://lake/unknown")
    assert "canary-31" not in str(error.value)


def test_a_large_pack_is_written_in_parts(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "MULTIPART", 1 << 20)
    monkeypatch.setattr(cloud, "PART", 5 << 20)
    remember("s3://lake/large-pack", options=server.options, cache_dir=str(tmp_path / "one"))
    room, written = StateDir("s3://lake/large-pack").open_room("part-00000/run-0"), []
    for number in range(2):
        table = pa.table({"x": pa.array(range(number, number + 500_000))})
        writer = room.writer(table.schema, None)
        writer.write(table.to_batches()[0])
        written.append((table, *writer.close(), writer.name))
    before = server.counts()["POST"]
    room.seal()
    assert server.counts()["POST"] == before + 2
    remember("s3://lake/large-pack", options=server.options, cache_dir=str(tmp_path / "another"))
    for table, length, checksum, name in written:
        found = StateDir("s3://lake/large-pack").open_verified(name, length, checksum)
        assert pa.ipc.open_file(found).read_all() == table


def test_large_objects_are_written_in_parts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "MULTIPART", 1 << 20)
    monkeypatch.setattr(cloud, "PART", 5 << 20)
    remember("s3://lake/large", options=server.options)
    blobs = open_blobs("s3://lake/large")
    content = bytes(range(256)) * (11 << 12)
    before = server.counts()["POST"]
    blobs.put("x.pack", [memoryview(content[: 4 << 20]), memoryview(content[4 << 20 :])])
    assert server.counts()["POST"] == before + 2  # one begins it, one completes it
    assert blobs.get("x.pack").content == content
    assert blobs.get_range("x.pack", 6 << 20, 1000) == content[6 << 20 :][:1000]
