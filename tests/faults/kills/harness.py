"""Kills processes of a running pipeline with SIGKILL, again and again, and compares what it leaves with a plain join.

A victim is an executor, a Python worker or the driver. After the driver's death its executors live on for a while: real
zombies, whose tasks may still write. Only processes that this harness has started are ever touched.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

import watersmeet as wm

JOB = Path(__file__).with_name("job.py")
FAMILIES = {
    "progressive": ("left", "right"),
    "window": ("left", "right"),
    "multiway": ("a", "b", "c"),
    "punctuated": ("left", "right"),
    "semi_stream": ("stream",),
}
# The join types that are tried: beside pairs, rows that match nothing are owed once each.
TYPES = {
    "progressive": ("inner", "full"),
    "window": ("inner", "full", "left_anti"),
    "multiway": ("inner",),
    "punctuated": ("inner", "full"),
    "semi_stream": ("inner", "left"),
}
VICTIMS = ("worker", "executor", "driver")
START = datetime(2024, 2, 29, tzinfo=UTC)
WINDOW = timedelta(seconds=60)
ROWS, KEYS = 60, 40
LONELY, NULL = 0.2, 0.05  # of the rows, where unmatched ones are wanted: keys of their own, and no key
MULTIWAY_KEYS = 400  # the results grow with the cube of a key's rows
Row = tuple[Any, ...]


@dataclass
class Kills:
    """A run of one family with so many kills."""

    family: str
    folder: Path
    seed: int
    wanted: int
    how: str = "inner"
    files: int = 0
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"a": [], "b": [], "c": []})
    done: list[str] = field(default_factory=list)
    started: set[tuple[int, float]] = field(default_factory=set)
    lives: int = 0
    job: subprocess.Popen[bytes] | None = None

    def run(self, patience: float = 1800.0) -> None:
        """Live and die until there were enough kills, then let the inputs end and check the answer."""
        rng = random.Random(f"{self.family} {self.how} {self.seed}")
        deadline = time.monotonic() + patience
        self.feed(rng, 6)
        try:
            while len(self.done) < self.wanted:
                self.life(rng, deadline)
                self.feed(rng, 4)
            self.finish(deadline)
        finally:
            self.bury()
        found = output_rows(self.folder / "out")
        expected = self.expected()
        assert found == expected, (
            f"{self.family}, {self.how}, seed {self.seed}, after {self.done}: {sum((expected - found).values())} rows "
            f"are missing, {sum((found - expected).values())} are too many; replay with: python -m "
            f"tests.faults.kills.harness {self.family} --how {self.how} --seed {self.seed} --kills {self.wanted}"
        )

    def feed(self, rng: random.Random, files: int) -> None:
        """More micro-batches on every input."""
        for _ in range(files):
            for name in self.rows:
                if name == "b" and self.family == "semi_stream" and self.files:
                    continue  # the master table is what was there at first
                moments = [START + timedelta(seconds=self.files * 30 + rng.randrange(30)) for _ in range(ROWS)]
                numbers = [self.files * 1000 + i for i in range(ROWS)]
                keys = [self.key(rng, name, number) for number in numbers]
                new = list(zip(keys, numbers, moments, strict=True))
                self.rows[name] += new
                columns = [pa.array(column) for column in zip(*new, strict=True)]
                columns[2] = columns[2].cast(pa.timestamp("us", "UTC"))
                path = self.folder / name / f"{self.files:05d}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                hidden = path.with_name(f".{path.name}")
                pq.write_table(pa.table(columns, names=["k", name, f"{name}_time"]), hidden)
                os.utime(hidden, (1_700_000_000 + self.files,) * 2)
                hidden.rename(path)
            self.files += 1

    def key(self, rng: random.Random, name: str, number: int) -> int | None:
        """The key of a row. Where unmatched rows are wanted, some rows have none, and some a key of their own."""
        chance = rng.random() if self.how != "inner" else 1.0
        if chance < NULL:
            return None
        if chance < NULL + LONELY:
            return 10**6 * (1 + "abc".index(name)) + number
        return rng.randrange(MULTIWAY_KEYS if self.family == "multiway" else KEYS)

    def life(self, rng: random.Random, deadline: float) -> None:
        """One process of the driver, and kills until it is dead or has read everything.

        The first blow falls some time after tasks have begun: a driver that dies before proves nothing.
        """
        job = self.start()
        due: float | None = None
        kind = self.next_victim(rng)
        while job.poll() is None:
            assert time.monotonic() < deadline, f"{self.family} hangs after {self.done}"
            time.sleep(0.1)
            if len(self.done) >= self.wanted or not (self.has_state() and self.victims(job, "worker")):
                continue
            if due is None:
                due = time.monotonic() + rng.uniform(0.0, 4.0)
            victims = [job] if kind == "driver" else self.victims(job, kind)
            if victims and time.monotonic() >= due:
                self.note(job)
                self.kill(rng.choice(victims), job)
                self.done.append(kind)
                due, kind = time.monotonic() + rng.uniform(0.1, 4.0), self.next_victim(rng)
        self.check_exit(job)

    def next_victim(self, rng: random.Random) -> str:
        """One of each kind when there are only three."""
        return VICTIMS[len(self.done) % 3] if self.wanted <= 3 else rng.choice(VICTIMS)

    def finish(self, deadline: float) -> None:
        """A quiet life to the end of all inputs."""
        for ended in (False, True):
            if ended:
                for name in FAMILIES[self.family]:
                    wm.end_input(self.folder / "state", name)
            self.check_exit(job := self.start(), wait=deadline - time.monotonic())
            assert job.returncode == 0, self.log()

    def start(self) -> subprocess.Popen[bytes]:
        self.lives += 1
        environment = os.environ | {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self.folder / "log").open("wb") as log:
            self.job = subprocess.Popen(
                [sys.executable, str(JOB), self.family, self.how, str(self.folder)],
                env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self.job

    def victims(self, job: subprocess.Popen[bytes], kind: str) -> list[psutil.Process]:
        found = []
        for process in descendants(job.pid):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            wanted = "CoarseGrainedExecutorBackend" if kind == "executor" else "pyspark.daemon"
            if wanted in line:
                found.append(process)
        return found

    def kill(self, victim: psutil.Process | subprocess.Popen[bytes], job: subprocess.Popen[bytes]) -> None:
        if victim is job:  # the Python driver and its JVM are one to the cluster
            for process in psutil.Process(job.pid).children():
                process.kill()
            job.kill()
        else:
            victim.kill()

    def note(self, job: subprocess.Popen[bytes]) -> None:
        self.started |= {(process.pid, process.create_time()) for process in descendants(job.pid)}

    def bury(self) -> None:
        """End whatever was started here and still lives."""
        if self.job is not None and self.job.poll() is None:
            self.note(self.job)
            self.job.kill()
            self.job.wait()
        for pid, created in self.started:
            try:
                process = psutil.Process(pid)
                if process.create_time() == created:
                    process.kill()
            except psutil.Error:
                continue

    def has_state(self) -> bool:
        return any(self.folder.glob("state/part-*/v-*.json"))

    def check_exit(self, job: subprocess.Popen[bytes], wait: float | None = None) -> None:
        code = job.wait(wait)
        assert code in (0, -9), f"{self.family} after {self.done}: exit code {code}\n{self.log()}"

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def expected(self) -> Counter[Row]:
        """The plain join of everything that was fed."""
        names = {"multiway": "abc"}.get(self.family, "ab")
        groups: list[dict[int, list[Row]]] = []
        for name in names:
            by_key = defaultdict(list)
            for row in self.rows[name]:
                if row[0] is not None:
                    by_key[row[0]].append(row)
            groups.append(by_key)
        pairs: Counter[Row] = Counter()
        for key, first in groups[0].items():
            for rows in itertools.product(first, *(group.get(key, []) for group in groups[1:])):
                if self.family != "window" or abs(rows[0][2] - rows[1][2]) <= WINDOW:
                    pairs[(key, *(row[1] for row in rows))] += 1
        return pairs if self.how == "inner" else self.of_type(pairs)

    def of_type(self, pairs: Counter[Row]) -> Counter[Row]:
        """The answer of a join of two inputs that has these pairs. A row is told by its number."""
        alone = {}
        for at, name in enumerate("ab"):
            matched = {pair[1 + at] for pair in pairs}
            alone[name] = [row[:2] for row in self.rows[name] if row[1] not in matched]
        if self.how == "left_anti":
            return Counter(alone["a"])
        answer = pairs + Counter((key, number, None) for key, number in alone["a"])
        if self.how == "full":
            answer += Counter((key, None, number) for key, number in alone["b"])
        return answer


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def output_rows(folder: Path) -> Counter[Row]:
    """Key and numbers of every row in the files that the sink has committed."""
    logs = [path for path in (folder / "_spark_metadata").iterdir() if not path.name.startswith(".")]
    logs.sort(key=lambda path: int(path.name.split(".")[0]))
    compact = [at for at, path in enumerate(logs) if path.suffix == ".compact"]
    committed: dict[str, None] = {}
    for path in logs[compact[-1] if compact else 0 :]:
        for line in path.read_text().splitlines()[1:]:
            entry = json.loads(line)
            if entry["action"] == "add":
                committed[entry["path"]] = None
    found: Counter[Row] = Counter()
    for uri in committed:
        table = pq.read_table(folder / Path(uri).name)
        numbers = [name for name in table.column_names if not name.endswith("_time")]
        found.update(zip(*(table.column(name).to_pylist() for name in numbers), strict=True))
    return found


def main() -> None:
    """Kills for one family, or for all of them, with the join types that are tried with it."""
    import argparse
    import tempfile

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("family", nargs="?", choices=sorted(FAMILIES))
    parser.add_argument("--how", help="a join type (by default all that are tried with a family)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=25)
    given = parser.parse_args()
    for family in [given.family] if given.family else FAMILIES:
        for how in [given.how] if given.how else TYPES[family]:
            with tempfile.TemporaryDirectory(prefix="watersmeet-kills-") as folder:
                run = Kills(family, Path(folder), given.seed, given.kills, how)
                began = time.monotonic()
                run.run(patience=given.kills * 300.0)
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(run.done).items()))
            took = time.monotonic() - began
            print(f"{family}, {how}: {counts} killed, {run.lives} lives, {took:.0f} s, answer equal", flush=True)


if __name__ == "__main__":
    main()
