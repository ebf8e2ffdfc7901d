"""What the benchmarks share: seeded inputs, timed streaming runs with a checked answer, tables and result files.

Every benchmark runs its rivals in the same process on the same files and compares ratios, because absolute times differ
from machine to machine and from hour to hour.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
DEFAULT_STORE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
console = Console(width=110)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that goes away afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="watersmeet-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_input(frame: DataFrame, folder: Path, files: int, span: int | None = None) -> None:
    """Write a DataFrame as numbered parquet files in the order of `seq`, in which a file source reads them.

    With `span` every file has an equal stretch of 0 <= seq < span, so the files of two inputs belong together; without
    it they are of about equal size.
    """
    folder.mkdir(parents=True)
    if span is None:
        parts = frame.repartitionByRange(files, "seq")
    else:
        number = F.least(F.floor(F.greatest(F.col("seq"), F.lit(0)) * files / span), F.lit(files - 1))
        parts = frame.repartitionById(files, number.cast("int"))
    parts.sortWithinPartitions("seq").drop("seq").write.parquet(f"{folder}/all")
    for number, part in enumerate(sorted(Path(folder, "all").glob("part-*.parquet"))):
        target = part.rename(folder / f"{number:05d}.parquet")
        os.utime(target, (1_700_000_000 + number,) * 2)  # a file source reads files in the order of their times
    shutil.rmtree(folder / "all")


def seeded(name: str, seed: int, domain: int) -> Column:
    """A column of pseudo-random integers below `domain`, a function of the row number `id`."""
    return F.pmod(F.xxhash64("id", F.lit(seed)), F.lit(domain)).alias(name)


def stream(session: SparkSession, folder: Path, schema: str, files_per_batch: int = 1) -> DataFrame:
    """The files of a folder as a stream, so many per micro-batch."""
    reader = session.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch)
    return reader.parquet(str(folder))


@dataclass
class Run:
    """A finished streaming run: seconds and input rows of every micro-batch, and the answer's checksum."""

    name: str
    seconds: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    answer: dict[str, int] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        """Over all micro-batches; 0 if none was finished in time."""
        return sum(self.rows) / sum(self.seconds) if self.seconds else 0.0

    def steady(self, first: int = 3) -> float:
        """Rows per second from micro-batch `first` (counted from 0) on."""
        return sum(self.rows[first:]) / sum(self.seconds[first:])

    def as_dict(self) -> dict[str, Any]:
        """The form kept in the result file."""
        return {
            "rows_per_second": round(self.rows_per_second),
            "steady_rows_per_second": round(self.steady()) if len(self.seconds) > 3 else None,
            "batch_seconds": [round(s, 3) for s in self.seconds],
            "batch_rows": self.rows,
            "answer": self.answer,
            **self.extra,
        }


def checksum(columns: Iterable[str]) -> list[Column]:
    """The number of rows and the sum of each column: cheap enough not to disturb what is measured."""
    return [F.count(F.lit(1)).alias("count"), *(F.sum(c).cast("long").alias(f"sum_{c}") for c in columns)]


def batch_answer(frame: DataFrame, columns: Sequence[str]) -> dict[str, int]:
    """The checksum of a batch DataFrame."""
    return {k: int(v) for k, v in frame.agg(*checksum(columns)).first().asDict().items()}


def run_to_end(
    name: str, frame: DataFrame, folder: Path, columns: Sequence[str], *, limit_seconds: float | None = None
) -> Run:
    """Run a streaming DataFrame over all its files into the noop sink.

    The answer's checksum is observed on the way, at the same price for every engine. With `limit_seconds` the run is
    stopped after that time and has only the micro-batches finished by then.
    """
    observed = frame.observe("answer", *checksum(columns))
    query = (
        observed.writeStream.format("noop")
        .option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    done = query.awaitTermination(limit_seconds) if limit_seconds else (query.awaitTermination() or True)
    if not done:
        query.stop()
    run = Run(name)
    for progress in query.recentProgress:
        row = progress["observedMetrics"].get("answer")
        values = row.asDict() if row is not None and hasattr(row, "asDict") else dict(row or {})
        for key, value in values.items():  # also of a batch without rows, in which Spark evicts and emits what is left
            run.answer[key] = run.answer.get(key, 0) + int(value or 0)
        if not progress["numInputRows"]:
            continue
        run.seconds.append(progress["durationMs"]["triggerExecution"] / 1000)
        run.rows.append(int(progress["numInputRows"]))
        if progress["stateOperators"]:  # Spark's own stateful operators, after the newest micro-batch
            run.extra["state"] = [json.loads(operator.json) for operator in progress["stateOperators"]]
            held = sum(int(operator["numRowsTotal"]) for operator in run.extra["state"])
            run.extra.setdefault("state_rows", []).append(held)
    run.extra["finished"] = bool(done)
    return run


def in_turns(engines: Mapping[str, Callable[[int], Run]], warm_ups: int, repeats: int) -> dict[str, Run]:
    """Run every engine once per turn. The first turns are for the JVM, which still compiles; of the others the run with
    the median of the steady speeds counts."""
    turns: dict[str, list[Run]] = {name: [] for name in engines}
    for turn in range(warm_ups + repeats):
        for name, engine in engines.items():
            turns[name].append(engine(turn))
    chosen = {}
    for name, some in turns.items():
        chosen[name] = sorted(some[warm_ups:], key=Run.steady)[repeats // 2]
        chosen[name].extra["steady_of_all_turns"] = [round(run.steady()) for run in some]
    return chosen


def compare(title: str, runs: Mapping[str, Run]) -> dict[str, float]:
    """Print a table of runs; returns how many times as fast as each other run the first one is, when steady."""
    ours = next(iter(runs.values()))
    table(
        title,
        ["engine", "rows/s", "steady rows/s", "ours over it", "first batch s", "last batch s"],
        [
            (name, round(r.rows_per_second), round(r.steady()), ours.steady() / r.steady(), r.seconds[0], r.seconds[-1])
            for name, r in runs.items()
        ],
    )
    return {
        f"ratio_vs_{name.removeprefix('spark_')}": round(ours.steady() / run.steady(), 2)
        for name, run in runs.items()
        if run is not ours
    }


def use_store(session: SparkSession, store: str) -> None:
    """Which state store Spark's own joins use from now on; RocksDB with its faster way of writing checkpoints."""
    session.conf.set("spark.sql.streaming.stateStore.providerClass", store)
    session.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")


def check(run: Run, expected: dict[str, int]) -> None:
    """Stop the benchmark if an answer is wrong."""
    if run.answer != expected:
        console.print(f"[red]{run.name} gave a wrong answer[/red]: {run.answer}, expected {expected}")
        sys.exit(1)


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table."""
    shown = Table(title=title, title_justify="left")
    for name in header:
        shown.add_column(name, justify="left" if name == header[0] else "right")
    for row in rows:
        shown.add_row(
            *(
                f"{cell:,.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else str(cell)
                for cell in row
            )
        )
    console.print(shown)


def save(name: str, result: dict[str, Any]) -> None:
    """Write `results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written to {path.relative_to(RESULTS.parent.parent)}")


def flatness(seconds: Sequence[float]) -> float:
    """How much slower the last three micro-batches are than the 4th to 6th."""
    return statistics.mean(seconds[-3:]) / statistics.mean(seconds[3:6])
