"""One seed, one schedule: an operator's batches with deaths, zombies, repeats and restarts, all on one directory.

    batch    4         4         4 (repeat)     5 ...
    attempt  a dies    b         c              d
             zombie z stands still ......... writes, after c has committed

A seed begins with a copy of an undisturbed run's directory after some batch, plays one or more batches with faults and
ends with a quiet one, late enough for collection to catch up. Everything that happens is drawn from the seed; simulated
processes take turns, so a schedule is the same every time.

What must hold: every attempt that comes to its end gives the rows and the state of the undisturbed run; an attempt that
follows only dead ones always succeeds; in the end the directory holds the kept versions and the files they name, whole,
and nothing else.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import shutil
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

import watersmeet.engine.runtime
from tests.conformance.cases import CASES
from tests.faults.faulty_dir import Crash, Fate, FaultyDir, FaultyMemoryDir, RealFaultyDir, die_at
from tests.faults.memory_dir import Files, MemoryDir
from watersmeet.engine.registry import OPERATORS
from watersmeet.engine.runtime import run_batch
from watersmeet.errors import CorruptStateError, MissingVersionError
from watersmeet.join.operator import Batch
from watersmeet.plan import JoinPlan
from watersmeet.plan.metrics import Metrics
from watersmeet.state import segments
from watersmeet.state.directory import StateDir
from watersmeet.state.manifest import Manifest
from watersmeet.state.store import KEEP, PartitionStore
from watersmeet.testing.arrivals import Row, batch_of
from watersmeet.testing.cases import Case
from watersmeet.testing.harness import rows_of

BATCHES = 6
SCRIPTS = 3
ON_DISK = 0.05  # of the schedules; the rest are played in memory
SEGMENT = FOLD = 2  # so that the history rolls over, and its files are folded, within a schedule
QUERY = "simulated"
FOLDER = "part-00000"


@functools.cache
def scratch() -> Path:
    """Where directories on a disk are; on one in memory if the system has such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    made = tempfile.TemporaryDirectory(prefix="watersmeet-simulation-", dir=place)
    _KEPT.append(made)
    return Path(made.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@dataclass(frozen=True)
class Undisturbed:
    """A fault-free run: what every batch gives, and the files after each."""

    plan: JoinPlan
    batches: list[Batch]
    rows: list[Counter[Row]]
    digests: list[str]
    fates: list[Fate]
    files: list[Files]


@functools.cache
def undisturbed(index: int, script: int) -> Undisturbed:
    """The fault-free run of a case's script."""
    case = CASES[index]
    plan = case.plan()
    # Few rows for many inputs; few keys and no silence for few rows, so that there are results.
    most, keys = {1: (4, 4), 2: (4, 4), 3: (3, 3), 4: (2, 2)}.get(len(case.inputs), (2, 1))
    shape = {"batch_rows": most, "keys": keys, "idle_share": 0.2 if most > 2 else 0.0, "end": script != 1}
    arrivals = case.random_script(1000 * index + script, batches=BATCHES, **shape)
    made = Undisturbed(plan, [batch_of(plan, n, a) for n, a in enumerate(arrivals)], [], [], [], [])
    live: Files = {}
    for batch in made.batches:
        fate = Fate()
        directory = FaultyMemoryDir(live, fate)
        results = run_batch(plan, directory, 0, batch, query=QUERY, run_id=f"quiet-{batch.number}")
        made.rows.append(rows_of(results))
        made.digests.append(PartitionStore(MemoryDir(live), 0).manifest(batch.number).digest)
        made.fates.append(fate)
        made.files.append(dict(live))
    return made


@functools.cache
def variants(operator: str) -> list[int]:
    """The places of an operator's cases in `CASES`, join types in turn: a few seeds play all types."""
    types: dict[str, list[int]] = {}
    for index, case in enumerate(CASES):
        if case.operator == operator:
            types.setdefault(case.how, []).append(index)
    return [index for turn in itertools.zip_longest(*types.values()) for index in turn if index is not None]


class World:
    """The directory that all simulated processes of a schedule share: in memory, or for a few on a disk."""

    def __init__(self, files: Files, disk: Path | None) -> None:
        self.files, self.disk = dict(files), disk
        self.directory = MemoryDir(self.files) if disk is None else StateDir(disk)
        if disk is not None:
            (disk / FOLDER).mkdir(parents=True)
            for name, file in files.items():
                (disk / name).write_bytes(file.content)

    def seen_by(self, fate: Fate) -> FaultyDir:
        """The directory as a process with this fate sees it."""
        return FaultyMemoryDir(self.files, fate) if self.disk is None else RealFaultyDir(str(self.disk), fate)

    def end(self) -> None:
        """Nothing is left."""
        if self.disk is not None:
            shutil.rmtree(self.disk)


@dataclass
class Attempt:
    """A simulated process that runs one batch."""

    schedule: Schedule
    number: int
    run_id: str
    name: str
    fate: Fate
    rows: Counter[Row] | None = None
    error: BaseException | None = None
    thread: threading.Thread | None = None

    def run(self) -> None:
        """Run to the end, or to the death."""
        base = self.schedule.base
        directory = self.schedule.world.seen_by(self.fate)
        try:
            results = run_batch(
                base.plan, directory, 0, base.batches[self.number], query=QUERY, run_id=self.run_id,
                attempt=self.name, join=f"join-{self.run_id}",
            )  # fmt: skip
            self.rows = rows_of(results)
        except Crash:
            pass
        except BaseException as error:
            self.error = error

    def start(self) -> bool:
        """Run until it stands still; False if it came to its end (or died) before."""
        self.thread = threading.Thread(target=self._run_in_thread, daemon=True)
        self.thread.start()
        self.fate.paused.wait()
        return self.rows is None and self.error is None and not self.fate.dead

    def _run_in_thread(self) -> None:
        self.run()
        self.fate.paused.set()

    def release(self) -> None:
        """Let a zombie go on, to its end."""
        assert self.thread is not None
        self.fate.released.set()
        self.thread.join()


class Schedule:
    """One seed."""

    def __init__(self, operator: str, seed: int) -> None:
        self.rng = rng = random.Random(f"{operator} {seed}")
        index = variants(operator)[seed % len(variants(operator))]
        self.case: Case = CASES[index]
        self.base = undisturbed(index, rng.randrange(SCRIPTS))
        self.first = rng.randrange(BATCHES)
        disk = scratch() / f"seed-{operator}-{seed}" if rng.random() < ON_DISK else None
        self.world = World(self.base.files[self.first - 1] if self.first else {}, disk)
        length = rng.choices((1, 2, BATCHES), (36, 3, 1))[0]
        self.last = min(self.first + length, BATCHES) - 1
        self.attempts = itertools.count()
        self.runs = itertools.count()
        self.run_id = self.new_run()
        self.zombies: list[tuple[int, Attempt]] = []  # the batch before whose end each goes on
        self.log: list[str] = []

    def play(self) -> None:
        """The whole schedule, checked."""
        try:
            for number in range(self.first, self.last + 1):
                self.batch(number)
            for _, zombie in self.zombies:
                self.finish(zombie)
            self.zombies = []
            self.check_directory(self.catch_up())
        finally:
            for _, zombie in self.zombies:
                zombie.fate.death = 0
                zombie.release()
            self.world.end()

    def batch(self, number: int) -> None:
        """A batch: attempts that go wrong, then one that does not, and perhaps once more from the beginning."""
        rng = self.rng
        if number == self.first and rng.random() < 0.7:
            self.die(number)
        else:
            self.go_wrong(number)
        while rng.random() < 0.15:
            self.go_wrong(number)
        self.complete(number)
        for due, zombie in [entry for entry in self.zombies if entry[0] <= number]:
            self.zombies.remove((due, zombie))
            self.finish(zombie)
            if rng.random() < 0.3:
                self.complete(number)
        if rng.random() < 0.1:  # the commit of the state was the last thing Spark's driver saw
            self.run_id = self.new_run()
            self.complete(number)

    def die(self, number: int) -> None:
        """The first attempt of all begins where the undisturbed one did: what it leaves is known without running it."""
        changes = self.base.fates[number].changes
        count = self.rng.randrange(len(changes) + 1)
        die_at(self.world.directory, changes, count, self.rng.random())
        self.log.append(f"batch {number}, first attempt dies after {count} of {len(changes)} changes")
        self.perhaps_restart()

    def go_wrong(self, number: int) -> None:
        """An attempt that dies somewhere, or stands still."""
        rng, steps = self.rng, self.steps(number)
        fate = Fate(torn=rng.random())
        where = rng.randrange(min(1, steps - 1), steps)
        if rng.random() < 0.6:
            fate.pause = where
            if rng.random() < 0.3:
                fate.death = where + rng.randrange(1, 10)
            zombie = self.attempt(number, fate)
            if zombie.start():
                self.note(zombie, f"stands still at step {where}")
                self.zombies.append((number + rng.choice((0, 0, 0, 1, 1, 2)), zombie))
            else:
                self.finish(zombie)
        else:
            fate.death = where
            dying = self.attempt(number, fate)
            dying.run()
            self.note(dying, f"dies at step {where}")
            self.check(dying)
        self.perhaps_restart()

    def steps(self, number: int) -> int:
        """The steps of an undisturbed attempt."""
        return self.base.fates[number].steps

    def perhaps_restart(self) -> None:
        if self.rng.random() < 0.3:
            self.run_id = self.new_run()

    def complete(self, number: int) -> None:
        """An attempt that nothing happens to: it must succeed."""
        attempt = self.attempt(number, Fate())
        attempt.run()
        self.note(attempt, "runs to its end")
        self.check(attempt)
        assert attempt.rows is not None

    def finish(self, zombie: Attempt) -> None:
        """A zombie does what it still wants to do. It may fail: its batch has long been done."""
        zombie.release()
        self.note(zombie, "goes on")
        if isinstance(zombie.error, (MissingVersionError, CorruptStateError)):
            zombie.error = None
        self.check(zombie)

    def check(self, attempt: Attempt) -> None:
        """Whoever came to the end gives the rows of the undisturbed run, and its state."""
        assert attempt.error is None, self.tell(f"{attempt.error!r}")
        if attempt.rows is not None:
            assert attempt.rows == self.base.rows[attempt.number], self.tell("other rows")
            store = PartitionStore(self.world.directory, 0)
            if store.directory.size(f"{FOLDER}/v-{attempt.number:012d}.json") is not None:
                manifest = store.manifest(attempt.number)
                assert manifest.digest == self.base.digests[attempt.number], self.tell("another state")
                assert manifest.repeats == 0, self.tell("a repeat differed")

    def catch_up(self) -> int:
        """A quiet batch, so much later that collection has caught up. Returns its number."""
        store = PartitionStore(self.world.directory, 0)
        number = self.last + KEEP + 1
        before = store.manifest(self.last)
        after = Manifest(number, 0, QUERY, "quiet", history=before.history)
        store.commit(after, store.state(before, "quiet"), store.space(number, "quiet"), Metrics(), {}, 0)
        store.collect(number)
        return number

    def check_directory(self, newest: int) -> None:
        """The newest version, the files it names, byte for byte, and the segments of the history. Nothing else."""
        store = PartitionStore(self.world.directory, 0)
        there = set(store.directory.list(FOLDER))
        manifest = store.manifest(newest)
        entries = {entry.file: entry for entry in (*manifest.runs, *manifest.tables)}
        wanted = {f"v-{newest:012d}.json"} | set(entries)
        wanted |= segment_files(self.last) | segment_files(newest, newest)
        assert there == wanted, self.tell(f"left over: {there - wanted}, missing: {wanted - there}")
        assert store.directory.list() == [FOLDER]
        for name, entry in entries.items():
            content = store.directory.read(f"{FOLDER}/{name}")
            found = (len(content), xxhash.xxh3_64_hexdigest(content))
            assert found == (entry.length, entry.checksum), self.tell(f"{name} is damaged")

    def attempt(self, number: int, fate: Fate) -> Attempt:
        return Attempt(self, number, self.run_id, f"a{next(self.attempts)}", fate)

    def new_run(self) -> str:
        return f"run-{next(self.runs)}"

    def note(self, attempt: Attempt, what: str) -> None:
        outcome = "" if attempt.rows is None else f", {sum(attempt.rows.values())} rows"
        self.log.append(f"batch {attempt.number}, {attempt.run_id}, attempt {attempt.name} {what}{outcome}")

    def tell(self, what: str) -> str:
        """A failure with everything that led to it."""
        return "\n  ".join([f"{self.case.name}: {what}", *self.log])


def segment_files(last: int, first: int = 0) -> set[str]:
    """The files with the history of batches `first` to `last`, each folded as often as it can be."""
    full = [number for number in range(last // SEGMENT + 1) if first <= (number + 1) * SEGMENT - 1 <= last]
    level, found = 0, set()
    while full:
        complete = [number for number in full if number % FOLD == FOLD - 1 and number - 1 in full]
        folded = {number - i for number in complete for i in range(FOLD)} if level < segments.TOP else set()
        found |= {f"metrics-{level}-{number:06d}.json" for number in full if number not in folded}
        level, full = level + 1, [number // FOLD for number in complete] if level < segments.TOP else []
    return found


@contextmanager
def simulated() -> Iterator[None]:
    """Short segments; a clock that never shows the same time twice; a repeat that differs is an error."""
    ticks = itertools.count()
    clock, sizes = watersmeet.engine.runtime.perf_counter, (segments.SEGMENT, segments.FOLD)
    watersmeet.engine.runtime.perf_counter = lambda: float(next(ticks) ** 2)  # type: ignore[assignment]
    segments.SEGMENT, segments.FOLD = SEGMENT, FOLD
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        watersmeet.engine.runtime.perf_counter = clock
        segments.SEGMENT, segments.FOLD = sizes


def replay_command(operator: str, seed: int) -> str:
    """What to type to see a seed again."""
    return f"python -m tests.faults.simulation {operator} {seed}"


def play(operator: str, seed: int) -> None:
    """Play one seed; a failure says how to play it again."""
    schedule = Schedule(operator, seed)
    try:
        schedule.play()
    except Exception as error:
        raise AssertionError(f"{error}\nreplay with: {replay_command(operator, seed)}") from error


def main() -> None:
    """Play one seed of an operator, or with `--seeds N` the seeds below N of every operator named (all if none is)."""
    import argparse

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("operator", nargs="?", choices=sorted(OPERATORS))
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--seeds", type=int, default=2000)
    given = parser.parse_args()
    with simulated():
        if given.seed is not None:
            play(given.operator, given.seed)
            print(f"seed {given.seed} of {given.operator} holds")
            return
        for operator in [given.operator] if given.operator else sorted(OPERATORS):
            for seed in range(given.seeds):
                play(operator, seed)
            print(f"{operator}: {given.seeds} seeds hold", flush=True)


if __name__ == "__main__":
    main()
