"""Every kind of file damaged in every way: the right error, or the right answer. Never a wrong row.

A world is a directory with all kinds of files and a way to use them to the end: the record of the join is read, the
history is read, and the rest of the script runs as after a restart, so that every live byte is wanted at some time.
"""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import watersmeet as wm
import watersmeet.state.segments
from tests.conformance.cases import CASES, progressive
from watersmeet.engine.runtime import run_batch
from watersmeet.errors import CorruptStateError, StateDirError, StateError, StateFormatError
from watersmeet.join.join_type import MATCHED
from watersmeet.plan import JoinPlan
from watersmeet.plan.metrics import Metrics
from watersmeet.semistream.master_registry import Registration, register_join, registered_joins
from watersmeet.semistream.master_table import MasterTable
from watersmeet.state.directory import StateDir, seal, unseal
from watersmeet.state.history import metrics_history, newest_manifests
from watersmeet.state.identity import register_join as record_join
from watersmeet.state.manifest import Manifest
from watersmeet.state.operator_state import OperatorState
from watersmeet.state.run import resident_run
from watersmeet.state.shelf import StoreState
from watersmeet.state.store import PartitionStore
from watersmeet.testing import Arrival, Script, batch_of, random_script, run_stored
from watersmeet.testing.arrivals import Row
from watersmeet.testing.harness import rows_of
from watersmeet.testing.masters import semi_stream_plan, write_master

FLIPS = 200
MARK_FLIPS = 50  # short files of one column, in every family
DONE = 7  # batches before the damage
PART = "state/part-00000"
MANIFEST = re.compile(r"v-(\d{12})\.json")


@dataclass
class World:
    """A directory to be damaged, and what it must give."""

    folder: Path
    plan: Callable[[Path], JoinPlan]
    script: Script
    answer: Counter[Row]

    def use(self, folder: Path) -> Counter[Row]:
        """Everything that a restart does with the directory: the rows of the rest of the script."""
        plan, directory = self.plan(folder), StateDir(folder / "state")
        record_join("test", directory, plan)
        for manifest in newest_manifests(directory):
            batches = [entry["batch"] for entry in metrics_history(directory, manifest)]
            first = 0 if (folder / PART / "metrics-0-000000.json").exists() else 4
            assert batches == list(range(first, manifest.version + 1))
        if (folder / "master").exists():
            registered_joins(str(folder / "master"))
            table = MasterTable(str(folder / "master"))
            assert table.description.id == "in-process"
            assert table.version(table.newest)["rows"] == 60
        found: Counter[Row] = Counter()
        for number in range(DONE, len(self.script)):
            batch = batch_of(plan, number, self.script[number])
            found += rows_of(run_batch(plan, directory, 0, batch, run_id=f"restarted-{number}"))
        return found

    def kinds(self) -> dict[str, list[str]]:
        """The files by kind."""
        newest = PartitionStore(StateDir(self.folder / "state"), 0).manifest(DONE - 1)
        tier = {f"{PART}/{entry.file}": entry.tier for entry in newest.runs}
        for entry in newest.tables:
            tier[f"{PART}/{entry.file}"] = "marks" if entry.name.startswith(f"{MATCHED}.") else "side table"
        found: dict[str, list[str]] = {}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if not path.is_file():
                continue
            if name.startswith(PART):
                kind = {"v": "manifest", "m": "segment"}.get(path.name[0]) or tier.get(name, "old run")
            else:
                kind = "chunk" if path.suffix == ".arrow" else "document of the table"
                kind = {"join.json": "join record"}.get(path.name, kind)
            found.setdefault(kind, []).append(name)
        return found


@pytest.fixture(scope="module", autouse=True)
def short_segments() -> Iterator[None]:
    before, watersmeet.state.segments.SEGMENT = watersmeet.state.segments.SEGMENT, 4
    yield
    watersmeet.state.segments.SEGMENT = before


# Worlds with marks of rows that have matched, a join of each family; under a budget some rows are in memory still.
OUTER = {
    **{
        f"{family}, full": next(case for case in CASES if case.name == name)
        for family, name in (
            ("progressive", "symmetric, full"),
            ("window", "window-full, HN"),
            ("punctuated", "punctuated, full"),
        )
    },
    "budget, full": replace(progressive.case("xjoin", 100, 2), how="full"),
}


