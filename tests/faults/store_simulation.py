"""The schedules of `simulation` on an object store: besides deaths, zombies and restarts, requests go wrong.

A step is a request. A process may die at one, before or after the store has done it, or stand still there. Any request
may fail (500, 503, a reset) or be done without an answer (a timeout), and is sent again. Attempts run on two hosts,
whose caches are damaged now and then.

What must hold is the same: every attempt that comes to its end gives the rows and the state of the undisturbed run, and
in the end the store has the objects that the last version names, the history, and nothing else. A zombie of an earlier
run of the query may be told that it is not alone.
"""

from __future__ import annotations

import functools
import itertools
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.conformance.cases import CASES
from tests.faults.faulty_dir import Fate
from tests.faults.memory_blobs import FaultyBlobs, MemoryBlobs, Objects
from tests.faults.simulation import (
    BATCHES,
    FOLDER,
    QUERY,
    SCRIPTS,
    Attempt,
    Schedule,
    scratch,
    segment_files,
    simulated,
    undisturbed,
    variants,
)
from watersmeet.engine.registry import OPERATORS
from watersmeet.engine.runtime import run_batch
from watersmeet.errors import StateMismatchError
from watersmeet.state import store as store_module
from watersmeet.state.directory import stretch
from watersmeet.state.object_dir import ObjectDir
from watersmeet.state.store import PartitionStore
from watersmeet.storage.cache import HostCache
from watersmeet.storage.retrying import RetryingBlobs
from watersmeet.testing.harness import rows_of

URI = "s3a://lake/state"
HOSTS = 2
GOES_WRONG = 0.08  # of the requests
DAMAGED = 0.2  # of the attempts find a damaged cache

T = TypeVar("T")


class FatedBlobs(FaultyBlobs):
    """A store as one simulated process sees it."""

    def __init__(self, objects: Objects, fate: Fate, fault: Callable[[str], str | None]) -> None:
        super().__init__(fault, objects)
        self.fate = fate

    def _asked(self, kind: str, request: Callable[[], T]) -> T:
        # A file that is fetched is asked for inside of a `cached_property` (see `faulty_dir`).
        self.fate.step(lambda share: request() if share > 0.5 else None, may_pause=kind != "range")
        return super()._asked(kind, request)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self._asked("range", lambda: MemoryBlobs.get_range(self, name, start, length))


@functools.cache
def quiet_objects(index: int, script: int) -> tuple[list[Objects], list[int]]:
    """The objects after each batch of the undisturbed run, and the requests of each batch."""
    base = undisturbed(index, script)
    objects: Objects = {}
    found, requests = [], []
    folder = scratch() / f"quiet-{index}-{script}"
    for batch in base.batches:
        fate = Fate()
        directory = opened(FatedBlobs(objects, fate, lambda kind: None), HostCache(folder, 1 << 30))
        rows_of(run_batch(base.plan, directory, 0, batch, query=QUERY, run_id=f"quiet-{batch.number}"))
        found.append(dict(objects))
        requests.append(fate.steps)
    shutil.rmtree(folder, ignore_errors=True)  # a join that keeps nothing never makes it
    return found, requests


def opened(blobs: MemoryBlobs, cache: HostCache) -> ObjectDir:
    """A directory over a simulated store."""
    made = ObjectDir(URI, RetryingBlobs(blobs, URI, pause=lambda seconds: None))
    made.cache = cache
    return made


