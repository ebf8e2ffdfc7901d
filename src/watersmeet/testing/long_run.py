"""Many small batches without a pause: what a batch costs must not depend on how many came before it.

Keys slide with time, as order numbers do: a batch has about as many partners in memory as the one before, and about
as many results. What was flushed stays on disk and is owed results, so the state grows for as long as the run lasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import HASH, hash_keys
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch
from watersmeet.plan import InputSpec, JoinPlan
from watersmeet.state.directory import StateDir
from watersmeet.state.manifest import Manifest
from watersmeet.state.store import PartitionStore
from watersmeet.testing.arrivals import make_plan
from watersmeet.testing.masters import STREAM, semi_stream_plan, write_master

SECOND = 1_000_000
MASTER_ROWS = 10_000
SPAN = 20  # batches over which a key can come
BUDGET = 1 << 17  # bytes, the least a progressive join takes


@dataclass(frozen=True)
class LongRun:
    """An operator under a budget, and the batches it gets."""

    operator: str
    inputs: tuple[str, ...] = ("left", "right")
    options: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 100  # of every input in every batch

    def plan(self, folder: str) -> JoinPlan:
        """The plan; `folder` is for the master table of a semi-stream join."""
        if self.operator != "semi_stream":
            return make_plan(self.operator, self.inputs, self.options, tuning=self.tuning)
        write_master(folder, [(key, key, "m" * 10) for key in range(MASTER_ROWS)], chunk_rows=256)
        return semi_stream_plan(folder, self.options, self.tuning)

    def batch(self, plan: JoinPlan, number: int) -> Batch:
        """The rows of a batch, the same each time."""
        rng = np.random.default_rng(number)
        rows = {spec.name: self._rows(rng, number, spec) for spec in plan.inputs}
        return Batch(number, (number + 1) * SECOND, rows)

    def _rows(self, rng: np.random.Generator, number: int, spec: InputSpec) -> pa.Table:
        if spec.name == STREAM:
            keys = rng.integers(0, MASTER_ROWS, self.rows)
        else:
            keys = rng.integers(number * self.rows, (number + SPAN) * self.rows, self.rows)
        times = number * SECOND + rng.integers(0, SECOND, self.rows)
        text = pa.array(["x" * 10] * self.rows)
        columns = [pa.array(keys), pa.array(times), text]
        hashes = pa.array(hash_keys(columns[:1]), pa.uint64())
        return pa.Table.from_arrays([hashes, *columns], names=[HASH, *spec.schema.names[1:]])


@dataclass(frozen=True)
class Extent:
    """What a partition's directory holds after a batch."""

    files: int
    manifest_bytes: int
    runs: int
    counters: Mapping[str, float]
    seconds: float  # of CPU that the batch took


LONG_RUNS = {
    "rpj": LongRun("rpj", options={"policy": "rpj"}, tuning={"memory": BUDGET}),
    "xjoin": LongRun("xjoin", options={"policy": "xjoin"}, tuning={"memory": BUDGET}),
    "hmj": LongRun("hmj", options={"policy": "hmj"}, tuning={"memory": BUDGET}),
    "punctuated": LongRun("punctuated", tuning={"memory": BUDGET}),
    "window": LongRun(
        "window",
        options={"window": (60 * SECOND, 60 * SECOND), "time_columns": ("_p0", "_p0")},
        tuning={"memory": BUDGET},
    ),
    "semi_stream": LongRun("semi_stream", (STREAM,), tuning={"memory": BUDGET}),
    "symmetric": LongRun("symmetric"),
    "mjoin": LongRun("mjoin", ("a", "b", "c")),
}


def long_run(case: LongRun, folder: str, batches: int) -> Iterator[Extent]:
    """Run batch after batch over a state directory; what is there after each, and the CPU time it took."""
    plan, directory = case.plan(f"{folder}/master"), StateDir(f"{folder}/state")
    store = PartitionStore(directory, 0)
    for number in range(batches):
        batch, started = case.batch(plan, number), process_time()
        for _ in run_batch(plan, directory, 0, batch):
            pass
        seconds = process_time() - started
        yield extent(directory, store, store.manifest(number), seconds)


def extent(directory: StateDir, store: PartitionStore, manifest: Manifest, seconds: float) -> Extent:
    """What a version and its neighbours take."""
    counters = manifest.history[-1]["counters"]
    return Extent(len(directory.list(store.folder)), len(manifest.to_bytes()), len(manifest.runs), counters, seconds)