@functools.cache
def world(name: str) -> World:
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(_keep(tempfile.TemporaryDirectory(prefix="watersmeet-corruption-", dir=place)).name)
    if name == "two streams":
        case = next(case for case in CASES if case.name == "rpj-md memory_rows=10 idle_pages=2")
        script = random_script(5, batches=DONE + 1, batch_rows=6, keys=4, idle_share=0.0)
        made = World(folder, lambda folder: case.plan(), script, Counter())
    elif name == "promises":  # side tables: promises, marks of purged rows, orders of values
        case = next(case for case in CASES if case.name == "punctuated, many-to-many")
        script = case.random_script(5, batches=DONE + 1, batch_rows=40, keys=60, idle_share=0.0)
        made = World(folder, lambda folder: case.plan(), script, Counter())
    elif name in OUTER:
        case = OUTER[name]
        script = case.random_script(5, batches=DONE + 1, batch_rows=20, keys=40, idle_share=0.0)
        made = World(folder, lambda folder: case.plan(), script, Counter())
    elif name == "master table, left":  # rows wait for chunks in any order, and remember whether they have matched
        write_master(str(folder / "master"), [(key, key, "m") for key in range(60)], chunk_rows=7, layout="arrival")
        rows = [[(key, 100 * n + key, "s") for key in range(n % 2, 90, 2)] for n in range(DONE + 1)]
        ends = [frozenset({"stream"} if n == DONE else ()) for n in range(DONE + 1)]
        script = [Arrival({"stream": new}, ended=ended) for new, ended in zip(rows, ends, strict=True)]
        tuning = {"max_delay": 3, "idle_chunks": 0}
        options = {"policy": "mesh"}
        made = World(
            folder,
            lambda at: semi_stream_plan(str(at / "master"), options, tuning, how="left"),
            script,
            Counter(),
        )
    else:
        # Two versions that differ, so that taking one for the other is seen.
        for extra in (0, 500):
            rows = [(key, key + extra, "m") for key in range(60)]
            write_master(str(folder / "master"), rows, chunk_rows=7)
        arrivals = [{"stream": [(key, 100 * n + key, "s") for key in range(60)]} for n in range(DONE + 1)]
        last = len(arrivals) - 1
        script = [Arrival(rows, ended=frozenset({"stream"} if n == last else ())) for n, rows in enumerate(arrivals)]
        tuning = {"version": 2, "max_delay": 3, "idle_chunks": 0}
        made = World(folder, lambda at: semi_stream_plan(str(at / "master"), tuning=tuning), script, Counter())
        register_join(str(folder / "master"), Registration(str(folder / "state"), 2))
    directory = StateDir(folder / "state")
    directory.create()
    record_join("test", directory, made.plan(folder))
    run_stored(made.plan(folder), made.script[:DONE], directory)
    copy = damaged(made, {})
    made.answer = made.use(copy)
    shutil.rmtree(copy)
    assert made.answer
    return made


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _keep(made: tempfile.TemporaryDirectory[str]) -> tempfile.TemporaryDirectory[str]:
    _KEPT.append(made)
    return made


def damaged(made: World, changes: dict[str, bytes | None]) -> Path:
    """A copy of the world in which some files have other bytes, or are gone."""
    target = made.folder.with_name(f"{made.folder.name}-copy")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(made.folder, target, copy_function=os.link)
    for name, content in changes.items():
        (target / name).unlink()
        if content is not None:
            (target / name).write_bytes(content)
    return target


def outcome(made: World, changes: dict[str, bytes | None]) -> str:
    """ "error" or "answer"; anything else fails."""
    folder = damaged(made, changes)
    try:
        found = made.use(folder)
    except (StateError, StateDirError) as error:
        names = [Path(name).name for name in changes]
        versions = [f"version {int(found[1])}," for name in names if (found := MANIFEST.match(name))]
        if not any(name in str(error) for name in [*names, *versions]):
            pytest.fail(f"{error} does not name {names}")
        return "error"
    finally:
        shutil.rmtree(folder)
    assert found == made.answer
    return "answer"


KINDS = [
    ("two streams", "manifest"),
    ("two streams", "resident"),
    ("two streams", "spilled"),
    ("two streams", "segment"),
    ("two streams", "join record"),
    ("promises", "resident"),
    ("promises", "side table"),
    ("master table", "side table"),
    ("master table", "chunk"),
    ("master table", "document of the table"),
    *((name, "marks") for name in (*OUTER, "master table, left")),
]


def test_the_worlds_have_every_kind_of_file() -> None:
    for name, kind in KINDS:
        assert world(name).kinds()[kind], f"no {kind}"