class StoreWorld:
    """The store that all simulated processes share, and the hosts that they run on."""

    def __init__(self, objects: Objects, folder: Path, rng: random.Random) -> None:
        self.objects, self.folder, self.rng = dict(objects), folder, rng

    @property
    def directory(self) -> ObjectDir:
        """As it is seen from outside."""
        return opened(MemoryBlobs(self.objects), HostCache(self.folder / "outside", 1 << 30))

    def seen_by(self, fate: Fate) -> ObjectDir:
        """As a process with this fate sees it, on one of the hosts."""
        folder = self.folder / f"host-{self.rng.randrange(HOSTS)}"
        if self.rng.random() < DAMAGED:
            self.damage(folder)
        rng = random.Random(self.rng.random())

        def fault(kind: str) -> str | None:
            return rng.choice(("failed", "lost")) if rng.random() < GOES_WRONG else None

        return opened(FatedBlobs(self.objects, fate, fault), HostCache(folder, self.rng.choice((0, 1 << 30))))

    def damage(self, folder: Path) -> None:
        """Some entries are gone, cut off or wrong: as new files, since whoever has one open keeps it."""
        for path in sorted(folder.glob("[0-9a-f][0-9a-f]/*")):
            if self.rng.random() < 0.5:
                content = bytearray(path.read_bytes())
                path.unlink()
                if content and self.rng.random() < 0.7:
                    content[self.rng.randrange(len(content))] ^= 4
                    path.write_bytes(content[: self.rng.choice((len(content), len(content) // 2))])

    def end(self) -> None:
        """Nothing is left."""
        shutil.rmtree(self.folder, ignore_errors=True)


class StoreSchedule(Schedule):
    """One seed on an object store."""

    world: StoreWorld  # type: ignore[assignment]

    def __init__(self, operator: str, seed: int) -> None:
        self.rng = rng = random.Random(f"store {operator} {seed}")
        index, script = variants(operator)[seed % len(variants(operator))], rng.randrange(SCRIPTS)
        self.case, self.base = CASES[index], undisturbed(index, script)
        objects, self.requests = quiet_objects(index, script)
        self.first = rng.randrange(BATCHES)
        folder = scratch() / f"store-{operator}-{seed}"
        self.world = StoreWorld(objects[self.first - 1] if self.first else {}, folder, rng)
        self.last = min(self.first + rng.choices((1, 2, BATCHES), (8, 3, 1))[0], BATCHES) - 1
        self.attempts, self.runs = itertools.count(), itertools.count()
        self.run_id = self.new_run()
        self.zombies: list[tuple[int, Attempt]] = []
        self.log: list[str] = []

    def die(self, number: int) -> None:
        """As any other attempt."""
        self.go_wrong(number)

    def steps(self, number: int) -> int:
        """The requests of an undisturbed attempt."""
        return self.requests[number]

    def finish(self, zombie: Attempt) -> None:
        """A zombie does what it still wants to do, if it is let."""
        zombie.release()
        if isinstance(zombie.error, StateMismatchError) and zombie.run_id != self.run_id:
            self.note(zombie, "is told that it is not alone")
            zombie.error = None
        super().finish(zombie)

    def check_directory(self, newest: int) -> None:
        """The newest version, the packs it names, and the segments of the history. Nothing else."""
        store = PartitionStore(self.world.directory, 0)
        there = {name.removeprefix(f"{FOLDER}/") for name in self.world.objects}
        manifest = store.manifest(newest)
        entries = (*manifest.runs, *manifest.tables)
        wanted = {f"v-{newest:012d}.json", *(stretch(entry.file)[0] for entry in entries)}
        wanted |= segment_files(self.last) | segment_files(newest, newest)
        assert there == wanted, self.tell(f"left over: {there - wanted}, missing: {wanted - there}")
        for entry in entries:
            store.directory.open_verified(f"{FOLDER}/{entry.file}", entry.length, entry.checksum)


@contextmanager
def simulated_store() -> Iterator[None]:
    """The simulated world, in which every batch collects what is old."""
    every = store_module.COLLECT_EVERY
    store_module.COLLECT_EVERY = 1
    try:
        with simulated():
            yield
    finally:
        store_module.COLLECT_EVERY = every


def play(operator: str, seed: int) -> None:
    """Play one seed."""
    schedule = StoreSchedule(operator, seed)
    try:
        schedule.play()
    except Exception as error:
        told = "\n  ".join([str(error), *schedule.log])
        raise AssertionError(f"{schedule.case.name}, seed {seed} on an object store: {told}") from error


def main(seeds: int) -> None:
    """Play the seeds below a number for every operator."""
    with simulated_store():
        for operator in sorted(OPERATORS):
            for seed in range(seeds):
                play(operator, seed)
            print(f"{operator}: {seeds} seeds hold on an object store", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
