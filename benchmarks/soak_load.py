"""A window join at a steady rate, with stalls, for a long time: does anything creep up?

    python benchmarks/soak_load.py --minutes 60

Two streams of small files, `RATE` rows per second on each; every two minutes one of them falls silent for 15 seconds
and then catches up. Every row has exactly one partner, so the answer is known at any time. Resident memory (the driver,
its JVM and the Python workers), open files, state files and the time of a micro-batch are sampled; after the first
quarter of the run, in which everything warms up, none of them may grow.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from harness import console, save, scratch, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm

RATE = 500
FILE_SECONDS = 2.0
STALL_EVERY, STALL_SECONDS = 120.0, 15.0
SAMPLE_SECONDS = 5.0
WINDOW = "60 s"
SCHEMA = "k long, {0}_at timestamp, {0} string"
MEASURES = {"resident memory, MB": 1.10, "open files": 1.10, "state files": 1.25, "batch, seconds": 1.25}
START = datetime(2024, 2, 29, tzinfo=UTC)


class Feeder(threading.Thread):
    """Writes the files of both streams at their rate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.fed = {"left": 0, "right": 0}
        self.done = threading.Event()
        for side in self.fed:
            (folder / side).mkdir()

    def run(self) -> None:
        """Until told to stop; then both streams are brought to the same length."""
        began = time.monotonic()
        while not self.done.wait(FILE_SECONDS / 4):
            elapsed = time.monotonic() - began
            for number, side in enumerate(self.fed):
                cycle, phase = divmod(elapsed, STALL_EVERY)
                silent = cycle % 2 == number and 60 <= phase < 60 + STALL_SECONDS
                while not silent and self.fed[side] < int(elapsed / FILE_SECONDS):
                    self.write(side)
        for side in self.fed:
            while self.fed[side] < max(self.fed.values()):
                self.write(side)

    def write(self, side: str) -> None:
        """The next file of a stream."""
        number = self.fed[side]
        size = int(RATE * FILE_SECONDS)
        keys = list(range(number * size, (number + 1) * size))
        time_of_file = START + timedelta(seconds=number * FILE_SECONDS)
        columns = {
            "k": pa.array(keys),
            f"{side}_at": pa.array([time_of_file] * size, pa.timestamp("us", "UTC")),
            side: pa.array([f"payload of row {key}" for key in keys]),
        }
        hidden = self.folder / side / f".{number:07d}.parquet"
        pq.write_table(pa.table(columns), hidden)
        hidden.rename(hidden.with_name(f"{number:07d}.parquet"))
        self.fed[side] += 1


def stream(session: SparkSession, folder: Path, side: str) -> DataFrame:
    """One stream; what was read is deleted, so that listing the folder does not get slower."""
    reader = session.readStream.schema(SCHEMA.format(side)).option("maxFilesPerTrigger", 8)
    return reader.option("cleanSource", "delete").option("latestFirst", "false").parquet(str(folder / side))


def sample(state: Path) -> dict[str, float]:
    """What the whole tree of processes holds now."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    memory, files = 0, 0
    for process in processes:
        try:
            memory += process.memory_info().rss
            files += process.num_fds()
        except psutil.Error:
            continue
    return {
        "resident memory, MB": memory / 1e6,
        "open files": files,
        # The history is kept for good: one small file per partition and 32 micro-batches, which no batch reads.
        "state files": sum(1 for path in state.rglob("*") if path.is_file() and not path.name.startswith("metrics-")),
    }


def quarters(values: Sequence[float]) -> list[float]:
    """The median of each quarter of a run."""
    size = max(1, len(values) // 4)
    return [statistics.median(values[i * size : (i + 1) * size] or values[-1:]) for i in range(4)]


def run(minutes: float) -> dict[str, Any]:
    """The whole run; returns the samples."""
    samples: list[dict[str, float]] = []
    batches: dict[int, float] = {}
    with scratch() as folder:
        session = wm.local_session(cores=2, partitions=2)
        feeder = Feeder(folder)
        left, right = (stream(session, folder, side) for side in ("left", "right"))
        times = ("left_at", "right_at")
        joined = wm.window_join(
            left, right, "k", state_dir=folder / "state", window=WINDOW, time=times, lateness=WINDOW
        )
        counted = joined.observe("answer", F.count(F.lit(1)).alias("rows"))
        writer = counted.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(processingTime="1 second").start()
        feeder.start()
        until = time.monotonic() + 60 * minutes
        found: dict[int, int] = {}

        def note() -> None:
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    batches[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000
                    found[progress["batchId"]] = progress["observedMetrics"]["answer"]["rows"]

        while time.monotonic() < until:
            time.sleep(SAMPLE_SECONDS)
            samples.append(sample(folder / "state"))
            note()
            if query.exception() is not None:
                raise SystemExit(str(query.exception()))
        feeder.done.set()
        feeder.join()
        query.processAllAvailable()
        note()
        query.stop()
        session.stop()
        rows = int(RATE * FILE_SECONDS) * feeder.fed["left"]
    if sum(found.values()) != rows:
        console.print(f"[red]wrong answer[/red]: {sum(found.values())} rows, expected {rows}")
        sys.exit(1)
    series = {name: [entry[name] for entry in samples] for name in MEASURES if name in samples[0]}
    series["batch, seconds"] = [batches[number] for number in sorted(batches)]
    return {"minutes": minutes, "rows": rows, "batches": len(batches), "series": series}


def main() -> None:
    """Run, show the medians of the four quarters and judge them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    result = run(parser.parse_args().minutes)
    rows, crept = [], []
    for name, limit in MEASURES.items():
        medians = quarters(result["series"][name])
        growth = medians[3] / medians[1] if medians[1] else 1.0
        rows.append([name, *(float(value) for value in medians), growth, limit])
        if growth > limit:
            crept.append(name)
    result["medians"] = {row[0]: [round(value, 3) for value in row[1:5]] for row in rows}
    result["crept"] = crept
    title = f"{result['minutes']:g} minutes, {result['rows']:,} rows, {result['batches']:,} micro-batches: medians"
    table(title, ["", "1st quarter", "2nd", "3rd", "4th", "4th / 2nd", "at most"], rows)
    save("soak_load", result)
    if crept:
        console.print(f"[red]creeps up[/red]: {', '.join(crept)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