def read(made: World, name: str) -> bytes:
    return (made.folder / name).read_bytes()


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_truncation_at_every_boundary(name: str, kind: str) -> None:
    made = world(name)
    rng = random.Random(f"{name} {kind}")
    files = made.kinds()[kind]
    seen: Counter[str] = Counter()
    for file in files if len(files) < 4 else [files[-1], *rng.sample(files[:-1], 2)]:
        content = read(made, file)
        if file.endswith(".arrow"):  # messages and buffers begin at multiples of 64 and 8
            ends = {*range(0, len(content), 64), *rng.sample(range(len(content)), 10)}
        else:  # a line with length and checksum, then one document
            head = content.index(b"\n")
            commas = [at for at, byte in enumerate(content) if byte in b",}"]
            ends = {0, 1, head, head + 1, len(content) - 2, *rng.sample(commas, min(20, len(commas)))}
        for end in sorted(ends):
            seen[outcome(made, {file: content[:end]})] += 1
    assert seen["error"] > 10


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_flipped_bytes(name: str, kind: str) -> None:
    made = world(name)
    rng = random.Random(f"{name} {kind}")
    files = made.kinds()[kind]
    seen: Counter[str] = Counter()
    flips = MARK_FLIPS if kind == "marks" else FLIPS
    for _ in range(flips):
        file = rng.choice(files)
        content = bytearray(read(made, file))
        content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        seen[outcome(made, {file: bytes(content)})] += 1
    assert seen["error"] > flips // 4


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_file_deleted_and_every_pair_swapped(name: str, kind: str) -> None:
    made = world(name)
    files = made.kinds()[kind]
    for file in files:
        outcome(made, {file: None})
    others = [other for group in made.kinds().values() for other in group]
    rng = random.Random(f"{name} {kind}")
    pairs = [(a, b) for a in files for b in others if a < b or b not in files]
    for first, second in rng.sample(pairs, min(30, len(pairs))):
        outcome(made, {first: read(made, second), second: read(made, first)})


def resealed(content: bytes, **changes: Any) -> bytes:
    """A document with other values and the checksum that fits them."""
    return seal({**unseal(content, "test"), **changes})


NEWEST = f"{PART}/v-{DONE - 1:012d}.json"


@pytest.mark.parametrize(
    "changes",
    [{"version": DONE - 2}, {"partition": 1}, {"query": "another"}, {"format": 3}, {"runs": None}, {"surprise": 1}],
    ids=str,
)
def test_a_manifest_that_belongs_elsewhere(changes: dict[str, Any]) -> None:
    made = world("two streams")
    folder = damaged(made, {NEWEST: resealed(read(made, NEWEST), **changes)})
    with pytest.raises(StateError, match=r"v-000000000006\.json|partition 0: expected state of query"):
        made.use(folder)


# As release 0.1.0 wrote them: runs with attributes, no stores, no side tables.
FORMAT_1_MANIFEST = {
    "version": DONE - 1,
    "partition": 0,
    "query": "in-process",
    "session": "session-6-0",
    "join": "",
    "attempt": "0",
    "runs": [
        {
            "file": "run-000000000006-0-0.arrow",
            "length": 1234,
            "checksum": "00f067aa0ba902b7",
            "label": "left",
            "tier": "resident",
            "rows": 10,
            "nbytes": 400,
            "oldest": 0,
            "newest": 6,
            "hash_sum": 12345,
            "shares": [],
            "live": None,
            "attributes": {"level": 1},
            "stored_rows": 10,
            "verified": "session-6-0",
        }
    ],
    "values": {},
    "ended": {},
    "finished": False,
    "history": [],
    "repeats": 0,
    "digest": "0af7651916cd43dd8448eb211c80319c",
    "format": 1,
}
FORMAT_1_JOIN = {
    "format": 1,
    "fingerprint": "4bf92f3577b34da6a3ce929d0e0e4736",
    "identity": {
        "operator": "rpj",
        "inputs": [["left", ["int64"], ["int64", "string"]], ["right", ["int64"], ["int64", "string"]]],
        "options": {"policy": "rpj"},
    },
    "partitions": 1,
}


@pytest.mark.parametrize(
    ("name", "content"), [(NEWEST, FORMAT_1_MANIFEST), ("state/join.json", FORMAT_1_JOIN)], ids=["manifest", "join"]
)
def test_state_of_format_1_is_refused(name: str, content: dict[str, Any]) -> None:
    made = world("two streams")
    folder = damaged(made, {name: seal(content)})
    with pytest.raises(StateFormatError) as error:
        made.use(folder)
    assert f"{folder}/{name}: expected state format 2, found format 1. " in str(error.value)
    assert "an older release of Watersmeet" in str(error.value)


@pytest.mark.parametrize("changes", [{"folder": "rows-of-another"}, {"partition": 1}, {"format": 1}], ids=str)
def test_a_document_of_the_table_that_belongs_elsewhere(changes: dict[str, Any]) -> None:
    made = world("master table")
    name = f"{MasterTable(str(made.folder / 'master')).version(2)['folder']}/part-00000.json"
    folder = damaged(made, {f"master/{name}": resealed(read(made, f"master/{name}"), **changes)})
    with pytest.raises(StateError, match=rf"{name}: expected (folder rows-|format 2)"):
        made.use(folder)


