"""Every operator alone, in process: what a batch costs in CPU time, and how that compares with another source tree.

    python benchmarks/operators.py [NAME ...] [--rows 20000] [--batches 40]
    python benchmarks/operators.py [NAME ...] --against REVISION [--pairs 7]     or a folder: --against ../other/src

Seeded batches go through `run_batch` over a local state directory, as in a Spark task but without Spark: load a
version, join, store, commit. All inputs end with the last batch, so what is owed is paid within the run, and the number
of results is compared with one that is counted apart. With `--against` both trees take turns batch by batch, each in a
process of its own, in several pairs of fresh processes. Of every batch the median over the pairs counts, and the figure
is the ratio of the sums of these medians, so that what disturbs one side for a moment does not count. Only the CPU time
inside `run_batch` does, so that the making of the input does not matter. Modules may have moved since the other tree
(`older_tree.py`). A comparison of all workloads is kept in `results/operators.json`.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import HASH, hash_keys, payload_name
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch
from watersmeet.plan import JoinPlan
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.state.directory import StateDir
from watersmeet.testing import make_plan
from watersmeet.testing.arrivals import PAYLOAD
from watersmeet.testing.masters import STREAM, semi_stream_plan, write_master

HERE = Path(__file__).resolve().parent
SECOND = 1_000_000
SPAN = 10  # batches over which a key can come, where keys slide, and the length of the windows
IDLE_EVERY = 10  # the last of so many batches has no rows
ROW_BYTES = 40
MASTER_SHARE = 5  # the master table has so many times the rows of a batch
TEXTS = pa.array([f"text {number:05d}" for number in range(1000)])

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """An operator with its options, and what its batches look like."""

    operator: str
    inputs: tuple[str, ...] = ("left", "right")
    options: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    window: int | None = None  # in batches
    slides: bool = False  # keys move on with time, otherwise they stay the same
    promises: bool = False  # keys that are over are punctuated
    budget: float | None = None  # bytes in memory as a share of all
    ratio: int = 1  # rows of the last input for one of the others
    late: float = 0.0  # the share of rows that are a few batches late
    combines: bool = False  # whether runs on disk are combined while rows come, which release 0.1.0 never did
    beside: str = ""  # what rows have beside the usual: one of `BESIDE`

    def plan(self, rows: int, batches: int, folder: str) -> JoinPlan:
        """The plan; `folder` is for the master table of a semi-stream join."""
        tuning = dict(self.tuning)
        if self.budget is not None:
            tuning["memory"] = int(self.budget * len(self.inputs) * rows * batches * ROW_BYTES)
        progressive = self.operator in ("rpj", "xjoin", "hmj") and "combine_runs" in ProgressiveOptions.model_fields
        if progressive and not self.combines:
            tuning["combine_runs"] = 0
        if self.operator != "semi_stream":
            payload = (*PAYLOAD, *(column.type for column in self._beside(np.random.default_rng(0), 1)))
            return make_plan(self.operator, self.inputs, self.options, payload=payload, tuning=tuning)
        keys = range(0, 2 * MASTER_SHARE * rows, 2)
        layout = "hash" if self.options["policy"] == "aligned" else "arrival"
        write_master(folder, [(key, key, "master") for key in keys], chunk_rows=max(64, rows // 8), layout=layout)
        return semi_stream_plan(folder, self.options, tuning)

    def batches(self, plan: JoinPlan, rows: int, count: int) -> Iterator[Batch]:
        """Seeded batches; all inputs end with the last."""
        for number in range(count):
            rng = np.random.default_rng(number)
            idle = number % IDLE_EVERY == IDLE_EVERY - 1
            tables = {name: self._table(rng, number, name, 0 if idle else rows, count) for name in self.inputs}
            promised = {name: self._promises(number, rows) for name in self.inputs if self.promises and number >= SPAN}
            ended = frozenset(self.inputs if number == count - 1 else ())
            yield Batch(number, (number + 1) * 2 * SECOND, tables, promised, ended)

    def _table(self, rng: np.random.Generator, number: int, name: str, rows: int, batches: int) -> pa.Table:
        rows *= self.ratio if name == self.inputs[-1] else 1
        if self.operator == "semi_stream":
            hot = rng.random(rows) < 0.5
            keys = np.where(hot, rng.integers(0, 100, rows), rng.integers(0, 2 * MASTER_SHARE * max(1, rows), rows))
        elif self.slides:
            keys = number * rows + rng.integers(0, SPAN * max(1, rows), rows)
        else:
            keys = rng.integers(0, max(1, rows) * batches // 2, rows)
        back = np.where(rng.random(rows) < self.late, rng.integers(0, 3, rows), 0) * SECOND
        times = number * SECOND + rng.integers(0, SECOND, rows) - back
        texts = TEXTS.take(pa.array(rng.integers(0, len(TEXTS), rows)))
        columns = [pa.array(keys, pa.int64()), pa.array(times, pa.int64()), texts, *self._beside(rng, rows)]
        hashes = pa.array(hash_keys(columns[:1]), pa.uint64())
        names = [payload_name(place) for place in range(len(columns) - 1)]
        return pa.Table.from_arrays([hashes, *columns], names=[HASH, "_k0", *names])

    def _beside(self, rng: np.random.Generator, rows: int) -> list[pa.Array]:
        return BESIDE[self.beside](rng, rows)

    def _promises(self, number: int, rows: int) -> pa.Table:
        """Keys below those of the next batch are over: a range for half of them, values for the others."""
        low, high = number * rows, (number + 1) * rows
        middle = high - min(rows // 2, 500)
        patterns = [Pattern.between(low, middle, closed="left"), *(Pattern.value(key) for key in range(middle, high))]
        return punctuation_table([pa.int64()], [[pattern] for pattern in patterns])


def texts_of(rng: np.random.Generator, rows: int, length: int) -> pa.Array:
    """Texts of one length."""
    ends = np.arange(0, (rows + 1) * length, length, dtype=np.int32)
    letters = rng.integers(97, 123, rows * length, dtype=np.uint8)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(letters)])


def wide(rng: np.random.Generator, rows: int) -> list[pa.Array]:
    """7 whole numbers, 3 doubles, 2 times and 6 texts of 64 characters: with the rest about 500 bytes."""
    numbers = [pa.array(rng.integers(0, 1 << 40, rows)) for _ in range(9)]
    times = [column.cast(pa.timestamp("us", "UTC")) for column in numbers[7:]]
    return [
        *numbers[:7],
        *(pa.array(rng.random(rows)) for _ in range(3)),
        *times,
        *(texts_of(rng, rows, 64) for _ in range(6)),
    ]


def nested(rng: np.random.Generator, rows: int) -> list[pa.Array]:
    """A struct with a text, an array and a map, about 200 bytes."""
    pair = [pa.array(rng.integers(0, 1 << 30, rows)), texts_of(rng, rows, 40)]
    eight, two = (pa.array(np.arange(rows + 1, dtype=np.int32) * times) for times in (8, 2))
    keys = pa.array(["a", "b"]).take(pa.array(np.tile([0, 1], rows)))
    return [
        pa.StructArray.from_arrays(pair, names=["a", "b"]),
        pa.ListArray.from_arrays(eight, pa.array(rng.integers(0, 1 << 40, 8 * rows))),
        pa.MapArray.from_arrays(two, keys, texts_of(rng, 2 * rows, 20)),
    ]


BESIDE = {"": lambda rng, rows: [], "wide": wide, "nested": nested}


def windowed(algorithm: str, **more: Any) -> Workload:
    """A window join by event time."""
    options = {"window": [SPAN * SECOND] * 2, "lateness": 3 * SECOND, "time_columns": ["_p0", "_p0"]}
    return Workload("window", options=options, tuning={"algorithm": algorithm}, window=SPAN, late=0.05, **more)


def promised(**more: Any) -> Workload:
    """A join of keys that slide, their ends promised."""
    return Workload("punctuated", slides=True, promises=True, **more)


def mastered(policy: str) -> Workload:
    """A stream with a master table."""
    return Workload("semi_stream", (STREAM,), {"policy": policy}, {"max_delay": 5, "memory": 4_000_000})


ABC = ("a", "b", "c")
WINDOWED = {"window": SPAN * SECOND, "lateness": 3 * SECOND, "time": dict.fromkeys(ABC, "_p0")}
WORKLOADS = {
    "symmetric": Workload("symmetric"),
    "symmetric-wide": Workload("symmetric", beside="wide"),
    "symmetric-nested": Workload("symmetric", beside="nested"),
    "rpj": Workload("rpj", options={"policy": "rpj"}, budget=0.4),
    "xjoin": Workload("xjoin", options={"policy": "xjoin"}, budget=0.4),
    "hmj": Workload("hmj", options={"policy": "hmj"}, budget=0.4),
    "xjoin-combining": Workload("xjoin", options={"policy": "xjoin"}, budget=0.4, combines=True),
    "hmj-combining": Workload("hmj", options={"policy": "hmj"}, budget=0.4, combines=True),
    "window-HH": windowed("HH"),
    "window-NN": windowed("NN"),
    "window-auto": windowed("auto", ratio=4),
    "window-wide": windowed("HH", beside="wide"),
    "window-disk": windowed("HH", budget=0.1),
    "mjoin": Workload("mjoin", ABC),
    "mjoin-wide": Workload("mjoin", ABC, beside="wide"),
    "mjoin-window": Workload("mjoin", ABC, WINDOWED, window=SPAN, late=0.05, slides=True),
    "punctuated": Workload("punctuated"),
    "punctuated-promises": promised(),
    "punctuated-memory": promised(budget=0.1),
    "semi-aligned": mastered("aligned"),
    "semi-ssbj": mastered("ssbj"),
    "semi-mesh": mastered("mesh"),
}


def expected(work: Workload, batches: list[Batch], rows: int) -> int:
    """The number of results, counted without any operator.

    A combination is counted at its earliest row: by how many rows of every other input have its key and come within
    the window after it. Of equal times that of the earlier input counts as earlier.
    """
    keys, times = {}, {}
    for name in work.inputs:
        tables = [batch.rows[name] for batch in batches]
        keys[name] = np.concatenate([table.column("_k0").to_numpy() for table in tables])
        times[name] = np.concatenate([table.column("_p0").to_numpy() for table in tables])
    if work.operator == "semi_stream":
        found = keys[STREAM]
        return int(np.count_nonzero((found % 2 == 0) & (found < 2 * MASTER_SHARE * rows)))
    start = min(int(column.min()) for column in times.values())
    scale = 4 * max(int(column.max()) - start + 1 for column in times.values())  # a key's times are one stretch
    reach = scale // 4 if work.window is None else work.window * SECOND
    places = {name: keys[name] * scale + times[name] - start for name in work.inputs}
    ordered = {name: np.sort(column) for name, column in places.items()}
    total = 0
    for mine, name in enumerate(work.inputs):
        combinations: Numbers = np.ones(len(places[name]), np.int64)
        for theirs, other in enumerate(work.inputs):
            if other != name:
                side = "left" if mine < theirs else "right"
                first = np.searchsorted(ordered[other], places[name], side=side)
                combinations *= np.searchsorted(ordered[other], places[name] + reach, side="right") - first
        total += int(combinations.sum())
    return total


def measure(name: str, rows: int, count: int) -> Iterator[tuple[float, int, int]]:
    """Run a workload: CPU seconds, results and files written, batch by batch."""
    work = WORKLOADS[name]
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as folder:
        plan, directory = work.plan(rows, count, f"{folder}/master"), StateDir(f"{folder}/state")
        batches = list(work.batches(plan, rows, count))
        owed, got, known = expected(work, batches, rows), 0, set[str]()
        warm_up(work, plan, StateDir(f"{folder}/warm"))
        gc.collect()
        gc.freeze()
        for batch in batches:
            started = process_time()
            results = sum(table.num_rows for table in run_batch(plan, directory, 0, batch))
            spent = process_time() - started
            there = set(os.listdir(f"{folder}/state/part-00000"))
            yield spent, results, len(there - known)
            known, got = there, got + results
        if got != owed:
            sys.exit(f"{name}: {got:,} results, expected {owed:,}")


def warm_up(work: Workload, plan: JoinPlan, directory: StateDir) -> None:
    """A few small batches, so that what is imported when it is first used is not measured."""
    for batch in work.batches(plan, 10, SPAN + 2):
        for _ in run_batch(plan, directory, 0, batch):
            pass


def serve(name: str, rows: int, count: int) -> None:
    """A side of a comparison: a batch for every line that is read."""
    for measured in measure(name, rows, count):
        sys.stdin.readline()
        print(*measured, flush=True)


class Side:
    """A process that runs a workload with one of the trees."""

    def __init__(self, source: Path, name: str, rows: int, count: int) -> None:
        script = [str(HERE / "older_tree.py"), __file__, name, "--serve"]
        command = [sys.executable, *script, "--rows", str(rows), "--batches", str(count)]
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.seconds: list[float] = []
        self.results = self.files = 0

    def step(self) -> None:
        """One batch."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().split()
        if not line:
            sys.exit(f"a run has failed with exit code {self.process.wait()}")
        self.seconds.append(float(line[0]))
        self.results += int(line[1])
        self.files += int(line[2])

    def close(self) -> None:
        """The end: the count of results has been checked there."""
        self.process.communicate()
        if self.process.returncode:
            sys.exit(f"a run has failed with exit code {self.process.returncode}")


