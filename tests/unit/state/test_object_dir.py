"""State in an object store: requests per batch, the cache, the fence, faults of the store, moving a state."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.sampling import one_of_each_variant
from tests.faults.memory_blobs import FaultyBlobs, MemoryBlobs, Objects

from watersmeet.engine.runtime import run_batch
from watersmeet.errors import CorruptStateError, StateDirError, StateMismatchError
from watersmeet.state import object_dir
from watersmeet.state.directory import StateDir, stretch
from watersmeet.state.object_dir import ObjectDir
from watersmeet.state.store import COLLECT_EVERY, KEEP, PartitionStore
from watersmeet.storage.cache import Entry, HostCache, Staged
from watersmeet.storage.retrying import RetryingBlobs
from watersmeet.testing import Arrival, batch_of, make_plan, random_script, run_stored
from watersmeet.testing.arrivals import Row
from watersmeet.testing.cases import Case
from watersmeet.testing.harness import rows_of

PLAN = make_plan("symmetric")
SCRIPT = random_script(3, batches=70, idle_share=0.0, null_share=0.0, end=False)
URI = "s3a://lake/state"


class Host:
    """A machine with a cache of its own; what the hosts have in common are the objects."""

    def __init__(self, folder: Path, objects: Objects, limit: int = 1 << 30, blobs: MemoryBlobs | None = None) -> None:
        self.blobs = blobs or MemoryBlobs(objects)
        self.folder, self.limit = folder, limit
        self.cache = HostCache(folder, limit)
        self.opened: list[ObjectDir] = []

    @property
    def directory(self) -> ObjectDir:
        made = ObjectDir(URI, RetryingBlobs(self.blobs, URI, pause=lambda seconds: None))
        made.cache = self.cache
        self.opened.append(made)
        return made

    @property
    def misses(self) -> int:
        """Files that had to be fetched so far."""
        return sum(each.traffic()["cache_misses"] for each in self.opened)

    @property
    def hits(self) -> int:
        """Files that were found in the cache so far."""
        return sum(each.traffic()["cache_hits"] for each in self.opened)

    def restart(self) -> None:
        """Another process: nothing is known but what is on the disk."""
        self.cache = HostCache(self.folder, self.limit)

    def advance(
        self, number: int, run_id: str = "s", attempt: str = "0", arrival: Arrival | None = None
    ) -> Counter[Row]:
        batch = batch_of(PLAN, number, arrival or SCRIPT[number])
        return rows_of(run_batch(PLAN, self.directory, 0, batch, run_id=run_id, attempt=attempt))

    def entries(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9a-f][0-9a-f]/*"))

    def store(self) -> PartitionStore:
        return PartitionStore(self.directory, 0)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "cache", {})


@pytest.fixture
def expected(tmp_path: Path) -> list[Counter[Row]]:
    return run_stored(PLAN, SCRIPT[:24], StateDir(tmp_path / "local")).per_batch


def test_a_batch_costs_one_get_and_two_puts(host: Host, expected: list[Counter[Row]]) -> None:
    asked = []
    for number in range(24):
        before = Counter(host.blobs.requests)
        assert host.advance(number) == expected[number]
        asked.append(Counter(host.blobs.requests) - before)
    plain = Counter({"get": 1, "put": 2})
    # Every fourth batch writes a segment of the history as well, every sixteenth collects what is old.
    ordinary = [asked[number] for number in range(1, 24) if number % 4 != 3 and number % COLLECT_EVERY]
    assert all(each <= plain for each in ordinary)
    assert plain in ordinary
    assert asked[COLLECT_EVERY] == plain + Counter({"list": 1, "get": KEEP, "delete": 1})
    assert sum((count for each in asked[1:] for count in each.values()), 0) / 23 < 4


def test_bytes_fetched_do_not_grow_with_the_state(host: Host) -> None:
    fetched = []
    for number in range(64):
        directory = host.directory
        rows_of(run_batch(PLAN, directory, 0, batch_of(PLAN, number, SCRIPT[number]), run_id="s"))
        if number % COLLECT_EVERY:
            fetched.append(directory.traffic().get("bytes_fetched", 0))
    assert sum(fetched[40:]) / sum(fetched[1:21]) < 4  # manifests alone; the rows have become many times as many
    assert host.misses == 0


class Emptied(HostCache):
    """A cache whose folder is deleted whenever something goes into it."""

    def stage(self) -> Staged:
        made = super().stage()
        shutil.rmtree(self.folder)
        return made

    def enter(self, entry: Entry, staged: Staged) -> None:
        super().enter(entry, staged)
        shutil.rmtree(self.folder, ignore_errors=True)


def test_a_cache_that_is_deleted_all_the_time(tmp_path: Path, expected: list[Counter[Row]]) -> None:
    objects: Objects = {}
    here, there = (Host(tmp_path / name, objects) for name in ("here", "there"))
    for number, answer in enumerate(expected):
        host = (here, there)[number % 2]
        host.cache = Emptied(host.folder, None)
        assert host.advance(number) == answer
    assert there.misses > 12


def test_a_host_fetches_what_it_lacks_once(tmp_path: Path, expected: list[Counter[Row]]) -> None:
    objects: Objects = {}
    here, there = (Host(tmp_path / name, objects) for name in ("here", "there"))
    for number in range(6):
        assert here.advance(number) == expected[number]
    assert there.advance(6) == expected[6]
    runs = {entry.file for entry in here.store().manifest(5).runs}
    assert there.misses == len(runs)
    assert there.hits == 0  # a file that was fetched is not found as well
    before = there.misses
    assert there.advance(7) == expected[7]
    assert (there.misses, there.hits) == (before, len(here.store().manifest(6).runs))
    assert here.advance(8) == expected[8]  # it lacks what was written in 6 and 7
    new = {entry.file for entry in there.store().manifest(7).runs} - runs
    assert 0 < here.misses <= len(new)


def test_neighbours_in_a_pack_are_fetched_together(tmp_path: Path) -> None:
    objects: Objects = {}
    here, there = (Host(tmp_path / name, objects) for name in ("here", "there"))
    for number in range(3):
        here.advance(number)
    manifest = here.store().manifest(2)
    packs = {stretch(entry.file)[0] for entry in manifest.runs}
    assert len(packs) < len(manifest.runs)
    there.advance(3)
    assert there.blobs.requests == Counter({"get": 1 + len(packs), "put": 3})


def test_large_files_are_fetched_in_parts_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_dir, "PART", 1000)
    here = Host(tmp_path / "here", {})
    table = pa.table({"a": pa.array(range(2000))})
    length, checksum = here.directory.write_arrow("chunk.arrow", table.schema, table.to_batches(), None)
    there = Host(tmp_path / "there", here.blobs.objects)
    opened = there.directory.open_verified("chunk.arrow", length, checksum)
    assert pa.ipc.open_file(opened).read_all() == table
    assert there.blobs.requests["get"] == -(-length // 1000)
    assert there.directory.open_verified("chunk.arrow", length, checksum).size() == length
    assert there.blobs.requests["get"] == -(-length // 1000)


@pytest.mark.parametrize("damage", ["a bit", "cut off", "empty", "gone"])
def test_a_damaged_cache_costs_a_fetch(host: Host, expected: list[Counter[Row]], damage: str) -> None:
    for number in range(5):
        host.advance(number)
    for path in host.entries():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.unlink()
        if damage != "gone":
            path.write_bytes({"a bit": bytes(content), "cut off": bytes(content[:-9]), "empty": b""}[damage])
    host.restart()
    assert host.advance(5, run_id="t") == expected[5]
    assert host.misses > 0
    assert host.advance(6, run_id="t") == expected[6]


def test_a_cache_of_no_size_gives_the_answer(tmp_path: Path, expected: list[Counter[Row]]) -> None:
    host = Host(tmp_path / "cache", {}, limit=0)
    assert [host.advance(number) for number in range(24)] == expected
    assert host.entries() == []
    assert list((tmp_path / "cache" / "making").iterdir()) == []


def test_a_damaged_object_is_an_error(tmp_path: Path) -> None:
    here = Host(tmp_path / "here", {})
    for number in range(3):
        here.advance(number)
    pack = next(name for name in here.blobs.objects if name.endswith(".pack"))
    content, number = here.blobs.objects[pack]
    here.blobs.objects[pack] = bytes(len(content)), number
    there = Host(tmp_path / "there", here.blobs.objects)
    with pytest.raises(CorruptStateError, match=rf"{pack}@.*bytes with checksum .*found other bytes.*restore"):
        there.advance(3)
    here.blobs.objects[pack] = content[:8], number
    with pytest.raises(CorruptStateError, match="found fewer"):
        there.advance(3)
    del here.blobs.objects[pack]
    with pytest.raises(CorruptStateError, match="found no file"):
        there.advance(3)


def test_what_is_old_is_collected(host: Host) -> None:
    for number in range(4 * COLLECT_EVERY + 1):
        host.advance(number)
    names = [name.partition("/")[2] for name in host.blobs.objects]
    versions = sorted(name for name in names if name.startswith("v-"))
    assert versions == [
        f"v-{number:012d}.json" for number in range(4 * COLLECT_EVERY - KEEP + 1, 4 * COLLECT_EVERY + 1)
    ]
    kept = [host.store().manifest(4 * COLLECT_EVERY - back) for back in range(KEEP)]
    alive = {stretch(entry.file)[0] for manifest in kept for entry in manifest.runs}
    packs = {name for name in names if name.endswith(".pack")}
    assert alive <= packs
    assert all(int(name[4:16]) > 4 * COLLECT_EVERY - KEEP for name in packs - alive)


# -- the fence ----------------------------------------------------------------------------------------------------


def test_a_second_attempt_takes_what_the_first_has_written(tmp_path: Path, expected: list[Counter[Row]]) -> None:
    objects: Objects = {}
    here, there = (Host(tmp_path / name, objects) for name in ("here", "there"))
    for number in range(4):
        assert here.advance(number, attempt="0") == expected[number]
        written = dict(objects)
        assert there.advance(number, attempt="1") == expected[number]
        manifest = f"part-00000/v-{number:012d}.json"
        assert objects[manifest] == written[manifest]
    assert here.store().manifest(3).repeats == 0


def test_a_restart_repeats_the_last_batch_under_its_own_name(tmp_path: Path, expected: list[Counter[Row]]) -> None:
    objects: Objects = {}
    here, there = (Host(tmp_path / name, objects) for name in ("here", "there"))
    for number in range(4):
        here.advance(number, run_id="one")
    before = here.store().manifest(3)
    assert there.advance(3, run_id="two") == expected[3]
    after = here.store().manifest(3)
    assert (after.run_id, after.digest, after.repeats) == ("two", before.digest, 0)
    assert there.advance(4, run_id="two") == expected[4]


def test_of_two_runs_one_loses_and_is_told_both(tmp_path: Path, expected: list[Counter[Row]]) -> None:
    objects: Objects = {}
    here, there = (Host(tmp_path / name, objects) for name in ("here", "there"))
    for number in range(4):
        here.advance(number, run_id="zero")
    lost: dict[str, str] = {}
    for number in range(4, 9):
        for host, run_id in ((here, "one"), (there, "two")):
            if run_id not in lost:
                try:
                    assert host.advance(number, run_id=run_id) == expected[number]
                except StateMismatchError as error:
                    lost[run_id] = str(error)
    assert lost == {
        "two": "state directory s3a://lake/state, partition 0: expected version 5 to be written by run two of the "
        "query, which wrote the version before it, found one that run one has written meanwhile. Two drivers run the "
        "query from one checkpoint. Stop one of them: the state is whole, and the other can be started again."
    }


def test_a_source_that_does_not_replay_is_counted(host: Host) -> None:
    for number in range(3):
        host.advance(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        host.advance(2, run_id="t", arrival=SCRIPT[7])
    assert host.store().manifest(2).repeats == 1


# -- faults of the store ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["failed", "lost"])
@pytest.mark.parametrize("kind", ["get", "put", "put_new", "list", "delete"])
def test_requests_that_fail_in_passing(tmp_path: Path, expected: list[Counter[Row]], kind: str, fault: str) -> None:
    turn = Counter[str]()

    def every_second(asked: str) -> str | None:
        turn[asked] += 1
        return fault if asked == kind and turn[asked] % 2 else None

    host = Host(tmp_path / "cache", {}, blobs=FaultyBlobs(every_second))
    for number in range(20):
        assert host.advance(number, attempt=str(number)) == expected[number]
    assert host.store().manifest(19).repeats == 0
    assert turn[kind] >= 2


def test_a_store_that_does_not_come_back(tmp_path: Path) -> None:
    objects: Objects = {}
    Host(tmp_path / "here", objects).advance(0)
    host = Host(
        tmp_path / "cache", objects, blobs=FaultyBlobs(lambda kind: "failed" if kind == "put_new" else None, objects)
    )
    with pytest.raises(StateDirError, match=r"v-000000000001.json: expected an answer to a put request within 8 tries"):
        host.advance(1)
    assert Host(tmp_path / "here", objects).store().versions() == [0]


def test_a_store_that_refuses(tmp_path: Path) -> None:
    host = Host(tmp_path / "cache", {}, blobs=FaultyBlobs(lambda kind: "refused" if kind == "put" else None))
    with pytest.raises(StateDirError, match=r"expected permission for a put request, found .*403.*credentials"):
        host.advance(0)


def test_a_store_without_conditional_puts(tmp_path: Path) -> None:
    class Careless(MemoryBlobs):
        def put_new(self, name: str, content: bytes) -> bool:
            return self._write(name, content)

    host = Host(tmp_path / "cache", {}, blobs=Careless())
    with pytest.raises(StateDirError, match=r"expected a store with conditional puts.*If-None-Match"):
        host.directory.create()
    assert host.blobs.objects == {}
    host = Host(tmp_path / "cache", {})
    host.directory.create()
    assert host.blobs.objects == {}


# -- moving a state -----------------------------------------------------------------------------------------------


def test_a_state_can_be_moved_to_a_disk_and_back(tmp_path: Path, expected: list[Counter[Row]]) -> None:
    host = Host(tmp_path / "cache", {})
    for number in range(8):
        assert host.advance(number) == expected[number]
    for name, (content, _) in host.blobs.objects.items():
        (tmp_path / "moved" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "moved" / name).write_bytes(content)
    moved = StateDir(tmp_path / "moved")
    for number in range(8, 14):
        found = rows_of(run_batch(PLAN, moved, 0, batch_of(PLAN, number, SCRIPT[number]), run_id=f"t{number}"))
        assert found == expected[number]
    objects: Objects = {
        str(path.relative_to(tmp_path / "moved")): (path.read_bytes(), 1)
        for path in (tmp_path / "moved").rglob("*")
        if path.is_file()
    }
    back = Host(tmp_path / "other", objects)
    for number in range(14, 20):
        assert back.advance(number, run_id="u") == expected[number]


@one_of_each_variant
def test_every_operator_gives_the_same_rows_and_state(case: Case, tmp_path: Path) -> None:
    script = case.random_script(5, batches=6)
    local = run_stored(case.plan(), script, StateDir(tmp_path / "local"))
    stored = run_stored(case.plan(), script, Host(tmp_path / "cache", {}).directory, repeat=True)
    assert stored.per_batch == local.per_batch
    assert stored.digests == local.digests