@pytest.mark.parametrize("changes", [{"version": 1}, {"format": 1}], ids=str)
def test_a_version_of_the_table_that_belongs_elsewhere(changes: dict[str, Any]) -> None:
    made = world("master table")
    name = "master/v-000002.json"
    folder = damaged(made, {name: resealed(read(made, name), **changes)})
    with pytest.raises(StateError, match=r"v-000002\.json: expected (version 2|format 2)"):
        made.use(folder)


@pytest.mark.parametrize("field", ["rows", "stored_rows", "length", "shares", "live"])
def test_a_manifest_that_claims_too_much_fails_at_once(field: str) -> None:
    made = world("two streams")
    body = unseal(read(made, NEWEST), "test")
    index = next(i for i, entry in enumerate(body["runs"]) if entry["tier"] == "spilled")
    huge: dict[str, Any] = {"shares": [[0, 1, 1 << 60]], "live": [[0, 1 << 60]]}
    body["runs"][index] |= {field: huge.get(field, 1 << 60)}
    folder = damaged(made, {NEWEST: seal(body)})
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptStateError, match=r"adds up|1152921504606846976 bytes"):
        made.use(folder)
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("field", ["rows", "length"])
def test_a_manifest_that_claims_too_much_of_a_side_table_fails_at_once(field: str) -> None:
    made = world("promises")
    body = unseal(read(made, NEWEST), "test")
    said = [entry for entry in body["tables"] if not entry["store"]]
    assert said
    for entry in said:
        entry[field] = 1 << 60
    folder = damaged(made, {NEWEST: seal(body)})
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptStateError, match=r"run-.*\.arrow: expected 1152921504606846976 (rows|bytes)"):
        made.use(folder)
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("tier", ["resident", "spilled"])
@pytest.mark.parametrize("factor", [2, 1 << 20, 1 << 40])
def test_a_run_file_that_claims_too_much_fails_at_once(tmp_path: Path, tier: str, factor: int) -> None:
    """Its checksum is right, so that the claim is believed until the rows are read."""
    rows = 12_345
    table = pa.table({"_hash": pa.array(range(rows), pa.uint64()), "_p0": pa.array(["x" * 9] * rows)})
    store = PartitionStore(StateDir(tmp_path), 0)
    store.load(0, "q", "s")
    space = store.space(0, "0")
    run = resident_run("left", table, oldest=0, newest=0)
    if tier == "spilled":
        run = space.spill("left", [(0, table)], oldest=0, newest=0)
    state = OperatorState([StoreState("left", "left", run.rows, [run], {}, {})])
    manifest = store.commit(Manifest(0, 0, "q", "s"), state, space, Metrics(), {}, 0)
    (entry,) = manifest.runs
    path = tmp_path / "part-00000" / entry.file
    content = path.read_bytes()
    for size in (rows, 8 * rows, 9 * rows, 4 * (rows + 1)):  # rows, and the bytes of each buffer
        content = content.replace(struct.pack("<q", size), struct.pack("<q", size * factor))
    assert content != path.read_bytes()
    path.write_bytes(content)
    manifest.runs = [replace(entry, checksum=xxhash.xxh3_64_hexdigest(content))]
    before = pa.total_allocated_bytes()
    (found,) = store.state(manifest, "restarted").runs
    with pytest.raises(CorruptStateError, match=re.escape(entry.file)):
        found.table if tier == "resident" else list(found.read(0))
    assert pa.total_allocated_bytes() - before < 1 << 24


@pytest.mark.parametrize("damage", ["flipped", "another input", "cut short"])
def test_a_damaged_control_marker_fails_the_batch(spark: SparkSession, tmp_path: Path, damage: str) -> None:
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
    left, right = (
        spark.readStream.schema(f"k long, {side} long").parquet(str(tmp_path / side)) for side in ("left", "right")
    )
    joined = wm.progressive_join(left, right, "k", state_dir=tmp_path / "state")
    wm.end_input(tmp_path / "state", "left")
    (marker,) = (tmp_path / "state" / "control").glob("*.json")
    content = marker.read_bytes()
    changed = {
        "flipped": content.replace(b"left", b"lefu"),
        "another input": content.replace(b"left", b"right"),
        "cut short": content[: len(content) // 2],
    }
    marker.write_bytes(changed[damage])
    writer = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    cause = wm.error(caught.value)
    assert isinstance(cause, CorruptStateError)
    assert str(cause).startswith("progressive_join, control marker file:")
    assert str(cause).endswith(
        f"{marker.name}: expected a marker with its seal, found a damaged one. Delete it, and send it again."
    )