@contextmanager
def source_of(tree: str) -> Iterator[Path]:
    """The source folder of another tree: a folder as it is, or that of a revision of this repository."""
    if Path(tree).is_dir():
        yield Path(tree).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as folder:
        archive = subprocess.run(["git", "archive", tree, "src"], cwd=HERE.parent, capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder, "src")


def compare(name: str, other: Path, rows: int, count: int, pairs: int) -> dict[str, Any]:
    """Both trees in turns; prints one line."""
    trees = {"old": other, "new": HERE.parent / "src"}
    ratios: list[float] = []
    seconds: dict[str, list[list[float]]] = {tree: [[] for _ in range(count)] for tree in trees}
    for pair in range(pairs):
        sides = {tree: Side(source, name, rows, count) for tree, source in trees.items()}
        for number in range(count):
            for tree in sorted(sides, reverse=(number + pair) % 2 == 0):
                sides[tree].step()
                seconds[tree][number].append(sides[tree].seconds[-1])
        for side in sides.values():
            side.close()
        ratios.append(sum(sides["old"].seconds) / sum(sides["new"].seconds))
    typical = {tree: [statistics.median(some) for some in seconds[tree]] for tree in trees}
    ratio = sum(typical["old"]) / sum(typical["new"])
    medians = {tree: statistics.median(typical[tree]) * 1e3 for tree in trees}
    files = "/".join(f"{sides[tree].files / count:.1f}" for tree in trees)
    print(
        f"{name:20} {rows:>7,} rows  median batch {medians['old']:7.2f} -> {medians['new']:7.2f} ms  files {files:9}"
        f"  old/new {ratio:.3f}  (pairs {min(ratios):.3f} to {max(ratios):.3f})",
        flush=True,
    )
    return {
        "old_over_new": round(ratio, 3),
        "of_the_pairs": [round(one, 3) for one in sorted(ratios)],
        "median_batch_ms": {tree: round(value, 2) for tree, value in medians.items()},
    }


def main() -> None:
    """Measure this tree, or compare it with another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--rows", type=int, default=20_000, help="rows of an input in a batch")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--against", help="a revision, or the src folder of another tree")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = set(given.names) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    if given.against:
        with source_of(given.against) as other:
            sizes = given.rows, given.batches, given.pairs
            found = {name: compare(name, other, *sizes) for name in given.names or WORKLOADS}
        if not given.names:
            whole = {"against": given.against, "rows": given.rows, "batches": given.batches, "workloads": found}
            (HERE / "results" / "operators.json").write_text(json.dumps(whole, indent=2) + "\n")
        return
    for name in given.names or WORKLOADS:
        if given.serve:
            serve(name, given.rows, given.batches)
        else:
            seconds, results, files = zip(*measure(name, given.rows, given.batches), strict=True)
            print(
                f"{name:20} {given.rows:>7,} rows  median batch {statistics.median(seconds) * 1e3:7.2f} ms  "
                f"all {sum(seconds):6.2f} s  files {sum(files) / len(files):4.1f} a batch  {sum(results):,} results",
                flush=True,
            )


if __name__ == "__main__":
    main()
